"""Chapter 8: what the clip reaches, and the critic. 'Row n' is a row of cases/algorithms.md."""

import copy
import math

import pytest
import torch
from toys import agent, fresh_agent, gen, sampled, tokenizer, weights

import agentrl as arl


def batch_at(temperature=1.0, seed=1):
    return arl.collate(sampled(seed, temperature), tokenizer().pad_id)


@pytest.mark.parametrize("low, high", [(0.2, 0.2), (0.2, 0.28), (0.1, 0.5), (1.0, 1e9)])
def test_the_gradient_is_cut_only_beyond_the_bound_of_the_advantage_s_sign(low, high):
    ratio = torch.tensor([0.05, 0.5, 0.85, 1.0, 1.15, 1.4, 1.6, 5.0], dtype=torch.double)
    for A in (2.0, -0.5):
        leaf = ratio.log().requires_grad_()
        objective, cut = arl.clipped_surrogate(leaf, torch.tensor(A, dtype=torch.double), low, high)
        (slope,) = torch.autograd.grad(objective.sum(), leaf)
        want = (ratio > 1 + high) if A > 0 else (ratio < 1 - low)
        assert torch.equal(cut, want)
        assert torch.allclose(slope, torch.where(want, 0.0, ratio * A))
        assert (objective <= ratio * A + 1e-12).all(), "never above the plain objective"


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_every_ratio_is_one_at_the_sampling_temperature_and_no_other(temperature):
    """Row 4: before any update, from sampler to loss."""
    batch = batch_at(temperature)
    ids, mask, old = batch["ids"], batch["action_mask"], batch["sampler_logps"]
    A = torch.linspace(-1, 1, len(ids))
    for other in (0.6, 1.0, 1.7):
        logp = arl.action_log_probs(agent(), ids, mask, other)
        _, stats = arl.ppo_policy_loss(logp, old, A, mask, 0.2, 0.2, "token_mean")
        spread = max(abs(stats["ratio_min"] - 1), abs(stats["ratio_max"] - 1))
        assert spread < 1e-4 if other == temperature else spread > 0.05
        assert (stats["approx_kl"] < 1e-6) == (other == temperature)


# The critic.


def test_a_new_critic_predicts_nothing_and_gives_values_at_the_policy_s_tokens_only():
    batch, critic = batch_at(), arl.Critic(agent())
    values = arl.critic_values(critic, batch["ids"], batch["action_mask"])
    assert values.shape == batch["action_mask"].shape and not values.any()
    with torch.no_grad():
        critic.out.bias.fill_(0.5)
    values = arl.critic_values(critic, batch["ids"], batch["action_mask"])
    assert torch.equal(values, 0.5 * batch["action_mask"])


def test_a_value_depends_on_what_came_before_the_token_and_on_nothing_else():
    batch, critic = batch_at(), arl.Critic(agent())
    with torch.no_grad():
        critic.out.weight.normal_(generator=gen())
    ids, mask = batch["ids"], batch["action_mask"]
    values = arl.critic_values(critic, ids, mask)
    row = 0
    place = int(mask[row].nonzero()[2])  # the prediction of ids[:, place + 1]
    for at, changes in ((place + 1, False), (place, True)):
        other = ids.clone()
        other[row, at] = (other[row, at] + 1) % len(tokenizer())
        moved = arl.critic_values(critic, other, mask)[row, place] - values[row, place]
        assert (moved.abs() > 1e-4) == changes
    plain = critic.out(critic.body.hidden(ids))[:, :-1, 0] * mask
    assert torch.allclose(values, plain, atol=1e-5)


def test_value_loss_is_the_masked_mean_square_of_one_return_an_episode():
    values, mask = torch.tensor([[1.0, 2, 50], [0, 3, 50]]), torch.tensor([[1.0, 1, 0], [0, 1, 0]])
    returns = torch.tensor([1.0, 0.0])
    assert arl.value_loss(values, returns, mask).item() == pytest.approx((0 + 1 + 9) / 3)
    wide = returns[:, None].expand(2, 3)
    assert arl.value_loss(values, wide, mask) == arl.value_loss(values, returns, mask)
    assert arl.value_loss(values, returns, torch.zeros(2, 3)).item() == 0


