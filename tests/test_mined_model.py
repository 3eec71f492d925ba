"""Appendix F: mined tasks as the tasks of the coding-tools experiment, and a parser shared by threads."""

import ast
import gc
import inspect
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import agentrl as arl
from agentrl import real_bugs

FILE = Path(__file__).resolve().parents[1] / "results" / "real_bugs.json"


@pytest.fixture(scope="module")
def tasks():
    return arl.load_tasks(FILE)


def test_threads_that_parse_at_once_do_not_meet_in_the_parser():
    class Noisy:  # a cycle whose end runs Python code, so that threads change during a parse
        def __init__(self):
            self.me = self

        def __del__(self):
            sum(range(50))

    text, before, threshold = Path(ast.__file__).read_text(), sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(10)
    try:
        with ThreadPoolExecutor(8) as threads:
            jobs = threads.map(lambda _: ([Noisy() for _ in range(5)], arl.parse_source(text))[1], range(40))
            assert len({len(tree.body) for tree in jobs}) == 1
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*threshold)
    assert inspect.getsource(real_bugs).count("ast.parse(") == 1  # nothing parses beside it


@pytest.mark.parametrize(
    "before, after, want",
    [
        ("def f(x):\n    return x + 1\n", "def f(x):\n    return x - 1\n", ("return x + 1", "return x - 1")),
        ("def f(x):\n    x += 1\n    x += 1\n", "def f(x):\n    x += 1\n    x -= 1\n", None),  # stands twice
        ("def f(x):\n    a = 1\n    return a\n", "def f(x):\n    a = 2\n    return x\n", None),  # two lines
        ("def f(x):\n    return x\n", "def f(x):\n    x += 1\n    return x\n", None),  # a line more
        ("def f(x):\n    return x\n", "def f(x):\n    return x\n", None),  # nothing
    ],
)
def test_line_edit(before, after, want):
    assert arl.line_edit(before, after) == want


def test_short_repairs_are_short_and_their_edits_repair(tasks):
    chosen = arl.short_repairs(tasks)
    assert len(chosen) > 100 and {task.split for task in chosen} == {"train", "heldout"}
    for task in chosen:
        right, wrong = arl.mined_edits(task)
        assert len(task.source.splitlines()) <= 12
        assert task.source.replace(*right).rstrip("\n") == task.about["fixed"].rstrip("\n")
        assert task.source.count(wrong[0]) == 1 and arl.mined_edits(task) == (right, wrong)
    assert sum(len(set(arl.mined_edits(task))) == 1 for task in chosen) < len(chosen) / 10


def test_the_experiment_takes_its_warm_start_from_training_tasks(tasks):
    with arl.Sandbox(tier="unsafe") as box:  # nothing runs in it here
        mined = arl.mined_experiment(arl.CodeRunner(box), str(FILE))
        rng = random.Random(0)
        names = {task.name for task in mined.train}
        drawn = [mined.warm_task(rng) for _ in range(60)]
        assert {task.name for task in drawn} <= names and not names & {task.name for task in mined.heldout}
        right = [repr(arl.mined_edits(task)[0][1])[1:-1] in str(mined.demonstrate(task, rng)) for task in drawn]
        assert 0.2 < sum(right) / len(right) < 0.65
        with pytest.raises(ValueError, match="split 'train' has at most 1 lines"):
            arl.mined_experiment(arl.CodeRunner(box), str(FILE), most_lines=1)
