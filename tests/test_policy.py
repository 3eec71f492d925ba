"""Chapter 3: the policy, its log-probabilities, its cache and its sampler. 'Row n' is a row of cases/algorithms.md."""

import inspect
import math

import pytest
import torch
from toys import MarkovAgent, agent, fresh_agent, gen, random_batch, tokenizer

import agentrl as arl

# Log-probabilities, entropy, masked means.


@pytest.mark.parametrize("scale", [1.0, 50.0, 1e4])
def test_selected_log_probs_are_those_of_the_softmax_at_any_scale(scale):
    logits = scale * torch.randn(3, 5, 7, generator=gen())
    targets = torch.randint(7, (3, 5), generator=gen(1))
    got = arl.selected_log_probs(logits, targets)
    want = logits.double().log_softmax(-1)
    assert got.shape == (3, 5) and torch.isfinite(got).all()
    for b in range(3):
        for t in range(5):
            assert got[b, t].item() == pytest.approx(
                want[b, t, targets[b, t]].item(), abs=1e-6 * scale + 1e-5
            )


def test_selected_log_probs_gradient_is_one_hot_minus_softmax():
    logits = torch.randn(1, 1, 4, generator=gen(), requires_grad=True)
    arl.selected_log_probs(logits, torch.tensor([[2]])).sum().backward()
    want = torch.eye(4)[2] - logits.detach()[0, 0].softmax(-1)
    assert torch.allclose(logits.grad[0, 0], want, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (3,)])
def test_selected_log_probs_refuses_targets_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"targets has shape .*must be \(3, 4\)"):
        arl.selected_log_probs(torch.zeros(3, 4, 5), torch.zeros(shape, dtype=torch.long))


def test_entropy_is_in_nats_per_token_and_minus_infinity_adds_nothing():
    logits = torch.tensor([[[0.0] * 4, [0.0, 0.0, -math.inf, -math.inf], [80.0, 0.0, 0.0, 0.0]]])
    got = arl.entropy_from_logits(logits)
    assert got.shape == (1, 3)
    assert torch.allclose(got, torch.tensor([[math.log(4), math.log(2), 0.0]]), atol=1e-6)
    assert (got >= 0).all()


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_masked_mean_is_the_mean_of_the_unmasked(dim):
    x, _, _, mask = random_batch()
    got = arl.masked_mean(x, mask, dim)
    if dim is None:
        want = x[mask.bool()].mean()
    else:
        pairs = zip(x.unbind(1 - dim), mask.unbind(1 - dim), strict=True)
        want = torch.stack([row[m.bool()].mean() for row, m in pairs])
    assert torch.allclose(got, want, atol=1e-6)


def test_masked_mean_of_nothing_is_zero_and_its_gradient_too():
    """Row 2: a row whose mask is all 0."""
    x = torch.randn(2, 3, generator=gen(), requires_grad=True)
    mask = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    rows = arl.masked_mean(x, mask, 1)
    assert rows[1].item() == 0
    assert arl.masked_mean(x, torch.zeros(2, 3)).item() == 0
    rows.sum().backward()
    assert x.grad[1].tolist() == [0, 0, 0] and x.grad[0].tolist() == [0.5, 0, 0.5]


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_mean_ignores_what_stands_at_masked_positions(junk):
    x = torch.tensor([1.0, junk, 3.0], requires_grad=True)
    got = arl.masked_mean(x, torch.tensor([1.0, 0.0, 1.0]))
    got.backward()
    assert got.item() == 2 and x.grad.tolist() == [0.5, 0, 0.5]


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 1)])
def test_masked_mean_refuses_a_mask_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"mask has shape .*\(2, 3\)"):
        arl.masked_mean(torch.zeros(2, 3), torch.ones(shape))


# The model.


def test_model_maps_ids_to_logits_and_has_the_book_s_size():
    model = arl.TinyAgent(len(tokenizer()))
    assert 150_000 < sum(p.numel() for p in model.parameters()) < 166_000
    assert model(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, len(tokenizer()))
    assert model.head(torch.zeros(64)).shape == (len(tokenizer()),)
    assert not any("head" in name for name, _ in model.named_parameters()), "the head is tied"


@pytest.mark.parametrize("width, n_heads", [(64, 3), (20, 4), (6, 6)])
def test_model_refuses_heads_that_do_not_divide_the_width(width, n_heads):
    with pytest.raises(ValueError, match=f"width .*{width}.*multiple of .*{2 * n_heads}"):
        arl.TinyAgent(10, width=width, n_heads=n_heads)


def test_a_later_token_changes_no_earlier_logit():
    model = fresh_agent()
    ids = torch.randint(1, len(tokenizer()), (1, 8), generator=gen())
    other = ids.clone()
    other[0, 5] = (other[0, 5] + 1) % len(tokenizer())
    a, b = model(ids), model(other)
    assert torch.equal(a[:, :5], b[:, :5])
    assert (a[:, 5:] - b[:, 5:]).abs().amax(-1).min() > 1e-4


