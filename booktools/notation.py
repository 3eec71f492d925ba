"""Rule 5: each symbol that a chapter's formulas use is on the notation page, for that chapter."""

import re
from functools import cache
from pathlib import Path

from . import latex, prose
from .project import label, notebooks

PAGE = "nbs/D_notation.qmd"
_ROW = re.compile(r"^\|(.*)\|\s*$")


def chapter(path):
    """How a notebook is called in the page's last column: `9`, `B`, `headline`.

    That is the number of its sections, whatever its file is called.
    """
    for cell in prose.cells(path):
        number = (
            re.search(r"^## +(\d+|[A-Z])\.\d+ ", cell.source, re.M)
            if cell.kind == "markdown"
            else None
        )
        if number:
            return number[1]
    return label(path).lstrip("0") or "0"


@cache
def _rows(text):
    found, inside = [], False
    for line in text.splitlines():
        row = _ROW.match(line)
        cells = [x.strip() for x in re.split(r"(?<!\\)\|", row[1])] if row else []
        if not row:
            inside = False
        elif cells[0] == "Symbol" and cells[-1] == "Chapters":
            inside = True
        elif inside and not re.fullmatch(r"[-: ]*", cells[0]):
            used = set()
            for sentence in prose.sentences(cells[0]):
                for formula in prose.formulas(sentence):
                    used |= latex.symbols(formula)
            found.append((cells[0], used, cells[-1]))
    return found


def table(root):
    """The page's rows: `(first column, its symbols, chapters)`; chapters is a set, or None for all."""
    path = Path(root) / PAGE
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [(shown, used, _chapters(where)) for shown, used, where in _rows(text)]


def _chapters(where):
    if where == "all":
        return None
    found = set()
    for part in re.split(r"\s*(?:,|\band\b)\s*", where):
        span = re.fullmatch(r"(\d+)\s*(?:to|-|–)\s*(\d+)", part)
        found |= {str(n) for n in range(int(span[1]), int(span[2]) + 1)} if span else {part}
    return found - {""}


def symbols(path):
    """The symbols of a notebook's formulas, each with the first cell that uses it."""
    found = {}
    for cell, sentence in prose.reading(path):
        for formula in prose.formulas(sentence):
            for symbol in sorted(latex.symbols(formula)):
                found.setdefault(symbol, (cell, formula))
    return found


def check(root, path):
    """`(cell, text, advice)` for each symbol of a notebook that the notation page lacks."""
    here, rows = chapter(path), table(root)
    allowed = {x for _, used, where in rows if where is None or here in where for x in used}
    for symbol, (cell, formula) in symbols(path).items():
        if symbol not in allowed:
            yield (
                cell,
                f"{symbol} in ${formula[:80]}$",
                (
                    f"{PAGE} has no row that defines it for chapter {here}: add one, or use the book's letter"
                ),
            )


def page_faults(root):
    """Rows of the page for a chapter that uses none of the row's symbols, or that does not exist."""
    if not (Path(root) / PAGE).exists():
        yield f"there is no {PAGE}: write it"
        return
    rows = table(root)
    if not rows:
        yield f"{PAGE} has no table with `Symbol` first and `Chapters` last in its heading: add it"
    used = {}
    for path in notebooks(root):  # an appendix may have two notebooks
        used[chapter(path)] = used.get(chapter(path), set()) | symbols(path).keys()
    for shown, symbols_, where in rows:
        if not symbols_:
            yield f"{PAGE}, row {shown!r}: its first column holds no symbol between dollars: add it"
        for name in sorted(where or ()):
            if name not in used:
                yield f"{PAGE}, row {shown!r}: there is no chapter {name!r}: correct the last column"
            elif not symbols_ & used[name]:
                yield f"{PAGE}, row {shown!r}: chapter {name} uses none of these symbols: take it out of the last column"
