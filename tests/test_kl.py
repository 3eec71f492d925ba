"""Chapter 10: exact divergences, estimators, and the gradients they give. 'Row n' is a row of cases/algorithms.md."""

import math

import pytest
import torch
from toys import agent, fresh_agent, gen, sampled, tokenizer

import agentrl as arl

KINDS = ("k1", "k2", "k3")


def logits(n, seed):
    return torch.randn(n, generator=gen(seed), dtype=torch.double)


def slope(f, x, h=1e-6):
    unit = torch.eye(len(x), dtype=torch.double)
    return torch.stack([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in unit])


# Exact divergences.


@pytest.mark.parametrize(
    "p, q, want",
    [([0.5, 0.5], [0.9, 0.1], 0.5108), ([0.9, 0.1], [0.5, 0.5], 0.3681), ([1.0, 0.0], [0.5, 0.5], math.log(2))],
)
def test_the_divergence_is_the_sum_by_hand(p, q, want):
    p, q = (torch.tensor(x, dtype=torch.double).log() for x in (p, q))
    assert arl.exact_kl(p, q).item() == pytest.approx(want, abs=5e-5)
    assert arl.exact_kl(p, p).item() == 0


def test_off_the_reference_s_support_the_divergence_is_infinite():
    p, q = (torch.tensor(x).log() for x in ([0.5, 0.5], [1.0, 0.0]))
    assert arl.exact_kl(p, q).item() == math.inf


@pytest.mark.parametrize("seed", range(3))
def test_the_divergence_has_the_gradient_of_finite_differences_in_both_arguments(seed):
    x, y = logits(5, seed), logits(5, seed + 50)
    f = lambda a, b: arl.exact_kl(a.log_softmax(-1), b.log_softmax(-1))
    a, b = (z.clone().requires_grad_() for z in (x, y))
    ga, gb = torch.autograd.grad(f(a, b), (a, b))
    assert torch.allclose(ga, slope(lambda z: f(z, y), x), atol=1e-7)
    assert torch.allclose(gb, slope(lambda z: f(x, z), y), atol=1e-7)


def test_a_token_without_probability_leaves_the_gradient_finite():
    x = torch.tensor([0.0, 1.0, -math.inf], requires_grad=True)
    arl.exact_kl(x.log_softmax(-1), torch.zeros(3).log_softmax(-1)).backward()
    assert x.grad.isfinite().all() and x.grad[:2].abs().max() > 0.01


def test_a_reference_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"ref_logp has shape \(2,\).*\(3,\)"):
        arl.exact_kl(torch.zeros(3), torch.zeros(2))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk", [3, 64])
def test_token_divergences_are_those_of_the_plain_computation(temperature, chunk):
    """Row 22: 0 at the environment's tokens."""
    batch, model, ref = arl.collate(sampled(1), tokenizer().pad_id), agent(), fresh_agent(seed=5)
    ids, mask = batch["ids"], batch["action_mask"]
    got = arl.token_kl(model, ref, ids, mask, temperature, chunk)
    p, q = ((m(ids)[:, :-1] / temperature).log_softmax(-1) for m in (model, ref))
    assert torch.allclose(got, arl.exact_kl(p, q) * mask, atol=1e-5)
    assert not got[mask == 0].any() and got.max() > 0.1
    got.sum().backward()
    assert all(p.grad is None for p in ref.parameters())
    assert any(p.grad.abs().max() > 0 for p in model.parameters())


def test_token_divergence_of_a_model_from_itself_is_zero_and_padding_changes_nothing():
    batch, model = arl.collate(sampled(1), tokenizer().pad_id), agent()
    ids, mask = batch["ids"], batch["action_mask"]
    assert arl.token_kl(model, model, ids, mask).abs().max() < 1e-6
    ref = fresh_agent(seed=5)
    wide = arl.token_kl(model, ref, torch.nn.functional.pad(ids, (0, 4)), torch.nn.functional.pad(mask, (0, 4)))
    assert torch.allclose(wide[:, :-4], arl.token_kl(model, ref, ids, mask), atol=1e-5)


