"""The renderer: a small book with everything in it, built once, and one fault at a time."""

import json
import re
import shutil
import zipfile

import pytest
import yaml

from booktools.project import ROOT, BookError, notebooks
from booktools.site import build, check, code, html, search, tree
from booktools.site.number import resolve
from booktools.site.source import read

SVG = (
    '<?xml version="1.0"?>\n<svg width="90pt" height="45pt" viewBox="0 0 90 45" xmlns="http://www.w3.org/2000/svg">'
    '<metadata>date</metadata><path d="M 1.23456 2 L 3 4"/><path id="space"/></svg>'
)
SAVED = '#@save\ndef halve(x):\n    """Returns half of x."""\n    return x / 2\n'
FIGURE = {
    "output_type": "display_data",
    "data": {"image/svg+xml": SVG, "text/plain": "<Figure>"},
    "metadata": {},
}


def stream(text):
    return {"output_type": "stream", "name": "stdout", "text": text}


def notebook(*cells):
    """A notebook of `markdown` strings and `(code, outputs)` pairs."""
    made = []
    for n, cell in enumerate(cells):
        kind, source, outputs = (
            ("markdown", cell, None) if isinstance(cell, str) else ("code", *cell)
        )
        made.append({"cell_type": kind, "id": f"id{n}", "metadata": {}, "source": source})
        if kind == "code":
            made[-1] |= {"outputs": outputs, "execution_count": None}
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


ONE = notebook(
    "# First {#sec-one}\n\n> What it is for.\n\nA claim [@doe2020]. See @sec-two-why, @fig-two, @tbl-one and @eq-one.",
    ("#| default_exp: one\n#| include: false\nimport hidden_module", []),
    "## 1.1 Saving {#sec-one-save}\n\nHere is `halve`.\n\n$$a = \\frac{b}{2}$$ {#eq-one}\n\nIn words.",
    (SAVED, []),
    ("print(1 < 2, halve(3))", [stream("True 1.5\n"), stream("again\n")]),
    "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n: A table of @eq-one. {#tbl-one}",
    '::: {.callout-note title="Evidence with `code`"}\n*Measured here.*\n:::',
)
TWO = notebook(
    "# Second {#sec-two}",
    "## 2.1 Why {#sec-two-why}\n\nUse `arl.halve(x)`, from @sec-one-save, as in the [first chapter](01_one.ipynb#sec-one-save).",
    ("import agentrl as arl\n\nvalue = arl.halve(2)\nhalve = None\nother.halve", []),
    ('#| label: fig-two\n#| fig-cap: "A line, as in @eq-one."\n#| fig-alt: "A line that rises \\"fast\\"."\n#| code-fold: true\ndraw()', [FIGURE]),
    "## Exercises {#sec-two-exercises}\n\n**2.1** (easy) Halve it.",
    '::: {.callout-note collapse="true" title="Solution 2.1"}\nLike this.\n:::',
    ("#| code-fold: true\nassert arl.halve(4) == 2", []),
    ("#| include: false\n# claim: never shown\nassert True", []),
)  # fmt: skip
CONFIG = {
    "project": {"type": "book", "output-dir": "_book"},
    "book": {
        "title": "Small book", "author": "A. Author", "repo-url": "https://github.com/some/book",
        "chapters": ["index.qmd", {"part": "Part I", "chapters": ["nbs/01_one.ipynb", "nbs/02_two.ipynb"]}],
        "appendices": ["references.qmd"],
    },
    "bibliography": "references.bib",
}  # fmt: skip


def make_book(root, **files):
    """The small book in `root`; `files` replaces some: `one=...` for nbs/01_one.ipynb, and so on."""
    (root / "nbs").mkdir(parents=True)
    texts = {
        "_quarto.yml": yaml.safe_dump(CONFIG),
        "index.qmd": "# Small book\n\nRead [the first chapter](nbs/01_one.ipynb) or [the licence](LICENSE).\n",
        "LICENSE": "free",
        "references.qmd": "# References {#sec-references}\n\n::: {#refs}\n:::\n",
        "references.bib": "@misc{doe2020, title={Halves}, author={Doe, Jane}, year={2020}}\n",
        "CITATION.cff": "title: Small book\nversion: 1.0\nauthors:\n- name: A. Author\n",
        "nbs/01_one.ipynb": files.get("one", ONE),
        "nbs/02_two.ipynb": files.get("two", TWO),
    }
    for name, text in texts.items():
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return build.build(make_book(tmp_path_factory.mktemp("site") / "book"))


