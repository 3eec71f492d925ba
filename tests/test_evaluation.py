"""Chapter 17: harness, pass@k, intervals, tests between runs, power, many looks, leaks."""

import json
import math
import random
import re
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from toys import agent, tokenizer

import agentrl as arl

HELD_OUT = arl.make_tasks("heldout")
SMALL = arl.EvalConfig(n_samples=2)


# Harness.


def test_the_name_of_a_harness_holds_every_setting_and_every_test():
    cfg = arl.EvalConfig()
    changes = [
        {"n_samples": 16},
        {"temperature": 0.5},
        {"max_turns": 5},
        {"max_edits": None},
        {"rename": False},
        {"seed": 1},
        {"version": 2},
    ]
    assert {name for change in changes for name in change} == set(cfg.__dataclass_fields__)
    names = {arl.harness_id(replace(cfg, **change), HELD_OUT) for change in changes}
    fewer_tests = [replace(HELD_OUT[0], hidden_tests=HELD_OUT[0].hidden_tests[1:]), *HELD_OUT[1:]]
    names |= {arl.harness_id(cfg, tasks) for tasks in (HELD_OUT, HELD_OUT[1:], HELD_OUT[::-1], fewer_tests)}
    assert len(names) == len(changes) + 4
    assert arl.harness_id(arl.EvalConfig(), arl.make_tasks("heldout")) == arl.harness_id(cfg, HELD_OUT)


@pytest.mark.parametrize(
    "field, value",
    [
        ("n_samples", 0),
        ("n_samples", 2.0),
        ("n_samples", True),
        ("seed", -1),
        ("version", 0),
        ("temperature", 0.0),
        ("max_turns", 0),
        ("max_edits", -1),
    ],
)
def test_a_wrong_setting_is_named(field, value):
    with pytest.raises(ValueError, match=field):
        arl.EvalConfig(**{field: value})


def test_an_evaluation_repeats_itself_and_counts_passes_by_task():
    tasks = HELD_OUT[:3]
    first, again = (arl.run_eval(agent(), tasks, tokenizer(), SMALL, "a") for _ in range(2))
    assert first == again and first.tasks == tuple(t.name for t in tasks) and first.n == 2
    trajs = arl.sample_eval(agent(), tasks, tokenizer(), 2, generator=arl.evaluation.torch.Generator().manual_seed(0))
    passed = [t.info["hidden_pass"] for t in trajs]
    assert first.passed == tuple(sum(passed[i : i + 2]) for i in (0, 2, 4))
    assert first.rates.tolist() == [c / 2 for c in first.passed]
    with pytest.raises(ValueError, match="tasks"):
        arl.run_eval(agent(), [], tokenizer(), SMALL)


def test_results_of_two_harnesses_do_not_compare():
    a = arl.EvalResult("a", "one", ("x", "y"), 4, (1, 2))
    assert arl.paired_rates(a, replace(a, label="b", passed=(3, 1))).tolist() == [0.5, -0.25]
    with pytest.raises(ValueError, match="'b' is two, that of 'a' is one"):
        arl.paired_rates(a, replace(a, label="b", harness="two"))


def test_the_stored_ablation_is_of_this_harness():
    stored = json.loads((arl.evaluation.files("agentrl") / "data" / "evaluation" / "ablation.json").read_text())
    assert stored["harness"] == arl.harness_id(arl.EvalConfig(), HELD_OUT)
    data = arl.read_ablation()
    assert list(data) == ["default", "no std", "mean in each sequence", "clip-higher 0.28", "dynamic sampling"]
    for arm, runs in data.items():
        assert runs["seed"].tolist() == list(range(10))
        assert runs["passed"].shape == (10, 10) and runs["passed"].max() <= 32
        assert runs["train_pass"].shape == runs["episodes"].shape == (10, 20)
        assert arm == "dynamic sampling" or (runs["episodes"] == 64).all()


# pass@k and pass^k.


def test_both_estimates_are_exact_on_all_small_counts():
    for n in range(1, 10):
        for c, k in product(range(n + 1), range(1, n + 1)):
            at = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
            hat = Fraction(math.comb(c, k), math.comb(n, k))
            assert arl.pass_at_k(n, c, k) == pytest.approx(float(at), abs=1e-14)
            assert arl.pass_hat_k(n, c, k) == pytest.approx(float(hat), abs=1e-14)