def test_token_divergence_refuses_a_wrong_mask_or_temperature():
    ids = torch.zeros(2, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="action_mask"):
        arl.token_kl(agent(), agent(), ids, torch.ones(2, 4))
    with pytest.raises(ValueError, match="temperature is 0"):
        arl.token_kl(agent(), agent(), ids, torch.ones(2, 3), 0)


# Estimators.


@pytest.mark.parametrize("kind, mean", [("k1", 0.5108), ("k2", 0.7339), ("k3", 0.5108)])
def test_moments_are_those_by_hand(kind, mean):
    """Row 8."""
    p, q = (torch.tensor(x, dtype=torch.double).log() for x in ([0.5, 0.5], [0.9, 0.1]))
    got, variance = arl.kl_moments(p, q, kind)
    a, b = arl.kl_penalty(p, q, kind).tolist()
    assert got.item() == pytest.approx(mean, abs=5e-5)
    assert variance.item() == pytest.approx((a - b) ** 2 / 4, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_these_moments(kind):
    p, q = logits(6, 1).log_softmax(0), logits(6, 2).log_softmax(0)
    a = torch.multinomial(p.exp(), 200_000, replacement=True, generator=gen())
    k = arl.kl_penalty(p[a], q[a], kind)
    mean, variance = arl.kl_moments(p, q, kind)
    assert abs(k.mean() - mean) < 5 * (variance / len(k)).sqrt()
    assert k.var() == pytest.approx(variance.item(), rel=0.1)


def test_moments_come_row_by_row():
    p, q = (torch.stack([logits(4, s + i).log_softmax(0) for i in range(3)]) for s in (0, 10))
    mean, variance = arl.kl_moments(p, q)
    assert mean.shape == variance.shape == (3,)
    assert torch.allclose(mean, arl.exact_kl(p, q))


# Gradients.


@pytest.mark.parametrize("kind, want", [("k1", 0.0), ("k2", -0.5493), ("k3", -0.4)])
def test_loss_gradients_are_those_by_hand(kind, want):
    """Row 8: two words with logits 0, so that the first logit is the Bernoulli one."""
    q = torch.tensor([0.9, 0.1], dtype=torch.double).log()
    got = arl.kl_loss_gradient(torch.zeros(2, dtype=torch.double), q, kind)
    assert got[0].item() == pytest.approx(want, abs=5e-5) and got.sum().item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_each_loss_has_the_gradient_of_the_divergence_it_is_said_to_have(seed):
    """Row 8, whole kind: on-policy, off-policy with a number as weight, with a differentiated weight, without."""
    x, ref, b = logits(5, seed), logits(5, seed + 20).log_softmax(0), logits(5, seed + 40).log_softmax(0)
    reverse = slope(lambda z: arl.exact_kl(z.log_softmax(-1), ref), x)
    forward = slope(lambda z: arl.exact_kl(ref, z.log_softmax(-1)), x)
    from_sampler = slope(lambda z: arl.exact_kl(b, z.log_softmax(-1)), x)
    zero = torch.zeros_like(x)
    want = {
        ("k1", None, "none"): zero, ("k2", None, "none"): reverse, ("k3", None, "none"): forward,
        ("k1", b, "detached"): zero, ("k2", b, "detached"): reverse, ("k3", b, "detached"): forward,
        ("k1", b, "ratio"): reverse, ("k3", b, "ratio"): reverse, ("k1", b, "none"): -from_sampler,
    }  # fmt: skip
    for (kind, sampler, weight), gradient in want.items():
        got = arl.kl_loss_gradient(x, ref, kind, sampler, weight)
        assert torch.allclose(got, gradient, atol=1e-6), (kind, weight)
    unweighted = slope(lambda z: (b.exp() * arl.kl_penalty(z.log_softmax(-1), ref, "k3")).sum(), x)
    assert torch.allclose(arl.kl_loss_gradient(x, ref, "k3", b), unweighted, atol=1e-6)


@pytest.mark.parametrize("weight", ["", None, "RATIO", 1])
def test_an_unknown_weight_is_refused(weight):
    with pytest.raises(ValueError, match="weight is .*'none', 'ratio' or 'detached'"):
        arl.kl_loss_gradient(torch.zeros(2), torch.zeros(2), weight=weight)


# Episodes.


@pytest.mark.parametrize("vocab, length, n", [(2, 1, 2), (2, 3, 4), (3, 2, 7), (3, 4, 31), (4, 3, 40)])
def test_episodes_are_all_there_once_and_their_probabilities_add_to_one(vocab, length, n):
    ids, mask = arl.all_episodes(vocab, length)
    assert ids.shape == mask.shape == (n, length) and len({tuple(x) for x in ids.tolist()}) == n
    p = logits(vocab, 0).softmax(0)
    assert (p[ids] ** mask).prod(1).sum().item() == pytest.approx(1)
    for row, own in zip(ids.tolist(), mask.tolist(), strict=True):
        end = row.index(0) + 1 if 0 in row else length
        assert own == [1.0] * end + [0.0] * (length - end) and not any(row[end:])


@pytest.mark.parametrize("args, word", [((1, 3), "vocab is 1"), ((3, 0), "length is 0"), ((3, 2.0), "length is 2.0"), ((True, 2), "vocab is True")])
def test_impossible_episodes_are_refused(args, word):
    with pytest.raises(ValueError, match=word):
        arl.all_episodes(*args)


def small(seed, vocab=3, length=3):
    """Episodes, mask, and a function of logits [T, V+1, V] -> log-probs [N, T], distributions [N, T, V]."""
    ids, mask = arl.all_episodes(vocab, length)
    before = torch.cat([torch.full((len(ids), 1), vocab), ids[:, :-1]], 1)

    def read(table):
        rows = table[torch.arange(length), before].log_softmax(-1)
        return rows.gather(-1, ids[..., None])[..., 0] * mask, rows

    tables = [logits(length * (vocab + 1) * vocab, s).view(length, vocab + 1, vocab) for s in (seed, seed + 99)]
    return mask, read, *tables


@pytest.mark.parametrize("seed", range(3))
def test_cost_to_go_has_the_gradient_of_the_episodes_divergence(seed):
    mask, read, table, reference = small(seed)
    table.requires_grad_()
    (logp, rows), (ref, ref_rows) = read(table), read(reference)
    p = logp.sum(1).exp()
    kl = (p * (logp - ref).sum(1)).sum()
    assert kl.item() == pytest.approx((p[:, None] * mask * arl.exact_kl(rows, ref_rows)).sum().item())
    (true,) = torch.autograd.grad(kl, table, retain_graph=True)
    cost = arl.kl_to_go(logp, ref, mask)
    assert not cost.requires_grad and not cost[mask == 0].any()
    (got,) = torch.autograd.grad((p.detach()[:, None] * cost * logp).sum(), table, retain_graph=True)
    assert torch.allclose(got, true, atol=1e-12)
    token_wise = (p.detach()[:, None] * mask * arl.kl_penalty(logp, ref, "k2")).sum()
    (partial,) = torch.autograd.grad(token_wise, table)
    assert (partial - true).norm() > 0.02 * true.norm()


def test_cost_to_go_by_hand_and_without_the_environment_s_tokens():
    """Row 22."""
    logp, ref = torch.tensor([[0.0, -1, -2, -3]]), torch.tensor([[9.0, -2, 7, -1]])
    mask = torch.tensor([[0.0, 1, 0, 1]])
    assert arl.kl_to_go(logp, ref, mask).tolist() == [[0, -1, 0, -2]]
    with pytest.raises(ValueError, match="mask has shape"):
        arl.kl_to_go(logp, ref, mask[:, 1:])


@pytest.mark.parametrize("seed", range(3))
def test_an_exact_penalty_in_its_own_token_s_advantage_has_no_gradient(seed):
    """Row 30: it depends on the history and not on the action."""
    mask, read, table, reference = small(seed)
    table.requires_grad_()
    logp, rows = read(table)
    exact = (arl.exact_kl(rows, read(reference)[1]) * mask).detach()
    p = logp.sum(1).exp().detach()
    (own,) = torch.autograd.grad((p[:, None] * exact * logp).sum(), table, retain_graph=True)
    assert own.abs().max() < 1e-12
    later = (exact.sum(1, keepdim=True) - exact.cumsum(1)) * mask
    (before,) = torch.autograd.grad((p[:, None] * later * logp).sum(), table)
    assert before.abs().max() > 1e-3


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
@pytest.mark.parametrize("kind", KINDS)
def test_environment_tokens_change_no_penalty(kl_in, kind):
    """Row 22 through the settings: other log-probs at observation tokens, of sampler and reference."""
    batch = arl.collate(sampled(1), tokenizer().pad_id)
    cfg = arl.RLConfig(group_size=4, kl_coef=0.5, kl_kind=kind, kl_in=kl_in)
    batch = arl.with_reference(batch, fresh_agent(seed=5), cfg)
    noise = torch.randn(batch["action_mask"].shape, generator=gen()) * (1 - batch["action_mask"])
    noisy = {**batch, "sampler_logps": batch["sampler_logps"] + noise, "ref_logps": batch["ref_logps"] - 3 * noise}
    rows = torch.arange(16)
    found = []
    for b in (batch, noisy):
        model = agent()
        A = arl.compute_advantages(b, cfg)
        loss, stats = arl.minibatch_loss(model, b, rows, A, cfg)
        loss.backward()
        found.append((A, loss.item(), stats["kl_ref"], torch.cat([p.grad.flatten() for p in model.parameters()])))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-5)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-5) and found[0][2] == pytest.approx(found[1][2], rel=1e-5)
    assert torch.allclose(found[0][3], found[1][3], atol=1e-6)


