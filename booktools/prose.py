"""What a reader reads in a notebook: sentences, formulas, names in code, links and references.

Markdown is taken apart just far enough for the checker's rules. Everything that is not running
text (a formula, a code span, a link's target, a citation, a cross reference) becomes a `Piece`
and leaves a placeholder in its sentence, so that a rule sees both what stands there and where.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

REF_KINDS = "sec|fig|eq|tbl|lst|thm|exm"
_OPEN, _CLOSE = "\ue000", "\ue001"
_TOKEN = re.compile(
    rf"""
    (?P<fence>^[ ]*(?P<mark>```+|~~~+)[^\n]*\n(?:.*?\n)?[ ]*(?P=mark)[ ]*$)
  | (?P<comment><!--.*?-->)
  | (?P<code>(?P<tick>`+)(?!`).+?(?<!`)(?P=tick)(?!`)(?:\{{[^}}\n]*\}})?)
  | (?P<display>\$\$.+?\$\$(?:[ ]*\{{\#[\w-]+\}})?)
  | (?P<math>(?<![\\$])\$(?![\s$])(?:\\.|[^$\\])+?(?<!\s)\$(?!\d))
  | (?P<attributes>\{{(?=[^}}\n]*[\#.=])[^}}\n]*\}})
  | (?P<image>!\[(?P<alt>[^]\n]*)\]\((?P<file>[^)\n]+)\))
  | (?P<link>\[(?P<words>[^]@\n]+)\]\((?P<target>[^)\n]+)\))
  | (?P<url><https?://[^>\n]+>|https?://[^\s)>]+)
  | (?P<ref>(?<![\w@])-?@(?:{REF_KINDS})-[\w-]+)
  | (?P<cite>(?<![\w@`])-?@[A-Za-z][\w:]*[\w])
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
# blank lines, and the lines that begin a list item, a table row or a heading
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)|\n(?=\s*\|)|(?<=\n)(?=#)")
_TITLE = re.compile(r"\btitle=\"([^\"]*)\"")
_SENTENCE = re.compile(
    r"(?<=[.!?:;])[*_'\")]*\s+(?=[*_'\"(\[]*[A-Z\ue000])|(?<=[.!?])[*_'\")]+\s+(?=\S)"
)


class Piece(NamedTuple):
    """A part of a sentence that is not running text; `kind` is a group name of `_TOKEN`."""

    kind: str
    text: str


class Sentence(NamedTuple):
    """One sentence, table row or title, with placeholders for its pieces."""

    text: str
    pieces: tuple

    def plain(self, fill=" "):
        """The running text alone."""
        return re.sub(f"{_OPEN}\\d+{_CLOSE}", fill, self.text)

    def shown(self):
        """The sentence as it was written."""
        return re.sub(f"{_OPEN}(\\d+){_CLOSE}", lambda m: self.pieces[int(m[1])].text, self.text)

    def of(self, *kinds):
        """The texts of its pieces of these kinds, in order."""
        found = [int(n) for n in re.findall(f"{_OPEN}(\\d+){_CLOSE}", self.text)]
        return [self.pieces[n].text for n in found if self.pieces[n].kind in kinds]


class Cell(NamedTuple):
    """One cell: its place in the notebook, its text, its `#|` options and its stored outputs."""

    number: int
    kind: str
    source: str
    options: dict
    outputs: list
    tags: list
    id: str

    def begins(self):
        """Its first words, for a finding."""
        lines = [x.strip() for x in self.source.splitlines() if x.strip()]
        told = [x for x in lines if not x.startswith(("#|", "#@save", ":::"))] or lines
        return (told or ["(empty)"])[0][:60]


@cache
def _cells(path, stamp):
    nb = json.loads(Path(path).read_text(encoding="utf-8"))
    return tuple(
        Cell(
            number,
            cell["cell_type"],
            "".join(cell["source"]),
            options("".join(cell["source"])) if cell["cell_type"] == "code" else {},
            cell.get("outputs", []),
            cell["metadata"].get("tags", []),
            cell.get("id", ""),
        )
        for number, cell in enumerate(nb["cells"])
    )


def cells(path):
    """The `Cell`s of a notebook; of a `.qmd` page the one cell that it amounts to."""
    path = Path(path)
    if path.suffix != ".ipynb":
        return (Cell(0, "markdown", path.read_text(encoding="utf-8"), {}, [], [], ""),)
    stat = path.stat()
    return _cells(str(path), (stat.st_mtime_ns, stat.st_size))


def options(source):
    """The `#| key: value` lines of a code cell, values as text without their quotes."""
    found = {}
    for line in source.splitlines():
        if not line.startswith("#|"):
            break
        key, _, value = line[2:].strip().partition(":")
        value = value.strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        found[key] = value[1:-1].replace('\\"', '"').replace("\\\\", "\\") if quoted else value
    return found


@cache
def sentences(markdown):
    """The `Sentence`s of a Markdown text, in order: paragraphs, list items, table rows, titles."""
    pieces = []

    def keep(match):
        text = match[0]
        kind = next(
            k for k in _TOKEN.groupindex if match[k] is not None and k not in ("mark", "tick")
        )
        if kind == "attributes":
            title = _TITLE.search(text)
            return f"\n\n{_mark(title[1])}\n\n" if title else " "
        if kind == "comment":
            return " "
        pieces.append(Piece(kind, text))
        place = f"{_OPEN}{len(pieces) - 1}{_CLOSE}"
        if kind in ("link", "image"):
            return _mark(match["words"] if kind == "link" else match["alt"]) + place
        return f"\n\n{place}\n\n" if kind == "fence" else place

    def _mark(text):
        return _TOKEN.sub(keep, text)

    text = re.sub(r"^:::+.*$", lambda m: "\n" + m[0].lstrip(": ") + "\n", markdown, flags=re.M)
    text = _TOKEN.sub(keep, text)
    found = []
    for block in _BLOCK.split(text):
        heading = re.match(r"\s*#+ ([^\n]*)\n?(.*)", block, re.S)
        for part in heading.groups() if heading else (block,):
            row = part.lstrip().startswith("|")
            part = " ".join(part.split())
            if re.fullmatch(r"[-:| ]*", part):
                continue
            for sentence in [part] if row else _SENTENCE.split(part):
                if sentence.strip():
                    found.append(Sentence(sentence.strip(), tuple(pieces)))
    return tuple(found)


def captions(cell):
    """The `Sentence`s of a figure's caption and alt text."""
    texts = [cell.options[key] for key in ("fig-cap", "fig-alt", "tbl-cap") if key in cell.options]
    return [sentence for text in texts for sentence in sentences(text)]


def reading(path):
    """Everything that is read in a notebook: `(Cell, Sentence)` pairs, captions included."""
    for cell in cells(path):
        for sentence in sentences(cell.source) if cell.kind == "markdown" else captions(cell):
            yield cell, sentence


def formulas(sentence):
    """The LaTeX of each formula of a sentence, without dollars and label."""
    found = []
    for text in sentence.of("math", "display"):
        body = re.sub(r"\s*\{#[\w-]+\}$", "", text)
        found.append(body.strip("$").strip())
    return found


def output_text(output):
    """What a reader sees of one stored output as text; of a figure its size."""
    if "text" in output:
        return "".join(output["text"])
    data = output.get("data", {})
    for kind in ("text/plain", "text/markdown", "text/html"):
        if kind in data:
            text = "".join(data[kind])
            return re.sub(r"<[^>]+>", " ", text) if kind == "text/html" else text
    return ""
