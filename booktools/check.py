"""The static checks of `make check` and `make test`: each returns its findings, one line each, with the remedy."""

import ast
import json
import re
import subprocess
from pathlib import Path

from . import alone, api, fresh, notation, numerals, prose, refs, spelling
from .export import fresh_export
from .project import ROOT, BookError, label, notebooks
from .save import chapter_modules, is_saved

MAX_BYTES = 5_000_000
_ABSOLUTE = re.compile(
    r"(?<![\w.:/<~-])/(?:work|root|home|tmp|Users|private|mnt)\b[\w./-]*|\b[A-Z]:\\+Users\b"
)
_UNFINISHED = re.compile(r"\b(?:TODO|FIXME|TBD)\b")


def drift(root=ROOT):
    """Modules that differ from what their notebooks export now, or that have no notebook."""
    try:
        fresh = fresh_export(root)
    except BookError as error:
        return [str(error)]
    here = {p.name: p.read_text(encoding="utf-8") for p in (Path(root) / "agentrl").glob("*.py")}
    notebook = {f"{name}.py": f"nbs/{path.name}" for name, path in chapter_modules(root).items()}
    found = []
    for name in sorted(fresh.keys() | here.keys()):
        source = notebook.get(name, "the notebooks")
        if name not in fresh:
            found.append(f"agentrl/{name} has no notebook: `make export` deletes it")
        elif name not in here:
            found.append(f"agentrl/{name} is missing: `make export` writes it from {source}")
        elif here[name] != fresh[name]:
            found.append(
                f"agentrl/{name} differs from {source}: "
                "`make export` keeps the notebook, `nbdev-update` the module"
            )
    return found


def cleanliness(root=ROOT, paths=None):
    """Notebooks that `nbdev-clean` would change, or whose stored outputs are missing or wrong."""
    from fastcore.nbio import nb2str
    from nbdev.clean import clean_nb
    from nbdev.config import get_config

    config, saving, found = get_config(root), chapter_modules(root).values(), []
    for path in notebooks(root) if paths is None else paths:
        text = path.read_text(encoding="utf-8")
        cleaned = json.loads(text)
        clean_nb(cleaned, allowed_cell_metadata_keys=config.allowed_cell_metadata_keys)
        if nb2str(cleaned) != text:
            found.append(f"nbs/{path.name} is not clean: `nbdev-clean --fname nbs/{path.name}`")
        silent = []
        for cell in json.loads(text)["cells"]:
            source, outputs = "".join(cell["source"]), cell.get("outputs", [])
            begins = repr(source.strip()[:50])
            faults = [f"holds {what} {match!r}" for what, match in _unwanted(source, outputs)]
            if cell["cell_type"] == "code":
                faults += _cell_faults(source, outputs, path in saving)
                if expects_output(source) and not outputs:
                    silent.append(begins)
            found += [f"nbs/{path.name}, cell {begins}: {fault}" for fault in faults]
        if silent:
            found.append(
                f"nbs/{path.name} lacks the output of {len(silent)} cell(s), "
                f"the first {silent[0]}: `make save CHAPTER={label(path)}`"
            )
    return found


def _cell_faults(source, outputs, has_module):
    """What is wrong with one code cell, but for missing outputs."""
    if any(output["output_type"] == "error" for output in outputs):
        yield "stores an error: repair it, then `make save`"
    for line in source.splitlines():
        if line.startswith("#|") and not re.match(r"#\| [\w-]+: \S", line):
            yield f"write {line!r} as `#| key: value`"
    try:
        if is_saved(source) and not has_module:
            yield "is saved, but its notebook names no module: begin it with `#| default_exp: NAME`"
    except ValueError as error:
        yield str(error)


def expects_output(source):
    """Whether a code cell must leave an output: it prints, shows a value, is a figure or table."""
    if re.search(r"^#\| *eval: *false", source, re.M):
        return False
    if re.search(r"^#\| *label: *(fig|tbl)-", source, re.M):
        return True
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a cell with magics
        return False
    calls = [x.value for x in body if isinstance(x, ast.Expr) and isinstance(x.value, ast.Call)]
    prints = any(getattr(x.func, "id", "") == "print" for x in calls)
    shows = (
        bool(body)
        and isinstance(body[-1], ast.Expr)
        and not isinstance(body[-1].value, (ast.Call, ast.Constant))
    )
    return prints or shows and not source.rstrip().endswith(";")


def _unwanted(source, outputs):
    texts = [source]
    for output in outputs:
        texts.append("".join(output.get("text", "")))
        texts += ["".join(v) for k, v in output.get("data", {}).items() if k.startswith("text/")]
    for text in texts:
        for what, pattern in (
            ("the absolute path", _ABSOLUTE),
            ("the unfinished note", _UNFINISHED),
        ):
            match = pattern.search(text)
            if match:
                yield what, match[0]


