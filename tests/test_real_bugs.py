"""Appendix F: real functions cut out, bugs planted, tests found, and what is refused with which reason."""

import ast
import json
import random
import re
import warnings
from pathlib import Path

import pytest

import agentrl as arl
from agentrl import real_bugs

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "results" / "real_bugs.json"


@pytest.fixture(scope="module")
def box():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = arl.mining_sandbox(workers=2)
        except arl.SandboxError:
            found = arl.mining_sandbox(workers=2, tier="unsafe")  # the code below is ours
    with found:
        yield found


@pytest.fixture(scope="module")
def short_box(box):
    """The same tier with a second of CPU a job: a program that never ends costs the mining sandbox twenty, each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = arl.Sandbox(arl.SandboxLimits(wall_s=120, cpu_s=1, output_kb=8192), box.tier, workers=1)
    with found:
        yield found


@pytest.fixture(scope="module")
def committed():
    return arl.load_tasks(FILE)


MIXED = '''
import itertools, os, random, time
from math import exp
from fractions import Fraction
from numpy import mean

_seen, _numbers, LIMITS = {}, itertools.count(), {"low": 0, "high": 9}

def clip(value, low, high=9):
    """Keep a value inside.

    >>> clip(12, 0, 5)
    5
    """
    if value < low:
        return low
    if value > high:
        return high
    return value

def bounded(n, width):
    """Uses the helper and the table of its module."""
    total = 0
    for i in range(n):
        total += clip(i, LIMITS["low"], width)
    return total

def countdown(n):
    while n > 0:
        yield n
        n -= 1

def pairs(words):
    return map(len, words[1:])

def push(items, value):
    if value not in items:
        items.append(value)
    return len(items)

def roll(n): return random.randrange(n) + 1
def stamp(n): return time.time() + n
def slot(text): return hash(text) % 8
def tick(n): return next(_numbers) + n
def read(path): return open(path).read()
def show(text): print(text)
def make_folder(name):
    os.makedirs("x" + str(len(name)), exist_ok=True)
    return len(name) + 1
def halves(n): return Fraction(n, 2)
def remember(n, cache={}): return cache.setdefault(n, n + 1)
def stored(n):
    _seen[n] = n + 1
    return len(_seen)
def counted(n):
    global LIMITS
    LIMITS = n
    return n + 1
def grow(x): return exp(x) + 1
def average(xs): return mean(xs) + 1
async def wait(n): return n + 1
def nothing(): return 1 + 1
def needs_object(thing): return thing.colour.shade + 1
def constant(n): return 7
def unknown(n): return missing_helper(n) + 1

class Box:
    def area(self, n): return n + 1
'''
REASONS = {
    "roll": "nondeterministic: imports random",
    "stamp": "nondeterministic: imports time",
    "slot": "nondeterministic: uses hash",
    "tick": "nondeterministic: two runs differ",
    "read": "I/O: uses open",
    "show": "I/O: uses print",
    "make_folder": "I/O when it runs: os.mkdir",
    "halves": "needs classes: it returns Fraction",
    "Box.area": "needs classes: a method",
    "remember": "default mutable state: a default that is made once",
    "stored": "keeps state in _seen, which its module holds",
    "counted": "keeps state in a variable outside",
    "grow": "last digits differ between machines: uses exp",
    "average": "imports numpy, which not every sandbox has",
    "wait": "a coroutine",
    "nothing": "takes no arguments",
    "needs_object": "no inputs found that it takes",
    "constant": "too few different results",
    "unknown": "needs the name missing_helper, which its module binds in no plain way",
}


@pytest.fixture(scope="module")
def mixed(box, tmp_path_factory):
    path = tmp_path_factory.mktemp("mined") / "mixed.py"
    path.write_text(MIXED)
    return path, *arl.mine_tasks(path, box)


def test_each_unfit_function_is_refused_with_its_reason(mixed):
    _, tasks, report = mixed
    assert report["refused"] == REASONS
    assert {t.about["origin"] for t in tasks} == {
        f"mixed.{x}" for x in ("clip", "bounded", "countdown", "pairs", "push")
    }
    assert report["functions"] == len(REASONS) + 5


def test_iterators_and_changed_arguments_are_handled_by_a_wrapper(mixed):
    _, tasks, _ = mixed
    names = {t.about["origin"]: t.fn_name for t in tasks}
    assert names["mixed.countdown"] == "countdown_items" and names["mixed.pairs"] == "pairs_items"
    assert names["mixed.push"] == "push_effect" and names["mixed.clip"] == "clip"
    push = next(t for t in tasks if t.fn_name == "push_effect")
    for (items, value), (result, after) in push.public_tests + push.hidden_tests:
        changed = items if value in items else [*items, value]
        assert (result, after) == (len(changed), [changed, value])


def test_a_task_holds_what_the_issue_asks(mixed, box):
    _, tasks, report = mixed
    assert len(tasks) >= 12 and [t.name for t in tasks] == report["kept"]
    for task in tasks:
        about = task.about
        assert {"origin", "licence", "python", "kind", "change", "lines", "fixed"} == set(about)
        assert about["kind"] in arl.BUG_KINDS and task.fix_op == ""
        public, hidden = ({repr(args) for args, _ in x} for x in (task.public_tests, task.hidden_tests))
        assert len(public) == len(task.public_tests) >= 2 and len(hidden) >= arl.LEAST_HIDDEN and not public & hidden
        assert arl.wrong_task(box, task) == ""


@pytest.fixture(scope="module")
def again(box, tmp_path_factory):
    """The functions of MIXED that give tasks, and two that don't, one task each: mined a second time it is compared with this."""
    path = tmp_path_factory.mktemp("again") / "again.py"
    path.write_text(MIXED[: MIXED.index("def roll")] + "def tick(n): return next(_numbers) + n\ndef constant(n): return 7\n")
    return path, *arl.mine_tasks(path, box, per_function=1, licence="our own")


