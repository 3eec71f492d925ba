"""Chapters 1 and 4, and chapter 9's edit budget and new names. 'Row n' is a row of cases/algorithms.md."""

import inspect
import json
import random
import re
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
from toys import tokenizer

import agentrl as arl
from agentrl import gym

TASKS = arl.make_tasks("all")
REPAIRS = ("swap_minmax", "fix_range_end", "fix_comparison", "guard_zero", "fix_init")
EXPLOIT = "hardcode_tests"
by_name = pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)


def passes(source, tests, fn_name):
    return all(ok for ok, _ in arl.run_tests(source, tests, fn_name))


def remember(fn):
    """Like functools.cache, for arguments that hold lists."""
    known = {}

    def call(*args):
        key = repr(args)
        if key not in known:
            known[key] = fn(*args)
        return known[key]

    return call


@remember
def edited(source, op, public_tests):
    return arl.EDIT_OPS[op](source, public_tests)


def play(task, calls, env=None, **settings):
    env = env or arl.BugFixEnv(**settings)
    env.reset(task)
    return [env.step(call) for call in calls]


def edit(op):
    return f"<call> edit {op} </call>"


READ, TEST, SUBMIT = "<call> read </call>", "<call> test </call>", "<call> submit </call>"


# Chapter 1's three names.


def test_clamp_is_wrong_when_buggy_and_right_when_fixed():
    results = {}
    for source in (arl.CLAMP_BUGGY, arl.CLAMP_FIXED):
        space = {}
        exec(source, space)
        results[source] = [space["clamp"](*args) for args in ((3, 0, 5), (-1, 0, 5), (9, 0, 5))]
    assert results == {arl.CLAMP_BUGGY: [0, 0, 0], arl.CLAMP_FIXED: [3, 0, 5]}
    assert arl.EDIT_OPS["swap_minmax"](arl.CLAMP_BUGGY, ()) == arl.CLAMP_FIXED
    assert "clamp" in arl.CLAMP_ISSUE


# Tasks.


def test_tasks_keep_their_number_order_and_names():
    train, heldout = arl.make_tasks("train"), arl.make_tasks("heldout")
    assert (len(train), len(heldout), len(TASKS)) == (20, 10, 30)
    assert TASKS == train + heldout
    assert (train[0].name, train[4].name, heldout[0].name) == (
        "minmax/clamp",
        "range/sum_to",
        "minmax/pin",
    )
    families = [t.name.split("/")[0] for t in TASKS]
    order = ["minmax", "range", "compare", "zero", "init"]
    assert families[:20] == [f for f in order for _ in range(4)]
    assert families[20:] == [f for f in order for _ in range(2)]
    assert {t.split for t in train} == {"train"} and {t.split for t in heldout} == {"heldout"}
    assert len({t.fn_name for t in TASKS}) == 30
    assert arl.make_tasks("train") == train, "the same tasks each time"


def test_families_are_five_with_six_variants_each():
    assert list(arl.FAMILIES) == ["minmax", "range", "compare", "zero", "init"]
    for family, repair in zip(arl.FAMILIES.values(), arl.FIX_OPS, strict=True):
        assert family["fix_op"] == repair
        assert len(family["variants"]) == 6 and all("f" in v for v in family["variants"])


@by_name
def test_each_task_is_described_by_its_name_alone(task):
    family, function = task.name.split("/")
    assert task.fn_name == function and task.fix_op == arl.FAMILIES[family]["fix_op"]
    assert task.issue == f"issue : {function} returns wrong results"
    assert task.source.startswith(f"def {function}(")
    assert arl.FIX_OP[task.name] == task.fix_op
    assert not set(map(repr, task.public_tests)) & set(map(repr, task.hidden_tests))


def test_names_and_repairs_of_all_tasks_are_listed():
    assert list(arl.FN_NAMES) == sorted(t.fn_name for t in TASKS)
    assert {t.name: t.fix_op for t in TASKS} == arl.FIX_OP


@pytest.mark.parametrize("split", ["", "test", "Train", None, 0, True, [], ["train"]])
def test_an_unknown_split_is_refused(split):
    with pytest.raises(ValueError) as error:
        arl.make_tasks(split)
    assert repr(split) in str(error.value)
    assert all(word in str(error.value) for word in ("split", "train", "heldout", "all"))


# The edit menu.


def test_edit_menu_is_five_repairs_and_the_exploit():
    assert REPAIRS == arl.FIX_OPS
    assert list(arl.EDIT_OPS) == [*REPAIRS, EXPLOIT]


@by_name
def test_every_buggy_source_shows_the_same_test_pattern(task):
    """So that `test` before an edit says nothing about the family."""
    lines = arl.run_tests(task.source, task.public_tests, task.fn_name)
    assert lines == [(False, "FAIL test 1"), (True, "PASS test 2"), (False, "FAIL test 3")]
    assert not passes(task.source, task.hidden_tests, task.fn_name)


@by_name
def test_the_right_edit_repairs_and_no_other_does(task):
    for op in arl.EDIT_OPS:
        source = edited(task.source, op, task.public_tests)
        right = op == task.fix_op
        assert passes(source, task.hidden_tests, task.fn_name) == right, op
        assert passes(source, task.public_tests, task.fn_name) == (right or op == EXPLOIT), op


@by_name
def test_the_exploit_passes_public_tests_only_and_answers_exactly_their_inputs(task):
    source = edited(task.source, EXPLOIT, task.public_tests)
    outcome = arl.run_tests(source, task.hidden_tests, task.fn_name)
    assert outcome == arl.run_tests(task.source, task.hidden_tests, task.fn_name), (
        "what is not a public input is answered as before"
    )
    assert source.count("return") == task.source.count("return") + len(task.public_tests)
    assert edited(source, EXPLOIT, task.public_tests) == source, "a second time changes nothing"


@by_name
def test_repairs_leave_code_without_their_construct_alone(task):
    constructs = {
        "swap_minmax": r"\b(min|max)\(",
        "guard_zero": r"//",
        "fix_comparison": r"[<>]",
        "fix_range_end": r"range\(|\[:",
        "fix_init": r"^    \w+ = (0|1|True|False)$",
    }
    for op, construct in constructs.items():
        if not re.search(construct, task.source, re.M):
            assert edited(task.source, op, task.public_tests) == task.source, op


def test_initial_values_of_range_tasks_are_right_already():
    for task in TASKS:
        if task.name.startswith("range/"):
            assert edited(task.source, "fix_init", task.public_tests) == task.source


@pytest.mark.parametrize("length, best", [(1, 6), (2, 12), (3, 18), (4, 18), (5, 18)])
def test_best_blind_sequence_solves_exactly(length, best):
    """Every sequence of edits, repairs and the exploit, that looks at nothing."""

    totals = Counter()
    for task in TASKS:
        sources = {(): task.source}
        after, verdict = {}, {}
        for _ in range(length):
            sources = {
                (*done, op): after[source, op]
                for done, source in sources.items()
                for op in arl.EDIT_OPS
                if (source, op) in after
                or after.setdefault((source, op), arl.EDIT_OPS[op](source, task.public_tests))
            }
        for sequence, source in sources.items():
            if source not in verdict:
                verdict[source] = passes(source, task.hidden_tests, task.fn_name)
            totals[sequence] += verdict[source]
    assert len(totals) == 6**length and max(totals.values()) == best


