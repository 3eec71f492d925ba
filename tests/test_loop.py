"""Chapter 9's loop: settings, sampling, updates, training, checkpoints; and chapter 6's base agents.

'Row n' is a row of cases/algorithms.md.
"""

import copy
import dataclasses
import inspect
import logging
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from toys import (
    agent,
    distance,
    fresh_agent,
    gen,
    naive,
    sampled,
    says,
    tokenizer,
    train_tasks,
    weights,
)

import agentrl as arl
from agentrl import reinforce

NAN, INF = float("nan"), float("inf")

# Settings.

DEFAULTS = {
    "group_size": 8, "prompts_per_step": 8, "temperature": 1.0, "max_turns": 6, "rename": True,
    "max_edits": 1, "reward": "hidden", "adv_mode": "grpo", "overlong_buffer": 0,
    "dynamic_sampling": False, "max_sample_rounds": 4, "ratio_level": "token", "clip_low": 0.2,
    "clip_high": 0.2, "loss_mode": "token_mean", "norm_const": None, "kl_coef": 0.0,
    "kl_kind": "k3", "lr": 1e-3, "epochs": 1, "minibatches": 2, "max_grad_norm": 1.0, "seed": 0,
    "kl_in": "loss", "entropy_coef": 0.0, "target_kl": None,
    "correction": None, "correction_cap": 2.0, "surrogate": "clip",
}  # fmt: skip

AT_LEAST_1 = ["group_size", "prompts_per_step", "max_turns", "max_sample_rounds", "epochs", "minibatches"]
AT_LEAST_0 = ["max_edits", "overlong_buffer", "seed"]
ABOVE_0 = ["temperature", "max_grad_norm", "norm_const", "target_kl"]
NOT_NEGATIVE = ["clip_low", "clip_high", "kl_coef", "lr", "entropy_coef"]
FROM_1 = ["correction_cap"]
SWITCHES = ["rename", "dynamic_sampling"]
CHOICES = {
    "adv_mode": ("grpo", "mean", "rloo"),
    "ratio_level": ("token", "sequence"),
    "loss_mode": ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"),
    "kl_kind": ("k1", "k2", "k3"),
    "kl_in": ("loss", "reward"),
    "correction": ("recompute", "truncate", "mask"),
    "surrogate": ("clip", "cispo", "sapo"),
}
STRANGE = [NAN, INF, -INF, "1", "", [], [1], {}, b"1", 1j, object, torch.tensor([1.0, 2.0])]


def wrong_values():
    """(field, wrong value, words that the message must hold)."""
    for name in AT_LEAST_1:
        for value in [0, -1, 1.0, 2.5, True, False, None, *STRANGE]:
            yield name, value, ["whole number of at least 1"]
    for name in AT_LEAST_0:
        for value in [-1, 0.0, 1.5, True, False, *STRANGE, *([] if name == "max_edits" else [None])]:
            yield name, value, ["whole number of at least 0"]
    for name in ABOVE_0:
        for value in [0, 0.0, -0.1, True, 10**400, *STRANGE, *([] if name in ("norm_const", "target_kl") else [None])]:
            yield name, value, ["finite number above 0"]
    for name in NOT_NEGATIVE:
        for value in [-0.1, -1, True, None, 10**400, *STRANGE]:
            yield name, value, ["finite number of at least 0"]
    for name in FROM_1:
        for value in [0, 0.99, -2.0, True, None, 10**400, *STRANGE]:
            yield name, value, ["finite number of at least 1"]
    for name in SWITCHES:
        for value in [0, 1, None, "True", *STRANGE]:
            yield name, value, ["True or False"]
    for name, allowed in CHOICES.items():
        absent = [] if name == "correction" else [None]
        for value in ["", "k4", allowed[0].upper(), f" {allowed[0]}", *absent, 0, True, *STRANGE[:3], [allowed[0]], allowed]:
            yield name, value, list(allowed)
    for value in ["", "Hidden", "secret", None, 0, 1.0, True, [], ["hidden"], {"hidden": 1}]:
        yield "reward", value, ["'hidden'", "'public'", "callable"]


@pytest.mark.parametrize("name, value, allowed", list(wrong_values()), ids=lambda x: repr(x)[:24])
def test_a_wrong_setting_is_refused_by_name(name, value, allowed):
    with pytest.raises(ValueError) as error:
        arl.RLConfig(**{name: value})
    message = str(error.value)
    assert message.startswith(f"{name} is ") and repr(value) in message
    assert all(word in message for word in allowed)


def test_every_setting_is_among_those_tested():
    tested = [*AT_LEAST_1, *AT_LEAST_0, *ABOVE_0, *NOT_NEGATIVE, *FROM_1, *SWITCHES, *CHOICES, "reward"]
    assert sorted(tested) == sorted(DEFAULTS)


def test_settings_keep_their_names_order_and_defaults():
    assert [f.name for f in dataclasses.fields(arl.RLConfig)] == list(DEFAULTS)
    assert dataclasses.asdict(arl.RLConfig()) == DEFAULTS
    assert all(type(getattr(arl.RLConfig(), k)) is type(v) for k, v in DEFAULTS.items())


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"overlong_buffer": 7}, ["overlong_buffer is 7", "max_turns = 6"]),
        ({"overlong_buffer": 3, "max_turns": 2}, ["overlong_buffer is 3", "max_turns = 2"]),
        ({"group_size": 1, "adv_mode": "rloo"}, ["group_size is 1", "rloo", "at least 2"]),
        ({"minibatches": 65}, ["minibatches is 65", "at most", "64"]),
        ({"group_size": 2, "prompts_per_step": 1, "minibatches": 3}, ["minibatches is 3", "2"]),
        ({"clip_low": 1.5}, ["clip_low is 1.5", "at most 1"]),
        ({"seed": 2**63}, [f"seed is {2**63}", "below 2**63"]),
        ({"correction": "mask", "ratio_level": "sequence"}, ["correction is 'mask'", "sequence"]),
        ({"surrogate": "cispo", "ratio_level": "sequence"}, ["surrogate is 'cispo'", "sequence"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields, words):
    with pytest.raises(ValueError) as error:
        arl.RLConfig(**fields)
    assert all(word in str(error.value) for word in words)
    with pytest.raises(ValueError):
        replace(arl.RLConfig(), **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"group_size": 1}, {"max_edits": None}, {"max_edits": 0}, {"norm_const": 3}, {"lr": 0},
        {"clip_low": 1}, {"clip_high": 5.0}, {"overlong_buffer": 6}, {"minibatches": 64},
        {"reward": "public"}, {"reward": lambda info: 0.5}, {"reward": abs}, {"seed": 2**63 - 1},
        {"correction": "mask", "correction_cap": 1}, {"correction_cap": 1e9, "ratio_level": "sequence"},
    ],
)  # fmt: skip
def test_values_at_the_edge_of_what_is_allowed_are_taken(fields):
    cfg = arl.RLConfig(**fields)
    assert {k: getattr(cfg, k) for k in fields} == fields
    torch.Generator().manual_seed(cfg.seed + 1_000_003)


@pytest.mark.parametrize(
    "name, value, want",
    [
        ("group_size", np.int64(4), 4),
        ("lr", np.float64(0.01), 0.01),
        ("clip_high", np.float32(0.25), 0.25),
        ("rename", np.bool_(False), False),
        ("adv_mode", np.str_("mean"), "mean"),
    ],
)
def test_a_numpy_scalar_counts_as_the_value_it_holds(name, value, want):
    """So that sweeps over arrays work, and a checkpoint holds plain values only."""
    got = getattr(arl.RLConfig(**{name: value}), name)
    assert got == want and type(got) is type(want)


