"""Chapter 20: weights of tokens and of tasks, and published methods as fields."""

import math

import pytest
import torch

import agentrl as arl


def weights(name, ratios, advantage, low=0.2, high=0.2):
    log_ratio = torch.log(torch.tensor(ratios, dtype=torch.double)).requires_grad_()
    objective, cut = arl.SURROGATES[name](log_ratio, torch.full_like(log_ratio, advantage), low, high)
    return (torch.autograd.grad(objective.sum(), log_ratio)[0] / advantage).tolist(), cut.tolist()


@pytest.mark.parametrize("advantage", [2.0, -0.5])
def test_cispo_bounds_the_weight_and_keeps_every_token(advantage):
    got, cut = weights("cispo", [0.1, 0.7, 1.0, 1.19, 1.5, 9.0], advantage, 0.2, 0.2)
    assert got == pytest.approx([0.8, 0.8, 1.0, 1.19, 1.2, 1.2])
    assert cut == [True, True, False, False, True, True]
    assert weights("cispo", [0.1], advantage, 1.0, 0.2)[0] == pytest.approx([0.1])


@pytest.mark.parametrize("advantage, tau", [(1.0, 1.0), (-1.0, 1.05)])
def test_sapo_fades_by_the_sign_of_the_advantage(advantage, tau):
    ratios = [0.2, 1.0, 1.7, 6.0]
    gate = [1 / (1 + math.exp(-tau * (r - 1))) for r in ratios]
    got, cut = weights("sapo", ratios, advantage)
    assert got == pytest.approx([4 * g * (1 - g) * r for g, r in zip(gate, ratios)])
    assert not any(cut) and got[1] == pytest.approx(1.0) and got[3] < 0.5


@pytest.mark.parametrize("name", ["clip", "cispo", "sapo"])
def test_extreme_ratios_stay_finite(name):
    log_ratio = torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4], requires_grad=True)
    objective, _ = arl.SURROGATES[name](log_ratio, torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]), 0.2, 0.2)
    objective.sum().backward()
    assert torch.isfinite(objective).all() and torch.isfinite(log_ratio.grad).all()


def test_on_fresh_samples_all_objectives_have_one_gradient():
    g = torch.Generator().manual_seed(0)
    old, mask, adv = -torch.rand(4, 6, generator=g), (torch.rand(4, 6, generator=g) > 0.3).float(), torch.randn(4, generator=g)
    grads = []
    for name in arl.SURROGATES:
        logp = old.clone().requires_grad_()
        arl.policy_loss(logp, old, adv, mask, arl.RLConfig(surrogate=name))[0].backward()
        grads.append(logp.grad)
    assert len(grads) >= 3 and all(torch.allclose(g, grads[0], atol=1e-7) for g in grads)


def test_batch_advantages_centre_by_group_and_scale_by_batch():
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1])
    centred = arl.group_advantages(rewards, 4, normalize_std=False)
    got = arl.batch_advantages(rewards, 4)
    assert torch.allclose(got, centred / (centred.std() + 1e-6)) and got[8:].tolist() == [0.0] * 4
    assert arl.batch_advantages(torch.tensor([0.7]), 1).tolist() == [0.0]


def test_maxrl_advantages():
    got = arl.maxrl_advantages(torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]), 4)
    assert torch.allclose(got, torch.tensor([3.0, -1, -1, -1] + [0.0] * 8))


@pytest.mark.parametrize("G", [2, 4, 8])
@pytest.mark.parametrize("p", [0.03, 0.4, 0.9])
def test_maxrl_weighs_a_task_by_the_series_of_log_p(p, G):
    total = 0.0
    for k in range(G + 1):
        rewards = torch.tensor([1.0] * k + [0.0] * (G - k), dtype=torch.double)
        total += math.comb(G, k) * p**k * (1 - p) ** (G - k) * (arl.maxrl_advantages(rewards, G) * (rewards - p)).mean().item()
    assert total / (p * (1 - p)) == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, G)))


@pytest.mark.parametrize("mode", ["batch", "maxrl"])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 0.7])
def test_equal_rewards_give_exactly_zero(mode, value):
    assert arl.ADV_MODES[mode](torch.full((6,), value), 3).tolist() == [0.0] * 6


def test_wrong_input_is_refused_by_name():
    with pytest.raises(ValueError, match="-0.5.*maxrl"):
        arl.maxrl_advantages(torch.tensor([1.0, -0.5]), 2)
    for fn in (arl.batch_advantages, arl.maxrl_advantages):
        with pytest.raises(ValueError):
            fn(torch.ones(5), 2)
        with pytest.raises(ValueError):
            fn(torch.tensor([float("nan"), 1.0]), 2)
    with pytest.raises(ValueError, match="surrogate is 'sapo'.*sequence"):
        arl.RLConfig(surrogate="sapo", ratio_level="sequence")


def test_every_method_is_a_configuration_with_a_month():
    for name, method in arl.PUBLISHED.items():
        cfg = method.config(seed=3)
        assert cfg.seed == 3 and all(getattr(cfg, key) == value for key, value in method.changes.items()), name
        assert len(method.month) == 7 and "2017-07" <= method.month <= "2026-12"
    assert arl.PUBLISHED["GSPO"].month == "2025-07"
    with pytest.raises(ValueError, match="kl_coef"):
        arl.PUBLISHED["GRPO"].config(kl_coef=-1)
