"""Chapter 3: top-k and top-p as policies, chi-square tests of the sampler, and precision."""

import math

import pytest
import torch
from toys import fresh_agent, gen

import agentrl as arl

PROBS = [0.4, 0.3, 0.15, 0.1, 0.05]


def base():
    return torch.tensor(PROBS, dtype=torch.double).log()


def kept(**rule):
    return arl.filter_logits(base(), **rule).isfinite().nonzero()[:, 0].tolist()


# filter_logits


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_top_k_keeps_exactly_k_of_the_likeliest(k):
    assert kept(top_k=k) == list(range(k))
    shuffled = arl.filter_logits(base()[torch.tensor([4, 1, 3, 0, 2])], top_k=2)
    assert shuffled.isfinite().nonzero()[:, 0].tolist() == [1, 3]


@pytest.mark.parametrize(
    "p, n", [(1e-9, 1), (0.39, 1), (0.41, 2), (0.6, 2), (0.71, 3), (0.86, 4), (0.96, 5), (1.0, 5), (1, 5)]
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(p, n):
    assert kept(top_p=p) == list(range(n))


def test_top_p_is_taken_among_what_top_k_left():
    # of 0.4, 0.3, 0.15 renormalised, the first two are 0.82
    assert kept(top_k=3, top_p=0.8) == [0, 1] and kept(top_p=0.8) == [0, 1, 2]


def test_ties_leave_exactly_k_and_go_to_smaller_ids():
    assert arl.filter_logits(torch.zeros(4), top_k=2).isfinite().tolist() == [True, True, False, False]
    assert arl.filter_logits(torch.zeros(4), top_p=0.5).isfinite().tolist() == [True, True, False, False]


def test_without_a_rule_logits_come_back_unchanged():
    x = torch.randn(2, 3, 7, generator=gen())
    for rule in ({}, {"top_k": 7}, {"top_p": 1.0}, {"top_k": 7, "top_p": 1}):
        assert torch.equal(arl.filter_logits(x, **rule), x)


def test_p_of_one_keeps_a_tail_that_rounds_away():
    x = torch.tensor([0.0, -60.0, -80.0])
    assert arl.filter_logits(x, top_p=1.0).isfinite().all()


def test_rows_are_filtered_by_themselves_and_input_is_left_alone():
    x = torch.randn(2, 3, 9, generator=gen())
    before = x.clone()
    got = arl.filter_logits(x, top_k=6, top_p=0.7)
    assert torch.equal(x, before)
    for b in range(2):
        for t in range(3):
            assert torch.equal(got[b, t], arl.filter_logits(x[b, t], top_k=6, top_p=0.7))
    assert torch.equal(got[got.isfinite()], x[got.isfinite()])


def test_dropped_tokens_stay_dropped():
    x = torch.tensor([1.0, -math.inf, 0.0, -math.inf])
    assert arl.filter_logits(x, top_k=3).isfinite().tolist() == [True, False, True, False]
    assert arl.filter_logits(x, top_p=0.999999).isfinite().tolist() == [True, False, True, False]


@pytest.mark.parametrize("rule", [{"top_k": 1}, {"top_p": 0.1}, {"top_k": 2, "top_p": 0.5}])
def test_a_filter_hides_no_nan_from_the_sampler(rule):
    x = torch.tensor([[0.0, 1.0, math.nan, 2.0]])
    with pytest.raises(ValueError, match="no distribution"):
        arl.sample_tokens(arl.filter_logits(x, **rule), 1.0, gen())


def test_a_logit_of_plus_infinity_reaches_the_sampler_which_refuses_it():
    x = torch.tensor([[0.0, math.inf, 1.0]])
    for rule in ({"top_k": 2}, {"top_p": 0.5}):
        with pytest.raises(ValueError, match="no distribution"):
            arl.sample_tokens(arl.filter_logits(x, **rule), 1.0, gen())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_precision_is_kept_and_no_rows_are_no_trouble(dtype):
    got = arl.filter_logits(base().to(dtype), top_k=4, top_p=0.6)
    assert got.dtype == dtype and got.isfinite().tolist() == [True, True, False, False, False]
    assert arl.filter_logits(torch.zeros(0, 5, dtype=dtype), top_p=0.5).shape == (0, 5)


@pytest.mark.parametrize("rule", [{"top_k": 3}, {"top_p": 0.6}])
def test_gradients_are_those_of_the_renormalised_policy(rule):
    x = base().float().requires_grad_(True)
    filtered = arl.filter_logits(x, **rule)
    arl.selected_log_probs(filtered[None, None], torch.tensor([[1]])).sum().backward()
    want = torch.eye(5)[1] - filtered.detach().softmax(-1)
    assert torch.allclose(x.grad, want, atol=1e-6)


def test_the_trainer_s_ratio_is_the_kept_mass_for_every_sampled_token():
    for rule, mass in (({"top_k": 3}, 0.85), ({"top_p": 0.6}, 0.7)):
        logits = arl.filter_logits(base(), **rule).expand(500, 5)
        ids, logps, _ = arl.sample_tokens(logits, 1.0, gen())
        ratio = (base().log_softmax(-1)[ids] - logps).exp()
        assert torch.allclose(ratio, torch.full_like(ratio, mass), atol=1e-9)


@pytest.mark.parametrize("p", [0.3, 0.6, 0.9])
def test_the_kept_mass_lies_between_p_and_one(p):
    x = torch.randn(200, 20, generator=gen(), dtype=torch.double)
    mass = (x.softmax(-1) * arl.filter_logits(x, top_p=p).isfinite()).sum(-1)
    assert (mass >= p - 1e-12).all() and (mass <= 1 + 1e-12).all()


@pytest.mark.parametrize("k", [0, -1, 6, 2.0, True, "3"])
def test_wrong_top_k_is_refused(k):
    with pytest.raises(ValueError, match=r"top_k is .*from 1 to V = 5"):
        arl.filter_logits(base(), top_k=k)


@pytest.mark.parametrize("p", [0, 0.0, -0.1, 1.0001, math.nan, math.inf, True, "0.9"])
def test_wrong_top_p_is_refused(p):
    with pytest.raises(ValueError, match="top_p is .*above 0 and at most 1"):
        arl.filter_logits(base(), top_p=p)


# Chi-square, with a stated level and samplers that must fail it.

CRITICAL = 27.877  # 99.9% point for nine degrees of freedom


def statistic(ids, probs):
    expected = len(ids) * probs
    return ((torch.bincount(ids, minlength=len(probs)) - expected) ** 2 / expected).sum().item()


def scores(sampler, temperature=0.6, n=20_000):
    found = []
    for seed in range(5):
        logits = torch.randn(10, generator=gen(seed))
        ids = sampler(logits.expand(n, 10), gen(100 + seed))
        found.append(statistic(ids, (logits / temperature).double().softmax(-1)))
    return found


def test_sampling_passes_chi_square_at_the_level_of_one_in_a_thousand():
    assert max(scores(lambda z, g: arl.sample_tokens(z, 0.6, g)[0])) < CRITICAL


@pytest.mark.parametrize("fault", ["temperature", "neighbour", "top-p", "five bits"])
def test_wrong_samplers_fail_chi_square(fault):
    def wrong(z, g):
        if fault == "temperature":
            return arl.sample_tokens(z, 1.0, g)[0]
        if fault == "top-p":
            return arl.sample_tokens(arl.filter_logits(z / 0.6, top_p=0.98), 1.0, g)[0]
        if fault == "neighbour":
            ids = arl.sample_tokens(z, 0.6, g)[0]
            return (ids + (torch.rand(len(ids), generator=g) < 0.03)) % 10
        cdf = (z[0] / 0.6).softmax(-1).half().cumsum(-1).float()
        u = (torch.rand(len(z), generator=g) * 32).floor() / 32  # five bits
        return torch.searchsorted(cdf, u, right=True).clamp(max=9)

    assert min(scores(wrong)) > CRITICAL


@pytest.mark.parametrize("rows", [1, 7])
def test_every_row_is_sampled_from_its_own_distribution(rows):
    logits = torch.randn(rows, 10, generator=gen(3))
    ids = arl.sample_tokens(logits.repeat(20_000, 1), 1.0, gen(4))[0].view(20_000, rows)
    for row in range(rows):
        assert statistic(ids[:, row], logits[row].double().softmax(-1)) < CRITICAL


def test_texts_are_written_as_often_as_teacher_forcing_says():
    """Autoregressive factorisation, cache and sampler together: 27 texts of three tokens."""
    model = fresh_agent(vocab_size=3, width=8, hidden=12)
    n = 30_000
    cache, one = arl.KVCache(model, n), torch.ones(n, dtype=torch.long)
    token, number, g = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long), gen(1)
    for _ in range(3):
        token = arl.sample_tokens(arl.extend(model, cache, token[:, None], one), 1.0, g)[0]
        number = 3 * number + token
    texts = torch.cartesian_prod(*[torch.arange(3)] * 3)
    rows = torch.cat([torch.zeros(27, 1, dtype=torch.long), texts], 1)
    with torch.no_grad():
        logp = arl.selected_log_probs(model(rows[:, :-1]), rows[:, 1:]).double().sum(1)
    assert logp.exp().sum().item() == pytest.approx(1, abs=1e-5)
    assert statistic(number, logp.exp()) < 54.05, "26 degrees of freedom, p = 0.001"
    assert statistic(number // 3 * 3, logp.exp()) > 54.05, "the test can fail"


# A policy that is not the one sampled from.


def test_a_constant_reward_has_a_gradient_exactly_if_sampler_and_trainer_differ():
    z = base()
    rules = {
        "plain": lambda x: x,
        "cold": lambda x: x / 0.6,
        "nucleus": lambda x: arl.filter_logits(x, top_p=0.6),
    }
    for sampler in rules.values():
        q = sampler(z).softmax(-1)
        for trainer in (sampler, rules["plain"]):
            x = z.clone().requires_grad_(True)
            logp = trainer(x).log_softmax(-1)
            (got,) = torch.autograd.grad((q[q > 0] * logp[q > 0]).sum(), x)
            want = torch.zeros_like(z) if trainer is sampler else q - z.softmax(-1)
            assert torch.allclose(got, want, atol=1e-12)


# Precision.


def test_log_probs_of_bfloat16_logits_err_by_the_rounding_of_the_logits():
    logits = 4 * torch.randn(4, 50, 30, generator=gen())
    targets = torch.randint(30, (4, 50), generator=gen(1))
    exact = arl.selected_log_probs(logits.double(), targets)
    coarse = arl.selected_log_probs(logits.bfloat16().float(), targets)
    largest = logits.abs().max().item()
    assert 1e-3 < (coarse - exact).abs().max() <= 2 * largest * 2**-8
    assert (arl.selected_log_probs(logits, targets) - exact).abs().max() < 1e-5