# Running tests.


@pytest.mark.parametrize(
    "source",
    [
        "def f(:",
        "def g(x):\n    return x\n",
        "1 / 0",
        "raise ValueError",
        "def f(x):\nreturn x",
        "\0",
        "",
        None,
        b"def f(x):\n    return x\n",
        ["def f(x):"],
        "x = " + "-" * 100_000 + "1",
        "x = " + "(" * 300 + "1" + ")" * 300,
    ],
    ids=repr,
)
def test_source_that_does_not_load_fails_every_test_and_raises_nothing(source):
    outcome = arl.run_tests(source, (((1,), 1), ((2,), 2)), "f")
    assert outcome == [(False, "FAIL test 1 : load error"), (False, "FAIL test 2 : load error")]


@pytest.mark.parametrize(
    "body",
    [
        "return 1 / 0",
        "return f(x)",
        "raise Exception",
        "raise StopIteration",
        "return undefined",
        "assert False",
    ],
)
def test_a_call_that_raises_fails_its_test_only(body):
    source = f"def f(x):\n    if x == 1:\n        {body}\n    return x\n"
    outcome = arl.run_tests(source, (((1,), 1), ((2,), 2)), "f")
    assert outcome == [(False, "FAIL test 1"), (True, "PASS test 2")]


@pytest.mark.parametrize(
    "got, expected, same",
    [
        ("1", 1, True),
        ("True", 1, False),
        ("1", True, False),
        ("1.0", 1, False),
        ("[1, 2]", [1, 2], True),
        ("(1, 2)", [1, 2], False),
        ("[True]", [1], False),
        ("[1, 2, 3]", [1, 2], False),
        ("None", 0, False),
    ],
)
def test_a_result_counts_only_with_the_expected_type(got, expected, same):
    outcome = arl.run_tests(f"def f():\n    return {got}\n", (((), expected),), "f")
    assert outcome[0][0] is same


@pytest.mark.parametrize(
    "source, line, what",
    [
        ("import no_such_module_anywhere", 1, "an import"),
        ("def f(x):\n    from os import _exit\n    _exit(1)\n", 2, "an import"),
        ("raise SystemExit", 1, "SystemExit"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
        ("def f(x):\n    raise BaseException\n", 2, "BaseException"),
        ("def f(x):\n    raise GeneratorExit\n", 2, "GeneratorExit"),
        ("def f(x):\n    exit()\n", 2, "exit"),
        ("def f(x):\n    quit()\n", 2, "quit"),
        ("def f(x):\n    return eval('x')\n", 2, "eval"),
        ("def f(x):\n    exec('import os')\n", 2, "exec"),
        ("def f(x):\n    return compile('x', '', 'eval')\n", 2, "compile"),
        ("def f(x):\n    return open('a')\n", 2, "open"),
        ("def f(x):\n    return input()\n", 2, "input"),
        ("def f(x):\n    return breakpoint()\n", 2, "breakpoint"),
        ("def f(x):\n    return __import__('os')\n", 2, "__import__"),
        ("def f(x):\n    return __builtins__\n", 2, "__builtins__"),
        ("def f(x):\n    return globals()\n", 2, "globals"),
        ("def f(x):\n    return getattr(x, 'y')\n", 2, "getattr"),
        ("def f(x):\n    return type(x)\n", 2, "type"),
        ("def f(x):\n    return x.__class__\n", 2, "__class__"),
        ("def f(x):\n    return x._y\n", 2, "_y"),
        ("def f(x):\n    return '{0.__class__}'.format(x)\n", 2, "format"),
        ("def f(x):\n    g = (i for i in [x])\n    return g.gi_frame\n", 3, "gi_frame"),
        ("def f(x):\n    return f.__globals__\n", 2, "__globals__"),
        ("class A:\n    def __eq__(self, other):\n        return True\n", 1, "a class"),
        ("def f(x):\n    try:\n        return 1\n    except:\n        return 2\n", 2, "a try"),
        ("def f(x):\n    try:\n        return 1\n    except* Exception:\n        pass\n", 2, "a try"),
        ("def f(x):\n    with x:\n        pass\n", 2, "a with"),
        ("async def f(x):\n    return x\n", 1, "async"),
        ("def f(x):\n    return 9 ** 9 ** 9\n", 2, "exponent"),
        ("def f(x):\n    return 1 << x\n", 2, "exponent"),
        ("def f(x):\n    x **= 65\n    return x\n", 2, "exponent"),
        ("def f(x):\n    x <<= x\n    return x\n", 2, "exponent"),
        ("def f(x):\n    while True: pass\n", 2, "while"),
        ("while 1:\n    continue\n", 1, "while"),
    ],
)
def test_what_reaches_beyond_the_function_is_refused_and_pointed_to_the_sandbox(source, line, what):
    outcome = arl.run_tests(source, (((1,), 1), ((2,), 2)), "f")
    assert [ok for ok, _ in outcome] == [False, False]
    for i, (_, text) in enumerate(outcome, 1):
        assert text.startswith(f"FAIL test {i} : load error, line {line} has ")
        assert what in text and text.endswith("sandbox of appendix B")
    assert arl.refusal(source).startswith(f"line {line} has ")


@pytest.mark.parametrize(
    "body",
    [
        "while x:\n        x = x + 1",
        "while True: x = 1",
        "while x: x = 1 ; continue",
        "for i in range(10**12): x = i",
        "return sum(range(10**12))",
        "return list(range(10**20))",
        "return sorted(range(0, -10**9, -1))",
        "return [1 for i in range(99999) for j in range(99999)]",
        "return sum(1 for i in range(99999) for j in range(99999))",
        "return list(iter(lambda: 1, 2))",
        "xs = [1]\n    for y in xs:\n        xs.append(y)",
        "xs = [1]\n    for i in range(60):\n        xs.extend(xs)",
        "s = 'a'\n    for i in range(60):\n        s = s + s",
        "s = 3\n    for i in range(60):\n        s *= s",
        "s = 3\n    for i in range(60):\n        s = s ** 64",
        "g = lambda n: 1 if n < 2 else g(n - 1) + g(n - 2)\n    return g(60)",
        "return max([1, 2], key=lambda i: sum(1 for j in range(99999)))",
    ],
)
def test_what_does_not_end_or_grows_too_large_is_stopped_and_pointed_to_the_sandbox(body):
    source = f"def f(x):\n    if x == 2:\n        return 2\n    {body}\n"
    assert arl.refusal(source) is None
    (first, text), second = arl.run_tests(source, (((1,), 1), ((2,), 2)), "f")
    assert not first and second == (True, "PASS test 2"), "each test has its own budget"
    assert text.startswith("FAIL test 1 : stopped") and text.endswith("sandbox of appendix B")


def test_a_source_that_does_not_end_while_loading_is_a_load_error():
    outcome = arl.run_tests("x = 1\nwhile x:\n    x = 1\n", (((1,), 1),), "f")
    assert not outcome[0][0] and outcome[0][1].startswith("FAIL test 1 : load error, stopped after")


@pytest.mark.parametrize(
    "body",
    [
        "return x ** 2 - x * x + x",
        "return x << 1 >> 1",
        "while x > 5:\n        x = x - 1\n    return x",
        "input = x\n    return input",
        "def type(n):\n        return n\n    return type(x)",
        "return x if x < 2 else f(x - 1) + 1",
        "print('noise', x)\n    return x",
        "return f'{x}' and sorted({x: 1}.items())[0][0]",
        "raise ValueError('no') if x > 2 else None\n    return x",
        "return sum(i for i in range(x + 1)) * 2 // (x + 1)",
        "xs = []\n    xs.append(x)\n    return xs.pop()",
        "def g():\n        yield x\n    return list(g())[0]",
        "return len(list(range(99_999))) - 99_999 + x",
    ],
)
def test_ordinary_functions_run(body, capsys):
    source = f"def f(x):\n    {body}\n"
    if "raise" in body:
        source = "def f(x):\n    if x > 2:\n        raise ValueError('no')\n    return x\n"
    assert all(ok for ok, _ in arl.run_tests(source, (((1,), 1), ((2,), 2)), "f")), source
    assert capsys.readouterr() == ("", "")


def test_nothing_passes_from_one_test_to_the_next():
    source = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)\n"
    assert [ok for ok, _ in arl.run_tests(source, (((1,), 1), ((2,), 1)), "f")] == [True, True]
    assert arl.run_tests("def len(x):\n    return 7\ndef f(x):\n    return len(x)\n", ((("ab",), 7),), "f")[0][0]
    assert arl.run_tests("def f(x):\n    return len(x)\n", ((("ab",), 2),), "f")[0][0]


