"""`#@save`: which cells become the library, and where each saved name comes from.

nbdev builds every processor of a notebook before its exporter runs, so `SaveProcessor` marks the
saved cells when it is constructed, and plain `nbdev-export` does the rest. pyproject.toml names
the processor; tests/test_tooling.py holds nbdev to that order.
"""

import ast
import re
from pathlib import Path

from .project import notebooks, write_atomic

SAVE = "#@save"
_HEADING = re.compile(r"^#{1,6} +(?P<text>.*?) *\{#(?P<id>[\w-]+)[^}]*\} *$")
_NUMBER = re.compile(r"^(?:[A-Z]|\d+)(?:\.\d+)+(?= )")
_BLOCK = re.compile(
    r"(?<=# chapters, in order: written by the export\n)(?:from \.\w+ import \*.*\n)*"
)


def is_saved(source):
    """Whether a cell's source, option lines aside, starts with `#@save`.

    Raises ValueError when `#@save` stands on its own line further down, where it would do nothing.
    """
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    if SAVE not in lines:
        return False
    at = lines.index(SAVE)
    if not all(x.startswith("#|") for x in lines[:at]) or any(
        x.startswith("#|") for x in lines[at:]
    ):
        raise ValueError(
            f"{SAVE} must be a cell's first line after its `#|` options; "
            f"move it in the cell that begins {lines[0]!r}"
        )
    return True


def public_names(source):
    """The names that a saved cell makes public, in order: functions, classes, assignments."""
    names = []
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                parts = [x for x in ast.walk(target) if isinstance(x, ast.Name)]
                names += [x.id for x in parts if isinstance(x.ctx, ast.Store)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def places(cells, notebook):
    """For each cell, where the book defines it: `'section 9.2 (nbs/09_grpo.ipynb#sec-grpo-loop)'`.

    The place is the nearest heading above with an id; before the first one it is the notebook.
    """
    here, found = notebook, []
    for cell in cells:
        source, fenced = "".join(cell["source"]), False
        for line in source.splitlines() if cell["cell_type"] == "markdown" else ():
            fenced ^= line.lstrip().startswith(("```", "~~~"))
            heading = None if fenced else _HEADING.match(line)
            if heading:
                number, chapter = _NUMBER.match(heading["text"]), re.match(r"nbs/(\d+|[A-Z])_", notebook)
                if number:
                    name = f"section {number[0]}"
                elif line.startswith("# ") and chapter:
                    number = chapter[1]
                    name = f"chapter {int(number)}" if number.isdigit() else f"appendix {number}"
                else:
                    name = f'"{heading["text"]}"'
                here = f"{name} ({notebook}#{heading['id']})"
        found.append(here)
    return found


class SaveProcessor:
    """Marks `#@save` cells for nbdev's exporter and writes down the section of each saved name.

    The table goes behind the last saved cell as a cell of its own, headed `auto`, which
    `nbdev-update` leaves alone: notebooks never receive what the export added. `agentrl` appends
    each entry to its object's docstring on import.
    """

    def __init__(self, nb):
        notebook = "nbs/" + Path(nb.get("path_", "notebook")).name
        table, last = {}, None
        for cell, place in zip(nb.cells, places(nb.cells, notebook), strict=True):
            if cell.cell_type == "code" and is_saved(cell.source):
                cell.directives_ = {**cell.directives_, "export": ""}
                last = cell
                table.setdefault(place, []).extend(public_names(cell.source))
        rows = [f"    {place!r}: {names!r},\n" for place, names in table.items() if names]
        if rows:
            last.set_source(f"{last.source}\n\n# %% auto #0\n_defined_in = {{\n{''.join(rows)}}}")

    def __call__(self, cell):
        pass

    def end(self):
        from nbdev.config import get_config

        write_init(get_config().config_path)


def chapter_modules(root):
    """The modules in chapter order, each with its notebook: `{'plotting': path, ...}`."""
    modules = {}
    for path in notebooks(root):
        text = path.read_text(encoding="utf-8")
        name = re.search(r'"#\| *default_exp:? +([\w.]+)', text)
        if name and f'"{SAVE}' in text:
            modules[name[1]] = path
    return modules


def init_text(root):
    """`agentrl/__init__.py` with the star imports that the notebooks ask for."""
    text = (Path(root) / "agentrl/__init__.py").read_text(encoding="utf-8")
    imports = "".join(f"from .{name} import *\n" for name in chapter_modules(root))
    return _BLOCK.sub(lambda _: imports, text, count=1)


def write_init(root):
    """Bring `agentrl/__init__.py` in step with the notebooks."""
    path, text = Path(root) / "agentrl/__init__.py", init_text(root)
    if text != path.read_text(encoding="utf-8"):
        write_atomic(path, text)
