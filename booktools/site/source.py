"""Reading: `_quarto.yml` and the chapters it lists, each as pandoc's tree with its code cells."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ..project import BookError, label
from ..save import is_saved, public_names
from .pandoc import parse
from .tree import attr, get, header, node, nodes, plain, words

_CALLOUT = re.compile(r'^(:::+ *\{[^}]*\.callout-[^}]*?) *title="((?:[^"\\]|\\.)*)"([^}]*\})', re.M)
_NUMBER = re.compile(r"^(?:[A-Z]|\d+)(?:\.\d+)+$")
_IMAGES = {"image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpg"}


@dataclass
class Cell:
    """A code cell with its stored outputs; `options` are its `#|` lines, `code` the rest."""

    id: str
    index: int
    code: str
    options: dict
    outputs: list
    tags: list = field(default_factory=list)

    @property
    def hidden(self):
        return self.options.get("include") is False

    @property
    def shows_code(self):
        return self.options.get("echo") is not False and bool(self.code.strip())

    @property
    def label(self):
        return self.options.get("label", "")

    def texts(self):
        """The text outputs, streams that follow each other joined."""
        found, open_stream = [], False
        for output in self.outputs:
            stream = output["output_type"] == "stream"
            data = output.get("data", {})
            if stream:
                text = "".join(output["text"])
            elif any(kind in data for kind in _IMAGES):
                continue
            else:
                text = "".join(data.get("text/plain", ""))
            if stream and open_stream:
                found[-1] += text
            elif text:
                found.append(text)
            open_stream = stream
        return [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).rstrip("\n") for text in found]

    def images(self):
        """The images, `(extension, data)`: an SVG as text, another in base64."""
        found = []
        for output in self.outputs:
            data = output.get("data", {})
            kind = next((kind for kind in _IMAGES if kind in data), None)
            if kind:
                found.append((_IMAGES[kind], "".join(data[kind])))
        return found


@dataclass
class Chapter:
    """One page of the book. `id` is its first heading's, `number` the `9` of its section 9.1."""

    source: str
    part: str
    blocks: list
    cells: dict = field(default_factory=dict)
    meta: dict = field(default_factory=dict)
    number: str = ""
    module: str = ""
    markdown: str = ""

    @property
    def page(self):
        return str(Path(self.source).with_suffix(".html").as_posix())

    @property
    def stem(self):
        return Path(self.source).stem

    @property
    def heading(self):
        return next(x for x in self.blocks if x["t"] == "Header")

    @property
    def id(self):
        return self.heading["c"][1][0]

    @property
    def title(self):
        return plain(self.heading["c"][2])

    @property
    def run_label(self):
        """How `make run CHAPTER=` names it; empty for a page without code."""
        return label(Path(self.source)) if any(c.code for c in self.cells.values()) else ""

    def imports(self):
        """Names of the library that the chapter's cells import by name."""
        code = "\n".join(cell.code for cell in self.cells.values())
        found = re.findall(r"^ *from agentrl[.\w]* import +(\([^)]*\)|.+)", code, re.M)
        return {name for names in found for name in re.findall(r"\w+", names)}

    def place_of(self, text):
        """`nbs/09_grpo.ipynb, cell 12`, the first cell that holds `text`; or just the file."""
        for index, source in enumerate(self.markdown):
            if text in source:
                return f"{self.source}, cell {index}" if len(self.markdown) > 1 else self.source
        return self.source


@dataclass
class Book:
    """What `_quarto.yml` says, and the chapters in reading order."""

    root: Path
    config: dict
    chapters: list
    names: dict = field(default_factory=dict)

    @property
    def title(self):
        return self.config["book"]["title"]

    @property
    def repo(self):
        """The address of the repository, without a slash at its end; empty when there is none."""
        return str(self.config["book"].get("repo-url") or "").rstrip("/")

    @property
    def branch(self):
        return self.config["book"].get("repo-branch", "main")


def read(root):
    """The `Book` in the folder `root`."""
    root = Path(root)
    config = yaml.safe_load((root / "_quarto.yml").read_text(encoding="utf-8"))
    with ThreadPoolExecutor() as pool:  # pandoc's processes work side by side
        chapters = list(pool.map(lambda item: _chapter(root, *item), _listed(config["book"])))
    return Book(root, config, chapters)


def _listed(book):
    """`(file, part)` of each page; the appendices are a part of their own."""
    for item in book["chapters"]:
        if isinstance(item, dict):
            for source in item["chapters"]:
                yield source, item["part"]
        else:
            yield item, ""
    for source in book.get("appendices", []):
        yield source, "Appendices"


def _chapter(root, source, part):
    if not (root / source).exists():
        raise BookError(f"_quarto.yml lists {source}, which does not exist")
    text = (root / source).read_text(encoding="utf-8")
    cells, pieces, module = {}, [], ""
    if source.endswith(".ipynb"):
        for index, raw_cell in enumerate(json.loads(text)["cells"]):
            body = "".join(raw_cell["source"])
            if raw_cell["cell_type"] == "code":
                cell = _cell(raw_cell, index, body, source)
                module = module or cell.options.get("default_exp", "")
                cells[cell.id] = cell
                caption = cell.options.get("fig-cap") or cell.options.get("tbl-cap") or ""
                body = f'\n:::::::: {{.cell n="{cell.id}"}}\n\n{caption}\n\n::::::::\n'
            pieces.append(body)
    else:
        pieces.append(text)
    try:
        meta, blocks = parse(_titled("\n\n".join(pieces)))
    except BookError as error:
        raise BookError(f"{source}: {error}") from None
    if "title" in meta:
        blocks.insert(0, header(1, "", meta["title"]["c"]))
    if not any(x["t"] == "Header" and x["c"][0] == 1 for x in blocks):
        raise BookError(f"{source} has no title: begin it with `# Title {{#sec-...}}`")
    chapter = Chapter(source, part, blocks, cells, meta, module=module, markdown=pieces)
    chapter.number = _number(chapter)
    _complete_ids(chapter)
    chapter.blocks = _exercises(_solutions(chapter.blocks, cells))
    _free_widths(chapter.blocks)
    return chapter