def test_the_same_seed_gives_the_same_tasks_and_another_others(again, box):
    path, tasks, report = again
    assert arl.mine_tasks(path, box, per_function=1, licence="our own") == (tasks, report)
    other, _ = arl.mine_tasks(path, box, seed=1, per_function=1)
    assert [t.public_tests for t in other] != [t.public_tests for t in tasks]


def test_fewer_tasks_a_function_and_the_report_says_so(again):
    _, tasks, report = again
    origins = [t.about["origin"] for t in tasks]
    assert len(set(origins)) == len(origins) == 5 and {t.about["licence"] for t in tasks} == {"our own"}
    assert "enough tasks from this function" in {why for _, _, why in report["dropped"]}
    assert set(report["refused"]) == {"tick", "constant"}


def test_tasks_go_through_chapter_4s_file_unchanged(mixed, tmp_path):
    _, tasks, _ = mixed
    assert arl.load_tasks(arl.save_tasks(tasks, tmp_path / "own.json")) == tasks


def test_a_cut_function_runs_alone(mixed):
    module = arl.ModuleSource(mixed[0])
    functions, _ = arl.cut_functions(module)
    bounded = next(x for x in functions if x.name == "bounded")
    space = {}
    exec(bounded.source, space)
    assert space["bounded"](4, 2) == 0 + 1 + 2 + 2 and "roll" not in bounded.source
    assert next(x for x in functions if x.name == "clip").calls == ((12, 0, 5),)


@pytest.mark.parametrize(
    "kind, body, results",
    [
        ("compare", "return a < b", {"return a <= b", "return a > b"}),
        ("negate", "return a == b", {"return a != b"}),
        ("negate", "if a in b:\n        return 1\n    return b", {"if a not in b:\n        return 1\n    return b"}),
        ("logic", "return a and b", {"return a or b", "return a", "return b"}),
        ("operator", "return a // b", {"return a / b", "return a % b"}),
        ("operator", "a += b\n    return a", {"a -= b\n    return a", "a = b\n    return a"}),
        ("bound", "return a[b]", {"return a[b + 1]", "return a[b - 1]"}),
        ("bound", "return list(range(a))", {"return list(range(a + 1))", "return list(range(a - 1))"}),
        ("constant", "return f(a, 3)", {"return f(a, 4)", "return f(a, 2)"}),
        ("init", "c = 0\n    return c", {"c = 1\n    return c"}),
        ("twin", "return min(a)", {"return max(a)"}),
        ("arguments", "return f(a, b)", {"return f(b, a)"}),
        ("variable", "return a.x", {"return b.x"}),
        ("guard", "if not a:\n        return b\n    return a.b", {"return a.b"}),
        ("statement", "a = a.lower()\n    return a", {"return a"}),
        ("flow", "for c in a:\n        if c: break\n    return b", {"for c in a:\n        if c: continue\n    return b"}),
    ],
)
def test_each_kind_of_mutation(kind, body, results):
    source = f"def g(a, b):\n    {body}\n"
    found = {
        edit.apply(source)[len("def g(a, b):\n") :].strip()
        for edit in arl.mutations(source, "g", {"a": ["str"], "b": ["str"]})
        if edit.kind == kind
    }
    assert found == results