def page(site, name):
    return (site / name).read_text(encoding="utf-8")


def text_of(html_text):
    return " ".join(re.sub(r"<[^>]+>", "", html_text).split())


def test_the_built_pages_have_no_fault(site):
    assert check.faults(site) == []
    names = {p.relative_to(site).as_posix() for p in site.rglob("*.html")}
    assert names == {
        "index.html", "nbs/01_one.html", "nbs/02_two.html", "references.html", "figures.html", "cite.html",
    }  # fmt: skip


def test_references_and_captions_carry_numbers_across_chapters(site):
    one, two = page(site, "nbs/01_one.html"), page(site, "nbs/02_two.html")
    for link in (
        '<a href="02_two.html#sec-two-why" class="ref">Section&nbsp;2.1</a>',
        '<a href="02_two.html#fig-two" class="ref">Figure&nbsp;2.1</a>',
        '<a href="#tbl-one" class="ref">Table&nbsp;1.1</a>',
        '<a href="#eq-one" class="ref">Equation&nbsp;1.1</a>',
    ):
        assert link in one.replace("\u00a0", "&nbsp;")
    assert '<span class="eqno">(1.1)</span>' in one and "{#eq-one}" not in one
    assert "Table 1.1. A table of Equation 1.1." in text_of(one).replace("\u00a0", " ")
    assert "Figure 2.1. A line, as in Equation 1.1." in text_of(two).replace("\u00a0", " ")
    assert '<a href="01_one.html#sec-one-save">first chapter</a>' in two
    assert '<a href="https://github.com/some/book/blob/main/LICENSE">the licence</a>' in page(
        site, "index.html"
    )


def test_citations_lead_to_the_bibliography_and_back(site):
    assert '(<a href="../references.html#ref-doe2020"' in page(site, "nbs/01_one.html")
    references = page(site, "references.html")
    assert 'id="ref-doe2020"' in references and "Halves" in references
    assert 'Cited in <a href="nbs/01_one.html#sec-one">chapter 1</a>.' in references


def test_callouts_exercises_and_solutions(site):
    one, two = page(site, "nbs/01_one.html"), page(site, "nbs/02_two.html")
    assert re.search(
        r'<aside class="callout note evidence"[^>]*><p class="callout-title">Evidence with <code>',
        one,
    )
    assert 'id="exercise-2-1" class="exercise"' in two
    solution = re.search(
        r'<details class="callout note solution" id="solution-2-1">.*?</details>\s*</div>\s*</details>',
        two,
        re.S,
    )
    assert (
        "Like this." in solution[0] and "assert" in solution[0]
    )  # the program is folded with its text


def test_hidden_cells_are_left_out_and_plot_code_is_folded(site):
    one, two = page(site, "nbs/01_one.html"), page(site, "nbs/02_two.html")
    assert "hidden_module" not in one and "never shown" not in two and "#|" not in one + two
    assert re.search(
        r'<details class="fold"><summary>Code</summary><pre class="code"><code><span id="cid3-1">draw',
        two,
    )
    assert "True 1.5\nagain</samp>" in one and "1 &lt; 2" in text_of(one)


def test_figures_are_files_with_size_and_alt_text(site):
    two = page(site, "nbs/02_two.html")
    image = re.search(r"<img [^>]*>", two)[0]
    assert 'src="../figures/02_two-fig-two.svg"' in image and 'width="120" height="60"' in image
    assert 'alt="A line that rises &quot;fast&quot;."' in image
    svg = page(site, "figures/02_two-fig-two.svg")
    assert (
        svg.startswith("<svg")
        and "metadata" not in svg
        and "M 1.23 2" in svg
        and svg.count(' d="') == 2
    )


def test_saved_names_are_linked_to_their_cell(site):
    two = page(site, "nbs/02_two.html")
    link = '<a class="saved" href="01_one.html#cid3" title="halve: saved in section 1.1">halve</a>'
    assert (
        two.count(link) == 2
    )  # as arl.halve, twice; not as another object's attribute, not assigned
    assert re.search(
        r'<a href="01_one.html#cid3" class="saved"[^>]*><code>arl.halve\(x\)</code></a>', two
    )
    assert 'id="cid3"' in page(site, "nbs/01_one.html")
    assert "<p>Here is <code>halve</code>.</p>" in page(site, "nbs/01_one.html")  # its own section