def test_the_order_of_tokens_matters():
    """Rotary positions: without them a query at the end sees earlier tokens as a set."""
    model = fresh_agent()
    a, b = (model(torch.tensor([ids]))[0, -1] for ids in ([5, 6, 7, 8], [6, 5, 7, 8]))
    assert (a - b).abs().max() > 1e-4


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("extra", [1, 3, 7])
def test_padding_leaves_log_probs_alone_on_either_side(side, extra):
    """Row 18: the same prompt padded and unpadded."""
    model, tok = fresh_agent(), tokenizer()
    lengths = [9, 4, 6]
    prompts = [torch.randint(1, len(tok), (n,), generator=gen(n)) for n in lengths]
    width = max(lengths) + extra
    ids = torch.full((3, width), tok.pad_id)
    real = torch.zeros(3, width)
    for b, prompt in enumerate(prompts):
        at = slice(width - len(prompt), width) if side == "left" else slice(0, len(prompt))
        ids[b, at], real[b, at] = prompt, 1
    together = model(ids, real).log_softmax(-1)
    assert torch.isfinite(together).all()
    for b, prompt in enumerate(prompts):
        alone = model(prompt[None]).log_softmax(-1)[0]
        assert torch.allclose(together[b][real[b].bool()], alone, atol=1e-5)


def test_right_padding_needs_no_mask():
    model = fresh_agent()
    ids = torch.tensor([[5, 6, 7, 0, 0]])
    assert torch.allclose(model(ids)[:, :3], model(ids[:, :3]), atol=1e-5)


def test_positions_beyond_the_table_extend_it():
    model = fresh_agent(vocab_size=12, n_layers=1)
    ids = torch.randint(12, (1, 300), generator=gen())
    before = model(ids[:, :250])
    assert torch.allclose(model(ids)[:, :250], before, atol=1e-5) and len(model.turns) >= 300
    cache = arl.KVCache(model, 1)
    logits = arl.extend(model, cache, ids, torch.tensor([300]))
    assert torch.allclose(logits, model(ids)[:, -1], atol=1e-5)


# The key-value cache.


@pytest.mark.parametrize("seed", range(3))
def test_cached_logits_are_the_uncached_ones_for_ragged_appends(seed):
    """Row 18 on the sampler's path: rows of unequal length, also rows that get nothing."""
    model, tok, g = fresh_agent(seed=seed), tokenizer(), gen(seed)
    rows = [[] for _ in range(4)]
    cache = arl.KVCache(model, 4, capacity=8)
    for counts in ([5, 2, 7, 1], [1, 1, 1, 1], [0, 3, 0, 9], [1, 0, 1, 1], [30, 1, 12, 4]):
        new = [torch.randint(1, len(tok), (n,), generator=g).tolist() for n in counts]
        logits = arl.extend(model, cache, arl.pad(new)[0].long(), torch.tensor(counts))
        for b, ids in enumerate(new):
            rows[b] += ids
            if ids:
                want = model(torch.tensor([rows[b]]))[0, -1]
                assert torch.allclose(logits[b], want, atol=1e-5)
    assert cache.length.tolist() == [len(row) for row in rows]


def test_cache_keeps_the_rows_asked_for_in_order():
    model = fresh_agent()
    cache = arl.KVCache(model, 3)
    prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
    arl.extend(model, cache, *arl.pad(prompts))
    cache.keep([2, 0])
    logits = arl.extend(model, cache, torch.tensor([[20], [21]]), torch.tensor([1, 1]))
    for row, ids in enumerate(([10, 11, 12, 13, 20], [5, 6, 7, 21])):
        assert torch.allclose(logits[row], model(torch.tensor([ids]))[0, -1], atol=1e-5)


# Sampling.


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampling_frequencies_match_the_tempered_softmax(temperature):
    n, logits = 20_000, torch.tensor([1.0, 0.0, -1.0, 2.0])
    ids, logps, entropies = arl.sample_tokens(logits.expand(n, 4), temperature, gen(3))
    p = (logits / temperature).softmax(-1)
    counts = torch.bincount(ids, minlength=4)
    chi2 = ((counts - n * p) ** 2 / (n * p)).sum().item()
    assert chi2 < 16.3, "3 degrees of freedom, p = 0.001"
    assert torch.allclose(logps, p.log()[ids], atol=1e-6), "log-probs at the temperature sampled at"
    want = arl.entropy_from_logits(logits / temperature)
    assert torch.allclose(entropies, want.expand(n), atol=1e-6)


