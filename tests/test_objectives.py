"""Chapters 6 to 9: averaging, advantages, ratios, clipping and KL. 'Row n' is a row of cases/algorithms.md."""

import inspect
import itertools
import math

import pytest
import torch
from toys import fresh_agent, gen, random_batch

import agentrl as arl

MODES = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant")
NAN, INF = float("nan"), float("inf")


def constant(mode, value=7.0):
    return value if mode == "constant" else None


# The four averages.


@pytest.mark.parametrize(
    "mode, want",
    [
        ("token_mean", (1 + 2 + 3 + 10) / 4),
        ("seq_mean_token_mean", ((1 + 2 + 3) / 3 + 10) / 2),
        ("seq_mean_token_sum", (6 + 10) / 2),
        ("constant", 16 / 7),
    ],
)
def test_each_average_is_what_it_says(mode, want):
    x = torch.tensor([[1.0, 2.0, 3.0, 50.0], [10.0, 60.0, 70.0, 80.0]])
    mask = torch.tensor([[1.0, 1, 1, 0], [1, 0, 0, 0]])
    assert arl.aggregate_loss(x, mask, mode, constant(mode)).item() == pytest.approx(want)


def four_sequences(seed=0):
    """Row 1: 1, 2, 3 and 10 policy tokens."""
    model = fresh_agent(seed=seed)
    ids = torch.randint(1, 100, (4, 14), generator=gen(seed))
    mask = torch.zeros(4, 13)
    for row, n in enumerate((1, 2, 3, 10)):
        mask[row, 2 : 2 + n] = 1
    return model, ids, mask, torch.tensor([1.0, -0.5, 2.0, -1.5])


def gradient(model, loss):
    model.zero_grad(set_to_none=False)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def loss_of(model, ids, mask, advantages, mode, norm, chunk=16):
    logp = arl.action_log_probs(model, ids, mask, chunk=chunk)
    old = logp.detach() - 0.05 * mask
    return arl.ppo_policy_loss(logp, old, advantages, mask, 0.2, 0.2, mode, norm)[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_loss_and_gradient_do_not_depend_on_the_chunks_they_are_computed_in(mode, chunk):
    """Row 1: four sequences at once and one by one."""
    model, ids, mask, advantages = four_sequences()
    whole, parts = (
        loss_of(model, ids, mask, advantages, mode, constant(mode), c) for c in (4, chunk)
    )
    assert whole.item() == pytest.approx(parts.item(), rel=1e-5)
    g_whole, g_parts = gradient(model, whole), gradient(model, parts)
    assert torch.allclose(g_whole, g_parts, atol=1e-6) and g_whole.norm() > 1e-3


@pytest.mark.parametrize("size", [1, 2])
def test_token_mean_accumulates_over_micro_batches_with_one_normaliser(size):
    """Row 1: the token mean of all four is the sum over micro-batches divided by all 16 tokens; the mean of the
    micro-batches' own token means is something else."""
    model, ids, mask, advantages = four_sequences()
    whole = loss_of(model, ids, mask, advantages, "token_mean", None)
    want = gradient(model, whole)
    pieces = [slice(i, i + size) for i in range(0, 4, size)]
    parts = [
        loss_of(model, ids[s], mask[s], advantages[s], "constant", mask.sum().item())
        for s in pieces
    ]
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-5)
    assert torch.allclose(gradient(model, sum(parts)), want, atol=1e-6)
    wrong = [loss_of(model, ids[s], mask[s], advantages[s], "token_mean", None) for s in pieces]
    assert abs(sum(wrong).item() / len(wrong) - whole.item()) > 0.05


@pytest.mark.parametrize("mode", ["seq_mean_token_mean", "seq_mean_token_sum"])
def test_sequence_means_are_the_mean_of_equal_micro_batches(mode):
    """Row 1, the other modes: every sequence weighs the same, however they are cut."""
    model, ids, mask, advantages = four_sequences()
    whole = loss_of(model, ids, mask, advantages, mode, None)
    parts = [loss_of(model, ids[[i]], mask[[i]], advantages[[i]], mode, None) for i in range(4)]
    assert (sum(parts) / 4).item() == pytest.approx(whole.item(), rel=1e-5)
    assert torch.allclose(
        gradient(model, sum(parts) / 4), gradient(model, whole), atol=1e-6
    )