def test_mutations_differ_and_parse_and_leave_text_around_alone():
    source = 'def g(a, b):\n    """Doc é."""  # note é\n    é = "é" + a  # é\n    return é if a <= b + 1 else b  # x\n'
    forms = [arl.normal_form(x.apply(source)) for x in arl.mutations(source, "g")]
    assert len(set(forms)) == len(forms) > 3 and arl.normal_form(source) not in forms
    assert all(x.apply(source).count("é") >= 5 for x in arl.mutations(source, "g"))


def test_normal_form_ignores_what_does_not_run():
    one = 'def f(a: int) -> int:\n    """Doc."""\n    return a+1  # note\n'
    assert arl.normal_form(one, "f") == arl.normal_form("def g(a):\n    return a + 1\n", "g")
    assert arl.normal_form(one, "f") != arl.normal_form("def g(a):\n    return a + 2\n", "g")


def test_copies_of_a_function_are_duplicates(box, tmp_path):
    body = "(n, top):\n    total = 0\n    for i in range(n):\n        if i < top:\n            total += i\n    return total\n\n"
    path = tmp_path / "twice.py"
    path.write_text(f"def one{body}def two{body}")
    tasks, report = arl.mine_tasks(path, box, per_function=2)
    assert {t.fn_name for t in tasks} == {"one"}
    assert {name for name, _, why in report["dropped"] if why == "duplicate of another task"} == {"two"}


def test_a_bug_that_no_input_shows_or_that_never_ends_is_dropped(box, tmp_path):
    path = tmp_path / "hard.py"
    path.write_text("def down(n):\n    if n > 10 ** 9:\n        return -1\n    while n > 3:\n        n //= 2\n    return n\n")
    _, report = arl.mine_tasks(path, box)
    reasons = {why for _, _, why in report["dropped"]}
    assert {"does not end", "no input shows it: perhaps equivalent"} <= reasons


def test_the_split_is_by_package():
    names = [f"m{i}" for i in range(400)]
    sides = [arl.split_of(x) for x in names]
    assert 0.15 < sides.count("heldout") / 400 < 0.35
    assert all(arl.split_of(x) == arl.split_of(f"{x}.part") for x in names[:50])
    assert all(arl.split_of(a) == arl.split_of(b) for a, b in real_bugs.TWIN_MODULES.items())
    assert len({arl.split_of("m1", seed) for seed in range(30)}) == 2


def test_hardcoding_answers_the_public_tests_only(mixed, box):
    _, tasks, _ = mixed
    task = tasks[0]
    assert arl.grade_source(box, task, arl.hardcoded(task), task.public_tests) == 1
    assert arl.grade_source(box, task, arl.hardcoded(task), task.hidden_tests) == 0


def test_wrong_edits_never_restore_the_original(mixed):
    _, tasks, _ = mixed
    for task in tasks:
        sources = arl.wrong_edits(task, random.Random(0))
        assert 1 <= len(sources) <= 3
        right = arl.normal_form(task.about["fixed"])
        assert right not in map(arl.normal_form, sources) and task.source not in sources


