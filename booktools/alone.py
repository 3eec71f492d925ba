"""Notebooks that open alone: the cell that installs the library, and the trial in an empty environment.

`make export` writes the cell into each notebook, with the version and the source that settings.ini
names. `make alone` builds the package and runs copied notebooks in an empty virtual environment, outside the
repository and with nothing of it on the path.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from configparser import ConfigParser
from pathlib import Path

from . import fresh, prose
from .project import ROOT, BookError, find_notebook, notebooks, write_atomic

ID = "install"
CHAPTERS = ("00", "01", "04")  # cheap ones that between them draw, sample and import every extra
_CELL = """\
#| include: false
# Opened alone, as on Colab: installs the library that the page was built with. `make export` writes this cell.
try:
    import agentrl
    found = agentrl.__version__
except ModuleNotFoundError as error:
    if error.name != 'agentrl':
        raise
    found = None
if found != '{version}':
    import subprocess, sys
    subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', '{source}'], check=True)
    for name in [name for name in sys.modules if name.partition('.')[0] == 'agentrl']:
        del sys.modules[name]"""


def settings(root=ROOT):
    """The `[DEFAULT]` section of settings.ini."""
    parser = ConfigParser(delimiters=["="], interpolation=None)
    parser.read(Path(root) / "settings.ini", encoding="utf-8")
    return parser["DEFAULT"]


def install_cell(root=ROOT):
    """The source of the cell that each notebook with code begins with."""
    given = settings(root)
    source = given["install_source"].format(version=given["version"])
    return _CELL.format(version=given["version"], source=source)


def _stamped(nb, source):
    """The notebook with the cell in its place: before the first code cell of its own."""
    old = next((cell for cell in nb["cells"] if cell.get("id") == ID), None)
    cells = [cell for cell in nb["cells"] if cell is not old]
    place = next((n for n, cell in enumerate(cells) if cell["cell_type"] == "code"), None)
    if place is None:
        return {**nb, "cells": cells}
    metadata = old["metadata"] if old else {}
    new = {
        "cell_type": "code",
        "execution_count": None,
        "id": ID,
        "metadata": metadata,
        "outputs": [],
        "source": source.splitlines(keepends=True),
    }
    if old is not None:
        new = {key: new[key] for key in old}
    return {**nb, "cells": [*cells[:place], new, *cells[place:]]}


def stamp(root=ROOT):
    """Bring that cell of every notebook in step with settings.ini."""
    from fastcore.nbio import nb2str

    for path in notebooks(root):
        text = path.read_text(encoding="utf-8")
        fresh_text = nb2str(_stamped(json.loads(text), install_cell(root)))
        if json.loads(fresh_text) != json.loads(text):
            write_atomic(path, fresh_text)


def check(root, path):
    """A finding if a notebook's installing cell is not the one that settings.ini asks for."""
    nb = json.loads(path.read_text(encoding="utf-8"))
    if _stamped(nb, install_cell(root)) != nb:
        yield (
            None,
            "the cell that installs the library",
            "it is missing or out of date: `make export` writes it",
        )


def _step(command, **options):
    process = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if process.returncode:
        raise BookError(
            f"{Path(command[0]).name} {' '.join(map(str, command[1:4]))} failed:\n{process.stdout[-3000:]}"
        )


def _build(root, folder, env):
    """Build the package from a copy of the tracked files: a build leaves its traces there, not here."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    for name in filter(None, listing.stdout.split("\0")):
        if (root / name).is_file() and not name.startswith(
            ("nbs/", "tests/", "results/", "benchmarks/")
        ):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, source / name)
    _step(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            folder / "dist",
            source,
        ],
        env=env,
    )


def _run(python, path, env):
    code = (
        "import nbformat, sys; from nbclient import NotebookClient; nb = nbformat.read(sys.argv[1], 4); "
        "NotebookClient(nb, timeout=3600, kernel_name='python3').execute(); nbformat.write(nb, sys.argv[1])"
    )
    _step([python, "-c", code, path.name], cwd=path.parent, env=env)


def trial(chapters=None, keep=None, root=ROOT):
    """Run chapters alone in an empty environment; raises BookError unless their outputs are the stored ones.

    `keep` names a folder for the environment, which a later trial uses again; without it all is deleted.
    """
    root, start = Path(root), time.time()
    with tempfile.TemporaryDirectory(prefix="alone-") as temporary:
        folder = Path(keep or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
        env |= {
            "PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {folder / 'dist'}".strip()
        }
        env |= {
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "JUPYTER_PLATFORM_DIRS": "1",
        }
        print("building the package", flush=True)
        _build(root, folder, env)
        python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
        if python.exists():
            _step([python, "-m", "pip", "uninstall", "--quiet", "--yes", "agentrl"], env=env)
        else:
            print("making an empty environment with a Jupyter kernel", flush=True)
            _step([sys.executable, "-m", "venv", folder / "venv"])
            _step([python, "-m", "pip", "install", "--quiet", "ipykernel", "nbclient"], env=env)
        found = []
        for name in chapters or CHAPTERS:
            path, copy, begun = (
                find_notebook(name, root),
                folder / "reader" / find_notebook(name, root).name,
                time.time(),
            )
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(path, copy)
            _run(python, copy, env)
            outputs = {cell.id: cell.outputs for cell in prose.cells(copy)} | {ID: []}  # pip may warn
            faults = list(fresh.differences(path, outputs))
            print(
                f"{path.stem}: ran alone in {time.time() - begun:.0f} s, {len(faults)} other outputs",
                flush=True,
            )
            found += [f"{path.stem}, cell {cell.begins()!r}: {text}" for cell, text, _ in faults]
    if found:
        raise BookError("notebooks that run alone give other outputs:\n" + "\n".join(found))
    print(f"all ran alone, with the stored outputs; {time.time() - start:.0f} s")