def objectives():
    """Every loss of a batch [B, T], as name -> fn(logp, old, advantages, mask) -> loss."""
    found = {}
    for mode in MODES:
        found[f"aggregate {mode}"] = lambda p, o, a, m, mode=mode: arl.aggregate_loss(
            p, m, mode, constant(mode)
        )
        found[f"ppo {mode}"] = lambda p, o, a, m, mode=mode: arl.ppo_policy_loss(
            p, o, a, m, 0.2, 0.2, mode, constant(mode)
        )[0]
    for kind in ("k1", "k2", "k3"):
        found[f"kl {kind}"] = lambda p, o, a, m, kind=kind: arl.aggregate_loss(
            arl.kl_penalty(p, o, kind), m, "token_mean"
        )
    found["gspo"] = lambda p, o, a, m: arl.gspo_policy_loss(p, o, a, m, 0.2, 0.2)[0]
    for name, fields in arl.VARIANTS.items():
        cfg = arl.RLConfig(**fields)
        found[f"policy_loss {name}"] = lambda p, o, a, m, cfg=cfg: arl.policy_loss(p, o, a, m, cfg)[0]
    return found


each_objective = pytest.mark.parametrize("loss", objectives().values(), ids=objectives())


@each_objective
@pytest.mark.parametrize("extra", [1, 3])
def test_a_masked_out_row_changes_no_loss(loss, extra):
    """Row 2: episodes that are masked out leave the denominators too."""
    logp, old, advantages, mask = random_batch()
    more = [torch.cat([x, 5 * torch.randn(extra, *x.shape[1:], generator=gen())]) for x in (logp, old, advantages)]
    value = loss(logp, old, advantages, mask)
    assert value.abs().item() > 1e-4
    padded = loss(*more, torch.cat([mask, torch.zeros(extra, mask.shape[1])]))
    assert padded.item() == pytest.approx(value.item(), rel=1e-5)


@each_objective
def test_a_batch_without_policy_tokens_has_loss_and_gradient_zero(loss):
    """Row 2: loss 0 and finite, gradients 0."""
    logp, old, advantages, mask = random_batch()
    logp.requires_grad_()
    value = loss(logp, old, advantages, torch.zeros_like(mask))
    value.backward()
    assert value.item() == 0 and not logp.grad.any()


@each_objective
@pytest.mark.parametrize("noise", [0.3, 5.0])
def test_tokens_of_the_environment_change_neither_loss_nor_gradient(loss, noise):
    """Row 22: perturb all log-probs at observation tokens, of policy and reference alike."""
    logp, old, advantages, mask = random_batch()
    results = []
    for scale in (0, noise):
        shift = scale * torch.randn(*mask.shape, generator=gen(9)) * (1 - mask)
        leaf = (logp + shift).requires_grad_()
        value = loss(leaf, old - 2 * shift, advantages, mask)
        value.backward()
        results.append((value.item(), leaf.grad))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1]) and not results[0][1][mask == 0].any()


@each_objective
def test_values_at_masked_tokens_may_even_be_missing(loss):
    logp, old, advantages, mask = random_batch()
    hole = torch.where(mask.bool(), logp, NAN)
    assert loss(hole, old, advantages, mask).item() == loss(logp, old, advantages, mask).item()


@each_objective
def test_wider_padding_changes_no_loss(loss):
    """Rows 18 and 20."""
    logp, old, advantages, mask = random_batch()
    wide = [torch.nn.functional.pad(x, (0, 5)) for x in (logp, old, mask)]
    got = loss(wide[0], wide[1], advantages, wide[2])
    assert got.item() == pytest.approx(loss(logp, old, advantages, mask).item(), rel=1e-5)


@pytest.mark.parametrize("mode", ["mean", "", None, "TOKEN_MEAN", 0, "sum"])
def test_an_unknown_average_is_refused(mode):
    with pytest.raises(ValueError) as error:
        arl.aggregate_loss(torch.zeros(2, 3), torch.ones(2, 3), mode)
    assert repr(mode) in str(error.value) and all(m in str(error.value) for m in MODES)


@pytest.mark.parametrize("value", [None, 0, -1, NAN, INF, "7", True])
def test_the_constant_average_refuses_a_constant_it_cannot_divide_by(value):
    with pytest.raises(ValueError) as error:
        arl.aggregate_loss(torch.zeros(2, 3), torch.ones(2, 3), "constant", value)
    assert all(w in str(error.value) for w in ("norm_const", repr(value), "above 0"))


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 1), (1, 3)])
@each_objective
def test_a_mask_of_another_shape_is_refused(loss, shape):
    with pytest.raises(ValueError, match="mask"):
        loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2), torch.ones(shape))


# Advantages.