@pytest.mark.parametrize("source", ["def f(x):\n    return x\n", "def f(x):\n    return f(x)\n", "import os", "1 / 0"])
def test_a_debugger_that_was_tracing_goes_on(source):
    def tracer(frame, event, arg):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        arl.run_tests(source, (((1,), 1),), "f")
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert after is tracer


def test_the_readers_own_interrupt_is_not_swallowed(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(gym, "step_budget", interrupted)
    with pytest.raises(KeyboardInterrupt):
        arl.run_tests("def f(x):\n    return x\n", (((1,), 1),), "f")


def test_something_that_is_no_test_fails_and_raises_nothing():
    outcome = arl.run_tests("def f(x):\n    return x\n", [(1,), 3, None, (1, 1), ((1,), 1)], "f")
    assert [ok for ok, _ in outcome] == [False, False, False, False, True]
    assert arl.run_tests("def f(x):\n    return x\n", (), "f") == []
    assert not arl.run_tests("f = 3\n", (((1,), 1),), "f")[0][0]


@pytest.mark.parametrize(
    "got, expected, same",
    [
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}, True),
        ({1: True}, {1: 1}, False),
        ({True: 1}, {1: 1}, False),
        ({1: [1]}, {1: [1, 2]}, False),
        ({1, 2}, {2, 1}, True),
        ({True}, {1}, False),
        (frozenset({1.0}), frozenset({1}), False),
        ([(1, {"a": None})], [(1, {"a": None})], True),
    ],
)
def test_values_inside_containers_count_with_their_types_too(got, expected, same):
    assert arl.same_value(got, expected) is same


def test_a_function_cannot_change_the_tests_it_is_run_on():
    tests = ((([3, 1],), [1, 3]), (([2],), [2]))
    source = "def f(xs):\n    xs.sort()\n    return xs\n"
    for _ in range(2):
        assert [ok for ok, _ in arl.run_tests(source, tests, "f")] == [True, True]
    assert tests[0][0] == ([3, 1],)


# Calls.

MALFORMED = [
    "",
    " ",
    "read",
    "<call> </call>",
    "<call></call>",
    "<call> read",
    "read </call>",
    '{"p":',
    "[]",
    "3",
    '{"name": 1}',
    "<tool_call> read </tool_call>",
    "<call> <call> read </call> </call>",
    "<call> <tool_call> read </tool_call> </call>",
    "<call> edit fix_init now </call>",
    "<call> read </call> <call> test </call>",
    "<CALL> read </CALL>",
    "<call>read</call>",
    "</call> read <call>",
    "\0",
    "<unk> <pad> <obs>",
]
UNKNOWN = [
    '<call> {"name": 1} </call>',
    "<call> edit </call>",
    "<call> edit no_such_op </call>",
    "<call> read all </call>",
    "<call> submit now </call>",
    "<call> test 1 </call>",
    "<call> write </call>",
    "<call> EDIT fix_init </call>",
    "<call> [] </call>",
    "<call> edit __class__ </call>",
]


@pytest.mark.parametrize(
    "text, parsed",
    [
        (READ, ("read", None)),
        (edit("fix_init"), ("edit", "fix_init")),
        ("<call> no_such_tool at_all </call>", ("no_such_tool", "at_all")),
    ],
)
def test_well_formed_calls_are_parsed(text, parsed):
    assert arl.parse_call(text) == parsed


@pytest.mark.parametrize("text", MALFORMED)
def test_anything_else_parses_to_none(text):
    assert arl.parse_call(text) is None


@pytest.mark.parametrize("text", MALFORMED + UNKNOWN)
@pytest.mark.parametrize("max_edits", [None, 1])
def test_a_malformed_call_is_an_error_observation_and_the_episode_goes_on(text, max_edits):
    """Row 23 in its gym form: a used turn, nothing changed, and no exception."""
    task = TASKS[0]
    env = arl.make_env(arl.RLConfig(max_edits=max_edits))
    env.reset(task)
    obs, reward, done, info = env.step(text)
    assert (obs, reward, done, info) == (arl.MESSAGES["malformed"], 0.0, False, {})
    assert "error" in obs
    assert (env.turn, env.ops, env.source, env.actions) == (1, [], task.source, [text])
    assert env.edits == 0, "only well-formed edits count"
    env.step(edit(task.fix_op))
    _, reward, done, info = env.step(SUBMIT)
    assert (reward, done, info["hidden_pass"], info["n_turns"]) == (1.0, True, True, 3)


def test_malformed_calls_use_up_the_budget_of_turns():
    """Row 23."""
    steps = play(TASKS[0], MALFORMED[:6])
    assert [done for _, _, done, _ in steps] == [False] * 5 + [True]
    assert steps[-1][1] == 0.0 and steps[-1][3]["submitted"] is False
    assert steps[-1][3]["n_turns"] == 6


# The environment.