def test_sampling_draws_one_number_a_row_from_its_generator_and_no_other():
    g, state = gen(5), torch.random.get_rng_state()
    ids = arl.sample_tokens(torch.zeros(3, 6), 1.0, g)[0]
    assert torch.equal(torch.random.get_rng_state(), state)
    h = gen(5)
    torch.rand(3, 1, generator=h, dtype=torch.double)
    assert torch.equal(g.get_state(), h.get_state())
    assert torch.equal(ids, arl.sample_tokens(torch.zeros(3, 6), 1.0, gen(5))[0])


def test_a_token_without_probability_is_never_sampled_and_entropy_stays_finite():
    """Row 20: entropy from -inf sentinels."""
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf]).expand(2_000, 5)
    ids, logps, entropies = arl.sample_tokens(logits, 1.0, gen(0))
    assert set(ids.tolist()) == {1, 3}
    assert torch.allclose(logps, torch.tensor(-math.log(2)))
    assert torch.allclose(entropies, torch.tensor(math.log(2)))


@pytest.mark.parametrize("temperature", [0, 0.0, -1.0, math.nan, math.inf, None, "1"])
def test_sampling_refuses_a_temperature_that_is_not_a_positive_number(temperature):
    with pytest.raises(ValueError, match="temperature is .*above 0"):
        arl.sample_tokens(torch.zeros(1, 3), temperature, gen())


# Log-probs for the trainer.


def plain_log_probs(model, ids, mask, temperature):
    logits = model(ids)[:, :-1] / temperature
    return arl.selected_log_probs(logits, ids[:, 1:]) * mask


@pytest.mark.parametrize("chunk", [1, 2, 16])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_action_log_probs_equal_the_plain_computation(chunk, temperature):
    """Values and gradients: only padding and positions nobody asks for are left out."""
    model, tok = fresh_agent(), tokenizer()
    ids = torch.randint(len(tok), (5, 12), generator=gen())
    mask = (torch.rand(5, 11, generator=gen(1)) < 0.4).float()
    mask[3] = 0
    weight = torch.randn(5, 11, generator=gen(2))
    grads = []
    for logp in (
        arl.action_log_probs(model, ids, mask, temperature, chunk),
        plain_log_probs(model, ids, mask, temperature),
    ):
        model.zero_grad()
        (logp * weight).sum().backward()
        grads.append((logp.detach(), [p.grad.clone() for p in model.parameters()]))
    assert torch.allclose(grads[0][0], grads[1][0], atol=1e-5)
    assert (grads[0][0][mask == 0] == 0).all() and (grads[0][0][mask == 1] < 0).all()
    for a, b in zip(grads[0][1], grads[1][1], strict=True):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_action_log_probs_of_masked_out_rows_are_zero(rows):
    """Row 2: a batch whose rows are all masked is no error."""
    model = fresh_agent()
    ids = torch.randint(1, 20, (rows, 6), generator=gen())
    logp = arl.action_log_probs(model, ids, torch.zeros(rows, 5))
    assert torch.equal(logp, torch.zeros(rows, 5))
    logp.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_log_probs_of_a_certain_policy_are_zero_at_every_position():
    """Row 6: a one-token shift would score the successor policy on the wrong tokens."""
    model = MarkovAgent(12, {i: i + 1 for i in range(11)})
    ids = torch.arange(12)[None]
    logp = arl.action_log_probs(model, ids, torch.ones(1, 11))
    assert logp.abs().max() < 1e-6
    shifted = arl.selected_log_probs(model(ids), ids)
    assert shifted[:, :-1].max() < -50, "the unshifted reading is visibly wrong"


def test_finite_differences_of_a_weight_match_the_log_prob_gradient():
    model, tok = agent(), tokenizer()
    ids = torch.tensor([tok.encode("<obs> issue : clamp returns wrong results </obs> <call> read </call>")])
    mask = torch.zeros(1, ids.shape[1] - 1)
    mask[:, -3:] = 1
    weight = model.blocks[0].down.weight
    arl.action_log_probs(model, ids, mask).sum().backward()
    i, j = divmod(weight.grad.abs().argmax().item(), weight.shape[1])
    values = []
    for step in (1e-2, -1e-2):
        with torch.no_grad():
            weight[i, j] += step
            values.append(arl.action_log_probs(model, ids, mask).sum().item())
            weight[i, j] -= step
    assert weight.grad[i, j].item() == pytest.approx((values[0] - values[1]) / 2e-2, rel=0.02)


def test_names_and_argument_orders_of_the_contract():
    def parameters(fn):
        return list(inspect.signature(fn).parameters)

    assert parameters(arl.selected_log_probs) == ["logits", "targets"]
    assert parameters(arl.entropy_from_logits) == ["logits"]
    assert parameters(arl.masked_mean) == ["x", "mask", "dim"]