@pytest.mark.parametrize(
    "fn, high, low",
    [
        (arl.rloo_advantages, 0.7143, -0.4286),
        (arl.group_advantages, 1.2076, -0.7246),
        (lambda r, g: arl.group_advantages(r, g, normalize_std=False), 0.625, -0.375),
    ],
    ids=["rloo", "grpo", "mean"],
)
def test_advantages_are_those_of_the_papers(fn, high, low):
    """Row 10: three ones and five zeros, sample standard deviation."""
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0])
    want = torch.where(rewards > 0, high, low)
    assert torch.allclose(fn(rewards, 8), want, atol=5e-5)


@pytest.mark.parametrize("mode, high, low", [("rloo", 0.7143, -0.4286), ("grpo", 1.2076, -0.7246), ("mean", 0.625, -0.375)])
def test_advantages_of_the_loop_are_those_of_the_papers(mode, high, low):
    """Row 10 through `compute_advantages`, two groups."""
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0] * 2)
    batch = {"rewards": rewards, "groups": torch.arange(2).repeat_interleave(8)}
    got = arl.compute_advantages(batch, arl.RLConfig(adv_mode=mode))
    assert torch.allclose(got, torch.where(rewards > 0, high, low), atol=5e-5)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_leave_one_out_is_the_centred_advantage_times_g_over_g_minus_1(size):
    rewards = torch.randn(4 * size, generator=gen(size))
    centred = arl.group_advantages(rewards, size, normalize_std=False)
    assert torch.allclose(arl.rloo_advantages(rewards, size), centred * size / (size - 1), atol=1e-6)
    others = (rewards.view(4, size).sum(1, keepdim=True) - rewards.view(4, size)) / (size - 1)
    assert torch.allclose(arl.rloo_advantages(rewards, size), rewards - others.view(-1), atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.7, 0.1, -0.3, 1e6, 1 / 3])
@pytest.mark.parametrize("size", [2, 3, 7, 8])
@pytest.mark.parametrize("mode", ["grpo", "mean", "rloo"])
def test_equal_rewards_give_exactly_zero(mode, value, size):
    """Also where the mean of equal numbers is not that number in floating point."""
    batch = {"rewards": torch.full((2 * size,), value)}
    got = arl.compute_advantages(batch, arl.RLConfig(adv_mode=mode, group_size=size))
    assert got.tolist() == [0.0] * (2 * size)


@pytest.mark.parametrize("reward", [0.7, 0.0, -3.0])
def test_a_group_of_one_has_advantage_zero_on_every_path(reward):
    """Row 11."""
    rewards = torch.full((3,), reward)
    for normalize in (True, False):
        assert arl.group_advantages(rewards, 1, normalize).tolist() == [0, 0, 0]
    for mode in ("grpo", "mean"):
        cfg = arl.RLConfig(group_size=1, adv_mode=mode)
        assert arl.compute_advantages({"rewards": rewards}, cfg).tolist() == [0, 0, 0]


def test_leave_one_out_refuses_a_group_of_one_on_every_path():
    """Row 11."""
    with pytest.raises(ValueError, match="group_size is 1.*at least 2"):
        arl.rloo_advantages(torch.tensor([0.7]), 1)
    with pytest.raises(ValueError, match="group_size is 1.*at least 2"):
        arl.RLConfig(adv_mode="rloo", group_size=1)


@pytest.mark.parametrize("mode", ["grpo", "mean", "rloo"])
@pytest.mark.parametrize("seed", range(3))
def test_advantages_belong_to_episodes_however_the_groups_are_ordered(mode, seed):
    """Row 12: the same advantage for each id; also when rows within a group change places."""
    g = gen(seed)
    rewards = torch.rand(4, 3, generator=g)
    cfg = arl.RLConfig(group_size=3, adv_mode=mode)

    def advantages(rows, ids):
        batch = {"rewards": rows.reshape(-1), "groups": ids.reshape(-1)}
        return arl.compute_advantages(batch, cfg).view(4, 3)

    ids = torch.tensor([[5] * 3, [0] * 3, [9] * 3, [2] * 3])
    want = advantages(rewards, ids)
    order, inner = torch.randperm(4, generator=g), torch.randperm(3, generator=g)
    got = advantages(rewards[order][:, inner], ids[order])
    assert torch.allclose(got, want[order][:, inner], atol=1e-6)


@pytest.mark.parametrize(
    "ids",
    [
        [0, 1, 0, 1],
        [0, 0, 0, 1],
        [0, 1, 1, 0],
        [0, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 2],
        [0, 0, 1],
    ],
)
@pytest.mark.parametrize("mode", ["grpo", "mean", "rloo"])
def test_groups_that_are_not_consecutive_are_refused(mode, ids):
    """Row 12: never a silent wrong answer."""
    batch = {"rewards": torch.arange(len(ids)).float(), "groups": torch.tensor(ids)}
    with pytest.raises(ValueError, match="group"):
        arl.compute_advantages(batch, arl.RLConfig(group_size=2, adv_mode=mode))


