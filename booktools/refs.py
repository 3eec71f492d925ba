"""Rules 4 and 7: references, citations, links and names in prose resolve; exercises have solutions that run."""

import ast
import builtins
import keyword
import re
import sys
from functools import cache
from pathlib import Path

from . import prose
from .notation import chapter
from .numerals import EXERCISE, SOLUTION
from .project import notebooks

_LABEL = re.compile(rf"\{{#((?:{prose.REF_KINDS}|api)-[\w-]+)")
_HEADING_NUMBER = re.compile(r"^#{2,4} +((?:\d+|[A-Z])(?:\.\d+)+) ", re.M)
_PLAIN = re.compile(r"\b(sections?|exercises?|solutions?)\s+((?:\d+|[A-Z])\.\d+(?:\.\d+)*)", re.I)
_WORD = re.compile(r"[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z_][\w.]*(?:\(\))?")


def pages(root):
    """The pages that are read: notebooks, and the `.qmd` files beside them but for the API index."""
    root = Path(root)
    written = [
        p
        for p in sorted([*root.glob("*.qmd"), *(root / "nbs").glob("*.qmd")])
        if p.name != "api.qmd"
    ]
    return [*notebooks(root), *written]


def labels(root):
    """Every label of the book with the pages that set it: `{'sec-grpo': [path, ...]}`."""
    found = {}
    api = Path(root) / "nbs/api.qmd"
    for path in [*pages(root), *([api] if api.exists() else [])]:
        for cell in prose.cells(path):
            if cell.kind == "code":
                names = [cell.options["label"]] if "label" in cell.options else []
            else:
                text = re.sub(r"^(```+|~~~+).*?^\1", "", cell.source, flags=re.M | re.S)
                names = _LABEL.findall(text)
            for name in names:
                found.setdefault(name, []).append(path)
    return found


def homes(root):
    """The notebook of each label, for those that one notebook sets."""
    return {name: paths[0] for name, paths in labels(root).items() if paths[0].suffix == ".ipynb"}


def bibliography(root):
    """The keys of references.bib."""
    path = Path(root) / "references.bib"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return re.findall(r"^@\w+\s*\{\s*([^,\s]+)\s*,", text, re.M)


def references(root, path, known=None):
    """`(cell, text, advice)` for each reference, citation and link that leads nowhere."""
    root, known, keys = Path(root), known or labels(root), set(bibliography(root))
    numbers = _numbers(root)
    for cell, sentence in prose.reading(path):
        for ref in sentence.of("ref"):
            name = ref.lstrip("-@")
            if name not in known:
                yield cell, ref, "no cell or heading has this label: correct it, or add the label"
        for cite in sentence.of("cite"):
            if cite.lstrip("-@") not in keys:
                yield cell, cite, "references.bib has no such key: correct it, or add the entry"
        for text in sentence.of("link", "image"):
            target = re.search(r"\]\(([^)\s]+)", text)[1]
            fault = _link_fault(root, path, target, known)
            if fault:
                yield cell, text, fault
        for kind, number in _PLAIN.findall(sentence.plain()):
            kind = kind.lower().rstrip("s")
            if number not in numbers["section" if kind == "section" else "exercise"]:
                yield (
                    cell,
                    f"{kind} {number}",
                    f"there is no such {kind}: correct the number, or use a label",
                )
    for name in sorted(
        {x.lstrip("-@") for _, s in prose.reading(path) for x in s.of("ref")} & known.keys()
    ):
        if len(known[name]) > 1:
            where = ", ".join(sorted(p.name for p in known[name]))
            yield (
                None,
                f"@{name}",
                f"the label is set {len(known[name])} times ({where}): rename one",
            )


def uncited(root):
    """A line for each entry of references.bib that no page cites."""
    cited = {c.lstrip("-@") for p in pages(root) for _, s in prose.reading(p) for c in s.of("cite")}
    for key in bibliography(root):
        if key not in cited:
            yield f"references.bib: no page cites {key!r}: cite it, or delete the entry"


def unsourced(root):
    """A line for each entry of references.bib without one row, and one only, on the page of sources."""
    page = Path(root) / "nbs/E_sources.qmd"
    if not page.exists():
        return
    firsts = " ".join(re.findall(r"^\|([^|]*)", page.read_text(encoding="utf-8"), re.M))
    for key in bibliography(root):
        n = len(re.findall(rf"@{re.escape(key)}(?![\w-])", firsts))
        if n != 1:
            yield f"{page.name}: {key!r} has {n} rows: each work has one"


def _link_fault(root, path, target, known):
    if re.match(r"[a-z]+:", target):
        return None
    file, _, anchor = target.partition("#")
    place = (path.parent / file).resolve() if file else path
    if not place.exists():
        return "there is no such file: correct the link"
    if (
        anchor
        and anchor not in known
        and not re.search(rf"\{{#{re.escape(anchor)}\b", place.read_text(encoding="utf-8"))
    ):
        return f"{place.name} has no label {anchor!r}: correct the link"
    return None


def _numbers(root):
    found = {"section": set(), "exercise": set()}
    for path in pages(root):
        for cell in prose.cells(path):
            if cell.kind == "markdown":
                found["section"] |= set(_HEADING_NUMBER.findall(cell.source))
                found["exercise"] |= set(
                    re.findall(r"^\*\*([A-Z0-9]+\.\d+)\*\*", cell.source, re.M)
                )
    return found


