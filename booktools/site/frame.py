"""What stands around the text of a page: chapters, headings, tools, previous and next."""

import posixpath
from html import escape
from pathlib import Path

from .tree import nodes, plain


def relative(chapter, page):
    """The address of a page, seen from a chapter's own."""
    return posixpath.relpath(page, posixpath.dirname(chapter.page) or ".")


def mathematics(root):
    """What a page with mathematics loads."""
    return (
        f'<link rel="stylesheet" href="{root}assets/katex/katex.min.css">\n'
        f'<script defer src="{root}assets/katex/katex.min.js"></script>'
    )


def _entry(book, here, chapter):
    number = f'<span class="number">{chapter.number}</span>' if chapter.number else ""
    current = ' aria-current="page"' if chapter is here else ""
    title = escape("Home" if chapter is book.chapters[0] else chapter.title)
    address = relative(here, chapter.page)
    return f'<li><a href="{address}"{current}>{number}<span>{title}</span></a></li>'


def navigation(book, here):
    """Parts and chapters, as lists under headings."""
    html, part = ["<ul>"], ""
    for chapter in book.chapters:
        if chapter.part != part:
            part = chapter.part
            html.append(f"</ul>\n<p>{escape(part)}</p>\n<ul>")
        html.append(_entry(book, here, chapter))
    return "\n".join([*html, "</ul>"])


def contents(chapter):
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


def tools(book, chapter):
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


def steps(book, chapter):
    """The chapters before and after."""
    at = book.chapters.index(chapter)
    html = []
    for step, rel, word in ((-1, "prev", "Previous"), (1, "next", "Next")):
        if 0 <= at + step < len(book.chapters):
            other = book.chapters[at + step]
            title = f"{other.number} {other.title}".strip()
            html.append(
                f'<a rel="{rel}" href="{relative(chapter, other.page)}"><span>{word}</span>'
                f"{escape(title)}</a>"
            )
    return f'<nav class="steps" aria-label="Previous and next chapter">{"".join(html)}</nav>'


def overview(book, here, downloads):
    """Downloads and the contents of the book, for its first page; each chapter with its summary."""
    files = " or ".join(
        f'<a href="{name}">{Path(name).suffix[1:].upper()}</a>' for name in downloads
    )
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