@pytest.mark.parametrize("fn", [arl.group_advantages, arl.rloo_advantages])
@pytest.mark.parametrize("size", [3, 5, 0, -1, 2.0, True, None, "2"])
def test_a_group_size_that_does_not_divide_the_batch_is_refused(fn, size):
    with pytest.raises(ValueError) as error:
        fn(torch.zeros(4), size)
    message = str(error.value)
    assert "group_size" in message
    assert repr(size) in message or size is True


@pytest.mark.parametrize("fn", [arl.group_advantages, arl.rloo_advantages])
@pytest.mark.parametrize("rewards", [torch.zeros(2, 2), torch.tensor(1.0)])
def test_rewards_of_another_shape_are_refused(fn, rewards):
    with pytest.raises(ValueError, match=r"rewards has shape .*\[B\]"):
        fn(rewards, 2)


@pytest.mark.parametrize("fn", [arl.group_advantages, arl.rloo_advantages])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_reward_that_is_no_number_is_refused(fn, bad):
    with pytest.raises(ValueError, match="rewards"):
        fn(torch.tensor([1.0, 0.0, bad, 1.0]), 2)


@pytest.mark.parametrize("fn", [arl.group_advantages, arl.rloo_advantages])
def test_whole_number_rewards_count_as_numbers(fn):
    whole = fn(torch.tensor([1, 0, 0, 1]), 4)
    assert torch.equal(whole, fn(torch.tensor([1.0, 0, 0, 1]), 4)) and whole[0] > 0


# Overlong shaping.


@pytest.mark.parametrize(
    "buffer, max_turns, penalties",
    [
        (2, 6, [0, 0, 0, 0, -0.5, -1]),
        (0, 6, [0] * 6),
        (1, 4, [0, 0, 0, -1]),
        (4, 4, [-0.25, -0.5, -0.75, -1]),
        (3, 6, [0, 0, 0, -1 / 3, -2 / 3, -1]),
    ],
)
def test_overlong_shaping_takes_a_growing_share_of_the_reward(buffer, max_turns, penalties):
    cfg = arl.RLConfig(
        group_size=max_turns, max_turns=max_turns, overlong_buffer=buffer, adv_mode="mean"
    )
    rewards = torch.linspace(0, 1, max_turns)
    turns = torch.arange(1, max_turns + 1)
    batch = {"rewards": rewards.clone(), "n_turns": turns}
    shaped = rewards + torch.tensor(penalties)
    got = arl.compute_advantages(batch, cfg)
    assert torch.allclose(got, shaped - shaped.mean(), atol=1e-6)
    assert torch.equal(batch["rewards"], rewards), "the batch's rewards stay what they were"


def test_overlong_shaping_gives_equal_rewards_a_signal():
    cfg = arl.RLConfig(group_size=2, overlong_buffer=2, adv_mode="mean")
    batch = {"rewards": torch.ones(2), "n_turns": torch.tensor([3, 6])}
    assert arl.compute_advantages(batch, cfg).tolist() == [0.5, -0.5]


def test_overlong_shaping_without_turn_counts_is_refused():
    with pytest.raises(ValueError, match="n_turns.*overlong_buffer"):
        arl.compute_advantages({"rewards": torch.ones(2)}, arl.RLConfig(group_size=2, overlong_buffer=1))


# Ratios and clipping.


@pytest.mark.parametrize(
    "ratio, advantage, value, slope",
    [
        (1.0, 2.0, 2.0, 2.0),
        (1.1, 2.0, 2.2, 2.2),
        (1.5, 2.0, 2.6, 0.0),
        (0.5, 2.0, 1.0, 1.0),
        (1.0, -2.0, -2.0, -2.0),
        (0.5, -2.0, -1.6, 0.0),
        (0.9, -2.0, -1.8, -1.8),
        (1.5, -2.0, -3.0, -3.0),
    ],
)
def test_the_clip_cuts_the_gradient_only_where_it_would_go_on(ratio, advantage, value, slope):
    """Clip bounds 0.2 and 0.3; slope is d objective / d log-prob."""
    logp = torch.tensor([[math.log(ratio)]], requires_grad=True)
    loss, stats = arl.ppo_policy_loss(
        logp, torch.zeros(1, 1), torch.tensor([advantage]), torch.ones(1, 1), 0.2, 0.3, "token_mean"
    )
    loss.backward()
    assert -loss.item() == pytest.approx(value, rel=1e-5)
    assert -logp.grad.item() == pytest.approx(slope, rel=1e-5)
    assert stats["clip_frac"] == float(slope == 0)
    assert stats["ratio_min"] == stats["ratio_max"] == pytest.approx(ratio, rel=1e-5)
    assert stats["approx_kl"] == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_at_ratio_one_the_gradient_is_the_policy_gradient(mode):
    """One gradient: the surrogate's at the old policy is REINFORCE's with the same advantages."""
    logp, _, advantages, mask = random_batch()
    grads = []
    for kind in ("surrogate", "reinforce"):
        leaf = logp.clone().requires_grad_()
        if kind == "surrogate":
            loss, stats = arl.ppo_policy_loss(leaf, logp, advantages, mask, 0.2, 0.2, mode, constant(mode))
            assert (stats["clip_frac"], stats["approx_kl"]) == (0, 0)
            assert stats["ratio_min"] == stats["ratio_max"] == 1
        else:
            loss = arl.aggregate_loss(-advantages[:, None] * leaf, mask, mode, constant(mode))
        loss.backward()
        grads.append(leaf.grad)
    assert torch.allclose(*grads, atol=1e-7) and grads[0].abs().max() > 1e-3


