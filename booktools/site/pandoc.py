"""Calls of pandoc; its warnings are findings of ours."""

import json
import subprocess

from ..project import BookError

VERSION = [1, 23, 1]  # of the tree's JSON


def pandoc(arguments, text):
    """Pandoc's output for `text`; a BookError with its message when it fails or warns."""
    import pypandoc

    done = subprocess.run(
        [pypandoc.get_pandoc_path(), *arguments],
        input=text, capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip
    message = done.stderr.strip()
    if done.returncode or message:
        raise BookError(f"pandoc {' '.join(map(str, arguments[:4]))}: {message or done.returncode}")
    return done.stdout


def parse(markdown):
    """`(metadata, blocks)` of a Quarto Markdown text."""
    tree = json.loads(pandoc(["-f", "markdown-auto_identifiers", "-t", "json"], markdown))
    return tree["meta"], tree["blocks"]


def document(blocks, meta=None):
    """The JSON text of a tree, for `pandoc -f json`."""
    return json.dumps({"pandoc-api-version": VERSION, "meta": meta or {}, "blocks": blocks})
