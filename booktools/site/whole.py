"""EPUB and PDF: the whole book as one tree, parts above chapters, nothing folded."""

import re
import shutil
import tempfile
from pathlib import Path
from string import Template

from ..project import BookError
from .html import ASSETS, figure_path, svg_size
from .pandoc import document, pandoc
from .source import callout_body, callout_kind, callout_title
from .tree import attr, div, get, header, node, nodes, plain, raw, rewrite, words

FRONT = "Before you start"


def write_epub(resolved, folder, path):
    """The book as EPUB 3, mathematics as MathML; figures come from `folder`."""
    book = resolved.book
    facts = {
        "title": book.title,
        "subtitle": book.config["book"].get("subtitle", ""),
        "author": book.config["book"].get("author", ""),
        "lang": "en",
        "rights": "Code: MIT. Text and figures: CC BY 4.0.",
        "identifier": book.repo or f"urn:agentrl:{book.title.lower().replace(' ', '-')}",
    }
    meta = {key: node("MetaString", str(value)) for key, value in facts.items() if value}
    pandoc(
        ["-f", "json", "-t", "epub3", "--mathml", "--syntax-highlighting=none", "--toc",
         "--toc-depth=3", "--split-level=2",
         f"--css={ASSETS / 'epub.css'}", f"--resource-path={folder}", "-o", str(path)],
        document(whole(resolved, "epub"), meta),
    )  # fmt: skip


def write_pdf(resolved, folder, path):
    """The book as PDF, set by typst; figures come from `folder`."""
    import typst

    book = resolved.book
    body = pandoc(["-f", "json", "-t", "typst", "--wrap=none"], document(whole(resolved, "typst")))
    text = Template((ASSETS / "book.typ").read_text(encoding="utf-8")).safe_substitute(
        title=_quoted(book.title),
        subtitle=_quoted(book.config["book"].get("subtitle", "")),
        author=_quoted(book.config["book"].get("author", "")),
    )
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pdf-") as draft:
        source = Path(draft) / "book.typ"
        source.write_text(text + body, encoding="utf-8")
        (Path(draft) / "figures").symlink_to(folder / "figures")
        try:
            typst.compile(str(source), output=str(path), root=str(folder))
        except RuntimeError as error:
            shutil.copy(source, path.with_suffix(".typ"))
            raise BookError(f"typst: {error}") from None


def whole(resolved, format):
    """All chapters under their parts, for one of the formats `epub` and `typst`."""
    blocks, part = [], None
    chapters = [c for c in resolved.book.chapters if c.stem != "figures" or format == "epub"]
    for chapter in chapters:
        if chapter.part != part:
            part = chapter.part
            blocks.append(header(1, f"part-{len(blocks)}", words(part or FRONT)))
        lower = _Lowering(resolved, chapter, format)
        blocks += rewrite(chapter.blocks, lower.change)
    ids = {x["c"][1][0] if x["t"] == "Header" else x["c"][0][0] for x in nodes(blocks)
           if x["t"] in ("Header", "Div", "Span", "Figure", "Table", "Code")} | lower.made  # fmt: skip
    return rewrite(blocks, lambda x: _dead_link(x, ids))


def _dead_link(x, ids):
    if x["t"] == "Link" and x["c"][2][0].startswith("#") and x["c"][2][0][1:] not in ids:
        return x["c"][1]
    return None


def _quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _Lowering:
    """Turns a chapter's nodes into what pandoc's EPUB and typst writers take."""

    made = set()  # ids that stand in raw typst

    def __init__(self, resolved, chapter, format):
        self.resolved, self.chapter, self.format = resolved, chapter, format

    def change(self, x):
        handler = getattr(self, f"_{x['t'].lower()}", None)
        return handler(x) if handler else None

    def _header(self, x):
        level, attributes, inlines = x["c"]
        if level == 1 and self.chapter.number:
            inlines = [*words(f"{self.chapter.number}"), node("Space"), *inlines]
        return node("Header", level + 1, attributes, inlines)

    def _table(self, x):
        """In EPUB a table's id goes to a div: pandoc follows links between files to divs only."""
        if self.format != "epub" or not x["c"][0][0]:
            return None
        return div([node("Table", attr(), *x["c"][1:])], x["c"][0][0])

    def _math(self, x):
        """A large slash has no valid form in the MathML of EPUB: an ordinary one will do."""
        if self.format == "epub":
            return node("Math", x["c"][0], re.sub(r"\\[bB]igg?[lrm]? */", "/", x["c"][1]))
        return None

    def _cite(self, x):
        return x["c"][1]

    def _span(self, x):
        if "equation" not in x["c"][0][1] or self.format != "typst":
            return None
        id, number = x["c"][0][0], plain(x["c"][1][1])
        self.made.add(id)
        start = f'#[#set math.equation(numbering: _ => "{number}")\n'
        return [raw("typst", start, True), x["c"][1][0], raw("typst", f"<{id}>]", True)]

    def _div(self, x):
        if "cell" in x["c"][0][1]:
            return self._cell(self.chapter.cells[get(x["c"][0], "n")], x["c"][1])
        if callout_kind(x):
            return self._callout(x)
        return None

    def _callout(self, x):
        id, title = x["c"][0][0], callout_title(x)
        if self.format == "epub":
            head = div([node("Para", title)], classes=["callout-title"])
            return div([head, *callout_body(x)], id, ["callout", callout_kind(x)])
        self.made |= {id} - {""}
        start = [
            raw("typst", f'#callout("{callout_kind(x)}")[#strong[', True),
            *title,
            raw("typst", "]", True),
        ]
        end = raw("typst", f"]{f' <{id}>' if id else ''}")
        return [node("Para", start), *callout_body(x), end]

    def _cell(self, cell, caption):
        if cell.hidden:
            return []
        # without colours: highlighting would cost as much time as all the rest, and print has none
        blocks = [node("CodeBlock", ["", [], []], cell.code)] if cell.shows_code else []
        if cell.options.get("output") is False:
            return blocks
        for text in cell.texts():
            blocks.append(node("CodeBlock", ["", ["output"], []], text))
        for n, (kind, data) in enumerate(cell.images()):
            blocks.append(self._figure(cell, caption, n, kind, data))
        return blocks

    def _figure(self, cell, caption, n, kind, data):
        width = svg_size(data)[0] if kind == "svg" else None
        alt = str(cell.options.get("fig-alt", ""))
        share = {"width": f"{min(100, round(width / 6.6))}%"} if width else {}
        if self.format == "typst":
            return self._typst_figure(
                cell, caption, figure_path(self.chapter, cell, n, kind), alt, share
            )
        image = node(
            "Image", attr(**share), words(alt), [figure_path(self.chapter, cell, n, kind), ""]
        )
        inlines = caption[0]["c"] if caption else []
        figure = node("Figure", attr(), [None, [node("Plain", inlines)]], [node("Plain", [image])])
        return div([figure], cell.label)

    def _typst_figure(self, cell, caption, path, alt, share):
        size = f", width: {share['width']}" if share else ""
        start = f"#figure(image({_quoted(path)}, alt: {_quoted(alt)}{size}), caption: ["
        inlines = caption[0]["c"] if caption else []
        label = f" <{cell.label}>" if cell.label else ""
        self.made |= {cell.label}
        return node("Para", [raw("typst", start, True), *inlines, raw("typst", f"]){label}", True)])