def test_at_ratio_one_the_sequence_gradient_is_the_sequence_mean_of_token_means():
    logp, _, advantages, mask = random_batch()
    leaf, twin = (logp.clone().requires_grad_() for _ in range(2))
    arl.gspo_policy_loss(leaf, logp, advantages, mask)[0].backward()
    arl.aggregate_loss(-advantages[:, None] * twin, mask, "seq_mean_token_mean").backward()
    assert torch.allclose(leaf.grad, twin.grad, atol=1e-7) and leaf.grad.abs().max() > 1e-3


@each_objective
def test_finite_differences_match_each_gradient(loss):
    logp, old, advantages, mask = (x.double() for x in random_batch(3, 4, seed=2))
    leaf = logp.clone().requires_grad_()
    loss(leaf, old, advantages, mask).backward()
    h = 1e-6
    for i, j in itertools.product(range(3), range(4)):
        step = torch.zeros_like(logp)
        step[i, j] = h
        up, down = (loss(logp + s, old, advantages, mask).item() for s in (step, -step))
        assert leaf.grad[i, j].item() == pytest.approx((up - down) / (2 * h), abs=1e-5)


@each_objective
def test_old_and_reference_log_probs_get_no_gradient(loss):
    logp, old, advantages, mask = random_batch()
    leaf, frozen = logp.requires_grad_(), old.requires_grad_()
    loss(leaf, frozen, advantages, mask).backward()
    assert frozen.grad is None and leaf.grad.abs().max() > 0


def test_sequence_ratio_is_the_exponential_of_the_mean_log_ratio():
    logp, old, advantages, mask = random_batch()
    log_s = ((logp - old) * mask).sum(1) / mask.sum(1)
    s = log_s.exp()
    want = -torch.minimum(s * advantages, s.clamp(0.97, 1.02) * advantages).mean()
    loss, stats = arl.gspo_policy_loss(logp, old, advantages, mask, 0.03, 0.02)
    assert loss.item() == pytest.approx(want.item(), rel=1e-5)
    assert stats["ratio_min"] == pytest.approx(s.min().item(), rel=1e-5)
    assert stats["ratio_max"] == pytest.approx(s.max().item(), rel=1e-5)
    cut = ((advantages > 0) & (s > 1.02)) | ((advantages < 0) & (s < 0.97))
    assert 0 < stats["clip_frac"] == pytest.approx(cut.float().mean().item())


def test_stats_are_floats_over_the_policy_s_tokens():
    logp, old, advantages, mask = random_batch()
    ratio = (logp - old).exp()[mask.bool()]
    for _, stats in (
        arl.ppo_policy_loss(logp, old, advantages, mask, 0.2, 0.2, "token_mean"),
        arl.gspo_policy_loss(logp, old, advantages, mask),
    ):
        assert {"clip_frac", "approx_kl", "ratio_min", "ratio_max"} == set(stats)
        assert all(type(v) is float for v in stats.values())
    _, stats = arl.ppo_policy_loss(logp, old, advantages, mask, 0.2, 0.2, "token_mean")
    assert stats["ratio_min"] == pytest.approx(ratio.min().item(), rel=1e-5)
    assert stats["ratio_max"] == pytest.approx(ratio.max().item(), rel=1e-5)
    assert stats["approx_kl"] == pytest.approx((ratio - 1 - ratio.log()).mean().item(), rel=1e-4)
    each = (mask * (advantages[:, None] != 0)).bool()
    up = (advantages[:, None] > 0) & ((logp - old).exp() > 1.2)
    down = (advantages[:, None] < 0) & ((logp - old).exp() < 0.8)
    assert stats["clip_frac"] == pytest.approx((up | down)[each].float().mean().item(), rel=1e-5)