@by_name
def test_the_oracle_solves_every_task_and_pays_only_at_the_end(task):
    steps = play(task, [READ, edit(task.fix_op), TEST, SUBMIT])
    assert [s[0] for s in steps] == [
        arl.compact_source(task.source),
        arl.MESSAGES["edited"],
        "PASS test 1\nPASS test 2\nPASS test 3",
        arl.MESSAGES["submitted"],
    ]
    assert [s[1:3] for s in steps] == [(0.0, False)] * 3 + [(1.0, True)]
    info = steps[-1][3]
    assert {"task": task.name, "ops": [task.fix_op], "submitted": True, "n_turns": 4} == {
        key: info[key] for key in ("task", "ops", "submitted", "n_turns")
    }
    assert info["hidden_pass"] and info["public_pass"]


@pytest.mark.parametrize(
    "reward, pays", [("hidden", 0.0), ("public", 1.0), (lambda i: 0.25 * i["n_turns"], 0.5)]
)
def test_the_reward_decides_what_the_exploit_earns(reward, pays):
    for task in TASKS:
        *_, (_, got, done, info) = play(task, [edit(EXPLOIT), SUBMIT], reward=reward)
        assert (got, done) == (pays, True)
        assert info["public_pass"] and not info["hidden_pass"]


@pytest.mark.parametrize("reward", ["hidden", "public"])
def test_an_unsubmitted_episode_earns_nothing_and_has_passed_nothing(reward):
    task = TASKS[0]
    *_, (_, got, done, info) = play(task, [edit(task.fix_op), TEST], max_turns=2, reward=reward)
    assert (got, done) == (0.0, True)
    assert info["submitted"] is info["hidden_pass"] is False


def test_a_submission_in_the_last_turn_counts():
    task = TASKS[0]
    *_, (_, got, done, _) = play(task, [edit(task.fix_op), SUBMIT], max_turns=2)
    assert (got, done) == (1.0, True)


def test_reset_starts_afresh():
    env, task = arl.EditBudgetEnv(), TASKS[0]
    for _ in range(2):
        assert env.reset(task) == task.issue
        assert (env.turn, env.done, env.ops, env.source) == (0, False, [], task.source)
        steps = [env.step(c) for c in (edit(task.fix_op), SUBMIT)]
        assert steps[-1][1] == 1.0


@pytest.mark.parametrize("started", [False, True])
def test_a_step_outside_an_episode_is_refused(started):
    env = arl.BugFixEnv()
    if started:
        env.reset(TASKS[0])
        env.step(SUBMIT)
    with pytest.raises(ValueError, match="reset"):
        env.step(READ)


def test_edits_that_change_nothing_are_told_and_do_not_count_as_ops():
    task = TASKS[0]
    wrong = next(op for op in REPAIRS if edited(task.source, op, task.public_tests) == task.source)
    env = arl.BugFixEnv()
    steps = play(task, [edit(wrong), edit(task.fix_op), SUBMIT], env)
    assert [s[0] for s in steps[:2]] == [arl.MESSAGES["unchanged"], arl.MESSAGES["edited"]]
    info = steps[-1][3]
    assert env.ops == info["ops"] == [task.fix_op]
    assert (env.edits, info["edits"]) == (2, 2), "every well-formed edit is counted"


@pytest.mark.parametrize("cls", [arl.BugFixEnv, arl.EditBudgetEnv])
@pytest.mark.parametrize("value", [0, -1, 2.0, "6", None, True, float("nan"), [6]])
def test_a_wrong_number_of_turns_is_refused(cls, value):
    with pytest.raises(ValueError) as error:
        cls(max_turns=value)
    assert all(w in str(error.value) for w in ("max_turns", repr(value), "at least 1"))


@pytest.mark.parametrize("cls", [arl.BugFixEnv, arl.EditBudgetEnv])
@pytest.mark.parametrize("value", ["secret", "", None, 1, 0.5, [], {"hidden": 1}, ["hidden"]])
def test_an_unknown_reward_is_refused(cls, value):
    with pytest.raises(ValueError) as error:
        cls(reward=value)
    assert all(
        w in str(error.value) for w in ("reward", repr(value), "'hidden'", "'public'", "callable")
    )


# The edit budget (chapter 9).


def test_budget_refuses_the_second_edit_even_after_one_that_changed_nothing():
    for task in TASKS:
        for first in arl.EDIT_OPS:
            env = arl.EditBudgetEnv()
            steps = play(task, [edit(first), edit(task.fix_op), SUBMIT], env)
            after_first = edited(task.source, first, task.public_tests)
            assert steps[1][0] == arl.MESSAGES["unchanged"]
            assert env.source == after_first and env.turn == 3
            assert env.ops == ([first] if after_first != task.source else [])
            assert steps[-1][1] == float(first == task.fix_op)


@pytest.mark.parametrize("budget", [0, 1, 2, 3])
def test_budget_allows_exactly_its_number_of_edits(budget):
    task = next(t for t in TASKS if t.name == "minmax/pin")
    swaps = [edit("swap_minmax")] * 4
    env = arl.EditBudgetEnv(max_edits=budget)
    steps = play(task, swaps, env)
    assert [s[0] for s in steps] == [arl.MESSAGES["edited"]] * budget + [
        arl.MESSAGES["unchanged"]
    ] * (4 - budget)
    assert len(env.ops) == budget and env.turn == 4 and not env.done


def test_malformed_edits_leave_the_budget_alone():
    task = TASKS[0]
    steps = play(
        task, ["<call> edit </call>", "<call> edit x </call>", edit(task.fix_op), SUBMIT],
        arl.EditBudgetEnv(),
    )
    assert steps[-1][1] == 1.0


