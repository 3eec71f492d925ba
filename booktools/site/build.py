"""`make site`: everything under `_book/`, written beside it first and then put in its place."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..project import ROOT, BookError
from . import html, pages, search, whole
from .number import resolve
from .source import read

FORMATS = ("html", "epub", "pdf")
NAME = "agentic-rl-executable"  # of the EPUB and the PDF


def build(root=ROOT, formats=FORMATS, out=None):
    """Build the book of the folder `root`; returns the folder it is in.

    Raises BookError with one line a finding when a reference, a citation, a link or an alt text
    is missing; then nothing is replaced.
    """
    root, start = Path(root), time.time()
    resolved = load(root)
    if resolved.findings:
        raise BookError("the book is not built:\n" + "\n".join(resolved.findings))
    out = Path(out) if out else root / resolved.book.config["project"].get("output-dir", "_book")
    draft = out.with_name(f".{out.name}-draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        for path, data in html.figures(resolved.book).items():
            _write(draft / path, data)
        work = {
            "pdf": lambda: whole.write_pdf(resolved, draft, draft / f"{NAME}.pdf"),
            "epub": lambda: whole.write_epub(resolved, draft, draft / f"{NAME}.epub"),
            "html": lambda: write_html(
                resolved, draft, [f"{NAME}.{x}" for x in ("pdf", "epub") if x in formats]
            ),
        }
        with ThreadPoolExecutor(2) as pool:  # pandoc and typst work outside of Python's lock
            for done in [pool.submit(work[kind]) for kind in work if kind in formats]:
                done.result()
        shutil.rmtree(out, ignore_errors=True)
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    print(
        f"built {', '.join(formats)} of {len(resolved.book.chapters)} pages "
        f"in {time.time() - start:.1f} s"
    )
    return out


def load(root):
    """The book, read and resolved, with the pages that are made."""
    resolved = resolve(read(root))
    pages.add(resolved)
    return resolved


def write_html(resolved, folder, downloads=()):
    """The pages, the notebooks to download, and what the pages load."""
    book = resolved.book
    with ThreadPoolExecutor() as pool:
        pages_ = pool.map(lambda chapter: html.page(resolved, chapter, downloads), book.chapters)
        for chapter, text in zip(book.chapters, pages_, strict=True):
            _write(folder / chapter.page, text.encode())
    for chapter in book.chapters:
        if chapter.source.endswith(".ipynb"):
            shutil.copy(book.root / chapter.source, folder / chapter.source)
    shutil.copytree(
        html.ASSETS, folder / "assets", ignore=shutil.ignore_patterns("page.html", "*.typ", "*.md")
    )
    _write(folder / "assets/search-index.js", search.index_script(resolved).encode())


def _write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