@pytest.mark.parametrize(
    "name, value",
    [("group_size", np.int64(0)), ("group_size", np.float64(4)), ("lr", np.float64("nan")), ("epochs", np.bool_(True))],
)
def test_a_wrong_numpy_scalar_is_refused_like_any_other(name, value):
    with pytest.raises(ValueError, match=f"{name} is "):
        arl.RLConfig(**{name: value})


def test_settings_cannot_be_changed_behind_the_checks():
    with pytest.raises(dataclasses.FrozenInstanceError):
        arl.RLConfig().lr = -1


def test_variants_are_the_published_fields():
    assert arl.VARIANTS == {
        "grpo": {"kl_coef": 0.04, "loss_mode": "seq_mean_token_mean"},
        "dr_grpo": {"adv_mode": "mean", "loss_mode": "constant"},
        "dapo": {
            "clip_high": 0.28,
            "dynamic_sampling": True,
            "overlong_buffer": 2,
            "loss_mode": "token_mean",
        },
        "rloo": {"adv_mode": "rloo", "loss_mode": "seq_mean_token_sum", "minibatches": 1},
        "gspo": {"ratio_level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    }
    for fields in arl.VARIANTS.values():
        arl.RLConfig(**fields)


# Behaviour.


def episode(actions, task="range/sum_to", reward=0.0, passed=False, length=10):
    info = {"task": task, "actions": actions, "hidden_pass": passed, "n_turns": len(actions)}
    return arl.Trajectory(ids=[0] * length, reward=reward, info=info)


def test_behaviour_is_counted_per_episode():
    read, test, submit = (f"<call> {t} </call>" for t in ("read", "test", "submit"))
    right, wrong = "<call> edit fix_range_end </call>", "<call> edit fix_init </call>"
    trajs = [
        episode([read, right, test, submit], reward=1.0, passed=True, length=30),
        episode([wrong, right, right, "<call> edit </call>", "<call> edit x </call>", "read"]),
        episode([submit], length=20),
        episode([read, read, test, "<call> read all </call>", "<call> test 1 </call>"], reward=0.5),
    ]
    got = arl.behavior_stats(trajs)  # only what the environment takes as a read or a test counts
    assert got == {
        "pass_rate": 1 / 4, "reward": 1.5 / 4, "reads": 3 / 4, "tests": 2 / 4, "edits": 4 / 4,
        "first_edit_right": 1 / 4, "turns": 16 / 4, "length": 70 / 4,
    }  # fmt: skip
    assert all(type(v) is float for v in got.values())


def test_behaviour_of_nothing_is_refused():
    with pytest.raises(ValueError, match="trajs is empty"):
        arl.behavior_stats([])


# Updates.


def batch_of(trajs):
    return arl.collate(trajs, tokenizer().pad_id)


def signal(n, zero_rows=()):
    advantages = torch.randn(n, generator=gen(4))
    advantages[list(zero_rows)] = 0
    return advantages


def updated(fn, cfg, advantages, trajs=None, steps=2, optimizer=torch.optim.Adam, **kwargs):
    """Model and last stats after `steps` updates by `fn` on the same batch."""
    model = agent()
    optimizer = optimizer(model.parameters(), lr=cfg.lr)
    g = gen(8)
    batch = batch_of(trajs or sampled(1, cfg.temperature))
    for _ in range(steps):
        stats = fn(model, optimizer, batch, advantages, cfg, generator=g, **kwargs)
    return model, stats


UPDATES = {
    **{name: fields | {"kl_coef": 0.0} for name, fields in arl.VARIANTS.items()},
    "default": {},
    "temperature": {"temperature": 0.6},
    "epochs": {"epochs": 2, "minibatches": 3},
    "one": {"minibatches": 1},
    "gspo wide": {"ratio_level": "sequence", "minibatches": 4},
}


@pytest.mark.parametrize("zero_rows", [(), (0, 3, 4, 9, 15), range(16)], ids=["none", "some", "all"])
@pytest.mark.parametrize("fields", UPDATES.values(), ids=UPDATES)
def test_the_update_is_the_plain_one(fields, zero_rows):
    """Skipped zero-advantage rows, the sampler's log-probs and sorted chunks change no weight (plain gradient descent:
    Adam divides float errors by gradients that are as small)."""
    cfg = arl.RLConfig(group_size=4, lr=0.3, **fields)
    advantages = signal(16, zero_rows)
    (ours, stats), (plain, want) = (
        updated(fn, cfg, advantages, steps=1, optimizer=torch.optim.SGD)
        for fn in (arl.rl_update, naive().update)
    )
    moved = distance(ours, agent())
    assert moved > 1e-3 if len(zero_rows) < 16 else moved == 0
    assert distance(ours, plain) <= 1e-3 * moved
    assert stats["entropy"] == pytest.approx(want["entropy"], rel=1e-4)
    assert stats["grad_norm"] == pytest.approx(want["grad_norm"], rel=1e-3, abs=1e-6)
    if not zero_rows:
        for key in ("clip_frac", "approx_kl", "ratio_min", "ratio_max"):
            assert stats[key] == pytest.approx(want[key], rel=2e-3, abs=1e-4)


@pytest.mark.parametrize("zero_rows", [(), (0, 3, 4, 9, 15)], ids=["none", "some"])
def test_the_update_is_the_plain_one_with_adam_too(zero_rows):
    cfg = arl.RLConfig(group_size=4)
    ours, plain = (
        updated(fn, cfg, signal(16, zero_rows), steps=1)[0] for fn in (arl.rl_update, naive().update)
    )
    assert distance(ours, agent()) > 0.9 * cfg.lr
    apart = torch.cat([(a - b).flatten().abs() for a, b in zip(ours.parameters(), plain.parameters(), strict=True)])
    assert apart.mean() < 1e-3 * cfg.lr and apart.max() < 0.2 * cfg.lr


def test_an_update_without_signal_moves_weights_only_as_adam_s_memory_does():
    """All advantages 0 after a real update: the same as a plain zero gradient."""
    cfg = arl.RLConfig(group_size=4)
    models = []
    for fn in (arl.rl_update, naive().update):
        model = agent()
        optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
        batch = batch_of(sampled(1))
        fn(model, optimizer, batch, signal(16), cfg)
        middle = weights(model)
        fn(model, optimizer, batch, torch.zeros(16), cfg)
        assert distance(model, middle) > 1e-4
        models.append(model)
    assert distance(*models) < 0.05 * cfg.lr


def test_the_update_raises_the_log_prob_of_what_paid_and_lowers_the_rest():
    cfg = arl.RLConfig(group_size=4, minibatches=1)
    advantages = torch.tensor([1.0, -1.0] * 8)
    batch = batch_of(sampled(1))
    model, _ = updated(arl.rl_update, cfg, advantages, steps=3)
    logp = arl.action_log_probs(model, batch["ids"], batch["action_mask"])
    change = ((logp - batch["sampler_logps"]) * batch["action_mask"]).sum(1)
    assert (change * advantages).mean() > 0.1


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_every_ratio_is_one_before_the_first_step(level, temperature):
    """Row 4, through the update: old log-probs are taken at the sampling temperature."""
    cfg = arl.RLConfig(group_size=4, temperature=temperature, minibatches=1, ratio_level=level)
    _, stats = updated(arl.rl_update, cfg, signal(16), steps=1)
    assert stats["ratio_min"] == pytest.approx(1, abs=1e-4)
    assert stats["ratio_max"] == pytest.approx(1, abs=1e-4)
    assert stats["approx_kl"] == pytest.approx(0, abs=1e-6) and stats["clip_frac"] == 0


@pytest.mark.parametrize("fields", [{"minibatches": 2}, {"minibatches": 1, "epochs": 2}])
def test_later_minibatches_and_epochs_see_ratios_move_from_the_frozen_old_policy(fields):
    cfg = arl.RLConfig(group_size=4, lr=0.01, **fields)
    _, stats = updated(arl.rl_update, cfg, signal(16), steps=1)
    assert stats["ratio_max"] > 1.01 and stats["ratio_min"] < 0.99 and stats["approx_kl"] > 1e-5


def test_old_log_probs_come_from_the_sampler():
    """With weights that have moved on since sampling, the first ratios are not 1."""
    cfg = arl.RLConfig(group_size=4, minibatches=1)
    model = fresh_agent(seed=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    stats = arl.rl_update(model, optimizer, batch_of(sampled(1)), signal(16), cfg)
    assert stats["approx_kl"] > 0.01


@pytest.mark.parametrize("fields", [{}, {"ratio_level": "sequence"}, {"kl_coef": 0.5}, {"loss_mode": "constant"}])
def test_tokens_of_the_environment_are_not_trained_on(fields):
    """Row 22, through the update: perturb the stored log-probs and entropies of observation tokens."""
    cfg = arl.RLConfig(group_size=4, **fields)
    reference = fresh_agent(seed=5) if cfg.kl_coef else None
    results = []
    for noise in (0.0, 3.0):
        model, batch = agent(), batch_of(sampled(1))
        outside = 1 - batch["action_mask"]
        for key in ("sampler_logps", "entropies"):
            batch[key] = batch[key] + noise * outside
        optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
        stats = arl.rl_update(model, optimizer, batch, signal(16, [2, 5]), cfg, reference)
        results.append((stats, weights(model)))
    assert results[0][0] == results[1][0]
    assert distance(results[0][1], results[1][1]) == 0


def test_a_masked_out_episode_changes_no_update():
    """Row 2, through the update."""
    for mode in ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"):
        cfg = arl.RLConfig(group_size=4, minibatches=1, loss_mode=mode)
        masked = copy.deepcopy(sampled(1)[3])
        masked.action_mask = [0] * len(masked.ids)
        a, stats_a = updated(arl.rl_update, cfg, signal(16), sampled(1), steps=1)
        extra = torch.cat([signal(16), torch.tensor([5.0])])
        b, stats_b = updated(arl.rl_update, cfg, extra, [*sampled(1), masked], steps=1)
        assert stats_a["grad_norm"] == pytest.approx(stats_b["grad_norm"], rel=1e-4)
        assert stats_a["entropy"] == pytest.approx(stats_b["entropy"], rel=1e-5)
        assert distance(a, b) < 0.02 * cfg.lr


@pytest.mark.parametrize("reference", [False, True])
def test_a_batch_without_policy_tokens_gives_a_finite_update_without_gradient(reference):
    """Row 2: loss 0 and finite, gradients 0."""
    trajs = copy.deepcopy(sampled(1)[:4])
    for traj in trajs:
        traj.action_mask = [0] * len(traj.ids)
    cfg = arl.RLConfig(group_size=4, kl_coef=0.1 if reference else 0.0)
    ref = fresh_agent(seed=5) if reference else None
    model, stats = updated(arl.rl_update, cfg, signal(4), trajs, ref_model=ref)
    assert stats["grad_norm"] == 0 and distance(model, agent()) == 0
    assert all(np.isfinite(v) for v in stats.values())


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_the_reference_is_left_alone_and_pulls(kind):
    reference = agent()
    with torch.no_grad():
        for i, p in enumerate(reference.parameters()):
            p += 0.05 * torch.randn(p.shape, generator=gen(i))
    before = weights(reference)
    cfg = arl.RLConfig(group_size=4, kl_coef=1.0, kl_kind=kind)
    model, stats = updated(arl.rl_update, cfg, torch.zeros(16), steps=4, ref_model=reference)
    assert distance(reference, before) == 0
    assert all(p.grad is None for p in reference.parameters())
    assert stats["kl_ref"] > 0 and distance(model, agent()) > 1e-4
    if kind != "k1":
        _, first = updated(arl.rl_update, cfg, torch.zeros(16), steps=1, ref_model=reference)
        assert stats["kl_ref"] < 0.9 * first["kl_ref"], "the penalty is followed, zero advantages or not"


def test_kl_is_reported_without_being_followed_at_coefficient_zero():
    cfg = arl.RLConfig(group_size=4)
    plain, without = updated(arl.rl_update, cfg, signal(16, [1, 2]), steps=1)
    model, stats = updated(
        arl.rl_update, cfg, signal(16, [1, 2]), steps=1, ref_model=fresh_agent(seed=5)
    )
    assert stats["kl_ref"] > 0.01 and "kl_ref" not in without
    assert distance(model, plain) < 0.02 * cfg.lr
    same = updated(arl.rl_update, replace(cfg, lr=0.0), signal(16), steps=1, ref_model=agent())[1]
    assert same["kl_ref"] == pytest.approx(0, abs=1e-6)


def test_an_entropy_bonus_raises_the_entropy_also_where_no_reward_differs():
    """Row 20: the bonus has a gradient, and it is that of the mean entropy of the policy's own tokens."""
    cfg = arl.RLConfig(group_size=4, minibatches=1, entropy_coef=0.1, lr=1e-3)
    plain, _ = updated(arl.rl_update, replace(cfg, entropy_coef=0.0), torch.zeros(16), steps=1)
    assert distance(plain, agent()) == 0
    batch, sgd, model = batch_of(sampled(1)), torch.optim.SGD, agent()
    mask = batch["action_mask"]

    def mean_entropy(model):
        return arl.masked_mean(arl.entropy_from_logits(model(batch["ids"])[:, :-1]), mask)

    gradient = torch.autograd.grad(mean_entropy(model), model.parameters())
    wide = replace(cfg, max_grad_norm=1e9, lr=1.0)
    moved, _ = updated(arl.rl_update, wide, torch.zeros(16), steps=1, optimizer=sgd)
    for p, q, g in zip(moved.parameters(), model.parameters(), gradient, strict=True):
        assert torch.allclose(p - q, cfg.entropy_coef * g, rtol=1e-3, atol=1e-6)
    before = mean_entropy(model).item()
    model, _ = updated(arl.rl_update, cfg, torch.zeros(16), steps=10)
    assert mean_entropy(model).item() > before + 0.01


def test_more_padding_changes_no_entropy():
    """Row 20: entropies are those of the policy's tokens, whatever stands behind them, and never negative."""
    batch, model = batch_of(sampled(1)), agent()
    longer = {k: torch.nn.functional.pad(v, (0, 7)) if v.dim() == 2 else v for k, v in batch.items()}
    values = []
    for b in (batch, longer):
        (h,) = arl.at_actions(model, b["ids"], b["action_mask"], (arl.entropy_at,))
        assert h.min() >= 0 and (h * (1 - b["action_mask"]) == 0).all()
        values.append(arl.masked_mean(h, b["action_mask"]).item())
    assert values[0] == pytest.approx(values[1], rel=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_in_the_reward_is_taken_off_it_and_not_in_the_loss(kind):
    cfg = arl.RLConfig(group_size=4, kl_coef=0.3, kl_kind=kind, kl_in="reward", adv_mode="mean")
    reference = fresh_agent(seed=5)
    batch = arl.grpo.with_reference(batch_of(sampled(1)), reference, cfg)
    penalty = arl.kl_penalty(batch["sampler_logps"], batch["ref_logps"], kind)
    want = batch["rewards"] - 0.3 * torch.stack([p[m.bool()].sum() for p, m in zip(penalty, batch["action_mask"])])
    assert torch.allclose(arl.shaped_rewards(batch, cfg), want, atol=1e-5)
    assert torch.allclose(arl.compute_advantages(batch, cfg), arl.group_advantages(want, 4, False), atol=1e-5)
    _, stats = updated(arl.rl_update, replace(cfg, kl_in="loss"), torch.zeros(16), steps=1, ref_model=reference)
    model, same = updated(arl.rl_update, cfg, torch.zeros(16), steps=1, ref_model=reference)
    assert same["grad_norm"] == 0 and distance(model, agent()) == 0
    assert same["kl_ref"] > 0 and (stats["grad_norm"] > 0 or kind == "k1")


def test_kl_in_the_reward_without_a_reference_is_refused():
    cfg = arl.RLConfig(group_size=4, kl_coef=0.3, kl_in="reward")
    with pytest.raises(ValueError, match="ref_logps"):
        arl.compute_advantages(batch_of(sampled(1)), cfg)
    with pytest.raises(ValueError, match="ref_model is None"):
        updated(arl.rl_update, cfg, signal(16), steps=1)


def test_updates_stop_once_the_policy_has_moved_past_the_target():
    cfg = arl.RLConfig(group_size=4, epochs=5, minibatches=2, lr=0.01)
    _, free = updated(arl.rl_update, cfg, signal(16), steps=1)
    assert free["updates"] == 10
    _, stopped = updated(arl.rl_update, replace(cfg, target_kl=free["approx_kl"] / 4), signal(16), steps=1)
    assert 1 <= stopped["updates"] < 10 and stopped["approx_kl"] < free["approx_kl"]
    _, never = updated(arl.rl_update, replace(cfg, target_kl=1e6), signal(16), steps=1)
    assert never == free
    _, once = updated(arl.rl_update, replace(cfg, target_kl=1e-12), signal(16), steps=1)
    assert once["updates"] == 1


@pytest.mark.parametrize("epochs, minibatches", [(1, 1), (1, 3), (2, 2), (3, 16)])
def test_an_update_makes_epochs_times_minibatches_steps_over_all_rows(monkeypatch, epochs, minibatches):
    seen = []
    real = arl.grpo.minibatch_loss

    def watch(model, batch, rows, *rest):
        seen.append(rows.tolist())
        return real(model, batch, rows, *rest)

    monkeypatch.setattr(arl.grpo, "minibatch_loss", watch)
    cfg = arl.RLConfig(group_size=4, epochs=epochs, minibatches=minibatches)
    updated(arl.rl_update, cfg, signal(16), steps=1)
    assert len(seen) == epochs * minibatches
    for i in range(epochs):
        part = seen[i * minibatches : (i + 1) * minibatches]
        assert sorted(r for rows in part for r in rows) == list(range(16))
        assert max(map(len, part)) - min(map(len, part)) <= 1
    assert sum(seen, []) != list(range(16)) * epochs, "the generator shuffles"


@pytest.mark.parametrize("norm", [0.01, 1e6])
def test_the_gradient_is_clipped_to_its_greatest_norm(norm):
    cfg = arl.RLConfig(group_size=4, minibatches=1, max_grad_norm=norm, lr=1.0)
    model = agent()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = weights(model)
    stats = arl.rl_update(model, optimizer, batch_of(sampled(1)), signal(16), cfg)
    step = sum(((weights(model)[k] - before[k]) ** 2).sum() for k in before).sqrt().item()
    assert stats["grad_norm"] > 0.05, "before clipping"
    assert step == pytest.approx(min(norm, stats["grad_norm"]), rel=1e-3)


# Samples of another policy.


def test_weights_by_hand():
    w = torch.tensor([[4.0, 1.5, 1.0, 0.6, 0.25, 1e9], [1.0] * 6])
    mask = torch.tensor([[1.0] * 5 + [0.0], [0.0] * 6])
    sampler = torch.full((2, 6), -3.0)
    want = {"recompute": ([1.0] * 5, 0), "truncate": ([2, 1.5, 1, 0.6, 0.25], 0.2), "mask": ([0, 1.5, 1, 0.6, 0], 0.4)}
    for kind, (weights_, cut) in want.items():
        old = (sampler + w.log()).requires_grad_()
        got, stats = arl.correction_weights(old, sampler, mask, kind, 2.0)
        assert torch.allclose(got[0, :5], torch.tensor(weights_), atol=1e-5) and not got.requires_grad
        assert stats["weight_cut"] == pytest.approx(cut) and stats["weight_max"] == pytest.approx(4)
        assert stats["mismatch_kl"] == pytest.approx((w - 1 - w.log())[0, :5].mean().item(), rel=1e-5)
    nothing, stats = arl.correction_weights(old, sampler, torch.zeros(2, 6), "mask", 2.0)
    assert nothing.isfinite().all() and stats == {"mismatch_kl": 0.0, "weight_max": 1.0, "weight_cut": 0.0}


@pytest.mark.parametrize("change, word", [({"kind": "clip"}, "'clip'"), ({"cap": 0.5}, "0.5"), ({"cap": NAN}, "nan")])
def test_weights_refuse_wrong_settings(change, word):
    with pytest.raises(ValueError, match=word):
        arl.correction_weights(*[torch.zeros(1, 2)] * 3, **{"kind": "mask", "cap": 2.0, **change})
    for wrong in (torch.zeros(2), torch.zeros(1, 3)):
        with pytest.raises(ValueError, match="sampler_logp has shape"):
            arl.correction_weights(torch.zeros(1, 2), wrong, torch.zeros(1, 2))


def plain_corrected(model, batch, advantages, cfg, newest=False):
    """The corrected update written out: one row of weights a token, from the trainer before the first step (or, wrongly,
    from the newest policy); plain gradient descent, rows in order."""
    ids, mask = batch["ids"], batch["action_mask"]
    logp_of = lambda: torch.where(mask.bool(), arl.action_log_probs(model, ids, mask, cfg.temperature), 0.0)
    old = logp_of().detach()
    for _ in range(cfg.epochs):
        for rows in torch.arange(len(ids)).tensor_split(cfg.minibatches):
            logp = logp_of()
            w = ((logp.detach() if newest else old) - batch["sampler_logps"]).exp()
            out = w > cfg.correction_cap
            if cfg.correction == "mask":
                w = torch.where(out | (w < 1 / cfg.correction_cap), 0.0, w)
            w = torch.ones_like(w) if cfg.correction == "recompute" else w.clamp(max=cfg.correction_cap)
            r = (logp - old).exp()
            clipped = r.clamp(1 - cfg.clip_low, 1 + cfg.clip_high)
            objective = w * torch.minimum(r * advantages[:, None], clipped * advantages[:, None])
            loss = -(objective * mask)[rows].sum() / mask[rows].sum()
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= cfg.lr * p.grad
    return model


def corrected_case(correction, zero_rows=(), **fields):
    """(updated by rl_update, its stats, inputs of `plain_corrected` after the model): weights moved since sampling."""
    cfg = arl.RLConfig(
        group_size=4, lr=0.2, max_grad_norm=1e6, correction=correction, correction_cap=1.1, **{"temperature": 0.8} | fields
    )
    batch, advantages = batch_of(sampled(1, cfg.temperature)), signal(16, zero_rows)
    model = moved_agent()
    stats = arl.rl_update(model, torch.optim.SGD(model.parameters(), lr=cfg.lr), batch, advantages, cfg)
    return model, stats, (batch, advantages, cfg)


def moved_agent():
    model = agent()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.02 * torch.randn(p.shape, generator=gen(p.numel()))
    return model


@pytest.mark.parametrize("zero_rows", [(), (0, 3, 4, 9, 15)], ids=["none", "some"])
@pytest.mark.parametrize("correction", ["recompute", "truncate", "mask"])
def test_the_weight_is_old_over_sampler_and_never_the_new_policy(correction, zero_rows):
    """Row 7: policy of sampling, policy of the old log-probs, new policy are three. The weight has the first two, the
    ratio the last two; and a token of weight 0 keeps its place in the average."""
    model, stats, inputs = corrected_case(correction, zero_rows, epochs=2, minibatches=2)
    moved = distance(model, moved_agent())
    assert moved > 0.01 and distance(model, plain_corrected(moved_agent(), *inputs)) < 1e-3 * moved
    assert stats["mismatch_kl"] > 1e-3 and stats["weight_max"] > 1.1
    assert (0.01 < stats["weight_cut"] < 1) == (correction != "recompute")
    if correction != "recompute":
        wrong = plain_corrected(moved_agent(), *inputs, newest=True)
        assert distance(model, wrong) > 0.02 * moved


def test_ratios_are_one_at_the_first_step_whatever_the_sampler():
    for correction in arl.CHOICES["correction"]:
        _, stats, _ = corrected_case(correction, minibatches=1)
        assert stats["ratio_min"] == pytest.approx(1, abs=1e-4) and stats["clip_frac"] == 0


def test_corrections_of_a_sampler_that_is_the_trainer_change_nothing():
    cfg = arl.RLConfig(group_size=4, lr=0.2)
    plain, _ = updated(arl.rl_update, cfg, signal(16), steps=1, optimizer=torch.optim.SGD)
    for correction in arl.CHOICES["correction"]:
        fields = {"correction": correction}
        model, stats = updated(arl.rl_update, replace(cfg, **fields), signal(16), steps=1, optimizer=torch.optim.SGD)
        assert distance(model, plain) < 1e-3 * distance(model, agent())
        assert stats["weight_cut"] == 0 and stats["weight_max"] == pytest.approx(1, abs=1e-4)


def test_old_log_probs_given_with_the_batch_are_not_believed():
    """They could be those of an earlier batch's weights."""
    model, _, (batch, advantages, cfg) = corrected_case("truncate")
    again = moved_agent()
    stale = {**batch, "old_logps": torch.full_like(batch["sampler_logps"], -9.0)}
    arl.rl_update(again, torch.optim.SGD(again.parameters(), lr=cfg.lr), stale, advantages, cfg)
    assert distance(model, again) == 0


def test_stats_of_an_update_are_floats_with_fixed_names():
    keys = {"clip_frac", "approx_kl", "ratio_min", "ratio_max", "entropy", "grad_norm", "updates"}
    cfg = arl.RLConfig(group_size=4)
    _, stats = updated(arl.rl_update, cfg, signal(16), steps=1)
    assert set(stats) == keys and all(type(v) is float for v in stats.values())
    _, stats = updated(arl.rl_update, cfg, signal(16), steps=1, ref_model=agent())
    assert set(stats) == keys | {"kl_ref"}


@pytest.mark.parametrize(
    "fields, change, words",
    [
        ({"kl_coef": 0.1}, {}, ["ref_model", "None", "kl_coef = 0.1"]),
        ({}, {"advantages": torch.zeros(15)}, ["advantages", "(15,)", "(16,)"]),
        ({}, {"advantages": torch.zeros(16, 1)}, ["advantages", "(16, 1)", "(16,)"]),
        ({"minibatches": 20}, {}, ["minibatches", "20", "16"]),
        ({}, {"action_mask": torch.ones(16, 3)}, ["action_mask", "(16, 3)"]),
    ],
)
def test_an_update_refuses_wrong_values_before_any_work(fields, change, words):
    model, batch = agent(), batch_of(sampled(1))
    if "action_mask" in change:
        batch["action_mask"] = change["action_mask"]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with pytest.raises(ValueError) as error:
        arl.rl_update(model, optimizer, batch, change.get("advantages", signal(16)), arl.RLConfig(**fields))
    assert all(word in str(error.value) for word in words)
    assert distance(model, agent()) == 0 and not optimizer.state


# A step's sample.


class FakeSampler:
    """Stands in for `sample_groups`: rewards by task, and a record of which tasks were asked for."""

    def __init__(self, rewards):
        self.rewards, self.rounds = rewards, []

    def __call__(self, model, env_factory, tasks, tok, cfg, generator):
        self.rounds.append([t.name for t in tasks])
        trajs = []
        for g, task in enumerate(tasks):
            for i in range(cfg.group_size):
                traj = copy.deepcopy(sampled(1)[i])
                traj.reward = float(self.rewards(task, i, len(self.rounds)))
                traj.info |= {"task": task.name, "group": g, "hidden_pass": traj.reward > 0}
                trajs.append(traj)
        return trajs


def step_with(monkeypatch, rewards, tasks=None, **fields):
    fake = FakeSampler(rewards)
    monkeypatch.setattr(arl.grpo, "sample_groups", fake)
    cfg = arl.RLConfig(**({"group_size": 4, "prompts_per_step": 4, "dynamic_sampling": True} | fields))
    kept, got = arl.sample_step(agent(), arl.make_env, tasks or train_tasks(), tokenizer(), cfg, gen(2))
    return fake, kept, got


def mixed(task, i, n):
    return i % 2


def test_without_dynamic_sampling_everything_is_kept(monkeypatch):
    fake, kept, got = step_with(monkeypatch, lambda *a: 0, dynamic_sampling=False)
    assert len(fake.rounds) == 1 and kept == got and len(kept) == 16
    assert len(set(fake.rounds[0])) == 4, "tasks are drawn without repeats"


@pytest.mark.parametrize("n_tasks, prompts", [(3, 8), (8, 8), (20, 3)])
def test_tasks_repeat_only_when_they_run_out(monkeypatch, n_tasks, prompts):
    fake, _, _ = step_with(monkeypatch, mixed, train_tasks()[:n_tasks], prompts_per_step=prompts)
    counts = [fake.rounds[0].count(t.name) for t in train_tasks()[:n_tasks]]
    assert sum(counts) == prompts and max(counts) - min(counts) <= 1


def test_dynamic_sampling_stops_as_soon_as_all_groups_differ(monkeypatch):
    fake, kept, got = step_with(monkeypatch, mixed)
    assert len(fake.rounds) == 1 and len(kept) == len(got) == 16


def test_dynamic_sampling_keeps_whole_informative_groups_and_refills(monkeypatch):
    names = [t.name for t in train_tasks()]

    def half(task, i, n):
        return i % 2 if names.index(task.name) % 2 else 1

    fake, kept, got = step_with(monkeypatch, half, max_sample_rounds=10)
    assert 1 < len(fake.rounds) < 10 and len(kept) == 16
    assert len(got) == 16 * len(fake.rounds)
    groups = [kept[i : i + 4] for i in range(0, 16, 4)]
    for group in groups:
        assert len({t.info["group"] for t in group}) == len({t.info["task"] for t in group}) == 1
        assert [t.reward for t in group] == [0, 1, 0, 1]
    assert len({g[0].info["group"] for g in groups}) == 4, "rounds do not share group ids"
    assert len({t.info["group"] for t in got}) == len(got) // 4
    cfg = arl.RLConfig(group_size=4)
    advantages = arl.compute_advantages(batch_of(kept), cfg)
    assert (advantages != 0).all()


def test_dynamic_sampling_gives_up_after_its_rounds_with_what_it_has(monkeypatch):
    def once(task, i, n):
        return i % 2 if task.name == "minmax/clamp" else 0

    tasks = train_tasks()[:4]
    fake, kept, got = step_with(monkeypatch, once, tasks, max_sample_rounds=3)
    assert len(fake.rounds) == 3 and len(got) == 48 and len(kept) == 12
    assert {t.info["task"] for t in kept} == {"minmax/clamp"}


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("call", ["<call> submit </call>", "<call> edit </call>"])
def test_a_policy_that_always_fails_ends_each_step_without_an_update(call, rounds):
    """Row 27: stops at max_sample_rounds, says so in the record, no update, no crash."""
    tok = tokenizer()
    model = says(tok, call)
    before = weights(model)
    cfg = arl.RLConfig(
        group_size=2, prompts_per_step=3, dynamic_sampling=True, max_sample_rounds=rounds, lr=0.1
    )
    history = arl.train_rl(model, train_tasks(), tok, cfg, 2)
    for record in history:
        assert record["n_episodes"] == rounds * 3 * 2
        assert record["updated"] is False and record["zero_adv_frac"] == 1.0
        assert record["pass_rate"] == record["reward"] == 0.0
        assert "grad_norm" not in record and "entropy" not in record
    assert distance(model, before) == 0


def test_a_policy_that_always_fails_is_not_moved_without_dynamic_sampling_either():
    """Row 27 without refilling: the step counts as one without signal."""
    model = says(tokenizer(), "<call> submit </call>")
    before = weights(model)
    cfg = arl.RLConfig(group_size=2, prompts_per_step=3, lr=0.1)
    (record,) = arl.train_rl(model, train_tasks(), tokenizer(), cfg, 1)
    assert record["zero_adv_frac"] == 1.0 and record["n_episodes"] == 6
    assert record["grad_norm"] == 0.0 and distance(model, before) == 0


def test_fewer_kept_episodes_than_minibatches_are_trained_on(monkeypatch):
    def once(task, i, n):
        return i % 2 if task.name == "minmax/clamp" else 0

    monkeypatch.setattr(arl.grpo, "sample_groups", FakeSampler(once))
    cfg = arl.RLConfig(
        group_size=2, prompts_per_step=4, dynamic_sampling=True, max_sample_rounds=1, minibatches=8
    )
    model = agent()
    (record,) = arl.train_rl(model, train_tasks()[:4], tokenizer(), cfg, 1)
    assert record["updated"] is True and record["zero_adv_frac"] == 0.75
    assert distance(model, agent()) > 1e-4


# Training.

SMALL = {"group_size": 2, "prompts_per_step": 3, "max_turns": 3}


def pays(info):
    """A reward that differs often: for each read, and for a pass."""
    reads = sum(action == "<call> read </call>" for action in info["actions"])
    return 0.5 * (reads > 0) + info["hidden_pass"]


class Watched:
    """An environment factory that remembers which prompts were asked, in order."""

    def __init__(self, stop_after=None):
        self.prompts, self.stop_after = [], stop_after

    def __call__(self, cfg):
        watcher, env = self, arl.make_env(cfg)
        reset = env.reset

        def remember(task):
            watcher.prompts.append(task.issue)
            if watcher.stop_after is not None and len(watcher.prompts) > watcher.stop_after:
                raise KeyboardInterrupt
            return reset(task)

        env.reset = remember
        return env


def trained(steps, model=None, factory=None, fields=(), **kwargs):
    model = model or agent()
    cfg = arl.RLConfig(**(SMALL | {"reward": "public", "seed": 3} | dict(fields)))
    history = arl.train_rl(
        model, train_tasks(), tokenizer(), cfg, steps, env_factory=factory, **kwargs
    )
    return history, model


def test_history_has_one_record_a_step_with_the_promised_keys():
    history, model = trained(4, eval_tasks=arl.make_tasks("heldout")[:2], eval_every=2, fields={"reward": pays})
    always = {
        "step", "n_episodes", "zero_adv_frac", "updated", "pass_rate", "reward", "reads", "tests",
        "edits", "first_edit_right", "turns", "length", "clip_frac", "approx_kl", "ratio_min",
        "ratio_max", "entropy", "grad_norm", "updates",
    }  # fmt: skip
    assert [r["step"] for r in history] == [1, 2, 3, 4]
    for record in history:
        evaluated = {"eval_pass"} if record["step"] % 2 == 0 else set()
        assert set(record) == always | evaluated
        assert record["n_episodes"] == 6 and 0 <= record["zero_adv_frac"] <= 1
        assert all(np.isfinite(v) for v in record.values())
    assert distance(model, agent()) > 1e-4, "trained in place"
    with_reference, _ = trained(1, fields={"kl_coef": 0.1}, ref_model=agent())
    assert set(with_reference[0]) == always | {"kl_ref"}


def test_the_last_step_is_evaluated_too():
    history, _ = trained(3, eval_tasks=train_tasks()[:1], eval_every=2)
    assert ["eval_pass" in r for r in history] == [False, True, True]


def test_no_steps_are_no_history():
    history, model = trained(0)
    assert history == [] and distance(model, agent()) == 0


def test_training_is_reproducible_from_its_seed_alone():
    torch.manual_seed(0)
    random.seed(0)
    first, model = trained(3)
    torch.manual_seed(1)
    random.seed(1)
    state = torch.random.get_rng_state()
    again, twin = trained(3)
    assert first == again and distance(model, twin) == 0
    assert torch.equal(torch.random.get_rng_state(), state)
    other, _ = trained(3, fields={"seed": 4})
    assert other != first


def test_evaluating_does_not_change_training():
    plain, model = trained(4)
    evaluated, twin = trained(4, eval_tasks=arl.make_tasks("heldout")[:2], eval_every=1)
    assert all("eval_pass" in r for r in evaluated)
    assert [{k: v for k, v in r.items() if k != "eval_pass"} for r in evaluated] == plain
    assert distance(model, twin) == 0


@pytest.mark.parametrize("variant", arl.VARIANTS)
def test_every_variant_trains(variant):
    fields = {k: v for k, v in arl.VARIANTS[variant].items()} | {"reward": pays}
    reference = agent() if variant == "grpo" else None
    history, model = trained(2, fields=fields, ref_model=reference)
    assert any(r["updated"] for r in history) and distance(model, agent()) > 1e-5
    assert ("kl_ref" in history[0]) == (variant == "grpo")


@pytest.mark.parametrize("seed", range(2))
def test_training_follows_the_reward(seed):
    """Twelve small steps, paid for reading: the agent reads."""

    def reading(info):
        return float("<call> read </call>" in info["actions"])

    fields = {"reward": reading, "group_size": 8, "prompts_per_step": 4, "lr": 2e-3, "max_turns": 2}
    history, _ = trained(12, fields=fields | {"seed": seed})
    rewards = [r["reward"] for r in history]
    assert rewards[0] < 0.7 and sum(rewards[-3:]) / 3 > 0.85
    assert history[-1]["reads"] >= history[-1]["reward"] > 0.8


def test_a_group_of_one_trains_without_signal():
    """Row 11, through the loop."""
    history, model = trained(2, fields={"group_size": 1, "reward": lambda info: 0.7})
    assert distance(model, agent()) == 0
    assert [r["zero_adv_frac"] for r in history] == [1.0, 1.0]


def test_progress_goes_to_the_logger_with_all_a_reader_needs(caplog):
    caplog.set_level(logging.INFO, logger="agentrl")
    trained(5, log_every=2, eval_tasks=train_tasks()[:1], eval_every=3)
    lines = [r.getMessage() for r in caplog.records if r.name == "agentrl"]
    assert [line.split(":")[0].split()[-1] for line in lines] == ["2/5", "4/5", "5/5"]
    assert all("reward" in line and "reads" in line and "left" in line for line in lines)
    assert "held-out" not in lines[0] and "held-out" in lines[1]
    caplog.clear()
    trained(2)
    assert not caplog.records


# Checkpoints.


@pytest.mark.parametrize(
    "eval_every, fields",
    [
        (1, {}), (2, {}), (3, {}), (20, {}), (2, {"dynamic_sampling": True, "max_sample_rounds": 2}),
        (20, {"kl_coef": 0.1}), (2, {"epochs": 2, "reward": pays}),
    ],
)  # fmt: skip
def test_three_steps_and_three_more_are_six(tmp_path, eval_every, fields):
    """Row 26: identical history, prompts included, and identical weights."""
    reference = agent() if "kl_coef" in fields else None
    kwargs = {"eval_tasks": train_tasks()[:2], "eval_every": eval_every, "ref_model": reference, "fields": fields}
    whole, halves = Watched(), Watched()
    history, model = trained(6, factory=whole, **kwargs)
    first, _ = trained(3, factory=halves, checkpoint=tmp_path / "run.pt", **kwargs)
    assert len(first) == 3
    if eval_every == 2:
        assert "eval_pass" in first[-1], "three steps alone end with an evaluation, six do not have it there"
        extra = len(train_tasks()[:2]) * 4
        del halves.prompts[-extra:]
    if eval_every == 20:
        del halves.prompts[-8:]
    second, twin = trained(6, fresh_agent(seed=9), halves, checkpoint=tmp_path / "run.pt", **kwargs)
    assert second == history
    assert halves.prompts == whole.prompts
    assert distance(model, twin) == 0


@pytest.mark.parametrize("stop_at", [1, 3, 4, 5])
def test_a_run_killed_between_steps_goes_on_as_if_unbroken(tmp_path, stop_at):
    """Row 26: killed while sampling step `stop_at` + 1, or right at the start of it."""
    path, whole = tmp_path / "run.pt", Watched()
    history, model = trained(6, factory=whole, eval_every=2)
    with pytest.raises(KeyboardInterrupt):
        trained(6, factory=Watched(stop_at * 6 + 2), checkpoint=path, eval_every=2)
    assert path.exists() == (stop_at >= 2)
    assert [p.name for p in tmp_path.iterdir()] == ([path.name] if stop_at >= 2 else [])
    rest = Watched()
    again, twin = trained(6, agent(), rest, checkpoint=path, eval_every=2)
    assert again == history and distance(model, twin) == 0
    assert rest.prompts == whole.prompts[stop_at // 2 * 2 * 6 :]


def test_a_run_killed_while_saving_keeps_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    history, model = trained(4, eval_every=2)
    trained(2, checkpoint=path, eval_every=2)
    kept = path.read_bytes()
    with monkeypatch.context() as patch:

        def torn(state, file):
            file.write(b"half")
            raise KeyboardInterrupt

        patch.setattr(torch, "save", torn)
        with pytest.raises(KeyboardInterrupt):
            trained(4, checkpoint=path, eval_every=2)
    assert path.read_bytes() == kept
    again, twin = trained(4, checkpoint=path, eval_every=2)
    assert again == history and distance(model, twin) == 0


def test_a_finished_run_is_read_back_without_work(tmp_path):
    history, model = trained(2, checkpoint=tmp_path / "run.pt")
    watch = Watched()
    again, twin = trained(2, fresh_agent(seed=9), watch, checkpoint=tmp_path / "run.pt")
    assert again == history and distance(model, twin) == 0 and watch.prompts == []


@pytest.mark.parametrize(
    "change, word",
    [
        ({"lr": 0.002}, "lr = 0.001"),
        ({"seed": 4}, "seed = 3"),
        ({"group_size": 3}, "group_size = 2"),
        ({"reward": "hidden"}, "reward = 'public'"),
        ({"reward": pays}, "reward = 'public'"),
        ({"max_edits": None}, "max_edits = 1"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(tmp_path, change, word):
    """Row 26."""
    path = tmp_path / "run.pt"
    trained(1, checkpoint=path)
    kept, model, watch = path.read_bytes(), fresh_agent(seed=9), Watched()
    with pytest.raises(ValueError) as error:
        trained(2, model, watch, fields=change, checkpoint=path)
    assert all(w in str(error.value) for w in ("checkpoint", "run.pt", word))
    assert path.read_bytes() == kept and watch.prompts == []
    assert distance(model, fresh_agent(seed=9)) == 0


@pytest.mark.parametrize(
    "change, words",
    [
        ({"steps": -1}, ["steps", "-1", "at least 0"]),
        ({"steps": 2.0}, ["steps", "2.0", "at least 0"]),
        ({"steps": True}, ["steps", "True", "at least 0"]),
        ({"steps": None}, ["steps", "None", "at least 0"]),
        ({"eval_every": 0}, ["eval_every", "0", "at least 1"]),
        ({"eval_every": "2"}, ["eval_every", "'2'", "at least 1"]),
        ({"log_every": -1}, ["log_every", "-1", "at least 0"]),
        ({"log_every": 1.5}, ["log_every", "1.5", "at least 0"]),
        ({"tasks": []}, ["tasks", "at least one"]),
        ({"checkpoint": "no/such/folder/run.pt"}, ["checkpoint", "no/such/folder/run.pt", "folder"]),
        ({"kl_coef": 0.1}, ["ref_model", "None", "kl_coef = 0.1"]),
    ],
)
def test_training_refuses_wrong_values_before_any_work(change, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    watch, model = Watched(), agent()
    args = {"tasks": train_tasks(), "steps": 1} | {k: v for k, v in change.items() if k != "kl_coef"}
    cfg = arl.RLConfig(**SMALL, kl_coef=change.get("kl_coef", 0.0))
    with pytest.raises(ValueError) as error:
        arl.train_rl(model, tok=tokenizer(), cfg=cfg, env_factory=watch, **args)
    assert all(word in str(error.value) for word in words)
    assert watch.prompts == [] and distance(model, agent()) == 0


# Evaluation.


def test_evaluation_plays_every_task_as_often_as_asked_in_its_environment():
    tok, tasks = tokenizer(), arl.make_tasks("heldout")
    watch = Watched()
    stats = arl.evaluate(agent(), tasks, tok, n_samples=3, env_factory=watch)
    assert len(watch.prompts) == 30 and len(set(watch.prompts)) > 15, "new names each time"
    assert set(stats) == {
        "pass_rate", "reward", "reads", "tests", "edits", "first_edit_right", "turns", "length",
    }  # fmt: skip
    watch = Watched()
    cfg = arl.RLConfig(rename=False, max_turns=2)
    short = arl.evaluate(agent(), tasks, tok, 2, cfg=cfg, env_factory=watch)
    assert watch.prompts == [t.issue for t in tasks for _ in range(2)]
    assert short["turns"] <= 2 < stats["turns"]


def test_evaluation_is_reproducible_and_follows_generator_and_temperature():
    tok, tasks = tokenizer(), arl.make_tasks("heldout")[:4]
    model = agent()

    def run(seed=None, temperature=1.0):
        g = None if seed is None else gen(seed)
        return arl.evaluate(model, tasks, tok, 2, temperature, g)

    assert run() == run(0) == run(0) != run(1)
    assert run(0, 0.3) != run(0)
    assert all(p.grad is None for p in model.parameters()) and distance(model, agent()) == 0


def test_evaluation_works_for_any_training_settings():
    """One sample a task is a group of one, also where training compares with the others of a group."""
    for fields in arl.VARIANTS.values():
        cfg = arl.RLConfig(**fields)
        stats = arl.evaluate(agent(), train_tasks()[:2], tokenizer(), 1, cfg=cfg)
        assert stats["turns"] >= 1


def test_a_certain_policy_is_evaluated_exactly():
    tok = tokenizer()
    stats = arl.evaluate(says(tok, "<call> submit </call>"), train_tasks(), tok, 2)
    assert (stats["pass_rate"], stats["turns"], stats["reads"], stats["edits"]) == (0, 1, 0, 0)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"n_samples": 0}, ["n_samples", "0", "at least 1"]),
        ({"n_samples": 1.5}, ["n_samples", "1.5", "at least 1"]),
        ({"n_samples": True}, ["n_samples", "True", "at least 1"]),
        ({"temperature": 0}, ["temperature", "0", "above 0"]),
        ({"temperature": NAN}, ["temperature", "nan", "above 0"]),
        ({"tasks": []}, ["tasks", "at least one"]),
    ],
)
def test_evaluation_refuses_wrong_values_before_any_work(change, words):
    watch = Watched()
    args = {"tasks": train_tasks()[:1], "n_samples": 1} | change
    with pytest.raises(ValueError) as error:
        arl.evaluate(agent(), tok=tokenizer(), env_factory=watch, **args)
    assert all(word in str(error.value) for word in words) and watch.prompts == []


# Base agents.


def test_imitation_raises_the_demonstrations_log_probs():
    tok, model = tokenizer(), fresh_agent(seed=1)
    demos = arl.demonstrations(tok, ("blind",), random.Random(0), per_task=1)
    losses = arl.imitate(model, demos, tok, 12, gen(0), lr=1e-2, batch_size=8)
    assert len(losses) == 12 and losses[0] > 2 and losses[-1] < 0.6 * losses[0]


def test_demonstrations_are_one_set_an_entry():
    tok = tokenizer()
    demos = arl.demonstrations(tok, ("oracle", "blind", "blind"), random.Random(0), per_task=2)
    assert len(demos) == 3 * 20 * 2
    assert all(t.reward == 1.0 and t.info["n_turns"] == 4 for t in demos[:40])
    assert all(t.info["n_turns"] == 2 for t in demos[40:])
    assert len({t.info["task"] for t in demos}) == 20, "held-out tasks are not shown"


@pytest.mark.parametrize("kinds", [(), ("expert",), ("random", "Blind"), ("random", ""), "random", [None]])
@pytest.mark.parametrize("fn", [arl.make_base_agent, lambda tok, kinds: arl.demonstrations(tok, kinds, None)])
def test_an_unknown_kind_of_demonstration_is_refused(fn, kinds):
    with pytest.raises(ValueError) as error:
        fn(tokenizer(), kinds=kinds)
    assert all(w in str(error.value) for w in ("kinds", repr(kinds), "random", "blind", "oracle"))


@pytest.fixture
def quick_imitation(monkeypatch, tmp_path):
    """Base agents after one short step, in a cache of the test's own; returns the trainings made."""
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    real, made = reinforce.train_base_agent, []

    def quick(tok, seed=0, kinds=("random", "blind"), steps=1):
        made.append((seed, tuple(kinds)))
        return real(tok, seed, kinds, 1)

    monkeypatch.setattr(reinforce, "train_base_agent", quick)
    return made


def test_base_agents_are_trained_once_and_read_back(quick_imitation, tmp_path):
    tok = tokenizer()
    first = arl.make_base_agent(tok, 5, ("blind",))
    again = arl.make_base_agent(tok, 5, ("blind",))
    assert quick_imitation == [(5, ("blind",))] and distance(first, again) == 0
    assert len(list((tmp_path / "cache").glob("*.pt"))) == 1
    again.embed.weight.data.zero_()
    assert distance(first, arl.make_base_agent(tok, 5, ("blind",))) == 0
    arl.make_base_agent(tok, 6, ("blind",))
    arl.make_base_agent(tok, 5, ("blind", "blind"))
    assert len(quick_imitation) == 3, "another seed or another mix is another agent"


def test_a_broken_cache_file_is_made_anew(quick_imitation, tmp_path):
    tok = tokenizer()
    first = arl.make_base_agent(tok, 5, ("blind",))
    (path,) = (tmp_path / "cache").glob("*.pt")
    for junk in (b"", b"half a file", path.read_bytes()[:1000]):
        path.write_bytes(junk)
        assert distance(first, arl.make_base_agent(tok, 5, ("blind",))) == 0
    assert len(quick_imitation) == 4
    assert distance(first, arl.make_base_agent(tok, 5, ("blind",))) == 0
    assert len(quick_imitation) == 4, "and stored whole"


def test_the_cache_can_be_bypassed_or_missing(quick_imitation, tmp_path, monkeypatch):
    tok = tokenizer()
    monkeypatch.setenv("AGENTRL_CACHE", "off")
    a, b = (arl.make_base_agent(tok, 5, ("blind",)) for _ in range(2))
    assert len(quick_imitation) == 2 and distance(a, b) == 0
    blocked = tmp_path / "a file"
    blocked.write_text("")
    monkeypatch.setenv("AGENTRL_CACHE", str(blocked))
    assert distance(a, arl.make_base_agent(tok, 5, ("blind",))) == 0


def test_of_those_that_want_the_same_weights_one_trains_and_the_others_wait(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    model, trained = fresh_agent(seed=4), []

    def train():
        trained.append(time.sleep(0.3))
        return model

    with ThreadPoolExecutor(4) as pool:
        kept = list(pool.map(lambda _: arl.cached_weights("key", train), range(4)))
    assert len(trained) == 1
    assert all(distance(weights(model), other) == 0 for other in kept)


def test_the_rl_base_is_four_random_four_blind_and_one_oracle_set(quick_imitation):
    model = arl.make_rl_base(tokenizer(), 2)
    assert quick_imitation == [(2, ("random",) * 4 + ("blind",) * 4 + ("oracle",))]
    assert len(model.embed.weight) == len(tokenizer())
    base = arl.make_base_agent(tokenizer())
    assert quick_imitation[1] == (0, ("random", "blind")) and distance(base, model) > 1e-3


def test_base_agents_leave_global_randomness_alone(quick_imitation):
    torch.manual_seed(3)
    random.seed(3)
    states = torch.random.get_rng_state(), random.getstate()
    arl.make_base_agent(tokenizer(), 5, ("random",))
    assert torch.equal(torch.random.get_rng_state(), states[0]) and random.getstate() == states[1]


def test_argument_orders_and_defaults_of_the_contract():
    def signature(fn):
        parameters = inspect.signature(fn).parameters.values()
        return [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]

    assert signature(arl.make_base_agent) == ["tok", "seed=0", "kinds=('random', 'blind')"]
    assert signature(arl.make_rl_base) == ["tok", "seed=0"]
    assert signature(arl.rl_update) == [
        "model", "optimizer", "batch", "advantages", "cfg", "ref_model=None", "generator=None",
    ]  # fmt: skip
    assert signature(arl.sample_step) == ["model", "env_factory", "tasks", "tok", "cfg", "generator"]
    assert signature(arl.train_rl)[:10] == [
        "model", "tasks", "tok", "cfg", "steps", "log_every=0", "eval_tasks=None",
        "eval_every=20", "env_factory=None", "ref_model=None",
    ]  # fmt: skip
    assert signature(arl.evaluate) == [
        "model", "tasks", "tok", "n_samples=1", "temperature=1.0", "generator=None", "cfg=None",
        "env_factory=None",
    ]  # fmt: skip