def test_policy_loss_takes_level_average_and_bounds_from_the_settings():
    batch = random_batch()
    for mode in MODES:
        cfg = arl.RLConfig(loss_mode=mode, clip_low=0.1, clip_high=0.4, norm_const=13.0)
        want = arl.ppo_policy_loss(*batch, 0.1, 0.4, mode, 13.0)
        got = arl.policy_loss(*batch, cfg)
        assert torch.equal(got[0], want[0]) and got[1] == want[1]
    cfg = arl.RLConfig(ratio_level="sequence", clip_low=0.03, clip_high=0.02)
    assert torch.equal(arl.policy_loss(*batch, cfg)[0], arl.gspo_policy_loss(*batch, 0.03, 0.02)[0])
    assert not torch.equal(
        arl.policy_loss(*batch, cfg)[0], arl.gspo_policy_loss(*batch, 0.02, 0.03)[0]
    )


@pytest.mark.parametrize("max_turns", [2, 6])
def test_the_constant_divides_by_all_tokens_the_rows_could_have_had(max_turns):
    logp, old, advantages, mask = random_batch()
    cfg = arl.RLConfig(loss_mode="constant", max_turns=max_turns)
    want = arl.ppo_policy_loss(
        logp, old, advantages, mask, 0.2, 0.2, "constant", 6 * max_turns * arl.MAX_CALL_TOKENS
    )
    assert torch.equal(arl.policy_loss(logp, old, advantages, mask, cfg)[0], want[0])


@pytest.mark.parametrize(
    "change, words",
    [
        ({"old_logp": torch.zeros(2, 4)}, ["old_logp", "(2, 4)", "(2, 3)"]),
        ({"mask": torch.ones(2, 4)}, ["mask", "(2, 4)", "(2, 3)"]),
        ({"advantages": torch.zeros(3)}, ["advantages", "(3,)", "(2,)"]),
        ({"advantages": torch.zeros(2, 4)}, ["advantages", "(2, 4)", "(2,)"]),
        ({"clip_low": -0.1}, ["clip_low", "-0.1", "0"]),
        ({"clip_low": 1.5}, ["clip_low", "1.5", "1"]),
        ({"clip_low": NAN}, ["clip_low", "nan", "0"]),
        ({"clip_high": -0.1}, ["clip_high", "-0.1", "0"]),
        ({"clip_high": NAN}, ["clip_high", "nan", "0"]),
        ({"clip_high": None}, ["clip_high", "None", "0"]),
    ],
)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_policy_losses_refuse_wrong_values(level, change, words):
    args = {
        "logp": torch.zeros(2, 3), "old_logp": torch.zeros(2, 3), "advantages": torch.zeros(2),
        "mask": torch.ones(2, 3), "clip_low": 0.2, "clip_high": 0.2,
    } | change  # fmt: skip
    with pytest.raises(ValueError) as error:
        if level == "token":
            arl.ppo_policy_loss(**args, loss_mode="token_mean")
        else:
            arl.gspo_policy_loss(**args)
    assert all(word in str(error.value) for word in words)


# KL.

PAIRS = [(0.5, 0.9), (0.2, 0.25), (0.7, 0.1)]


def bernoulli(p, q):
    """Logit of p, log-probs of both outcomes under it, and under the reference."""
    logit = torch.tensor(math.log(p / (1 - p)), dtype=torch.double, requires_grad=True)
    logp = torch.nn.functional.logsigmoid(torch.stack([logit, -logit]))
    return logit, logp, torch.tensor([q, 1 - q], dtype=torch.double).log()


@pytest.mark.parametrize("kind, mean, slope", [("k1", 0.5108, 0.0), ("k2", 0.7339, -0.5493), ("k3", 0.5108, -0.4000)])
def test_kl_estimators_have_these_means_and_these_gradients_as_losses(kind, mean, slope):
    """Row 8: one-token Bernoulli, p = 0.5, reference 0.9."""
    logit, logp, ref = bernoulli(0.5, 0.9)
    penalty = arl.kl_penalty(logp, ref, kind)
    p = logp.detach().exp()
    assert (p * penalty).sum().item() == pytest.approx(mean, abs=5e-5)
    (p * penalty).sum().backward()
    assert logit.grad.item() == pytest.approx(slope, abs=5e-5)