def _cell(raw_cell, index, body, source):
    lines = body.split("\n")
    options = [line for line in lines if line.startswith("#|")]
    code = "\n".join(line for line in lines if not line.startswith("#|")).strip("\n")
    try:
        values = yaml.safe_load("\n".join(line[2:].removeprefix(" ") for line in options)) or {}
    except yaml.YAMLError as error:
        raise BookError(f"{source}, cell {index}: its options are no YAML: {error}") from None
    return Cell(
        raw_cell.get("id", f"cell-{index}"), index, code, values,
        raw_cell.get("outputs", []), raw_cell.get("metadata", {}).get("tags", []),
    )  # fmt: skip


def _titled(text):
    """Callouts with their titles as a block inside, so that pandoc reads the titles' markup."""
    return _CALLOUT.sub(
        lambda m: f"{m[1]} {m[3]}\n\n:::::::: title\n" + m[2].replace('\\"', '"') + "\n::::::::\n",
        text,
    )


def _number(chapter):
    """`9` from the first numbered heading, or from the file's name; empty for the others."""
    for block in chapter.blocks:
        if block["t"] == "Header" and block["c"][0] > 1:
            first = plain(block["c"][2]).split(" ")[0]
            if _NUMBER.match(first):
                return first.split(".")[0]
    found = re.match(r"(\d+|[A-Z])_", chapter.stem)
    return found[1].lstrip("0") or "0" if found and chapter.cells else ""


def section_number(inlines):
    """The `9.2` that a heading begins with; empty if it has none."""
    first = plain(inlines).split(" ")[0]
    return first if _NUMBER.match(first) else ""


def _complete_ids(chapter):
    """An id for each heading without one, from the file's name and the heading's words."""
    taken = set()
    for x in nodes(chapter.blocks):
        if x["t"] == "Header" and not x["c"][1][0]:
            words_ = re.sub(r"[^\w]+", "-", plain(x["c"][2]).lower()).strip("-")
            id = f"{chapter.stem}-{words_}".replace("_", "-")
            while id in taken:
                id += "-2"
            taken.add(id)
            x["c"][1][0] = id


def _free_widths(blocks):
    """Columns that a table's dashes make equally wide get the width of their content instead."""
    for x in nodes(blocks):
        columns = x["c"][2] if x["t"] == "Table" else []
        if len({str(width) for _, width in columns}) == 1:
            x["c"][2] = [[align, node("ColWidthDefault")] for align, _ in columns]


def _solutions(blocks, cells):
    """Folded code right after a folded callout belongs to it: the solution and its program."""
    found = []
    for block in blocks:
        cell = block["t"] == "Div" and "cell" in block["c"][0][1] and cells[get(block["c"][0], "n")]
        joins = cell and (cell.hidden or cell.options.get("code-fold"))
        if joins and found and _collapsed(found[-1]):
            found[-1]["c"][1].append(block)
        else:
            found.append(block)
    return found


def _collapsed(block):
    return block["t"] == "Div" and get(block["c"][0], "collapse") == "true"


def _exercises(blocks):
    """Paragraphs that begin with a bold number such as **9.5** get the id `exercise-9-5`."""
    found, seen = [], set()
    for block in blocks:
        first = block["c"][0] if block["t"] == "Para" else {"t": ""}
        number = plain(first) if first["t"] == "Strong" else ""
        if _NUMBER.match(number) and number not in seen:
            seen.add(number)
            found.append(
                node("Div", attr(f"exercise-{number.replace('.', '-')}", ["exercise"]), [block])
            )
            continue
        title = callout_title(block)
        solution = title and re.match(r"Solution (\S+\.\d+)", plain(title))
        if solution:
            block["c"][0][0] = block["c"][0][0] or f"solution-{solution[1].replace('.', '-')}"
        found.append(block)
    return found


def callout_kind(block):
    """`note`, `tip`, ... for a callout; empty for any other block."""
    classes = block["c"][0][1] if block["t"] == "Div" else []
    return next((c.removeprefix("callout-") for c in classes if c.startswith("callout-")), "")


def callout_title(block):
    """A callout's title as inlines: the one given, or its kind; None for any other block."""
    if not callout_kind(block):
        return None
    body = block["c"][1]
    if body and body[0]["t"] == "Div" and "title" in body[0]["c"][0][1]:
        return body[0]["c"][1][0]["c"] if body[0]["c"][1] else []
    return words(callout_kind(block).capitalize())


def callout_body(block):
    body = block["c"][1]
    return body[1:] if body and body[0]["t"] == "Div" and "title" in body[0]["c"][0][1] else body


def saved_names(book):
    """Where each public name is saved: `{name: (chapter, cell id, section id)}`."""
    found = {}
    for chapter in book.chapters:
        section = chapter.id
        for x in nodes(chapter.blocks):
            if x["t"] == "Header":
                section = x["c"][1][0]
            elif x["t"] == "Div" and "cell" in x["c"][0][1]:
                cell = chapter.cells[get(x["c"][0], "n")]
                if cell.code and is_saved(cell.code):
                    for name in public_names(cell.code):
                        found[name] = (chapter, cell.id, section)
    return found
