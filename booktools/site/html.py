"""Writing HTML: one page a chapter, with its figures beside, from the resolved tree."""

import posixpath
import re
from base64 import b64decode
from html import escape
from pathlib import Path
from string import Template

from ..save import is_saved
from .code import code_html, inline_name
from .pandoc import document, pandoc
from .source import callout_body, callout_kind, callout_title
from .tree import attr, div, get, node, nodes, plain, raw, rewrite

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
        home=_relative(chapter, book.chapters[0].page),
        math=_math(root) if '<span class="math' in body else "",
        nav=_navigation(book, chapter),
        toc=_contents(chapter),
        tools=_tools(book, chapter),
        body=body,
        steps=_steps(book, chapter),
    )


def fragment(resolved, chapter, downloads=()):
    """The chapter's text as HTML, without the page around it."""
    lower = _Lowering(resolved, chapter)
    blocks = rewrite(chapter.blocks, lower.change)
    if chapter is resolved.book.chapters[0]:
        blocks.append(raw("html", _overview(resolved.book, chapter, downloads)))
    text = pandoc(["-f", "json", "-t", "html5", "--mathml", "--wrap=none"], document(blocks))
    return text.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")


def href(targets, chapter, id):
    """The address of an id of the book, seen from a chapter's page."""
    there = targets[id].chapter
    return f"#{id}" if there is chapter else f"{_relative(chapter, there.page)}#{id}"


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
        page = "" if chapter is self.chapter else _relative(self.chapter, chapter.page)
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
        if x["c"][0] > 1 or not self.chapter.number:
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
        start = f'<aside class="{classes}"{id} aria-label="{escape(plain(title))}"><p class="callout-title">'
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
            return f'<details class="fold"{opened}><summary>{escape(summary)}</summary>{html}</details>'
        return f'<div class="keeps">{self._kept()}{html}</div>' if is_saved(cell.code) else html

    def _kept(self):
        """The mark on a saved cell: its module, linked to the API index."""
        id, module = f"sec-api-{self.chapter.module}", f"agentrl.{self.chapter.module}"
        if id not in self.resolved.targets:
            return ""
        address = href(self.resolved.targets, self.chapter, id)
        return f'<a class="kept" href="{address}" title="This cell is saved in {module}">{module}</a>'

    def _outputs(self, cell):
        if cell.options.get("output") is False:
            return ""
        html = [f'<pre class="out"><samp>{escape(text, quote=False)}</samp></pre>' for text in cell.texts()]
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


def _relative(chapter, page):
    return posixpath.relpath(page, posixpath.dirname(chapter.page) or ".")


def _math(root):
    return (
        f'<link rel="stylesheet" href="{root}assets/katex/katex.min.css">\n'
        f'<script defer src="{root}assets/katex/katex.min.js"></script>'
    )


def _entry(book, here, chapter):
    number = f'<span class="number">{chapter.number}</span>' if chapter.number else ""
    current = ' aria-current="page"' if chapter is here else ""
    title = escape("Home" if chapter is book.chapters[0] else chapter.title)
    return f'<li><a href="{_relative(here, chapter.page)}"{current}>{number}<span>{title}</span></a></li>'


def _navigation(book, here):
    """Parts and chapters, as lists under headings."""
    html, part = ["<ul>"], ""
    for chapter in book.chapters:
        if chapter.part != part:
            part = chapter.part
            html.append(f"</ul>\n<p>{escape(part)}</p>\n<ul>")
        html.append(_entry(book, here, chapter))
    return "\n".join([*html, "</ul>"])


def _contents(chapter):
    """The page's own headings, two levels of them."""
    heads = [x["c"] for x in nodes(chapter.blocks) if x["t"] == "Header" and x["c"][0] in (2, 3)]
    if len(heads) < 2:
        return ""
    html, open_list = [], False
    for level, (id, _, _), inlines in heads:
        if level == 3 and not open_list:
            html.append("<ul>" if html else "<li><ul>")
        elif level == 2:
            html.append(("</ul>" if open_list else "") + ("</li>" if html else ""))
        open_list = level == 3
        item = f'<a href="#{id}">{escape(plain(inlines))}</a>'
        html.append(f"<li>{item}" + ("</li>" if level == 3 else ""))
    html.append(("</ul>" if open_list else "") + "</li>")
    return (
        '<nav class="toc" aria-labelledby="toc-title"><details><summary id="toc-title">On this page'
        f"</summary><ul>{''.join(html)}</ul></details></nav>"
    )


def _tools(book, chapter):
    """What to do with the chapter: its notebook, Colab, the command that runs it."""
    if not chapter.source.endswith(".ipynb") or not chapter.run_label:
        return ""
    links = [f'<a href="{Path(chapter.source).name}" download>Download notebook</a>']
    if "github.com/" in book.repo:
        path = f"{book.repo.split('github.com/')[1]}/blob/{book.branch}/{chapter.source}"
        links.append(f'<a href="https://colab.research.google.com/github/{path}">Open in Colab</a>')
    if book.repo:
        links.append(f'<a href="{book.repo}/blob/{book.branch}/{chapter.source}">Source</a>')
    command = f"make run CHAPTER={chapter.run_label}"
    links.append(f'<span class="run">Run it: <code data-copy>{command}</code></span>')
    return f'<div class="tools" role="group" aria-label="This chapter">{" ".join(links)}</div>'


def _steps(book, chapter):
    at = book.chapters.index(chapter)
    html = []
    for step, rel, word in ((-1, "prev", "Previous"), (1, "next", "Next")):
        if 0 <= at + step < len(book.chapters):
            other = book.chapters[at + step]
            title = f"{other.number} {other.title}".strip()
            html.append(
                f'<a rel="{rel}" href="{_relative(chapter, other.page)}"><span>{word}</span>'
                f"{escape(title)}</a>"
            )
    return f'<nav class="steps" aria-label="Previous and next chapter">{"".join(html)}</nav>'


def _overview(book, here, downloads):
    """Downloads and the contents of the book, for its first page; each chapter with its summary."""
    files = " or ".join(f'<a href="{name}">{Path(name).suffix[1:].upper()}</a>' for name in downloads)
    html = [f'<p class="downloads">The whole book as {files}.</p>'] if files else []
    html += ['<h2 id="contents">Contents</h2>', '<ul class="overview">']
    part = ""
    for chapter in book.chapters[1:]:
        if chapter.part != part:
            part = chapter.part
            html += ["</ul>", f"<h3>{escape(part)}</h3>", '<ul class="overview">']
        quote = next((x for x in chapter.blocks[:3] if x["t"] == "BlockQuote"), None)
        summary = f"<p>{escape(plain(quote['c']))}</p>" if quote else ""
        html.append(_entry(book, here, chapter).replace("</a></li>", f"</a>{summary}</li>"))
    return "\n".join([*html, "</ul>"])