@pytest.mark.parametrize("p, q", PAIRS)
def test_k1_and_k3_are_unbiased_and_k2_has_the_true_gradient(p, q):
    """Row 8 for other policies: the exact KL, its exact gradient, and what each estimator makes of them."""
    logit, logp, ref = bernoulli(p, q)
    kl = (logp.exp() * (logp - ref)).sum()
    (true,) = torch.autograd.grad(kl, logit, retain_graph=True)
    want = p * (1 - p) * (math.log(p / q) - math.log((1 - p) / (1 - q)))
    assert true.item() == pytest.approx(want, abs=1e-9)
    weight, slopes = logp.detach().exp(), {}
    for kind in ("k1", "k2", "k3"):
        mean = (weight * arl.kl_penalty(logp, ref, kind)).sum()
        if kind != "k2":
            assert mean.item() == pytest.approx(kl.item(), abs=1e-9)
        (slope,) = torch.autograd.grad(mean, logit, retain_graph=True)
        slopes[kind] = slope.item()
    assert slopes["k1"] == pytest.approx(0, abs=1e-9)
    assert slopes["k2"] == pytest.approx(true.item(), abs=1e-9)
    assert slopes["k3"] == pytest.approx(p - q, abs=1e-9), "the gradient of KL(ref || policy)"


def test_k1_as_a_reward_has_the_true_gradient():
    """Row 8: the same number as a penalty in the reward, through the score function."""
    logit, logp, ref = bernoulli(0.5, 0.9)
    cost = arl.kl_penalty(logp.detach(), ref, "k1")
    (logp.detach().exp() * cost * logp).sum().backward()
    assert logit.grad.item() == pytest.approx(-0.5493, abs=5e-5)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_penalty_is_zero_at_the_reference_and_its_formula_elsewhere(kind):
    logp, ref = torch.tensor([[-1.0, -2.0, -0.5]]), torch.tensor([[-1.0, -1.0, -2.5]])
    log_ratio = torch.tensor([[0.0, 1.0, -2.0]])
    want = {"k1": -log_ratio, "k2": log_ratio**2 / 2, "k3": log_ratio.exp() - 1 - log_ratio}[kind]
    assert torch.allclose(arl.kl_penalty(logp, ref, kind), want, atol=1e-6)
    assert arl.kl_penalty(logp, ref, kind)[0, 0] == 0
    if kind == "k3":
        assert torch.equal(arl.kl_penalty(logp, ref), arl.kl_penalty(logp, ref, kind)), "default"


@pytest.mark.parametrize("kind", ["k4", "", None, "K3", 3])
def test_an_unknown_kl_kind_is_refused(kind):
    with pytest.raises(ValueError) as error:
        arl.kl_penalty(torch.zeros(1), torch.zeros(1), kind)
    assert all(w in str(error.value) for w in (repr(kind), "k1", "k2", "k3"))


def test_kl_of_log_probs_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="ref_logp"):
        arl.kl_penalty(torch.zeros(2, 3), torch.zeros(3))


# The expected gradient, by enumeration.


def all_sequences():
    """All 27 action sequences of length 3 of a small policy, with their probabilities."""
    model = fresh_agent(vocab_size=3, width=8, n_layers=1, n_heads=1, hidden=8)
    actions = torch.tensor(list(itertools.product(range(3), repeat=3)))
    ids = torch.cat([torch.zeros(27, 1, dtype=torch.long), actions], 1)
    logp = arl.action_log_probs(model, ids, torch.ones(27, 3))
    return model, actions, logp, logp.detach().sum(1).exp()


def expected_gradient(model, logp, weights, mask):
    """Sum over sequences of probability x advantage x score, through the policy loss."""
    loss, _ = arl.ppo_policy_loss(logp, logp.detach(), weights, mask, 0.2, 0.2, "constant", 1.0)
    model.zero_grad(set_to_none=False)
    loss.backward(retain_graph=True)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_a_penalty_that_ignores_the_action_has_expected_gradient_zero():
    """Row 30: a constant, and one that depends on the actions before, at each position; the sampled action's own
    penalty does not vanish."""
    model, actions, logp, p = all_sequences()
    assert p.sum().item() == pytest.approx(1, abs=1e-5)
    everywhere = torch.ones(27, 3)
    assert expected_gradient(model, logp, 0.7 * p, everywhere).abs().max() < 1e-6
    values = torch.tensor([0.3, -1.0, 2.0])
    for position in range(3):
        here = torch.zeros(27, 3)
        here[:, position] = 1
        before = values[actions[:, :position]].sum(1) + 0.5
        assert expected_gradient(model, logp, p * before, here).abs().max() < 1e-6
        own = values[actions[:, position]]
        assert expected_gradient(model, logp, p * own, here).abs().max() > 1e-2