def api_index(root=ROOT):
    """Whether the stored API index is the one the modules give, and every name in it explained."""
    path, found = Path(root) / api.INDEX, []
    if not path.exists() or path.read_text(encoding="utf-8") != api.index(root):
        found.append(f"{api.INDEX} is out of date: `make export` writes it")
    for module in chapter_modules(root):
        source = Path(root) / f"agentrl/{module}.py"
        for entry in api.entries(source) if source.exists() else ():
            if not entry.summary:
                found.append(
                    f"agentrl.{module}.{entry.name} has no docstring: write one in its cell"
                )
            if "#" not in entry.place:
                found.append(
                    f"agentrl.{module}.{entry.name} is saved under no heading with an id: "
                    "add `{#sec-...}` to the one above"
                )
    return found


def contents(root=ROOT):
    """`_quarto.yml` against the files: every notebook listed once, every listed file there."""
    import yaml

    root = Path(root)
    book = yaml.safe_load((root / "_quarto.yml").read_text(encoding="utf-8"))
    listed = list(_files(book["book"]["chapters"])) + list(
        _files(book["book"].get("appendices", []))
    )
    there = {f"nbs/{p.name}" for p in notebooks(root)} | {api.INDEX}
    found = [
        f"_quarto.yml lists {x}, which does not exist" for x in listed if not (root / x).exists()
    ]
    found += [
        f"_quarto.yml lists {x} twice" for x in sorted({x for x in listed if listed.count(x) > 1})
    ]
    found += [f"_quarto.yml does not list {x}" for x in sorted(there - set(listed))]
    if not (root / book["bibliography"]).exists():
        found.append(f"_quarto.yml names {book['bibliography']}, which does not exist")
    return found


def _files(items):
    for item in items:
        if isinstance(item, dict):
            yield from _files(item.get("chapters", []))
            item = item.get("part", item.get("file", ""))
        if str(item).endswith((".ipynb", ".qmd", ".md")):
            yield item


def files(root=ROOT):
    """Files of the repository over the size limit, and results that hold a path of one machine."""
    root = Path(root)
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    names = (
        listing.stdout.split("\0")
        if listing.returncode == 0
        else [p.relative_to(root) for p in root.glob("[!.]*/**/*")]
    )
    paths = [root / name for name in names if name and (root / name).is_file()]
    found = [
        f"{p.relative_to(root)} is {p.stat().st_size / 1e6:.1f} MB; "
        f"the limit is {MAX_BYTES / 1e6:.0f} MB"
        for p in paths
        if p.stat().st_size > MAX_BYTES
    ]
    for path in paths:
        if path.relative_to(root).parts[0] == "results" and path.suffix in (
            ".json",
            ".ipynb",
            ".csv",
            ".md",
        ):
            match = _ABSOLUTE.search(path.read_text(encoding="utf-8"))
            if match:
                found.append(
                    f"{path.relative_to(root)} holds the absolute path {match[0]!r}: "
                    "run it again, or store it relative"
                )
    return found


def _rule(of_page, of_book=None, pages=notebooks):
    """A check of pages, one or all, from a generator of `(cell, text, advice)` for one page.

    `of_book` yields findings, whole lines, that belong to no page; they are looked for when all are.
    """

    def check(root=ROOT, paths=None):
        root = Path(root)
        found = [] if of_book is None or paths is not None else list(of_book(root))
        for path in pages(root) if paths is None else paths:
            name = path.relative_to(root).as_posix()
            for cell, text, advice in of_page(root, path):
                place = f", cell {cell.number} {cell.begins()!r}" if cell else ""
                found.append(f"{name}{place}: {text}: {advice}")
        return found

    return check


def _tolerances(root, path):
    for cell in prose.cells(path):
        try:
            fresh.tolerance(cell)
        except ValueError as error:
            yield cell, "its tolerance", str(error)


def _numbers(root, path):
    return numerals.check(path, refs.homes(root))


# The rules that bind prose to code, by page; CONTRIBUTING.md states them. Rules 1 and 2 are run by
# `suite`, which executes the chapters.
RULES = {
    "2 tolerances": _rule(_tolerances),
    "3 numbers in prose": _rule(_numbers),
    "4 references and links": _rule(refs.references, lambda root: [*refs.uncited(root), *refs.unsourced(root)], refs.pages),
    "4 names in prose": _rule(refs.names),
    "4 figures": _rule(lambda root, path: refs.figures(path)),
    "5 notation": _rule(notation.check, notation.page_faults),
    "6 spelling": _rule(
        lambda root, path: spelling.check(path), lambda root: spelling.list_faults(), refs.pages
    ),
    "7 exercises": _rule(lambda root, path: refs.exercises(path)),
    "notebooks that open alone": _rule(alone.check),
}

CHECKS = {
    "export drift": drift,
    "notebook cleanliness": cleanliness,
    "API index": api_index,
    "_quarto.yml": contents,
    "file sizes and paths": files,
}