# The penalised optimum.


@pytest.mark.parametrize("beta", [0.1, 1.0, 5])
def test_no_policy_beats_the_tilted_one(beta):
    ref, rewards = logits(5, 0).log_softmax(0), logits(5, 1)
    best = arl.tilted_policy(ref, rewards, beta)
    value = lambda p: ((p.exp() * rewards).sum() - beta * arl.exact_kl(p, ref)).item()
    assert best.exp().sum().item() == pytest.approx(1)
    assert value(best) == pytest.approx(beta * (ref + rewards / beta).logsumexp(0).item())
    assert all(value((best + 0.3 * logits(5, s)).log_softmax(0)) < value(best) for s in range(2, 30))


@pytest.mark.parametrize("beta", [0, -1, math.nan, math.inf, None, "1"])
def test_a_beta_without_an_optimum_is_refused(beta):
    with pytest.raises(ValueError, match="beta is .*above 0"):
        arl.tilted_policy(torch.zeros(2), torch.zeros(2), beta)


def test_inputs_of_another_shape_are_refused_by_name():
    logits, ref = torch.zeros(3), torch.zeros(3).log_softmax(0)
    with pytest.raises(ValueError, match="sampler_logp has shape"):
        arl.kl_loss_gradient(logits, ref, "k2", sampler_logp=torch.zeros(1))
    with pytest.raises(ValueError, match="rewards has shape"):
        arl.tilted_policy(ref, torch.zeros(2), 1.0)
    with pytest.raises(ValueError, match="beta is True"):
        arl.tilted_policy(ref, torch.zeros(3), True)