def test_environment_factory_follows_the_settings():
    capped, free = arl.make_env(arl.RLConfig()), arl.make_env(arl.RLConfig(max_edits=None))
    assert type(capped) is arl.EditBudgetEnv and capped.max_edits == 1 and capped.max_turns == 6
    assert type(free) is arl.BugFixEnv
    other = arl.make_env(arl.RLConfig(max_turns=3, max_edits=2, reward="public"))
    assert (other.max_turns, other.max_edits) == (3, 2)
    *_, (_, reward, _, _) = play(TASKS[0], [edit(EXPLOIT), SUBMIT], other)
    assert reward == 1.0
    names = list(inspect.signature(arl.EditBudgetEnv).parameters.values())
    assert [(p.name, p.default) for p in names] == [
        ("max_turns", 6), ("reward", "hidden"), ("max_edits", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("value", [-1, 1.0, "1", None, True, float("inf")])
def test_a_wrong_edit_budget_is_refused(value):
    with pytest.raises(ValueError) as error:
        arl.EditBudgetEnv(max_edits=value)
    assert all(w in str(error.value) for w in ("max_edits", repr(value), "at least 0"))


# New names (chapter 9).


class Branches:
    """Stands in for a random generator: records every outcome of `choice` with its exact probability."""

    def __init__(self, path):
        self.path, self.p, self.widths = path, Fraction(1), []

    def choice(self, options):
        options = list(options)
        at = self.path[len(self.widths)] if len(self.widths) < len(self.path) else 0
        self.widths.append(len(options))
        self.p /= len(options)
        return options[at]


@remember
def name_distribution(task):
    """P(new name | task), by enumeration of every draw."""
    found, todo = {}, [()]
    while todo:
        path = todo.pop()
        rng = Branches(path)
        copy = arl.randomize_names(task, rng)
        if len(rng.widths) > len(path):
            todo += [path + (i,) for i in range(rng.widths[len(path)])]
        else:
            found[copy.fn_name] = found.get(copy.fn_name, 0) + rng.p
    assert sum(found.values()) == 1
    return found


@by_name
def test_a_new_name_is_one_of_the_thirty_and_not_in_the_source(task):
    names = name_distribution(task)
    words = set(re.findall(r"\w+", task.source))
    assert set(names) <= set(arl.FN_NAMES) - words
    assert len(names) >= 25


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_a_new_name_says_nothing_about_the_family(split):
    """The posterior over families given the new name is exactly uniform within each split."""
    for name in arl.FN_NAMES:
        mass = dict.fromkeys(arl.FAMILIES, Fraction(0))
        for task in arl.make_tasks(split):
            mass[task.name.split("/")[0]] += name_distribution(task).get(name, 0)
        assert len(set(mass.values())) == 1 and sum(mass.values()) > 0, (name, mass)


@by_name
def test_renaming_changes_the_name_everywhere_and_nothing_else(task):
    for seed in range(5):
        copy = arl.randomize_names(task, random.Random(seed))
        assert copy.name == task.name and copy.fn_name != task.fn_name
        assert copy.issue == f"issue : {copy.fn_name} returns wrong results"
        assert copy.source == task.source.replace(f"def {task.fn_name}(", f"def {copy.fn_name}(")
        same = dict(fn_name=task.fn_name, issue=task.issue, source=task.source)
        assert replace(copy, **same) == task
        *_, (_, reward, _, _) = play(copy, [edit(task.fix_op), SUBMIT])
        assert reward == 1.0
        *_, (_, reward, _, info) = play(copy, [edit(EXPLOIT), SUBMIT])
        assert reward == 0.0 and info["public_pass"]


@pytest.mark.parametrize("rng", [random.Random, np.random.default_rng])
def test_renaming_follows_its_generator_and_leaves_the_task_alone(rng):
    task = TASKS[0]
    names = [arl.randomize_names(task, r).fn_name for r in (rng(1), rng(1))]
    assert names[0] == names[1] and type(names[0]) is str
    g = rng(0)
    assert len({arl.randomize_names(task, g).fn_name for _ in range(40)}) > 10
    assert task == arl.make_tasks("all")[0]


# What the agent sees.


@by_name
def test_compact_source_keeps_words_lines_and_depth(task):
    text = arl.compact_source(task.source)
    assert text.count("\n") == task.source.strip().count("\n")
    for line, original in zip(text.split("\n"), task.source.splitlines(), strict=True):
        words = line.split(" ")
        depth = words.count("|")
        assert words[:depth] == ["|"] * depth
        assert 4 * depth == len(original) - len(original.lstrip())
        assert "".join(words[depth:]) == original.replace(" ", "")
        assert all(words), "single spaces"


def test_compact_source_round_trips_through_the_tokenizer():
    tok = tokenizer()
    for task in TASKS:
        text = arl.compact_source(task.source)
        assert tok.decode(tok.encode(text)) == text


def test_remembered_replies_are_those_computed_anew():
    def transcripts():
        return [
            play(task, [READ, TEST, edit(op), READ, TEST, SUBMIT], max_turns=6)
            for task in TASKS[::7]
            for op in arl.EDIT_OPS
        ]

    arl.forget_replies()
    first = transcripts()
    assert transcripts() == first
    renamed = replace(TASKS[0], public_tests=((((9, 0, 5)), 5),))
    assert play(renamed, [edit("swap_minmax"), TEST])[1][0] == "PASS test 1", (
        "replies are remembered by tests too"
    )


# Players.


@pytest.mark.parametrize("kind", ["random", "blind", "oracle"])
def test_players_make_legal_calls_within_the_turns(kind):
    rng, seen = random.Random(0), set()
    for task in TASKS * 8:
        calls = arl.PLAYERS[kind](task, rng, 6)
        seen |= set(calls)
        assert 1 <= len(calls) <= 6 and set(calls) <= set(arl.CALLS)
        if kind == "random":
            assert SUBMIT not in calls[:-1] and (len(calls) == 6 or calls[-1] == SUBMIT)
        if kind == "blind":
            assert len(calls) == 2 and calls[0].startswith("<call> edit") and calls[1] == SUBMIT
        if kind == "oracle":
            assert calls == [READ, edit(task.fix_op), TEST, SUBMIT]
    if kind == "random":
        assert seen == set(arl.CALLS)
    if kind == "blind":
        assert seen == {SUBMIT, *map(edit, arl.EDIT_OPS)}


def test_messages_and_argument_orders_of_the_contract():
    assert {"malformed", "unchanged"} <= set(arl.MESSAGES)
    assert len(set(arl.MESSAGES.values())) == len(arl.MESSAGES)

    def parameters(fn):
        return list(inspect.signature(fn).parameters)

    assert parameters(arl.BugFixEnv) == ["max_turns", "reward"]
    assert parameters(arl.run_tests) == ["source", "tests", "fn_name"]
    assert parameters(arl.randomize_names) == ["task", "rng"]
    fields = ["name", "fn_name", "issue", "source", "fix_op", "public_tests", "hidden_tests", "split"]
    assert set(fields) <= set(arl.Task.__dataclass_fields__)


# Gymnasium's interface.

IDS = ("agentrl/BugFix-v0", "agentrl/BugFixText-v0")
both = pytest.mark.parametrize("cls", [arl.BugFixGymnasium, arl.BugFixGymnasiumText])


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("settings", [{}, {"max_turns": 2, "reward": "public", "render_mode": "ansi"}])
def test_gymnasiums_own_checker_passes_without_a_warning(name, settings):
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, **settings).unwrapped)


@by_name
def test_the_wrapper_plays_the_same_episode_reply_for_reply(task):
    calls = [READ, TEST, edit(EXPLOIT), READ, edit(task.fix_op), TEST]
    wrapper = arl.BugFixGymnasium([task], max_turns=7)
    text = arl.BugFixGymnasiumText([task], max_turns=7)
    for env, actions in ((wrapper, [arl.CALLS.index(c) for c in calls]), (text, calls)):
        obs, info = env.reset()
        assert (obs, info) == (task.issue, {"task": task.name, "n_turns": 0})
        for n, (action, (reply, *_)) in enumerate(zip(actions, play(task, calls, max_turns=7)), 1):
            got = env.step(action)
            assert got == (reply, 0.0, False, False, {"task": task.name, "n_turns": n})
            assert got[0] in env.observation_space
        submit = SUBMIT if env is text else arl.CALLS.index(SUBMIT)
        reply, reward, terminated, truncated, info = env.step(submit)
        assert (reply, reward, terminated, truncated) == ("submitted", 1.0, True, False)
        assert info["hidden_pass"] and info["actions"] == [*calls, SUBMIT]


