"""Numbers for figures, tables and equations; references and citations across the whole book.

`resolve` changes the chapters' trees: references become links to `#id`, with the ids of the whole
book; equations and captions carry their numbers; citations become the text of the bibliography's
style. What cannot be resolved is a finding with its notebook, cell and text.
"""

import json
import posixpath
import re
from dataclasses import dataclass, field

from .pandoc import document, pandoc
from .source import Book, callout_title, saved_names, section_number
from .tree import attr, div, get, link, node, nodes, plain, rewrite, words

KINDS = {"sec": "Section", "fig": "Figure", "eq": "Equation", "tbl": "Table"}
_LABEL = re.compile(r"^(sec|fig|eq|tbl)-[\w.-]+$")
_EQUATION = re.compile(r"^\{#(eq-[\w.-]+)\}(.*)$")


@dataclass
class Target:
    """What an id stands for: `Figure`, `9.1`, its chapter, and its caption or title as inlines."""

    kind: str
    number: str
    chapter: object
    title: list = field(default_factory=list)

    @property
    def name(self):
        return f"{self.kind} {self.number}" if self.number else ""


@dataclass
class Resolved:
    """A book whose references are resolved: every id, the bibliography, and what is wrong."""

    book: Book
    targets: dict
    entries: list  # the bibliography's, as blocks
    cited: dict  # key -> the sections that cite it, as ids
    findings: list


def resolve(book):
    """Number and resolve all chapters of `book`, in place; returns `Resolved`."""
    findings, targets, counts = [], {}, {}
    book.names = saved_names(book)
    for chapter in book.chapters:
        chapter.blocks = rewrite(chapter.blocks, _splice_equation)
        _collect(chapter, targets, counts, findings)
        findings += _alt_texts(chapter)
    for chapter in book.chapters:
        chapter.blocks = rewrite(chapter.blocks, _reference_rule(chapter, targets, findings))
        chapter.blocks = rewrite(chapter.blocks, _link_rule(book, chapter, targets, findings))
    for target in targets.values():
        target.title = rewrite(target.title, _reference_rule(target.chapter, targets, []))
    entries, cited = _cite(book, targets, findings)
    return Resolved(book, targets, entries, cited, findings)


def _collect(chapter, targets, counts, findings):
    """Give the chapter's labels their numbers, and captions theirs; counters run on per number."""

    def add(id, target):
        if id in targets:
            there = targets[id].chapter.source
            findings.append(
                f"{chapter.place_of(id)}: the label {id!r} is taken by {there}: choose another"
            )
        targets[id] = target

    def count(kind):
        key = (chapter.number or chapter.stem, kind)
        counts[key] = counts.get(key, 0) + 1
        return f"{chapter.number}.{counts[key]}" if chapter.number else str(counts[key])

    for x in nodes(chapter.blocks):
        if x["t"] == "Header":
            add(x["c"][1][0], _section(chapter, x))
        elif x["t"] == "Span" and "equation" in x["c"][0][1]:
            number = count("Equation")
            x["c"][1].append(node("Span", attr(classes=["eqno"]), words(f"({number})")))
            add(x["c"][0][0], Target("Equation", number, chapter))
        elif x["t"] == "Table":
            id, caption = x["c"][0][0], x["c"][1][1]
            if id:
                add(id, _captioned(chapter, "Table", count("Table"), caption[0]["c"]))
        elif x["t"] == "Div" and "cell" in x["c"][0][1]:
            cell = chapter.cells[get(x["c"][0], "n")]
            kind = KINDS.get(cell.label.split("-")[0], "")
            if kind in ("Figure", "Table") and not cell.hidden:
                caption = x["c"][1][0]["c"] if x["c"][1] else []
                if not caption:
                    findings.append(
                        f"{chapter.source}, cell {cell.index}: {cell.label} has no caption: "
                        f"add `#| {cell.label[:3]}-cap:`"
                    )
                if not (cell.images() or cell.texts()):
                    findings.append(
                        f"{chapter.source}, cell {cell.index}: {cell.label} has no stored output: "
                        f"`make save CHAPTER={chapter.run_label}`"
                    )
                add(cell.label, _captioned(chapter, kind, count(kind), caption))
        elif x["t"] in ("Div", "Span") and x["c"][0][0]:
            add(x["c"][0][0], Target("", "", chapter, callout_title(x) or []))


def _section(chapter, block):
    level, (id, _, _), inlines = block["c"]
    number = section_number(inlines)
    if level > 1:
        return Target("Section", number, chapter, inlines)
    kind = "Chapter" if chapter.number.isdigit() else "Appendix"
    return Target(kind if chapter.number else "", chapter.number, chapter, inlines)


def _captioned(chapter, kind, number, caption):
    title = list(caption)
    caption[:0] = [node("Strong", words(f"{kind} {number}.")), node("Space")]
    return Target(kind, number, chapter, title)


def _splice_equation(x):
    """`$$..$$ {#eq-id}` in a paragraph -> one Span with the id and the class `equation`."""
    if x["t"] not in ("Para", "Plain"):
        return None
    found = []
    for item in x["c"]:
        label = item["t"] == "Str" and _EQUATION.match(item["c"])
        if label:
            while found and found[-1]["t"] in ("Space", "SoftBreak"):
                found.pop()
        if label and found and found[-1]["t"] == "Math":
            found[-1] = node("Span", attr(label[1], ["equation"]), [found[-1]])
            found += [node("Str", label[2])] if label[2] else []
        else:
            found.append(item)
    return node(x["t"], found)