@pytest.mark.parametrize("p", [0.0, 0.01, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("n, k", [(5, 5), (10, 4), (30, 1)])
def test_both_estimates_are_unbiased(n, k, p):
    pmf = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    assert sum(w * arl.pass_at_k(n, c, k) for c, w in enumerate(pmf)) == pytest.approx(1 - (1 - p) ** k, abs=1e-12)
    assert sum(w * arl.pass_hat_k(n, c, k) for c, w in enumerate(pmf)) == pytest.approx(p**k, abs=1e-12)


@pytest.mark.parametrize(
    "c, k", [(1, 1), (3, 17), (17, 3), (500_000, 2), (2, 500_000), (999_999, 999_999), (0, 10**6), (10**6, 10**6)]
)
def test_a_million_attempts_lose_no_digits(c, k):
    n = 10**6
    few, many = min(c, k), max(c, k)
    outside = Fraction(1)
    if k > n - c:
        outside = Fraction(0)
    else:
        for i in range(few):
            outside *= Fraction(n - many - i, n - i)
    assert arl.pass_at_k(n, c, k) == pytest.approx(float(1 - outside), rel=1e-12)
    assert arl.pass_hat_k(n, n - c, k) == pytest.approx(float(outside), rel=1e-9)


def test_huge_counts_stay_between_0_and_1():
    for c in (1, 333_333, 999_000):
        for k in (1, 1000, 400_000):
            assert 0 < arl.pass_at_k(10**6, c, k) <= 1 and 0 <= arl.pass_hat_k(10**6, c, k) <= 1


@pytest.mark.parametrize("f", [arl.pass_at_k, arl.pass_hat_k])
@pytest.mark.parametrize(
    "counts, field",
    [
        ((0, 0, 1), "n"),
        ((5, 6, 1), "c"),
        ((5, -1, 1), "c"),
        ((5, 3, 0), "k"),
        ((5, 3, 6), "k"),
        ((99, 0, 100), "k"),
        ((5.0, 3, 1), "n"),
        ((5, 2.5, 1), "c"),
        ((5, 3, True), "k"),
        ((5, None, 1), "c"),
    ],
)
def test_impossible_counts_are_refused(f, counts, field):
    with pytest.raises(ValueError, match=f"^{field} is"):
        f(*counts)


def test_numpy_counts_are_welcome():
    assert arl.pass_at_k(np.int64(5), np.int32(3), np.int64(2)) == pytest.approx(0.9)


# Intervals.


def test_wilson_s_ends_lie_z_of_their_own_standard_errors_away():
    for c, n in ((0, 20), (3, 17), (20, 20)):
        p, low, high = arl.wilson_interval(c, n)
        for end in (low, high):
            if 0 < end < 1:
                assert abs(p - end) / math.sqrt(end * (1 - end) / n) == pytest.approx(1.959964, abs=1e-5)
        assert -1e-12 <= low <= p <= high <= 1 + 1e-12
    for wrong in ((3, 2), (-1, 5), (0, 0)):
        with pytest.raises(ValueError, match="c is"):
            arl.wilson_interval(*wrong)
    with pytest.raises(ValueError, match="level"):
        arl.wilson_interval(1, 2, level=1.0)


def test_the_bootstrap_repeats_itself_and_agrees_with_listing_all_resamples():
    values = [0.0, 0.5, 1.0]
    means = sorted(np.mean(s) for s in product(values, repeat=3))
    exact = np.quantile(means, [0.1, 0.9])
    mean, low, high = arl.bootstrap_interval(values, level=0.8, draws=50_000)
    assert mean == 0.5 and abs(low - exact[0]) < 0.02 and abs(high - exact[1]) < 0.02
    assert arl.bootstrap_interval(values) == arl.bootstrap_interval(values)
    assert arl.bootstrap_interval([0.3] * 5)[1:] == pytest.approx((0.3, 0.3))


def test_clusters_are_drawn_whole():
    values, labels = [0, 0, 0, 1, 1, 1], list("aaabbb")
    assert arl.bootstrap_interval(values, labels)[1:] == (0.0, 1.0)
    low, high = arl.bootstrap_interval(values)[1:]
    assert 0 < low < high < 1
    assert arl.bootstrap_interval([0, 1], ["x", "y"]) == arl.bootstrap_interval([0, 1])


def test_the_clustered_error_is_the_usual_one_for_single_tasks_and_right_for_copies():
    x = np.array([0.1, 0.5, 0.9, 0.4])
    usual = x.std(ddof=1) / 2
    assert arl.clustered_se(x, range(4)) == pytest.approx(usual)
    assert arl.clustered_se(np.repeat(x, 7), np.repeat(range(4), 7)) == pytest.approx(usual)


@pytest.mark.parametrize(
    "values, clusters, field",
    [
        ([0.5], None, "values"),
        ([], None, "values"),
        ([0.5, math.nan], None, "values"),
        ([[0.1, 0.2]], None, "values"),
        ([0.1, 0.2], ["a"], "clusters"),
        ([0.1, 0.2], ["a", "a"], "values"),
    ],
)
def test_intervals_need_two_units(values, clusters, field):
    for f in (lambda: arl.bootstrap_interval(values, clusters),) + (
        (lambda: arl.clustered_se(values, clusters),) if clusters else ()
    ):
        with pytest.raises(ValueError, match=field):
            f()


def test_intervals_over_tasks_cover():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(500):
        x = rng.binomial(16, rng.beta(1.2, 0.4, 50)) / 16
        _, low, high = arl.bootstrap_interval(x, draws=500)
        hits += low <= 0.75 <= high
    assert 0.91 < hits / 500 < 0.98


# Tests between runs.


def test_the_t_tail_inverts_the_quantile():
    for df in (1, 2, 3.7, 9, 60, 1000, 10**5):
        for level in (0.5, 0.95, 0.999):
            assert arl.t_tail(arl.t_quantile(0.5 + level / 2, df), df) == pytest.approx(1 - level, rel=1e-6)
    assert arl.t_tail(0.0, 5) == pytest.approx(1) and arl.t_tail(-2.0, 5) == arl.t_tail(2.0, 5)
    assert arl.t_tail(3.0, 1) == pytest.approx(1 - 2 * math.atan(3.0) / math.pi)  # Cauchy
    assert arl.t_tail(1e6, 4) < 1e-20


def test_welch_by_hand():
    a, b = [1.0, 2.0, 3.0], [2.0, 4.0, 6.0, 8.0]
    d, se, df = arl.welch_t(a, b)
    va, vb = 1 / 3, (20 / 3) / 4
    assert (d, se) == pytest.approx((3.0, math.sqrt(va + vb)))
    assert df == pytest.approx((va + vb) ** 2 / (va**2 / 2 + vb**2 / 3))


def test_compare_is_the_t_interval_of_the_differences():
    a, b = [0.5, 0.6, 0.7, 0.4], [0.6, 0.6, 0.9, 0.5]
    d, low, high, p = arl.compare(a, b)
    assert (d, low, high) == pytest.approx(arl.mean_interval(np.subtract(b, a)))
    assert (p < 0.05) == (low > 0 or high < 0)
    back = arl.compare(b, a)
    assert back == pytest.approx((-d, -high, -low, p))
    assert arl.compare([0, 1], [1, 2])[3] == 0.0 and arl.compare([0, 1], [0, 1])[3] == 1.0


def test_permutations_are_counted():
    assert arl.permutation_p([0, 0, 0], [1, 2, 3]) == 0.25
    assert arl.permutation_p([0, 0, 0], [1, 2, 3], paired=False) == pytest.approx(2 / 20)
    assert arl.permutation_p([1, 2], [1, 2]) == 1.0
    sampled = arl.permutation_p(np.zeros(18), np.r_[np.ones(13), -np.ones(5)])
    exact = 2 * sum(math.comb(18, i) for i in range(6)) / 2**18
    assert sampled == pytest.approx(exact, abs=0.01)
    both = arl.permutation_p(np.zeros((2, 4)), [[1, 1, 1, 1], [1, -1, 1, -1]])
    assert both.tolist() == [2 / 16, 1.0]


@pytest.mark.parametrize("f", [arl.compare, arl.permutation_p, arl.paired_t])
def test_arms_that_do_not_fit_are_refused(f):
    for a, b in (([1.0], [2.0]), ([1.0, 2.0], [1.0, 2.0, 3.0]), ([1.0, math.inf], [1.0, 2.0])):
        with pytest.raises(ValueError, match="^[ab] has shape"):
            f(a, b)


def test_no_effect_no_more_alarms_than_promised():
    a, b = np.random.default_rng(1).normal(size=(2, 4000, 5))
    for d, se, df in (arl.paired_t(a, b), arl.welch_t(a, b)):
        assert 0.03 < (arl.t_tail(d / se, df) < 0.05).mean() < 0.065
    assert (arl.permutation_p(a, b) < 0.05).sum() == 0  # five pairs can't
    assert (arl.permutation_p(a, b, paired=False) < 0.05).mean() < 0.065


# Power.


def test_power_agrees_with_simulation_and_with_the_level():
    assert arl.t_power(0.0, 1.0, 7) == pytest.approx(0.05, abs=1e-3)
    x = np.random.default_rng(2).normal(0.8, 1.0, (20_000, 8))
    d, se, df = arl.paired_t(np.zeros_like(x), x)
    assert arl.t_power(0.8, 1.0, 8) == pytest.approx((arl.t_tail(d / se, df) < 0.05).mean(), abs=0.012)
    assert arl.t_power(-0.8, 1.0, 8) == pytest.approx(arl.t_power(0.8, 1.0, 8))


def test_runs_needed_is_the_first_number_that_is_enough():
    for effect, sd, paired in ((0.05, 0.1, True), (0.05, 0.06, False), (1.0, 0.1, True), (-0.1, 0.1, True)):
        S = arl.runs_needed(effect, sd, paired=paired)
        assert arl.t_power(effect, sd, S, paired) >= 0.8
        assert S == 2 or arl.t_power(effect, sd, S - 1, paired) < 0.8
    assert arl.runs_needed(0.025, 0.1) > 3.5 * arl.runs_needed(0.05, 0.1)
    for wrong in ({"effect": 0, "sd": 1}, {"effect": 1, "sd": 0}, {"effect": 1, "sd": 1, "power": 1.0}):
        with pytest.raises(ValueError):
            arl.runs_needed(**wrong)


def test_variance_components_are_recovered():
    rng = np.random.default_rng(3)
    got = []
    for _ in range(300):
        p = 0.5 + rng.normal(0, 0.06, (8, 1)) + rng.normal(0, 0.1, 12) + rng.normal(0, 0.08, (8, 12))
        got.append(list(arl.variance_components(rng.binomial(20, p.clip(0, 1)), 20).values()))
    mean = np.mean(got, 0)
    assert mean[:3] == pytest.approx([0.0036, 0.01, 0.0064], rel=0.15)
    assert mean[3] == pytest.approx(0.25 - 0.0036 - 0.01 - 0.0064, rel=0.05)


def test_two_equal_arms_have_only_the_noise_of_attempts():
    c = np.random.default_rng(4).integers(0, 11, (5, 6))
    parts = arl.variance_components(c, 10, c)
    assert parts["seed"] == pytest.approx(0) and parts["task"] == pytest.approx(0)
    assert parts["both"] == pytest.approx(-parts["attempt"] / 10)
    assert arl.design_se(parts, 5, 6, 10) == pytest.approx(math.sqrt(parts["attempt"] / 300))
    for wrong in ((c, 9), (c[:1], 10), (c[0], 10), (c, 1)):
        with pytest.raises(ValueError, match="passed"):
            arl.variance_components(*wrong)


def test_fixed_tasks_are_no_error():
    parts = {"seed": 0.01, "task": 0.04, "both": -0.1, "attempt": 0.2}
    assert arl.design_se(parts, 5, 10, 4) == pytest.approx(math.sqrt(0.002 + 0.004 + 0.001))
    assert arl.design_se(parts, 5, 10, 4, fixed_tasks=True) == pytest.approx(math.sqrt(0.003))


# Many looks.


def test_holm_and_benjamini_hochberg_by_hand():
    assert arl.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert arl.benjamini_hochberg([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    for f in (arl.holm, arl.benjamini_hochberg):
        assert f([0.2]).tolist() == [0.2] and f([0.9, 0.8]).max() <= 1
        for wrong in ([], [0.5, 1.2], [math.nan], [[0.1]]):
            with pytest.raises(ValueError, match="p is"):
                f(wrong)


def test_holm_keeps_the_family_wise_level():
    p = np.random.default_rng(5).random((4000, 6))
    assert np.mean([arl.holm(row).min() < 0.05 for row in p]) == pytest.approx(0.05, abs=0.012)


def test_the_largest_of_some_normal_numbers():
    assert arl.expected_max(1) == pytest.approx(0, abs=1e-9)
    assert arl.expected_max(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    assert arl.expected_max(50) == pytest.approx(
        np.random.default_rng(6).normal(size=(20_000, 50)).max(1).mean(), abs=0.02
    )
    with pytest.raises(ValueError, match="m is"):
        arl.expected_max(0)


# Leaks.


def test_copies_are_found_whatever_their_names_are():
    train = arl.make_tasks("train")
    odds = HELD_OUT[3]
    assert not arl.task_overlap([odds], train)[0]["same_source"]
    copy = arl.randomize_names(odds, random.Random(1))
    row = arl.task_overlap([odds], [*train, copy])[0]
    assert row["same_source"] and row["share"] == 1 and row["nearest"] == odds.name
    assert row["shared_tests"] == len(odds.public_tests) + len(odds.hidden_tests)
    variable = re.search(r"\((\w+)", odds.source)[1]
    other = replace(copy, source=re.sub(rf"\b{variable}\b", "something", copy.source))
    assert other.source != copy.source and arl.task_overlap([odds], [*train, other])[0]["same_source"]
    changed = replace(copy, source=copy.source.replace("range", "len"))
    assert not arl.task_overlap([odds], [changed])[0]["same_source"]
    for wrong in (([], train, 5), (HELD_OUT, [], 5), (HELD_OUT, train, 0)):
        with pytest.raises(ValueError, match="must be at least 1"):
            arl.task_overlap(*wrong)


def test_six_held_out_tasks_have_the_body_of_a_training_task():
    rows = arl.task_overlap(HELD_OUT, arl.make_tasks("train"))
    assert [row["same_source"] for row in rows] == [True, True, False, False, True, True, True, True, False, False]
    assert all((row["share"] == 1) == row["same_source"] and 0 < row["share"] for row in rows)