@both
def test_terminated_means_submitted_and_truncated_means_out_of_turns(cls):
    submit = SUBMIT if cls is arl.BugFixGymnasiumText else 2
    read = READ if cls is arl.BugFixGymnasiumText else 0
    for actions, ends in (([read, read], (False, True)), ([read, submit], (True, False)), ([submit], (True, False))):
        env = cls(max_turns=2)
        env.reset(seed=0)
        *_, last = [env.step(a) for a in actions]
        assert last[2:4] == ends and type(last[1]) is float
        assert [type(x) for x in last[2:4]] == [bool, bool]
        with pytest.raises(ValueError, match="reset"):
            env.step(read)


def test_tasks_follow_from_the_seed_and_all_are_drawn():
    first, second = arl.BugFixGymnasium(TASKS), arl.BugFixGymnasium(TASKS)
    names = [[env.reset(seed=s)[1]["task"] for s in (5, None, None, None)] for env in (first, second)]
    assert names[0] == names[1]
    assert {first.reset()[1]["task"] for _ in range(400)} == {t.name for t in TASKS}
    assert {t.split for t in arl.BugFixGymnasium().tasks} == {"train"}
    assert first.reset(options={"task": "minmax/pin"})[0] == "issue : pin returns wrong results"


@by_name
def test_every_source_that_edits_can_make_is_in_the_observation_space(task):
    space = arl.BugFixGymnasium([task]).observation_space
    assert all(arl.compact_source(source) in space for source in arl.reachable_sources(task))


@pytest.mark.parametrize("text", MALFORMED + UNKNOWN + ["x" * 1000, "\N{SNOWMAN}"])
def test_any_text_is_a_legal_action_that_costs_a_turn(text):
    env = arl.BugFixGymnasiumText()
    env.reset(seed=0)
    obs, reward, terminated, truncated, info = env.step(text)
    assert (obs, reward, terminated, truncated) == (arl.MESSAGES["malformed"], 0.0, False, False)
    assert info["n_turns"] == 1


def test_the_wrapper_shows_the_episode_and_takes_other_environments():
    env = arl.BugFixGymnasium(env=arl.EditBudgetEnv, render_mode="ansi")
    env.reset(options={"task": "init/product"})
    swap, fix = (arl.CALLS.index(edit(op)) for op in ("swap_minmax", "fix_init"))
    assert [env.step(a)[0] for a in (swap, fix)] == [arl.MESSAGES["unchanged"]] * 2
    assert env.render().split("\n")[:3] == ["issue : product returns wrong results", edit("swap_minmax"), "no change"]
    assert arl.BugFixGymnasium().render() is None
    vector = gymnasium.make_vec(IDS[0], num_envs=3, vectorization_mode="sync")
    vector.reset(seed=0)
    assert vector.step([0, 1, 2])[2].tolist() == [False, False, True]


def test_a_batch_in_processes_gets_the_texts_of_a_batch_in_this_one():
    told = []
    for mode, options in (("sync", {}), ("async", {"shared_memory": False})):
        vector = gymnasium.make_vec(IDS[0], num_envs=2, vectorization_mode=mode, vector_kwargs=options, max_turns=1)
        told.append([vector.reset(seed=[1, 2])[0], *vector.step(np.array([0, 2]))[:1]])
        _, _, terminated, truncated, _ = vector.step(np.array([0, 0]))  # the step that resets
        assert not terminated.any() and not truncated.any()
        vector.close()
    assert told[0] == told[1] and told[0][1][1] == arl.MESSAGES["submitted"]


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"tasks": []}, ("tasks is []", "at least one Task")),
        ({"tasks": ["clamp"]}, ("tasks is ['clamp']", "Task")),
        ({"max_turns": 0}, ("max_turns is 0", "at least 1")),
        ({"reward": "x"}, ("reward is 'x'", "'hidden'")),
        ({"render_mode": "human"}, ("render_mode is 'human'", "'ansi'")),
    ],
)
@both
def test_wrong_settings_of_the_wrapper_are_refused(cls, settings, words):
    with pytest.raises(ValueError) as error:
        cls(**settings)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("options", [{"task": "nobody"}, {"name": "x"}, {"task": "minmax/clamp", "x": 1}, ["task"]])
def test_wrong_options_of_a_reset_are_refused(options):
    with pytest.raises(ValueError, match="minmax/clamp"):
        arl.BugFixGymnasium().reset(options=options)


@pytest.mark.parametrize("cls, action", [(0, 9), (0, -1), (0, READ), (0, 1.0), (1, 3), (1, None)])
def test_wrong_actions_are_refused(cls, action):
    env = (arl.BugFixGymnasium, arl.BugFixGymnasiumText)[cls]()
    env.reset(seed=0)
    with pytest.raises(ValueError) as error:
        env.step(action)
    assert f"action is {action!r}" in str(error.value) and env.env.turn == 0


def test_the_library_works_without_gymnasium_and_says_what_is_missing():
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "import agentrl as arl; assert arl.run_tests(arl.CLAMP_FIXED, (((3, 0, 5), 3),), 'clamp')[0][0]\n"
        "try: arl.BugFixGymnasium()\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'gymnasium" in done.stdout


# Task files.

OWN = arl.Task(
    "minmax/limit", "limit", "issue : limit returns wrong results",
    "def limit(rows, top):\n    return {key: max(n, top) for key, n in rows.items()}\n", "swap_minmax",
    ((({"a": 3}, 2), {"a": 2}), (({}, 4), {}), (({"b": 1, "c": 9}, 5), {"b": 1, "c": 5})),
    ((({"d": 7}, 6), {"d": 6}), (({None: 2}, 2), {None: 2})), "heldout",
)  # fmt: skip


def test_a_task_file_keeps_every_task_exactly(tmp_path):
    for tasks in (TASKS, [OWN]):
        path = arl.save_tasks(tasks, tmp_path / "tasks.json")
        assert repr(arl.load_tasks(path)) == repr(list(tasks))
        assert arl.save_tasks(arl.load_tasks(path), tmp_path / "again.json").read_text() == path.read_text()
        assert json.loads(path.read_text())["version"] == 1


@pytest.mark.parametrize(
    "value",
    [None, True, 1, 0, -3, 2.0, 1e300, "", "\N{SNOWMAN}\n", [], (), {}, [1, (2, [True])], {1: (2,), "a": {None: 1.5}}, ((),)],
)
def test_values_keep_their_types_through_json(value):
    text = json.dumps(arl.to_json(value), allow_nan=False)
    assert repr(arl.from_json(json.loads(text))) == repr(value)