def _alt_texts(chapter):
    found = []
    for cell in chapter.cells.values():
        if cell.images() and not cell.hidden and not str(cell.options.get("fig-alt") or "").strip():
            found.append(
                f"{chapter.source}, cell {cell.index}: {cell.label or 'an image'} has no "
                "alt text: add `#| fig-alt:` that says what it shows"
            )
    for x in nodes(chapter.blocks):
        if x["t"] == "Image" and not plain(x["c"][1]) and not get(x["c"][0], "fig-alt"):
            found.append(
                f"{chapter.place_of(x['c'][2][0])}: the image {x['c'][2][0]} has no alt text"
            )
    return found


def _reference_rule(chapter, targets, findings):
    """`@sec-x`, `@fig-x`, `@eq-x`, `@tbl-x` -> a link with the target's name."""

    def change(x):
        if x["t"] != "Cite" or not _LABEL.match(x["c"][0][0]["citationId"]):
            return None
        found = []
        for citation in x["c"][0]:
            id = citation["citationId"]
            target = targets.get(id)
            if target is None:
                findings.append(
                    f"{chapter.place_of('@' + id)}: unresolved reference @{id}: "
                    f"no heading, figure, table or equation has this label"
                )
                continue
            bare = citation["citationMode"]["t"] == "SuppressAuthor"
            text = words((target.number if bare else target.name.replace(" ", "\u00a0")) or "")
            if not target.number:
                text = [node("Quoted", {"t": "DoubleQuote"}, target.title)]
            found += ([node("Str", ","), node("Space")] if found else []) + [
                link(text, f"#{id}", ["ref"])
            ]
        return found

    return change


def _link_rule(book, chapter, targets, findings):
    """Links to the book's files -> links to ids; to the repository's others -> its address."""
    pages = {c.source: c for c in book.chapters}
    here = posixpath.dirname(chapter.source)

    def change(x):
        if x["t"] != "Link" or re.match(r"[a-z]+:|//", x["c"][2][0]):
            return None
        path, _, id = x["c"][2][0].partition("#")
        source = posixpath.normpath(posixpath.join(here, path)) if path else chapter.source
        if source in pages:
            id = id or pages[source].id
            if id in targets:
                return node("Link", x["c"][0], x["c"][1], [f"#{id}", x["c"][2][1]])
        elif (book.root / source).exists():
            if not book.repo:
                return x["c"][1]
            return link(x["c"][1], f"{book.repo}/blob/{book.branch}/{source}")
        findings.append(
            f"{chapter.place_of(x['c'][2][0])}: the link to {x['c'][2][0]!r} leads nowhere"
        )
        return None

    return change


def _cite(book, targets, findings):
    """Citations -> the style's text with links; `(bibliography entries, {key: citing sections})`.

    One call of pandoc's citeproc for the whole book, on a paragraph for each citation.
    """
    cites, cited, bibliography = [], {}, book.root / book.config.get("bibliography", "")
    keys = _keys(bibliography) if bibliography.is_file() else set()
    for chapter in book.chapters:
        section = chapter.id
        for x in nodes(chapter.blocks):
            if x["t"] == "Header":
                section = x["c"][1][0]
            if x["t"] != "Cite":
                continue
            unknown = [c["citationId"] for c in x["c"][0] if c["citationId"] not in keys]
            findings += [
                f"{chapter.place_of('@' + key)}: unresolved citation @{key}: "
                "it is not in the bibliography"
                for key in unknown
            ]
            if not unknown:
                cites.append(x)
                for citation in x["c"][0]:
                    where = cited.setdefault(citation["citationId"], [])
                    if section not in where:
                        where.append(section)
    if not cites:
        return [], {}
    meta = {
        "bibliography": node("MetaString", str(bibliography)),
        "link-citations": node("MetaBool", True),
    }
    text = pandoc(
        ["-f", "json", "-t", "json", "--citeproc"],
        document([node("Para", [cite]) for cite in cites], meta),
    )
    blocks = json.loads(text)["blocks"]
    for cite, block in zip(cites, blocks, strict=False):
        cite["c"] = block["c"][0]["c"]
    entries = blocks[-1]["c"][1]
    page = targets.get("refs")
    if page is None:
        findings.append(
            "_quarto.yml lists no page with `::: {#refs}` and `:::`, for the bibliography"
        )
        return entries, cited
    for entry in entries:
        targets[entry["c"][0][0]] = Target("", "", page.chapter)
    page.chapter.blocks = rewrite(page.chapter.blocks, _fill(targets, entries, cited))
    return entries, cited


def _fill(targets, entries, cited):
    """Puts the bibliography into the `refs` div, each entry with the sections that cite it."""

    def change(x):
        if x["t"] != "Div" or x["c"][0][0] != "refs":
            return None
        for entry in entries:
            found = words("Cited in")
            for id in cited.get(entry["c"][0][0].removeprefix("ref-"), []):
                name = targets[id].name or plain(targets[id].title)
                name = name[:1].lower() + name[1:] if targets[id].number else name
                comma = [node("Str", ",")] if len(found) > 3 else []
                found += [*comma, node("Space"), link(words(name), f"#{id}")]
            entry["c"][1].append(
                div([node("Plain", [*found, node("Str", ".")])], classes=["cited"])
            )
        return div(entries, "refs", ["references"])

    return change


def _keys(bibliography):
    return set(re.findall(r"^@\w+\{\s*([^,\s]+)", bibliography.read_text(encoding="utf-8"), re.M))