def test_frozen_bodies_stay_and_the_rest_learns():
    batch, policy = batch_at(), agent()
    critic = arl.Critic(policy)
    critic.body.requires_grad_(False)
    before = weights(policy)
    optimizer = torch.optim.Adam([p for p in critic.parameters() if p.requires_grad], lr=0.05)
    target = batch["action_mask"].sum(1) / batch["action_mask"].sum(1).max()
    losses = []
    for _ in range(30):
        loss = arl.value_loss(arl.critic_values(critic, batch["ids"], batch["action_mask"]), target, batch["action_mask"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(torch.equal(before[k], v) for k, v in weights(policy).items())
    own = arl.Critic(copy.deepcopy(policy))
    arl.value_loss(arl.critic_values(own, batch["ids"], batch["action_mask"]), target, batch["action_mask"]).backward()
    assert own.out.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    "values, want",
    [([0.8, 0.2, 0.4, 0.6], 0.6), ([1, 0, 0, 1], 1.0), ([0.3] * 4, 0.0), ([7, 6, 6, 7], 1.0), ([0, 1, 1, 0], -3.0)],
)
def test_explained_variance_by_hand(values, want):
    returns = torch.tensor([1.0, 0, 0, 1])
    values = torch.tensor(values, dtype=torch.float)
    assert arl.explained_variance(values, returns) == pytest.approx(want, abs=1e-6)
    junk, mask = torch.tensor([[9.0], [-9.0]]), torch.tensor([[1.0, 1, 1, 1, 0]] * 2)
    wide = [torch.cat([x.expand(2, 4), junk], 1) for x in (values, returns)]
    assert arl.explained_variance(*wide, mask) == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("returns", [[0.0] * 3, [0.7] * 3, [1 / 3] * 3])
def test_explained_variance_of_equal_returns_is_undefined(returns):
    assert math.isnan(arl.explained_variance(torch.randn(3, generator=gen()), torch.tensor(returns)))
    assert math.isnan(arl.explained_variance(torch.zeros(3), torch.arange(3.0), torch.zeros(3)))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="returns has shape"):
        arl.explained_variance(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="mask"):
        arl.explained_variance(torch.zeros(3), torch.zeros(3), torch.ones(2))
    with pytest.raises(ValueError, match="mask"):
        arl.value_loss(torch.zeros(2, 3), torch.zeros(2), torch.ones(2, 4))
    with pytest.raises(ValueError, match="action_mask"):
        arl.critic_values(arl.Critic(fresh_agent()), torch.zeros(2, 4, dtype=torch.long), torch.ones(2, 4))


def test_returns_of_another_number_of_episodes_are_refused():
    for n in (1, 3):
        with pytest.raises(ValueError, match="returns has shape"):
            arl.value_loss(torch.zeros(4, 6), torch.zeros(n), torch.ones(4, 6))


def test_statistics_stay_finite_where_the_loss_does():
    stats = arl.ppo.ratio_stats(torch.tensor([[200.0, -200.0]]), torch.zeros(1, 2), torch.ones(1, 2))
    assert all(abs(v) < 1e9 for v in stats.values())


def test_advantages_of_tokens_are_those_of_their_episode_where_they_are_equal():
    generator = torch.Generator().manual_seed(3)
    logp, old = (-torch.rand(4, 5, generator=generator) for _ in "ab")
    mask = torch.tensor([[1, 1, 0, 1, 0]] * 3 + [[0] * 5]).float()
    advantages = torch.tensor([1.0, -0.5, 0.0, 2.0])
    one, stats = arl.ppo_policy_loss(logp, old, advantages, mask, 0.2, 0.2, "token_mean")
    many, same = arl.ppo_policy_loss(logp, old, advantages[:, None].expand(4, 5), mask, 0.2, 0.2, "token_mean")
    assert one == many and stats == same
    per_token = torch.randn(4, 5, generator=generator)
    got = arl.ppo_policy_loss(logp, old, per_token, mask, 0.2, 0.2, "token_mean")[0]
    objective = arl.clipped_surrogate(logp - old, per_token, 0.2, 0.2)[0]
    assert torch.allclose(got, -(objective * mask).sum() / mask.sum(), atol=1e-6)
    for wrong in (per_token[:, :4], per_token[:3], per_token[..., None]):
        with pytest.raises(ValueError, match="advantages has shape"):
            arl.ppo_policy_loss(logp, old, wrong, mask, 0.2, 0.2, "token_mean")
    with pytest.raises(ValueError, match="a sequence has one"):
        arl.gspo_policy_loss(logp, old, per_token, mask)