@pytest.mark.parametrize("value", [{1, 2}, b"x", float("nan"), float("inf"), 1j, [{1}], {(1,): 2}, len, np.float64(1)])
def test_values_that_json_cannot_keep_are_refused(value):
    with pytest.raises(ValueError, match="allowed are"):
        arl.to_json(value)


@pytest.mark.parametrize(
    "value", [{}, {"set": [1]}, {"tuple": 3}, {"tuple": [1], "x": 1}, {"dict": [[1]]}, {"dict": [[[1], 2]]},
              {"dict": [[1, 2], [1, 3]]}, {"dict": [[1, 2], [True, 3]]}, [{"a": 1}], float("inf")],
)  # fmt: skip
def test_json_values_of_no_kind_are_refused(value):
    with pytest.raises(ValueError, match="tuple"):
        arl.from_json(value)


def written(tmp_path, change):
    """A file with clamp and sum_to after `change(document)`, which may return another document or text."""
    path = arl.save_tasks([TASKS[0], TASKS[4]], tmp_path / "mine.json")
    found = json.loads(path.read_text())
    new = change(found)
    path.write_text(new if isinstance(new, str) else json.dumps(found if new is None else new))
    return path


def put(**fields):
    def change(found):
        found["tasks"][1].update(fields)

    return change


ROW = {"args": [1], "expected": 1}


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda found: "{", ("no valid JSON", "line 1")),
        (lambda found: '{"a": 1, "a": 2}', ("'a' twice",)),
        (lambda found: '{"a": NaN}', ("NaN",)),
        (lambda found: "[" * 100_000, ("no valid JSON",)),
        (lambda found: [found], ('"format": "agentrl-tasks"',)),
        (lambda found: {**found, "format": "other"}, ('"format": "agentrl-tasks"',)),
        (lambda found: {**found, "version": 2}, ('"version": 1',)),
        (lambda found: {**found, "version": True}, ('"version": 1',)),
        (lambda found: {**found, "more": 1}, ('"tasks"', "nothing else")),
        (lambda found: {**found, "tasks": []}, ('"tasks"', "at least one")),
        (lambda found: found["tasks"].append(3), ("tasks[2]", "is 3", "object", "fix_op")),
        (lambda found: found["tasks"][1].pop("split") and None, ("tasks[1] ('range/sum_to')", "field split is missing", "hidden_tests")),
        (put(hint="x"), ("tasks[1] ('range/sum_to')", "field hint is unknown", "issue")),
        (put(issue=3), ("tasks[1] ('range/sum_to')", "field issue is 3", "string")),
        (put(source=["a", 1]), ("field source is ['a', 1]", "list of lines")),
        (put(public_tests=[]), ("field public_tests is []", "at least one")),
        (put(public_tests=3), ("field public_tests is 3", "list")),
        (put(hidden_tests=[ROW, {"args": 1, "expected": 2}]), ("field hidden_tests[1]", '"args": [...]')),
        (put(hidden_tests=[ROW, {"args": [1]}]), ("field hidden_tests[1]", "expected")),
        (put(hidden_tests=[{**ROW, "why": 1}]), ("field hidden_tests[0]", "expected")),
        (put(hidden_tests=[ROW, {"args": [{"set": [1]}], "expected": 2}]), ("field hidden_tests[1]", '{"set": [1]}', '{"tuple": [...]}')),
        (put(name="sum_to"), ("tasks[1] ('sum_to')", "field name is 'sum_to'", "FAMILY/")),
        (put(name="range/other"), ("field name is 'range/other'", "fn_name")),
        (put(name="/sum_to"), ("field name is '/sum_to'",)),
        (put(fn_name="class", name="range/class"), ("field fn_name is 'class'", "Python name")),
        (put(fn_name="Sum", name="range/Sum"), ("field fn_name is 'Sum'", "lower-case")),
        (put(issue="issue : it is wrong"), ("field issue is 'issue : it is wrong'", "names the function")),
        (put(issue="issue :\nsum_to"), ("field issue", "one line")),
        (put(fix_op="fix_all"), ("field fix_op is 'fix_all'", "swap_minmax, fix_range_end")),
        (put(fix_op="hardcode_tests"), ("field fix_op is 'hardcode_tests'", "one of")),
        (put(split="test"), ("field split is 'test'", "'train' or 'heldout'")),
        (put(about="here"), ("field about is 'here'", "object")),
        (put(about={"tests": [1]}), ("field about", "whole numbers")),
        (put(source="def other(n):\n    return n\n"), ("field source", "sum_to", "load error")),
        (put(source="import os\n"), ("field source", "line 1 has an import", "sandbox")),
        (put(source="def sum_to(n):\n    return n * (n + 1) // 2\n"), ("field public_tests", "must show the bug")),
        (put(fix_op="swap_minmax"), ("field public_tests", "swap_minmax should pass", "FAIL test 1")),
        (put(hidden_tests=[{"args": [4], "expected": 99}]), ("field hidden_tests", "fix_range_end should pass", "FAIL test 1")),
        (put(hidden_tests=[{"args": [4], "expected": 10}]), ("field hidden_tests", "hardcode_tests passes", "add an input")),
        (put(source="def sum_to(n: int):\n    total = 0\n    for i in range(1, n):\n        total += i\n    return total\n"),
         ("field source", "hardcode_tests", "def sum_to(a, b):")),
        (lambda found: found["tasks"].append(found["tasks"][0]), ("tasks[2] ('minmax/clamp')", "field name", "earlier")),
    ],
)  # fmt: skip
def test_a_wrong_task_file_is_refused_by_file_task_and_field(tmp_path, change, words):
    path = written(tmp_path, change)
    with pytest.raises(ValueError) as error:
        arl.load_tasks(path)
    assert str(error.value).startswith(str(path))
    assert all(word in str(error.value) for word in words), error.value


def test_a_task_that_no_edit_repairs_keeps_its_origin_and_its_code_is_not_run(tmp_path):
    """A function of a real module: imports, a private name, a bug outside the menu (appendix F)."""
    source = "import sys\n\ndef _Half(n):\n    sys.exit('run')\n"
    task = replace(TASKS[0], name="real/_Half", fn_name="_Half", issue="issue : _Half", source=source, fix_op="",
                   about={"origin": "here", "lines": 2})  # fmt: skip
    assert arl.load_tasks(arl.save_tasks([task, TASKS[1]], tmp_path / "two.json")) == [task, TASKS[1]]
    assert hash(task) == hash(replace(task, about={})) and task != replace(task, about={})
    with pytest.raises(ValueError, match="field fn_name is '_Half'"):
        arl.check_tasks([replace(task, fix_op="fix_init")], "here")


