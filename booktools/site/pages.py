"""Pages that are made, not written: the list of figures and tables, and how to cite the book."""

import yaml

from .number import Target
from .source import Chapter
from .tree import header, link, node, words

_SINGLE = (
    "A single result is best cited with its chapter and section, since sections keep their numbers "
    "within a version, and with the label of its evidence: a result that is measured here is this "
    "book's, a figure that is reported is its source's. The file CITATION.cff in the repository "
    "holds the same facts for programs."
)


def add(resolved):
    """Append the made pages to the book's chapters, and their ids to its targets."""
    made = [_figures(resolved), _how_to_cite(resolved.book)]
    for chapter in [page for page in made if page]:
        resolved.book.chapters.append(chapter)
        resolved.targets[chapter.id] = Target("", "", chapter, chapter.heading["c"][2])


def _figures(resolved):
    blocks = [header(1, "sec-figures", words("Figures and tables"))]
    for kind in ("Figure", "Table"):
        items = [
            [
                node(
                    "Plain",
                    [
                        link(words(target.name), f"#{id}"),
                        node("Str", ":"),
                        node("Space"),
                        *target.title,
                    ],
                )
            ]
            for id, target in resolved.targets.items()
            if target.kind == kind
        ]
        if items:
            blocks += [
                header(2, f"sec-list-{kind.lower()}s", words(f"{kind}s")),
                node("BulletList", items),
            ]
    return Chapter("figures.html", "Appendices", blocks) if len(blocks) > 1 else None


def _how_to_cite(book):
    """The text and the BibTeX entry that `CITATION.cff` gives; None without that file."""
    path = book.root / "CITATION.cff"
    if not path.exists():
        return None
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    authors = [_author(x) for x in facts["authors"]]
    version, date = facts.get("version", ""), str(facts.get("date-released", ""))
    text = (
        f"{', '.join(authors)}. {facts['title']}. Version {version}{', ' + date if date else ''}."
    )
    lines = {
        "title": f"{{{facts['title']}}}",
        "author": f"{{{' and '.join('{' + name + '}' for name in authors)}}}",
        "version": f"{{{version}}}",
        "year": f"{{{date[:4]}}}" if date else "",
        "url": f"{{{book.repo}}}" if book.repo else "",
    }
    bibtex = ",\n".join(f"  {key} = {value}" for key, value in lines.items() if value)
    blocks = [
        header(1, "sec-cite", words("How to cite")),
        node("Para", words("To cite the book or its library, name the version that you used:")),
        node("BlockQuote", [node("Para", words(text))]),
        node("Para", words("As a BibTeX entry:")),
        node("CodeBlock", ["", ["bibtex"], []], f"@software{{agentrl,\n{bibtex}\n}}"),
        node("Para", words(_SINGLE)),
    ]  # fmt: skip
    return Chapter("cite.html", "Appendices", blocks)


def _author(facts):
    return facts.get("name") or f"{facts['given-names']} {facts['family-names']}"
