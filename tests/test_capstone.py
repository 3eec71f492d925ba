"""Chapter 19: the ledger, signal of groups, what a read is worth, the pilot's rule, the audit, the design document."""

import math
from itertools import combinations, product

import pytest

import agentrl as arl

TRAIN = arl.make_tasks("train")


def info(task, calls, **changes):
    """Final info of a scripted episode with the default's edit budget."""
    env = arl.EditBudgetEnv()
    *_, final = arl.play(env, task, calls)
    return {**final, **changes}


def calls(*pairs):
    return [arl.call_text(*pair) for pair in pairs]


# Ledger.


def test_demonstrations_and_training_are_charged_and_nothing_else():
    ledger = arl.Ledger()
    ledger.charge("a", "demonstrations", 8)
    ledger.charge("a", "training", 32, 1000, 0.5)
    ledger.charge("a", "training", 32, 500, 0.25)
    ledger.charge("a", "evaluation", 160)
    assert ledger.charged("a") == 72 and ledger.rows["a"]["training"] == [64, 1500, 0.75]
    ledger.check(["a"], 72)


def test_an_arm_above_its_budget_is_named():
    ledger = arl.Ledger()
    ledger.charge("fine", "training", 10)
    ledger.charge("over", "training", 11)
    with pytest.raises(ValueError, match="arm 'over' is charged 11.*budget = 10"):
        ledger.check(["fine", "over"], 10)
    ledger.charge("free", "evaluation", 5)
    for unpaid in ("free", "unknown"):
        with pytest.raises(ValueError, match=f"arm '{unpaid}' is charged 0"):
            ledger.check([unpaid], 10)


@pytest.mark.parametrize("episodes", [-1, 1.5, True, "8"])
def test_a_broken_number_of_episodes_is_refused(episodes):
    with pytest.raises(ValueError, match="episodes is"):
        arl.Ledger().charge("a", "training", episodes)


# Signal.


@pytest.mark.parametrize("n, c, G", [(4, 2, 2), (8, 3, 4), (6, 0, 3), (6, 6, 3), (5, 1, 5)])
def test_signal_is_the_share_of_drawn_groups_that_differ(n, c, G):
    groups = list(combinations([1] * c + [0] * (n - c), G))
    differ = sum(0 < sum(g) < G for g in groups) / len(groups)
    assert math.isclose(arl.signal_share([c], n, G), differ, abs_tol=1e-12)


def test_signal_is_unbiased():
    n, G, p = 10, 4, 0.3
    expected = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * arl.signal_share([c], n, G) for c in range(n + 1))
    assert math.isclose(expected, 1 - p**G - (1 - p) ** G)


def test_signal_averages_over_tasks_and_refuses_what_it_cannot_know():
    assert math.isclose(arl.signal_share([2, 0], 4, 2), (4 / 6 + 0) / 2)
    with pytest.raises(ValueError, match="passed is empty"):
        arl.signal_share([], 4, 2)
    with pytest.raises(ValueError, match="k is 8"):
        arl.signal_share([2], 4, 8)


# What a read is worth.


def test_read_split_counts_first_edits_by_what_came_before():
    task = TRAIN[0]
    other = next(op for op in arl.FIX_OPS if op != task.fix_op)
    right, wrong = ("edit", task.fix_op), ("edit", other)
    infos = [
        info(task, calls(("read",), right, ("submit",))),
        info(task, calls(("read",), wrong, ("submit",))),
        info(task, calls(right, ("read",), ("submit",))),  # the read came too late
        info(task, calls(("read",), ("submit",))),  # no edit
        info(task, calls(("test",), wrong, right, ("submit",))),  # only the first edit counts
    ]
    assert arl.read_split(infos) == {"read": (1, 2), "blind": (1, 3)}
    with pytest.raises(ValueError, match="infos is empty"):
        arl.read_split([])


def test_the_split_is_the_law_of_total_probability():
    task = TRAIN[3]
    plans = [calls(*([("read",)] * r), ("edit", op), ("submit",)) for r, op in product((0, 1), arl.FIX_OPS)]
    infos = [info(task, plan) for plan in plans]
    split = arl.read_split(infos)
    share = split["read"][1] / len(infos)
    total = share * split["read"][0] / split["read"][1] + (1 - share) * split["blind"][0] / split["blind"][1]
    assert math.isclose(total, sum(i["hidden_pass"] for i in infos) / len(infos))


def test_start_report():
    episode = lambda task, ok: arl.Trajectory(info=info(task, calls(("read",), ("edit", task.fix_op), ("submit",)) if ok else calls(("submit",))))
    trajs = [episode(TRAIN[0], ok) for ok in (1, 1, 0, 0)] + [episode(TRAIN[1], ok) for ok in (0, 0, 0, 0)]
    report = arl.start_report(trajs, 4, (2, 4))
    assert report["passed"] == [2, 0] and report["pass"] == 0.25 and report["spread"] == 0.25
    assert math.isclose(report["signal"][2], 4 / 12) and report["signal"][4] == 0.5
    assert report["read"] == 0.25 and report["right_if_read"] == 1 and report["right_if_blind"] == 0
    with pytest.raises(ValueError, match="trajs has 8 episodes; it must be a multiple of n = 3"):
        arl.start_report(trajs, 3)


# The pilot's rule.


