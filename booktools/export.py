"""`make export`: notebooks to library, then everything derived from the library."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from . import alone, api
from .project import ROOT, BookError, notebooks, write_atomic
from .save import chapter_modules


def export(root=ROOT):
    """Write `agentrl/` and the API index from the notebooks, and delete modules without one.

    Each notebook gets the cell that installs the library where the notebook is opened alone.
    """
    root = Path(root)
    alone.stamp(root)
    for path in stale_modules(root):
        path.unlink()
        print(f"deleted {path.relative_to(root)}: no notebook exports it any more")
    _nbdev_export(root)
    write_atomic(root / api.INDEX, api.index(root))


def stale_modules(root=ROOT):
    """Files of `agentrl/` that no notebook exports."""
    known = {"__init__", "_modidx", *chapter_modules(root)}
    return sorted(p for p in (Path(root) / "agentrl").glob("*.py") if p.stem not in known)


def fresh_export(root=ROOT):
    """What the notebooks export now, `{file name: text}`, made in a copy; nothing here changes."""
    root = Path(root)
    with tempfile.TemporaryDirectory(prefix="booktools-") as folder:
        copy = Path(folder)
        (copy / "nbs").mkdir()
        (copy / "agentrl").mkdir()
        for path in [root / "pyproject.toml", root / "agentrl/__init__.py", *notebooks(root)]:
            shutil.copy(path, copy / path.relative_to(root))
        _nbdev_export(copy)
        return {
            p.name: p.read_text(encoding="utf-8") for p in sorted((copy / "agentrl").glob("*.py"))
        }


def _nbdev_export(root):
    from nbdev.doclinks import nbdev_export

    in_test = os.environ.pop("IN_TEST", None)  # nbdev-export does nothing while it is set
    try:
        with contextlib.chdir(root):
            nbdev_export()
    except (ValueError, SyntaxError) as error:
        raise BookError(f"the export stopped: {error}") from None
    finally:
        if in_test is not None:
            os.environ["IN_TEST"] = in_test
