"""The API index: every public name of `agentrl`, read from its source without importing it."""

import ast
import json
import re
from pathlib import Path
from typing import NamedTuple

from .project import ROOT
from .save import chapter_modules, public_names

INDEX = "nbs/api.qmd"
_HEAD = """# API index {#sec-api}

Every public name of the library, by chapter: all are reachable as `arl.NAME` after
`import agentrl as arl`. `python -m booktools api` writes this page from the modules.
"""


def index(root=ROOT):
    """The text of the API index, as Quarto Markdown."""
    parts = [_HEAD]
    for module, notebook in chapter_modules(root).items():
        path = Path(root) / f"agentrl/{module}.py"
        if path.exists():
            parts.append(
                f"## `agentrl.{module}` {{#sec-api-{module}}}\n\n"
                f"Saved by [{_title(notebook)}]({notebook.name}).\n"
            )
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
            found[name] = Entry(
                name, _signature(node, name), _summary(node, lines), where.get(name, "")
            )
    return list(found.values())


def _text(entry):
    label, _, target = entry.place.rstrip(")").partition(" (nbs/")
    link = f" [{label[:1].upper()}{label[1:]}]({target})." if target else ""
    return f"[`{entry.signature}`]{{#api-{entry.name}}}\n:   {_escape(entry.summary)}{link}\n"


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
        init = next(
            (x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"), None
        )
        if init:
            return f"{name}({ast.unparse(init.args).removeprefix('self').removeprefix(', ')})"
        fields = [x for x in node.body if isinstance(x, ast.AnnAssign)]
        if any(
            ast.unparse(x).startswith(("dataclass", "NamedTuple"))
            for x in node.decorator_list + node.bases
        ):
            text = ", ".join(
                x.target.id + (f"={ast.unparse(x.value)}" if x.value else "") for x in fields
            )
            return f"{name}({_made(text)})"
        return name
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    value = ast.unparse(node.value) if isinstance(target, ast.Name) and node.value else ""
    return (
        f"{name} = {value}"
        if 0 < len(value) <= 60 and "`" not in value and "\n" not in value
        else name
    )


def _made(text):
    return re.sub(r"field\(default_factory=([^()]+)\)", r"\1()", text)


def _summary(node, lines):
    """The docstring's first sentence; for a constant, the comment on or above it, or its kind."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        paragraph = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
        return re.split(r"(?<=\.) (?=[A-Z`\"'(])", paragraph)[0]
    tail = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode().strip()
    above, at = [], node.lineno - 2
    while at >= 0 and lines[at].startswith("# ") and not lines[at].startswith("# %%"):
        above.insert(0, lines[at][2:])
        at -= 1
    text = tail[1:].strip() if tail.startswith("#") else " ".join(above)
    kinds = {
        ast.Dict: "a dict",
        ast.List: "a list",
        ast.Tuple: "a tuple",
        ast.Set: "a set",
        ast.JoinedStr: "a string",
    }
    if not text and isinstance(node.value, ast.Constant):
        text = "a string" if isinstance(node.value.value, str) else "a number"
    text = text or kinds.get(type(node.value), "a constant")
    return text[0].upper() + text[1:]


def _escape(text):
    """Plain text for Markdown: what would be markup is escaped, except in code spans."""
    parts = text.rstrip(".").split("`")
    parts[::2] = [re.sub(r"([\\<>*$@\[\]^~])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts) + "."


def _title(notebook):
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        first = "".join(cell["source"]).split("\n")[0]
        if cell["cell_type"] == "markdown" and first.startswith("# "):
            return first[2:].split(" {")[0]
    return notebook.stem