def test_a_name_counts_only_where_it_is_the_saved_one():
    def links(source):
        return re.findall(
            r">(\w+)</a>",
            code.code_html(source, "c", lambda n: ("#", "") if n == "f" else None, {"f"}),
        )

    assert links("f(1)") == links("arl.f") == links("from agentrl.m import f") == ["f"]
    for source in ("def f(): pass", "x.f", "g(f=1)", "'f'", "# f"):
        assert links(source) == [], source


def test_each_line_of_code_has_an_address(site):
    lines = re.search(r'<div class="cell" id="cid3">|id="cid3"', page(site, "nbs/01_one.html"))
    assert lines and all(
        f'<span id="cid3-{n}">' in page(site, "nbs/01_one.html") for n in (1, 2, 3, 4)
    )


def test_a_chapter_offers_its_notebook_colab_and_the_command(site):
    one = page(site, "nbs/01_one.html")
    assert '<a href="01_one.ipynb" download>' in one and (site / "nbs/01_one.ipynb").exists()
    assert "https://colab.research.google.com/github/some/book/blob/main/nbs/01_one.ipynb" in one
    assert "make run CHAPTER=01" in one


def test_without_a_repository_no_link_to_one(tmp_path):
    book = read(make_book(tmp_path / "book"))
    del book.config["book"]["repo-url"]
    resolved = resolve(book)
    text = html.page(resolved, book.chapters[1])
    assert resolved.findings == [] and "Colab" not in text and "github" not in text
    assert "the licence" in html.page(resolved, book.chapters[0])


def test_navigation_knows_where_it_is(site):
    two = page(site, "nbs/02_two.html")
    assert 'href="02_two.html" aria-current="page"' in two and "<p>Part I</p>" in two
    assert (
        '<a rel="prev" href="01_one.html">' in two
        and '<a rel="next" href="../references.html">' in two
    )
    assert '<a href="#sec-two-why">2.1 Why</a>' in two and '<a class="skip" href="#main">' in two


def test_search_finds_sections_exercises_and_names(site):
    rows = json.loads(
        page(site, "assets/search-index.js").removeprefix("window.bookIndex=").removesuffix(";")
    )
    found = {row[0]: row for row in rows}
    assert (
        found["Exercise 2.1"][2] == "nbs/02_two.html#exercise-2-1"
        and "Halve it" in found["Exercise 2.1"][4]
    )
    assert found["Solution 2.1"][2:4] == ["nbs/02_two.html#solution-2-1", "exercise halve"]
    assert found["halve"][2] == "nbs/01_one.html#cid3" and found["halve"][4] == "Returns half of x."
    assert "In words." in found["1.1 Saving"][4]


