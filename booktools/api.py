"""The API index: every public name of `agentrl`, read from its source without importing it."""
import ast
from pathlib import Path
from typing import NamedTuple

from .project import ROOT
from .save import chapter_modules, public_names

INDEX = "nbs/api.qmd"
_HEAD = """# API index {#sec-api}

Every public name of the library, by chapter: all are reachable as `arl.NAME` after `import agentrl as arl`.
`python -m booktools api` writes this page from the modules.
"""


def index(root=ROOT):
    """The text of the API index, as Quarto Markdown."""
    parts = [_HEAD]
    for module, notebook in chapter_modules(root).items():
        path = Path(root) / f"agentrl/{module}.py"
        if path.exists():
            parts.append(f"## `agentrl.{module}` {{#sec-api-{module}}}\n\nSaved by [{_title(notebook)}]({notebook.name}).\n")
            parts += [_text(entry) for entry in entries(path)]
    return "\n".join(parts)


class Entry(NamedTuple):
    """One public name: its signature, what it is in a line, and the section that defines it."""

    name: str
    signature: str
    summary: str
    place: str


def entries(path):
    """The `Entry` of each public name in a module, in the order defined."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    where = {name: place for place, names in _table(tree).items() for name in names}
    lines = source.splitlines()
    found = {}
    for node in tree.body:
        for name in public_names(ast.unparse(node)):
            found[name] = Entry(name, _signature(node, name), _summary(node, lines), where.get(name, ""))
    return list(found.values())


def _text(entry):
    label, _, target = entry.place.rstrip(")").partition(" (nbs/")
    link = f" [{label[:1].upper()}{label[1:]}]({target})." if target else ""
    return f"[`{entry.signature}`]{{#api-{entry.name}}}\n:   {entry.summary}{link}\n"


def _table(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_defined_in":
            return ast.literal_eval(node.value)
    return {}


def _signature(node, name):
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{name}({ast.unparse(node.args)}){returns}"
    if isinstance(node, ast.ClassDef):
        init = next((x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"), None)
        if init:
            return f"{name}({ast.unparse(init.args).removeprefix('self').removeprefix(', ')})"
        fields = [x for x in node.body if isinstance(x, ast.AnnAssign)]
        if fields and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
            return f"{name}({', '.join(x.target.id + (f'={ast.unparse(x.value)}' if x.value else '') for x in fields)})"
    return name


def _summary(node, lines):
    """The docstring's first paragraph line; for a constant, the comment on or right above it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return (ast.get_docstring(node) or "").split("\n")[0]
    tail = lines[node.end_lineno - 1][node.end_col_offset:].strip()
    above, at = [], node.lineno - 2
    while at >= 0 and lines[at].startswith("# ") and not lines[at].startswith("# %%"):
        above.insert(0, lines[at][2:])
        at -= 1
    text = tail[1:].strip() if tail.startswith("#") else " ".join(above)
    return text[:1].upper() + text[1:] if text else "Constant."


def _title(notebook):
    import json
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        first = "".join(cell["source"]).split("\n")[0]
        if cell["cell_type"] == "markdown" and first.startswith("# "):
            return first[2:].split(" {")[0]
    return notebook.stem