def test_the_expected_surrogate_gradient_is_that_of_the_expected_reward():
    """The estimator against the enumerated gradient of J = sum of p(sequence) x reward."""
    model, actions, logp, p = all_sequences()
    rewards = (actions.sum(1) == 3).float()
    estimate = -expected_gradient(model, logp, p * rewards, torch.ones(27, 3))
    model.zero_grad(set_to_none=False)
    (logp.sum(1).exp() * rewards).sum().backward()
    exact = torch.cat([q.grad.flatten() for q in model.parameters()])
    assert torch.allclose(estimate, exact, atol=1e-6) and exact.abs().max() > 1e-2


def gym_episodes():
    """Episodes of two turns, three words each, with an environment's word between them whose chance depends on the
    first: ids [N, 4], mask [N, 3], probability of the environment's word [N]."""
    chance = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5]])
    rows = list(itertools.product(range(3), range(2), range(3)))
    ids = torch.tensor([[0, a, 3 + o, b] for a, o, b in rows])
    mask = torch.tensor([[1.0, 0, 1]]).expand(len(rows), 3)
    world = torch.tensor([chance[a, o] for a, o, _ in rows])
    return ids, mask, world


def test_the_expected_gradient_through_an_environment_is_exact_and_three_faults_are_not():
    """A transformer, a mask, an environment's words: the sum of p R score over 20 episodes against autograd of their
    share of J; the others are left out on both sides."""
    model = fresh_agent(vocab_size=5, width=8, n_layers=1, n_heads=1, hidden=8).double()
    ids, mask, world = gym_episodes()
    rewards = torch.tensor([float(a == 1) + 0.5 * float(b == o - 3) - 0.2 for _, a, o, b in ids.tolist()]).double()
    extra = torch.tensor([[0, a] for a in (3, 4)])  # the first word may also be one of the environment's
    ids = torch.cat([ids, torch.nn.functional.pad(extra, (0, 2))])
    mask = torch.cat([mask, torch.tensor([[1.0, 0, 0]]).expand(2, 3)])
    world, rewards = torch.cat([world, torch.ones(2)]).double(), torch.cat([rewards, -torch.ones(2).double()])

    def gradient_of(value):
        return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))])

    def logp(mask):
        return arl.action_log_probs(model, ids, mask)

    p = world * logp(mask).sum(1).exp()
    exact = gradient_of((p * rewards).sum())
    weight = (p * rewards).detach()[:, None]
    assert torch.allclose(gradient_of((weight * logp(mask)).sum()), exact, atol=1e-9)
    everything = (torch.arange(3) < torch.where(mask[:, 2] > 0, 3, 1)[:, None]).double()
    late = torch.cat([torch.zeros(len(mask), 1), mask[:, :-1]], 1)
    size = exact.norm()
    for wrong in (
        (weight * logp(everything)).sum(),
        (weight * logp(late)).sum(),
        (weight * logp(mask) / mask.sum(1, keepdim=True)).sum(),
    ):
        assert (gradient_of(wrong) - exact).norm() > 0.1 * size > 1e-3


def test_a_shift_of_all_rewards_changes_no_advantage():
    """Row 30 for groups: what is the same for every attempt is no signal."""
    rewards = torch.randn(12, generator=gen())
    for mode in ("grpo", "mean", "rloo"):
        cfg = arl.RLConfig(group_size=4, adv_mode=mode)
        a, b = (arl.compute_advantages({"rewards": r}, cfg) for r in (rewards, rewards + 3))
        assert torch.allclose(a, b, atol=1e-5) and a.abs().max() > 0.1


def test_argument_orders_and_defaults_of_the_contract():
    def signature(fn):
        parameters = inspect.signature(fn).parameters.values()
        return [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]

    surrogate = ["logp", "old_logp", "advantages", "mask"]
    assert signature(arl.aggregate_loss) == ["per_token", "mask", "mode", "norm_const=None"]
    assert signature(arl.group_advantages)[:3] == ["rewards", "group_size", "normalize_std=True"]
    assert signature(arl.rloo_advantages) == ["rewards", "group_size"]
    assert signature(arl.ppo_policy_loss)[:8] == [  # chapter 20 passes a ninth, `surrogate`
        *surrogate, "clip_low", "clip_high", "loss_mode", "norm_const=None",
    ]  # fmt: skip
    assert signature(arl.gspo_policy_loss) == [
        *surrogate, "clip_low=0.0003", "clip_high=0.0004",
    ]  # fmt: skip
    assert signature(arl.policy_loss) == [*surrogate, "cfg"]
    assert signature(arl.kl_penalty) == ["logp", "ref_logp", "kind=k3"]
    assert signature(arl.compute_advantages) == ["batch", "cfg"]