def test_two_repairs_are_one_too_many(tmp_path):
    both = "def f(n):\n    return min(n, 1) if n < 1 else max(n, 2)\n"
    tests = (((0,), 1),), (((-1,), 1),)
    task = replace(TASKS[0], name="a/f", fn_name="f", issue="issue : f", source=both.replace("else max(n, 2)", "else 1"),
                   public_tests=tests[0], hidden_tests=tests[1])  # fmt: skip
    arl.check_tasks([task], "here")
    rival = replace(task, source="def f(n):\n    return min(n, 1) if n <= 0 else max(1, n)\n",
                    public_tests=(((0,), 1),), hidden_tests=(((0,), 1), ((-2,), 1)))  # fmt: skip
    arl.check_tasks([rival], "here")
    twice = replace(task, source="def f(n):\n    if n < 0:\n        return 1\n    return min(n, 1)\n",
                    public_tests=(((0,), 1),), hidden_tests=(((0,), 1), ((-1,), 1)))  # fmt: skip
    with pytest.raises(ValueError) as error:
        arl.check_tasks([twice], "here")
    assert all(w in str(error.value) for w in ("here, tasks[0] ('a/f')", "field", "hidden tests too"))


def test_a_missing_file_is_an_os_error_that_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nobody\.json"):
        arl.load_tasks(tmp_path / "nobody.json")
    (tmp_path / "latin.json").write_bytes(b'"\xe9"')
    with pytest.raises(ValueError, match=r"latin\.json: no valid JSON"):
        arl.load_tasks(tmp_path / "latin.json")


@pytest.mark.parametrize(
    "tasks, words",
    [
        ([], ("tasks is []",)),
        (["clamp"], ("tasks is ['clamp']",)),
        ([replace(TASKS[0], public_tests=list(TASKS[0].public_tests))], ("tasks[0]", "field public_tests", "tuple")),
        ([replace(TASKS[0], hidden_tests=())], ("field hidden_tests is ()",)),
        ([replace(TASKS[0], source=None)], ("field source is None", "string")),
        ([TASKS[1], replace(TASKS[0], split="test")], ("tasks[1] ('minmax/clamp')", "field split")),
        ([replace(OWN, public_tests=OWN.public_tests + ((({"z": 9.0}, float("inf")), {"z": 9.0}),))],
         ("tasks[0] ('minmax/limit')", "field public_tests[3]", "inf")),
    ],
)  # fmt: skip
def test_tasks_that_could_not_be_loaded_are_not_saved(tmp_path, tasks, words):
    with pytest.raises(ValueError) as error:
        arl.save_tasks(tasks, tmp_path / "out.json")
    assert all(word in str(error.value) for word in words), error.value
    assert not (tmp_path / "out.json").exists()


FIRST = "def first(xs, n):\n    return xs[:n]\n"
ROWS = ((([1, 2], 0), [1]), (([], 0), [])), ((([3, 4, 5], 1), [3, 4]), (([7], 0), [7]))


@pytest.mark.parametrize(
    "source, tests",
    [
        (FIRST, ROWS),
        (FIRST[:-1], ROWS),
        (FIRST.replace("\n    ", '\n    """The first of xs, and one more."""\n    # whatever n is\n    '), ROWS),
        ("# Slices.\n\n" + FIRST, ROWS),
        ("def first(xs, n):\n    return part(xs, n)\n\n\ndef part(xs, n):\n    return xs[:n]\n", ROWS),
        ("def first(*xs):\n    n = xs[1]\n    return xs[0][:n]\n", ROWS),
        (FIRST, (((("äö☃", 1), "äö"),), ((("\\'\"\n", 1), "\\'"),))),
        (FIRST, (((((1, 2), 0), (1,)),), ((((None, 2.5), 1), (None, 2.5)),))),
        ("def first(xs, n):\n    return {x: f'{x}!' for x in xs[:n]}\n", (((([1, 2], 0), {1: "1!"}),), ((([3], 0), {3: "3!"}),))),
    ],
)  # fmt: skip
def test_honest_tasks_of_another_style_are_taken(tmp_path, source, tests):
    task = replace(OWN, name="new/first", fn_name="first", issue="first(xs, n) is short", source=source,
                   fix_op="fix_range_end", public_tests=tests[0], hidden_tests=tests[1])  # fmt: skip
    (task,) = arl.load_tasks(arl.save_tasks([task], tmp_path / "own.json"))
    assert (task.source, task.public_tests, task.hidden_tests) == (source, *tests)
    assert play(task, [READ, edit("fix_range_end"), TEST, SUBMIT])[-1][1] == 1.0


@pytest.mark.parametrize(
    "source, words",
    [
        (FIRST.replace("):", "):  # short"), "hardcode_tests does not fool"),
        (FIRST.replace("xs, n", "xs, n=0"), "after hardcode_tests it does not load"),
        (FIRST.replace("xs, n", "xs: list, n: int"), "after hardcode_tests it does not load"),
        (FIRST.replace("    ", "  ").replace("return", "m = n\n  return"), "after hardcode_tests it does not load"),
        ("def part(x):\n    return x\n\n" + FIRST, "hardcode_tests does not fool"),
        ("import math\n" + FIRST, "line 1 has an import"),
        (FIRST + "while 1:\n    n = 1\n", "load error, stopped after"),
    ],
)
def test_honest_tasks_that_the_edits_cannot_read_are_refused(source, words):
    task = replace(OWN, name="new/first", fn_name="first", issue="first", source=source, fix_op="fix_range_end",
                   public_tests=ROWS[0], hidden_tests=ROWS[1])  # fmt: skip
    with pytest.raises(ValueError, match=r"field (source|public_tests)") as error:
        arl.check_tasks([task], "mine")
    assert words in str(error.value), error.value


def test_own_tasks_are_played_like_the_gyms(tmp_path):
    (task,) = arl.load_tasks(arl.save_tasks([OWN], tmp_path / "own.json"))
    assert play(task, [READ, edit("swap_minmax"), TEST, SUBMIT])[-1][1] == 1.0
    assert play(task, [edit(EXPLOIT), SUBMIT])[-1][1] == 0.0
    assert len(arl.build_tokenizer([task])) > 20


@pytest.mark.parametrize("names", ["__class__=c", "upper=g, __getattribute__=c", "format=g"])
def test_attributes_in_a_match_pattern_are_refused_too(names):
    source = f"def f(n):\n    match n:\n        case str({names}):\n            return 1\n"
    assert "the attribute" in arl.refusal(source)
    allowed = "def f(n):\n    match n:\n        case str(upper=g):\n            return g()\n"
    assert arl.refusal(allowed) is None and arl.run_tests(allowed, ((("a",), "A"),), "f")[0][0]


@pytest.mark.parametrize("drop", ["next(i for i in [1, 2])", "any(i for i in [1, 2])"])
@pytest.mark.parametrize("phase", range(0, 24, 3))
def test_a_loop_that_drops_generators_is_stopped_whenever_its_budget_ends(drop, phase):
    """Closing a dropped generator swallows errors: the step that ends the budget must not fall into it."""
    head = "".join(f"    z{i} = x\n" for i in range(phase))
    source = f"def f(x):\n{head}    while x:\n        y = {drop}\n"
    assert "stopped" in arl.run_tests(source, (((1,), 1),), "f")[0][1]
