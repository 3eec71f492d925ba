"""Where things are, how a chapter is named on the command line, and how files are written."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_APPENDIX = re.compile(r"[A-Z]_")


class BookError(Exception):
    """What went wrong and what to do next, in one line."""


def notebooks(root=ROOT):
    """The book's notebooks in reading order: the preface (`index`), chapters by number, appendices by letter, the rest."""

    def place(path):
        kind = 1 if path.stem[0].isdigit() else 2 if _APPENDIX.match(path.stem) else 3
        return 0 if path.stem == "index" else kind, path.stem

    return sorted((Path(root) / "nbs").glob("*.ipynb"), key=place)


def label(path):
    """How a notebook is named on the command line: `09`, `headline`."""
    return path.stem.split("_")[0]


def find_notebook(name, root=ROOT):
    """The notebook that `09`, `9`, `grpo`, `09_grpo`, `nbs/09_grpo.ipynb` or `headline` names."""

    def names(path):
        number, _, rest = path.stem.partition("_")
        return {path.stem, path.name, f"nbs/{path.name}"} | (
            {number, str(int(number)), rest} if number.isdigit()
            else {number, number.lower(), rest} if _APPENDIX.match(path.stem)
            else set()
        )

    for path in notebooks(root):
        if str(name) in names(path):
            return path
    if not name:
        raise BookError("which chapter? for example: make save CHAPTER=09")
    known = ", ".join(map(label, notebooks(root))) or "none yet"
    raise BookError(f"there is no chapter {name!r}; the chapters are: {known}")


def write_atomic(path, text):
    """Write a text file so that an interruption leaves the old one or the new one, whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def strip_colors(text):
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
