"""The search index: a row for each section, exercise, figure and saved name."""

import json
import re

from .source import callout_title
from .tree import get, nodes, plain


def index_script(resolved):
    """JavaScript that holds the rows `[title, place, address, names, text]`."""
    rows = [row for chapter in resolved.book.chapters for row in _rows(resolved, chapter)]
    return f"window.bookIndex={json.dumps(rows, ensure_ascii=False, separators=(',', ':'))};"


def _rows(resolved, chapter):
    """The chapter's rows; text belongs to the nearest heading, exercise or solution above it."""
    place = f"{chapter.number} {chapter.title}".strip()
    rows, names = [], resolved.book.names

    def begin(title, id):
        rows.append([title, place, f"{chapter.page}#{id}" if id else chapter.page, "", ""])

    def add(block):
        kind = block["t"]
        if kind == "Header":
            begin(plain(block["c"][2]), block["c"][1][0])
        elif kind == "Div" and "cell" in block["c"][0][1]:
            _add_cell(chapter.cells[get(block["c"][0], "n")], block)
        elif kind == "Div":
            id, title = block["c"][0][0], callout_title(block)
            if id.startswith(("exercise-", "solution-")):
                first = plain(title) if title else f"Exercise {id[9:].replace('-', '.')}"
                begin(first, id)
                rows[-1][3] = "exercise"  # so that a search for one finds its solution too
            for inner in block["c"][1]:
                add(inner)
        elif kind == "DefinitionList":
            for term, definitions in block["c"]:
                span = next((x for x in nodes(term) if x["t"] == "Span" and x["c"][0][0]), None)
                if span:
                    begin(plain(term).split("(")[0].split(" = ")[0], span["c"][0][0])
                rows[-1][4] += f" {plain(term)} {plain(definitions)}"
        elif rows:
            rows[-1][4] += " " + plain(block)

    def _add_cell(cell, block):
        if cell.hidden:
            return
        saved = [
            name for name, (where, id, _) in names.items() if where is chapter and id == cell.id
        ]
        for name in saved:
            rows.append(
                [
                    name,
                    f"saved in {place}",
                    f"{chapter.page}#c{cell.id}",
                    name,
                    _first_words(cell.code),
                ]
            )
        if saved and len(rows) > len(saved):
            rows.append(rows.pop(-len(saved) - 1))  # text that follows goes on with its section
        rows[-1][4] += " " + plain(block["c"][1])
        rows[-1][3] += " " + " ".join(dict.fromkeys(re.findall(r"\barl\.(\w+)", cell.code)))

    for block in chapter.blocks:
        add(block)
    for row in rows:
        row[3], row[4] = row[3].strip(), " ".join(row[4].split())
    return rows


def _first_words(code):
    """A saved cell's docstring, or its code, for the line under a search result."""
    doc = re.search(r'"""(.*?)"""', code, re.S)
    return " ".join((doc[1] if doc else code.replace("#@save", "")).split())[:300]