def figures(path):
    """`(cell, text, advice)` for each figure without a label, a caption or an alt text that says something."""
    for cell in prose.cells(path):
        pictures = [
            x for x in cell.outputs if any(k.startswith("image/") for k in x.get("data", {}))
        ]
        named = cell.options.get("label", "").startswith("fig-")
        if (pictures or named) and cell.options.get("include") != "false":
            for key, wanted in (
                ("label", "`#| label: fig-...`"),
                ("fig-cap", '`#| fig-cap: "..."`'),
                ("fig-alt", '`#| fig-alt: "..."`'),
            ):
                if not cell.options.get(key) or key == "label" and not named:
                    yield cell, cell.begins(), f"the figure has no {wanted}: add it"
            alt, caption = cell.options.get("fig-alt", ""), cell.options.get("fig-cap", "")
            if alt and (len(alt.split()) < 6 or alt == caption):
                yield (
                    cell,
                    alt,
                    "the alt text must say what the figure shows, in six words or more, and not repeat the caption",
                )
            if named and not pictures:
                yield (
                    cell,
                    cell.begins(),
                    "the cell is labelled as a figure and stores none: run it, or drop the label",
                )
        if cell.kind == "markdown":
            for sentence in prose.sentences(cell.source):
                for text in sentence.of("image"):
                    if not re.match(r"!\[[^]]*\w", text):
                        yield (
                            cell,
                            text,
                            "the picture has no alt text: write it between the brackets",
                        )


@cache
def _library(root, stamps):
    """`(public names, every word)` of the library's modules."""
    public, words = set(), set()
    for path in sorted((Path(root) / "agentrl").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        words |= set(_WORD.findall(source))
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                public |= set(ast.literal_eval(node.value))
            elif path.name == "__init__.py" and hasattr(node, "name"):
                public.add(node.name)
    return public, words


def library(root):
    """`(public names, every word)` of the library as it stands in `agentrl/`."""
    stamps = tuple(
        sorted((p.name, p.stat().st_mtime_ns) for p in (Path(root) / "agentrl").glob("*.py"))
    )
    return _library(str(root), stamps)


def names(root, path):
    """`(cell, text, advice)` for each name in code type that neither the library nor the chapter has."""
    public, words = library(root)
    modules = {p.stem for p in (Path(root) / "agentrl").glob("*.py")}
    files = {p.name for p in Path(root).iterdir()} | {"nbs", "agentrl"}
    known = (
        words | set(dir(builtins)) | set(keyword.kwlist) | set(sys.stdlib_module_names) | modules
    )
    for cell in prose.cells(path):
        if cell.kind == "code":
            known |= set(_WORD.findall(cell.source))
            for output in cell.outputs:
                known |= set(_WORD.findall(prose.output_text(output)))
        else:  # what a code block of the page shows
            for sentence in prose.sentences(cell.source):
                for text in sentence.of("fence"):
                    known |= set(_WORD.findall(text))
    for cell, sentence in prose.reading(path):
        if sentence.of("cite", "url") or any("](http" in x for x in sentence.of("link")):
            continue  # names of the work that is cited
        for span in sentence.of("code"):
            span = re.sub(r"\{[^}]*\}$", "", span).strip("`").strip()
            used = re.findall(r"\barl\.([A-Za-z_]\w*)", span)
            for name in used:
                if name not in public | modules:
                    yield cell, f"`{span}`", f"the library has no public name {name!r}: correct it"
            if used or not _NAME.fullmatch(span) or span in files:
                continue
            for word in span.removesuffix("()").split("."):
                if word and word not in known:
                    yield (
                        cell,
                        f"`{span}`",
                        (
                            f"neither the library nor this chapter has a name {word!r}: correct it, "
                            "or take the words out of code type"
                        ),
                    )
                    break


def exercises(path):
    """`(cell, text, advice)` for each exercise without a solution that runs, and for the reverse."""
    cells = prose.cells(path)
    asked, solved = [], {}
    for place, cell in enumerate(cells):
        if cell.kind != "markdown":
            continue
        asked += [(cell, m[1]) for m in re.finditer(rf"^{EXERCISE.pattern}", cell.source, re.M)]
        for title in re.finditer(r"^:::+ *\{[^}\n]*title=\"" + SOLUTION.pattern, cell.source, re.M):
            following = cells[place + 1] if place + 1 < len(cells) else None
            solved.setdefault(title[1], []).append((cell, following))
    first = (
        int(asked[0][1].partition(".")[2]) if asked else 1
    )  # an appendix may go on in a second notebook
    first = first if chapter(path).isalpha() else 1
    for position, (cell, name) in enumerate(asked, first):
        expected = f"{chapter(path)}.{position}"
        if name != expected:
            yield (
                cell,
                f"exercise {name}",
                f"it is number {position} of the chapter: call it {expected}",
            )
        if not re.search(
            rf"\*\*{re.escape(name)}\*\*\s*\((?:easy|medium|hard), \d+ (?:minutes?|hours?)\)",
            cell.source,
        ):
            yield (
                cell,
                f"exercise {name}",
                "say how hard it is and how long it takes: `(easy, 10 minutes)`",
            )
        solutions = solved.pop(name, [])
        if len(solutions) != 1:
            yield (
                cell,
                f"exercise {name}",
                (
                    f'it has {len(solutions)} solutions: write one callout with title="Solution {name}"'
                ),
            )
        for solution, code in solutions:
            if code is None or code.kind != "code":
                yield (
                    solution,
                    f"solution {name}",
                    "no code cell follows it: add the cell that works it out",
                )
            elif code.options.get("eval") == "false":
                yield code, f"solution {name}", "its cell does not run: drop `#| eval: false`"
            elif "assert" not in code.source and not code.outputs:
                yield (
                    code,
                    f"solution {name}",
                    "its cell neither asserts nor shows anything: let it check its answer",
                )
    for name, solutions in solved.items():
        yield solutions[0][0], f"solution {name}", "there is no such exercise: correct the title"