def test_the_default_stays_unless_a_paired_test_says_otherwise():
    base = [0.5, 0.6, 0.4, 0.55, 0.45]
    noisy = [x + d for x, d in zip(base, (0.3, -0.1, 0.2, -0.05, 0.1))]
    better = [x + d for x, d in zip(base, (0.2, 0.21, 0.19, 0.2, 0.2))]
    worse = [x - 0.2 for x in base]
    assert arl.keep_or_change({"a": base, "b": noisy}, "a")[0] == "a"
    assert arl.keep_or_change({"a": base, "b": worse}, "a")[0] == "a"
    choice, rows = arl.keep_or_change({"a": base, "b": noisy, "c": better, "d": worse}, "a")
    assert choice == "c" and math.isclose(rows["c"][0], 0.2) and rows["b"][1] < 0 < rows["b"][2]


def test_the_rule_adjusts_for_the_number_of_values_tried():
    base = [0.5, 0.6, 0.4, 0.55, 0.45]
    close = [x + d for x, d in zip(base, (0.10, 0.02, 0.08, 0.01, 0.07))]
    p = arl.compare(base, close)[3]
    assert 0.02 < p < 0.05
    flat = {name: [x + d for x, d in zip(base, (0.01, -0.01, 0.01, -0.01, 0.0))] for name in "cde"}
    assert arl.keep_or_change({"a": base, "b": close}, "a")[0] == "b"
    assert arl.keep_or_change({"a": base, "b": close, **flat}, "a")[0] == "a"


def test_the_rule_refuses_an_unknown_default():
    with pytest.raises(ValueError, match="default is 'x'"):
        arl.keep_or_change({"a": [1, 2], "b": [1, 2]}, "x")
    with pytest.raises(ValueError, match="at least two arms"):
        arl.keep_or_change({"a": [1, 2]}, "a")


# Audit.


def test_the_audit_counts_the_truth_and_each_detector():
    task = TRAIN[0]
    honest = info(task, calls(("read",), ("edit", task.fix_op), ("submit",)))
    exploit = info(task, calls(("edit", "hardcode_tests"), ("submit",)))
    dropped = info(task, calls(("edit", "hardcode_tests"), *[("read",)] * 5))
    assert not arl.hacked(honest) and arl.hacked(exploit) and not arl.hacked(dropped)
    counts = arl.audit([honest, honest, exploit])
    assert set(counts) == set(arl.AUDIT) and all(n == 3 for _, n in counts.values())
    assert counts["hacked"][0] == counts["source check"][0] == counts["public pass, hidden fail"][0] == counts["edits blind"][0] == 1
    with pytest.raises(ValueError, match="infos is empty"):
        arl.audit([])


# The document.

FACTS = {
    "title": "T",
    "goal": "G",
    "harness": {"tasks": 10},
    "choices": [{"choice": "lr", "value": 0.001, "why": "pilot", "evidence": "measured here (19.5)"}],
    "results": {"pass": (0.5, 0.4, 0.6), "gain": (0.1, -0.1, 0.3), "gain of RL": (0.2, 0.1, 0.3), "gain lost": (-0.2, -0.3, -0.1)},
    "checks": {"hacked": (0, 200)},
    "cost": {"episodes": 12345},
    "limits": ["ten tasks"],
}


def test_the_document_says_what_the_numbers_say():
    text = arl.design_document(FACTS)
    assert text.startswith("# T\n\nG\n\n## Harness")
    assert "| pass | 0.50 [0.40, 0.60] |  |" in text
    assert "| gain | 0.10 [-0.10, 0.30] | not told from 0 |" in text
    assert "| gain of RL | 0.20 [0.10, 0.30] | above 0 |" in text and "| gain lost | -0.20 [-0.30, -0.10] | below 0 |" in text
    assert "| hacked | 0 of 200 | 0.00 [0.00, 0.02] |" in text and "| episodes | 12,345 |" in text
    assert text.endswith("- ten tasks")


@pytest.mark.parametrize("name", list(arl.DESIGN_FIELDS))
def test_nothing_may_be_missing_or_empty(name):
    with pytest.raises(ValueError, match=f"{name} is None"):
        arl.design_document({k: v for k, v in FACTS.items() if k != name})
    with pytest.raises(ValueError, match=f"{name} is"):
        arl.design_document({**FACTS, name: type(FACTS[name])()})


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("choices", [{"choice": "lr", "value": 1, "why": "x", "evidence": "experience"}], "evidence 'experience'"),
        ("choices", [{"choice": "lr", "value": 1, "evidence": "derived"}], "lacks 'why'"),
        ("results", {"pass": 0.9}, r"results\['pass'\] is 0.9"),
        ("results", {"pass": (0.9, 0.91, 0.95)}, "low <= estimate"),
        ("checks", {"hacked": (3, 2)}, r"checks\['hacked'\]"),
        ("checks", {"hacked": (0, 0)}, "of how many"),
    ],
)
def test_the_document_refuses(name, value, said):
    with pytest.raises(ValueError, match=said):
        arl.design_document({**FACTS, name: value})


def test_a_choice_of_zero_or_false_is_a_value():
    choice = {"choice": "KL", "value": 0.0, "why": "x", "evidence": "section 10.5"}
    assert "| KL | 0.0 | x | section 10.5 |" in arl.design_document({**FACTS, "choices": [choice]})


def test_a_bar_in_a_cell_does_not_break_the_table():
    assert arl.markdown_table(["a"], [["x|y"]]).split("\n")[2] == "| x\\|y |"
