"""Writing HTML: one page a chapter, with its figures beside, from the resolved tree."""

import re
from base64 import b64decode
from html import escape
from pathlib import Path
from string import Template

from ..save import is_saved
from .code import code_html, inline_name
from .frame import contents, mathematics, navigation, overview, relative, steps, tools
from .pandoc import document, pandoc
from .source import callout_body, callout_kind, callout_title
from .tree import attr, div, get, node, plain, raw, rewrite

ASSETS = Path(__file__).with_name("assets")
_LONG_NUMBER = re.compile(r"(\d\.\d\d)\d+")


def page(resolved, chapter, downloads=()):
    """The chapter's page, as the text of an HTML file; the first page offers the `downloads`."""
    book, body = resolved.book, fragment(resolved, chapter, downloads)
    root = "../" * chapter.page.count("/")
    summary = next((plain(x) for x in chapter.blocks if x["t"] in ("BlockQuote", "Para")), "")
    title = book.title if chapter is book.chapters[0] else f"{chapter.title} · {book.title}"
    return Template((ASSETS / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        book=escape(book.title),
        subtitle=escape(book.config["book"].get("subtitle", "")),
        description=escape(" ".join(summary.split())[:300]),
        root=root,
        home=relative(chapter, book.chapters[0].page),
        math=mathematics(root) if '<span class="math' in body else "",
        nav=navigation(book, chapter),
        toc=contents(chapter),
        tools=tools(book, chapter),
        body=body,
        steps=steps(book, chapter),
    )


def fragment(resolved, chapter, downloads=()):
    """The chapter's text as HTML, without the page around it."""
    lower = _Lowering(resolved, chapter)
    blocks = rewrite(chapter.blocks, lower.change)
    if chapter is resolved.book.chapters[0]:
        blocks.append(raw("html", overview(resolved.book, chapter, downloads)))
    text = pandoc(["-f", "json", "-t", "html5", "--mathml", "--wrap=none"], document(blocks))
    return text.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")


def href(targets, chapter, id):
    """The address of an id of the book, seen from a chapter's page."""
    there = targets[id].chapter
    return f"#{id}" if there is chapter else f"{relative(chapter, there.page)}#{id}"


def figures(book):
    """`{path: bytes}` of every figure that a page shows."""
    found = {}
    for chapter in book.chapters:
        for cell in chapter.cells.values():
            for n, (kind, data) in enumerate([] if cell.hidden else cell.images()):
                data = slim_svg(data).encode() if kind == "svg" else b64decode(data)
                found[figure_path(chapter, cell, n, kind)] = data
    return found


def figure_path(chapter, cell, n, kind):
    return f"figures/{chapter.stem}-{cell.label or cell.id}{'-' + str(n) if n else ''}.{kind}"


def slim_svg(text):
    """An SVG without prologue and metadata, its coordinates with two decimals: half the size."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, count=1, flags=re.S)
    text = re.sub(r"<path (?![^>]*\bd=)", '<path d="M0 0" ', text)  # a glyph of a space
    return re.sub(r' d="[^"]*"', lambda m: _LONG_NUMBER.sub(r"\1", m[0]), text)


def svg_size(text):
    """Width and height in CSS pixels, of an SVG from matplotlib (which writes points)."""
    found = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', text)
    return [round(float(x) * 4 / 3) for x in found.groups()] if found else (None, None)


class _Lowering:
    """Turns a chapter's nodes into what pandoc's HTML writer takes."""

    def __init__(self, resolved, chapter):
        self.resolved, self.chapter, self.first_image = resolved, chapter, True
        self.section, self.blocks_of_code = chapter.id, 0
        names = resolved.book.names
        own = {name for name, (where, _, _) in names.items() if where is chapter}
        self.scope = own | (chapter.imports() & names.keys())

    def name_link(self, name):
        """`(address, title)` of the cell that saves a name."""
        if name not in self.resolved.book.names:
            return None
        chapter, cell, section = self.resolved.book.names[name]
        target = self.resolved.targets[section]
        title = f"{name}: saved in {target.name.lower() or chapter.title}"
        if chapter.cells[cell].hidden:
            return href(self.resolved.targets, self.chapter, section), title
        page = "" if chapter is self.chapter else relative(self.chapter, chapter.page)
        return f"{page}#c{cell}", title

    def change(self, x):
        handler = getattr(self, f"_{x['t'].lower()}", None)
        return handler(x) if handler else None

    def _link(self, x):
        target, text = x["c"][2][0], rewrite(x["c"][1], _unlinked)
        if target.startswith("#"):
            target = href(self.resolved.targets, self.chapter, target[1:])
        return node("Link", x["c"][0], text, [target, x["c"][2][1]])

    def _para(self, x):
        """A paragraph that is one displayed equation may be wider than text."""
        only = x["c"][0] if len(x["c"]) == 1 and x["c"][0]["t"] == "Span" else None
        if only and {"equation", "display"} & set(only["c"][0][1]):
            return div([node("Plain", x["c"])], classes=["displayed"])
        return None

    def _math(self, x):
        kind = "display" if x["c"][0]["t"] == "DisplayMath" else "inline"
        return node("Span", attr(classes=["math", kind]), [x])

    def _cite(self, x):
        return node("Span", attr(classes=["cite"]), x["c"][1])

    def _code(self, x):
        name = inline_name(x["c"][1], self.resolved.book.names)
        if not name or self.resolved.book.names[name][2] == self.section:
            return None
        address, title = self.name_link(name)
        return node("Link", attr(classes=["saved"]), [x], [address, title])

    def _header(self, x):
        self.section = x["c"][1][0]
        if x["c"][0] > 1:
            anchor = (
                f'<a class="anchor" href="#{self.section}" aria-hidden="true" tabindex="-1">#</a>'
            )
            return node("Header", *x["c"][:2], [*x["c"][2], raw("html", anchor, True)])
        if not self.chapter.number:
            return None
        kind = "Chapter" if self.chapter.number.isdigit() else "Appendix"
        number = f'<span class="number">{kind} {self.chapter.number}</span> '
        return node("Header", 1, x["c"][1], [raw("html", number, True), *x["c"][2]])

    def _table(self, x):
        label = plain(x["c"][1][1]) or "Table"
        return div([x], classes=["table"], **{"data-label": label})

    def _codeblock(self, x):
        text, classes = escape(x["c"][1], quote=False), x["c"][0][1]
        if "python" in classes:
            self.blocks_of_code += 1
            text = code_html(x["c"][1], f"code{self.blocks_of_code}", self.name_link, self.scope)
        return raw("html", f'<pre class="code"><code>{text}</code></pre>')

    def _div(self, x):
        if "cell" in x["c"][0][1]:
            return self._cell(self.chapter.cells[get(x["c"][0], "n")], x["c"][1])
        if callout_kind(x):
            return self._callout(x)
        return None

    def _callout(self, x):
        kind, title, id = callout_kind(x), callout_title(x), x["c"][0][0]
        classes = f"callout {kind} {re.sub(r'[^a-z]+.*', '', plain(title).lower())}"
        id = f' id="{id}"' if id else ""
        if get(x["c"][0], "collapse"):
            opened = " open" if get(x["c"][0], "collapse") == "false" else ""
            start, end = f'<details class="{classes}"{id}{opened}><summary>', "</details>"
            return [_wrapped(start, title, "</summary>"), *callout_body(x), raw("html", end)]
        name = escape(plain(title))
        start = f'<aside class="{classes}"{id} aria-label="{name}"><p class="callout-title">'
        return [_wrapped(start, title, "</p>"), *callout_body(x), raw("html", "</aside>")]

    def _cell(self, cell, caption):
        if cell.hidden:
            return []
        blocks = [raw("html", self._code_html(cell))] if cell.shows_code else []
        captioned = cell.label[:4] in ("fig-", "tbl-")
        output = self._outputs(cell)
        if captioned and output:
            inlines = caption[0]["c"] if caption else []
            start = f'<figure id="{cell.label}">{output}<figcaption>'
            blocks.append(_wrapped(start, inlines, "</figcaption></figure>"))
        elif output:
            blocks.append(raw("html", output))
        return div(blocks, f"c{cell.id}", ["cell"]) if blocks else []

    def _code_html(self, cell):
        lines = code_html(cell.code, f"c{cell.id}", self.name_link, self.scope)
        html = f'<pre class="code"><code>{lines}</code></pre>'
        if cell.options.get("code-fold"):
            summary = cell.options.get("code-summary") or "Code"
            opened = " open" if cell.options["code-fold"] == "show" else ""
            summary = f"<summary>{escape(summary)}</summary>"
            return f'<details class="fold"{opened}>{summary}{html}</details>'
        return f'<div class="keeps">{self._kept()}{html}</div>' if is_saved(cell.code) else html

    def _kept(self):
        """The mark on a saved cell: its module, linked to the API index."""
        id, module = f"sec-api-{self.chapter.module}", f"agentrl.{self.chapter.module}"
        if id not in self.resolved.targets:
            return ""
        address = href(self.resolved.targets, self.chapter, id)
        return (
            f'<a class="kept" href="{address}" title="This cell is saved in {module}">{module}</a>'
        )

    def _outputs(self, cell):
        if cell.options.get("output") is False:
            return ""
        html = [
            f'<pre class="out"><samp>{escape(text, quote=False)}</samp></pre>'
            for text in cell.texts()
        ]
        for n, (kind, data) in enumerate(cell.images()):
            width, height = svg_size(data) if kind == "svg" else (None, None)
            size = f' width="{width}" height="{height}"' if width else ""
            lazy = "" if self.first_image else ' loading="lazy"'
            self.first_image = False
            root = "../" * self.chapter.page.count("/")
            html.append(
                f'<img src="{root}{figure_path(self.chapter, cell, n, kind)}" '
                f'alt="{escape(str(cell.options.get("fig-alt", "")))}"{size}{lazy}>'
            )
        return "".join(html)


def _unlinked(x):
    return x["c"][1] if x["t"] == "Link" else None


def _wrapped(start, inlines, end):
    """Inlines between two pieces of HTML, as one block."""
    return node("Plain", [raw("html", start, True), *inlines, raw("html", end, True)])