def test_grade_answers(mixed, box):
    _, tasks, _ = mixed
    found = arl.grade_answers(box, tasks[:6])
    assert found["oracle"] == [[1.0]] * 6
    assert found["leave"] == found["hardcode"] == [[0.0]] * 6
    assert all(len(x) == 3 for x in found["wrong edits"])


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: arl.mine_tasks("no_such_module_here"), "module_or_path is 'no_such_module_here'"),
        (lambda: arl.mine_tasks("math"), "module_or_path is 'math'"),
        (lambda: arl.mine_tasks("gone.py"), "there is no such file"),
        (lambda: arl.mine_tasks("bisect", per_function=0), "per_function is 0"),
        (lambda: arl.load_quixbugs("."), "it has no python_programs"),
    ],
)
def test_wrong_input_is_refused_before_any_work(call, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_a_module_is_read_and_never_imported(tmp_path, monkeypatch):
    package = tmp_path / "boom"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "part.py").write_text("raise SystemExit('imported')\ndef f(n): return n + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(arl.ModuleSource("boom.part").functions) == ["f"]
    assert arl.source_path("posixpath").name == "posixpath.py" and arl.source_path("email").name == "__init__.py"


PROGRAMS = {
    "total": ("def total(xs):\n    s = 1\n    for x in xs:\n        s += x\n    return s\n", "s = 1", "s = 0",
              [([[1, 2]], 3), ([[]], 0), ([[4]], 4), ([[2, 2]], 4), ([[7, 1]], 8)]),
    "steps": ("def steps(n):\n    while n > 1:\n        yield n\n        n -= 1\n", "n > 1", "n > 0",
              [(3, [3, 2, 1]), (1, [1]), (2, [2, 1]), (4, [4, 3, 2, 1]), (0, [])]),
    "loops": ("def loops(n):\n    while n != 0:\n        n -= 2\n    return n\n", "n != 0", "n > 0",
              [(4, 0), (3, -1), (5, -1), (2, 0), (7, -1)]),
    "walk": ("from .node import Node\ndef walk(n):\n    return n + 1\n", "n + 1", "n", [(1, 1)]),
    "lonely": ("def lonely(n):\n    return n + 1\n", "n + 1", "n", None),
    "rare": ("def rare(n):\n    return 5 if n == 3 else n\n", "5 if n == 3 else n", "n", [(3, 3), (4, 4), (5, 5)]),
    "wrong": ("def wrong(n):\n    return n + 1\n", "n + 1", "n", [(1, 9), (2, 9), (3, 9)]),
    "old": ("def old(n):\n    print n\n", "n", "n", [(1, 1)]),
    "named": ("def other(n):\n    return n + 1\n", "n + 1", "n", [(1, 1)]),
    "typed": ("def typed(n):\n    return 0\n", "0", "object()", [(1, 1)]),
}


@pytest.fixture
def quix(tmp_path):
    folder = tmp_path / "quix"
    for part in ("python_programs", "correct_python_programs", "json_testcases"):
        (folder / part).mkdir(parents=True)
    for name, (source, old, new, cases) in PROGRAMS.items():
        (folder / "python_programs" / f"{name}.py").write_text(source)
        (folder / "correct_python_programs" / f"{name}.py").write_text(source.replace(old, new))
        if cases is not None:
            text = "".join(json.dumps(list(case)) + "\n" for case in cases)
            (folder / "json_testcases" / f"{name}.json").write_text(text)
    (folder / "python_programs" / "alone.py").write_text("def alone(n): return n\n")
    (folder / "LICENSE").write_text("A licence of ours\n\nmore\n")
    return folder


def test_a_quixbugs_folder(quix, short_box, tmp_path):
    tasks, unsupported = arl.load_quixbugs(quix, short_box)
    assert {t.fn_name for t in tasks} == {"total", "steps_items", "loops"}
    assert unsupported == {
        "alone": "no correct_python_programs/alone.py",
        "lonely": "no JSON cases",
        "named": "python_programs: it defines no function named",
        "old": unsupported["old"],
        "rare": "too few cases show the bug",
        "typed": "the corrected program gives no plain value that a case states",
        "walk": "needs classes of another file: imports node",
        "wrong": "the corrected program gives no plain value that a case states",
    }
    assert "Python 3 cannot read it" in unsupported["old"]
    assert all(t.about["licence"] == "A licence of ours" for t in tasks)
    ends = [t for t in tasks if t.fn_name != "loops"]  # loading has checked each once; what never ends is slow to check
    assert all(arl.wrong_task(short_box, t) == "" for t in ends)
    assert arl.load_tasks(arl.save_tasks(tasks, tmp_path / "quix.json")) == tasks


def test_the_committed_tasks_are_many_distinct_and_split_by_module(committed):
    assert len(committed) >= 400 and FILE.stat().st_size < 5e6
    modules = {t.about["origin"].rpartition(".")[0] for t in committed}
    assert len(modules) >= 20
    sides = {}
    for task in committed:
        top = task.about["origin"].split(".")[0]
        sides.setdefault(real_bugs.TWIN_MODULES.get(top, top), set()).add(task.split)
        assert task.split == arl.split_of(task.about["origin"].rpartition(".")[0])
        assert task.about["licence"].startswith("PSF-2.0") and task.about["kind"] in arl.BUG_KINDS
        public, hidden = ({repr(args) for args, _ in x} for x in (task.public_tests, task.hidden_tests))
        assert not public & hidden and len(task.hidden_tests) >= arl.LEAST_HIDDEN
    assert all(len(x) == 1 for x in sides.values()) and {x for y in sides.values() for x in y} == {"train", "heldout"}
    forms = [arl.normal_form(t.source, t.about["origin"].rpartition(".")[2]) for t in committed]
    assert len(set(forms)) == len(forms)


def test_the_committed_sources_use_nothing_that_newer_pythons_lack(committed):
    for task in committed:
        tops = {alias.name.split(".")[0] for x in ast.walk(ast.parse(task.source)) if isinstance(x, ast.Import) for alias in x.names}
        tops |= {x.module.split(".")[0] for x in ast.walk(ast.parse(task.source)) if isinstance(x, ast.ImportFrom)}
        assert not tops & (real_bugs._REMOVED | {"numpy"}), task.name


def test_a_sample_of_the_committed_tasks_in_the_grader(committed, box):
    for task in random.Random(0).sample(committed, 25):
        assert arl.wrong_task(box, task) == "", task.name