def test_epub_and_pdf_hold_the_same_book(site):
    with zipfile.ZipFile(site / f"{build.NAME}.epub") as epub:
        text = "".join(epub.read(n).decode() for n in epub.namelist() if n.endswith(".xhtml"))
        assert any(n.endswith(".svg") for n in epub.namelist())
    assert (
        "<math" in text
        and "Like this." in text
        and "Figure 2.1." in text
        and "never shown" not in text
    )
    assert 'alt="A line that rises &quot;fast&quot;."' in text and 'id="ref-doe2020"' in text
    pdf = (site / f"{build.NAME}.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and b"/Outlines" in pdf


@pytest.mark.parametrize(
    "cell, finding",
    [
        ("As in @fig-none.", "nbs/02_two.ipynb, cell 1: unresolved reference @fig-none"),
        ("As in [@nobody].", "nbs/02_two.ipynb, cell 1: unresolved citation @nobody"),
        (
            "[There](gone.ipynb).",
            "nbs/02_two.ipynb, cell 1: the link to 'gone.ipynb' leads nowhere",
        ),
        ("![](x.png)", "nbs/02_two.ipynb, cell 1: the image x.png has no alt text"),
        ("## Again {#sec-one}", "the label 'sec-one' is taken by nbs/01_one.ipynb"),
        (("#| label: fig-x\n#| fig-cap: X\ndraw()", [FIGURE]), "cell 1: fig-x has no alt text"),
        (("#| label: fig-x\n#| fig-alt: X\ndraw()", [FIGURE]), "cell 1: fig-x has no caption"),
        (
            ("#| label: fig-x\n#| fig-alt: X\n#| fig-cap: X\ndraw()", []),
            "cell 1: fig-x has no stored output",
        ),
        (("draw()", [FIGURE]), "cell 1: an image has no alt text"),
    ],
)
def test_what_does_not_resolve_is_an_error_that_names_it(tmp_path, cell, finding):
    two = notebook(
        "# Second {#sec-two}\n\n## 2.1 Why {#sec-two-why}",
        cell,
        ("#| label: fig-two\n#| fig-cap: X\n#| fig-alt: X\nx", [FIGURE]),
    )
    root = make_book(tmp_path / "book", two=two)
    (root / "_book").mkdir()
    (root / "_book/old.html").write_text("old")
    with pytest.raises(BookError) as error:
        build.build(root, ("html",))
    assert finding in str(error.value)
    assert page(root / "_book", "old.html") == "old" and not (root / "._book-draft").exists()


def test_formulas_that_cannot_be_set_are_an_error(tmp_path):
    one = notebook(
        "# First {#sec-one}\n\n$\\nosuchmacro{x}$\n\n## 1.1 S {#sec-one-save}\n\n$$x$$ {#eq-one}"
    )
    two = TWO.replace("@eq-one", "it")
    root = make_book(tmp_path / "book", one=one, two=two)
    with pytest.raises(BookError, match="nosuchmacro"):
        build.build(root, ("html",))


def test_faults_of_built_pages_are_found(site, tmp_path):
    folder = tmp_path / "site"
    shutil.copytree(site, folder)
    target = folder / "cite.html"
    target.write_text(
        target.read_text(encoding="utf-8").replace(
            "</main>",
            '<b id="main"></b><a href="#nowhere">x</a><a href="gone.html">x</a><img src="icon.png">'
            '<script src="https://example.org/x.js"></script><i></main>',
        ),
        encoding="utf-8",
    )
    (folder / "assets/book.css").write_text(" " * 300_000)
    found = "\n".join(check.faults(folder))
    for fault in (
        "the id 'main' stands twice", "#nowhere leads to no id", "gone.html leads nowhere", "icon.png has no alt text",
        "icon.png does not exist", "loads https://example.org/x.js from elsewhere", "closes nothing", "index.html and what",
    ):  # fmt: skip
        assert fault in found, fault


def test_rewrite_replaces_splices_and_keeps():
    para = tree.node(
        "Para",
        [tree.node("Str", "a"), tree.node("Space"), tree.node("Emph", [tree.node("Str", "b")])],
    )
    new = tree.rewrite(
        [para],
        lambda x: (
            x["c"] if x["t"] == "Emph" else tree.node("Str", "c") if x.get("c") == "a" else None
        ),
    )
    assert tree.plain(new) == "c b" and tree.plain([para]) == "a b"
    assert [x["t"] for x in new[0]["c"]] == ["Str", "Space", "Str"]


def test_the_book_resolves():
    resolved = build.load(ROOT)
    findings = resolved.findings  # by itself: pytest would print the whole tree
    assert findings == []
    assert search.index_script(resolved).startswith("window.bookIndex=[[")


# Quarto's published schema: the keys of a book project's `_quarto.yml`, and of a code cell.
PROJECT_KEYS = {"project": {"type", "output-dir"}, "execute": {"enabled"}}
BOOK_KEYS = {
    "title",
    "subtitle",
    "author",
    "description",
    "chapters",
    "appendices",
    "repo-url",
    "repo-branch",
}
TOP_KEYS = {"project", "book", "bibliography", "number-sections", "execute", "format"}
FORMAT_KEYS = {"theme", "code-copy", "code-overflow"}
CELL_KEYS = {
    "label",
    "include",
    "echo",
    "eval",
    "output",
    "fig-cap",
    "fig-alt",
    "tbl-cap",
    "code-fold",
    "code-summary",
}


def test_quarto_keys_are_those_of_its_schema():
    config = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))
    assert set(config) <= TOP_KEYS and set(config["book"]) <= BOOK_KEYS
    assert all(set(config[key]) <= keys for key, keys in PROJECT_KEYS.items())
    for options in config["format"].values():
        assert options == "default" or set(options) <= FORMAT_KEYS
    for path in notebooks(ROOT):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            keys = re.findall(r"^#\| *([\w-]+):", "".join(cell["source"]), re.M)
            if cell["cell_type"] == "code":
                assert set(keys) <= CELL_KEYS | check.OWN_KEYS, f"{path.name}, {keys}"
