"""Chapter 15: weighted likelihood, rejection sampling, preference losses. 'Row n' is a row of cases/algorithms.md."""

import math
import random
from dataclasses import replace

import pytest
import torch
from toys import agent, distance, gen, sampled, tokenizer, train_tasks, weights

import agentrl as arl

P = arl.PreferenceConfig


def batch_of(seed=0):
    return arl.collate(sampled(seed), tokenizer().pad_id)


def adam(model, lr=1e-3):
    return torch.optim.Adam(model.parameters(), lr=lr)


def gradient(model, loss):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


# Weighted likelihood.


def test_the_weighted_loss_is_the_one_by_hand():
    logp, mask = -torch.ones(2, 4), torch.tensor([[1, 0, 1, 0], [1, 1, 1, 0]])
    assert arl.weighted_nll(logp, mask, torch.tensor([1.0, 2.0])).item() == pytest.approx(1.6)
    assert arl.weighted_nll(logp, mask, torch.tensor([1.0, 2.0]), "seq_mean_token_sum").item() == pytest.approx(4.0)


@pytest.mark.parametrize("mode", ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum"))
def test_a_row_of_weight_0_is_no_row(mode):  # row 2
    logp = -torch.rand(4, 6, generator=gen(1))
    mask = torch.ones(4, 6)
    kept = arl.weighted_nll(logp[:3], mask[:3], torch.ones(3), mode)
    assert arl.weighted_nll(logp, mask, torch.tensor([1.0, 1, 1, 0]), mode).item() == pytest.approx(kept.item())


def test_all_weights_0_give_loss_0_and_gradient_0():  # row 2
    logp = (-torch.ones(2, 3)).requires_grad_()
    loss = arl.weighted_nll(logp, torch.ones(2, 3), torch.zeros(2))
    loss.backward()
    assert loss.item() == 0 and (logp.grad == 0).all()


@pytest.mark.parametrize("bad", ([1.0, -1.0], [1.0, math.nan], [math.inf, 1.0]))
def test_weights_that_are_negative_or_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="weights is"):
        arl.weighted_nll(torch.zeros(2, 3), torch.ones(2, 3), torch.tensor(bad))


def test_weights_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"weights has shape \(3,\).*\(2,\)"):
        arl.weighted_nll(torch.zeros(2, 3), torch.ones(2, 3), torch.ones(3))
    with pytest.raises(ValueError, match=r"weights has shape \(3,\)"):
        arl.fit_episodes(agent(), None, sampled(), tokenizer(), arl.RLConfig(), weights=torch.ones(3))


# The expert and the filter.


def test_the_expert_plays_where_the_agent_is_judged():
    tok, tasks = tokenizer(), train_tasks()
    trajs = arl.expert_episodes(tok, tasks, arl.RLConfig(), 3, random.Random(0))
    assert len(trajs) == 60 and all(t.reward == 1 for t in trajs)
    names = {tok.decode(t.ids).split()[3] for t in trajs[:3]}
    assert len(names) > 1  # a new name each episode
    assert all(sum(t.action_mask) < len(t.ids) for t in trajs)
    plain = arl.expert_episodes(tok, tasks[:1], arl.RLConfig(rename=False), 1, random.Random(0))
    assert tasks[0].fn_name in tok.decode(plain[0].ids).split()


@pytest.mark.parametrize("changes, match", [({"player": "wizard"}, "player is 'wizard'"), ({"n": 0}, "n is 0"), ({"tasks": []}, "tasks is empty")])
def test_a_wrong_request_for_expert_episodes_is_refused(changes, match):
    good = {"tok": tokenizer(), "tasks": train_tasks(), "cfg": arl.RLConfig(), "n": 1, "rng": random.Random(0)}
    with pytest.raises(ValueError, match=match):
        arl.expert_episodes(**(good | changes))


def test_the_filter_keeps_order_and_caps_each_task():
    make = lambda task, reward: arl.Trajectory(reward=reward, info={"task": task})
    trajs = [make("a", 1.0), make("b", 0.0), make("a", 1.0), make("b", 1.0), make("a", 0.4)]
    assert arl.accepted(trajs) == [trajs[0], trajs[2], trajs[3]]
    assert arl.accepted(trajs, most=1) == [trajs[0], trajs[3]]
    assert arl.accepted(trajs, least=0.3) == [trajs[i] for i in (0, 2, 3, 4)]
    with pytest.raises(ValueError, match="most is 0"):
        arl.accepted(trajs, most=0)


def test_fitting_the_successes_starts_as_the_policy_gradient_without_a_baseline():
    model, batch = agent(), batch_of()
    cfg = arl.RLConfig(group_size=4, prompts_per_step=4, loss_mode="seq_mean_token_sum")
    logp = arl.action_log_probs(model, batch["ids"], batch["action_mask"])
    by_policy = gradient(model, arl.policy_loss(logp, batch["sampler_logps"], batch["rewards"], batch["action_mask"], cfg)[0])
    logp = arl.action_log_probs(model, batch["ids"], batch["action_mask"])
    by_fit = gradient(model, arl.weighted_nll(logp, batch["action_mask"], batch["rewards"], cfg.loss_mode))
    share = batch["rewards"].mean()
    assert 0 < share < 1
    assert torch.allclose(by_fit * share, by_policy, atol=1e-5 * by_policy.abs().max().item())


def test_fitting_lowers_the_loss_and_nothing_accepted_changes_nothing():
    model = agent()
    optimizer, cfg = adam(model), arl.RLConfig(epochs=4, minibatches=2)
    good = arl.accepted(sampled())
    first = arl.fit_episodes(model, optimizer, good, tokenizer(), arl.RLConfig(minibatches=1), gen())
    last = arl.fit_episodes(model, optimizer, good, tokenizer(), cfg, gen())
    assert last["nll"] < first["nll"] and last["updates"] == 4 * min(2, len(good))
    before = weights(model)
    bad = [t for t in sampled() if t.reward == 0]
    assert arl.expert_update(model, optimizer, bad, tokenizer(), cfg) == {"updates": 0.0, "n_kept": 0.0}
    assert distance(before, model) == 0
    with pytest.raises(ValueError, match="trajs is empty"):
        arl.fit_episodes(model, optimizer, [], tokenizer(), cfg)


# Pairs.


def test_pairs_stay_within_their_group_wherever_it_lies():  # row 12
    rewards, groups = torch.tensor([1.0, 0, 0, 1, 0, 1]), torch.tensor([7, 3, 7, 3, 7, 9])
    assert arl.preference_pairs(rewards, groups).tolist() == [[0, 2], [0, 4], [3, 1]]
    shuffled = torch.randperm(6, generator=gen(4))
    again = arl.preference_pairs(rewards[shuffled], groups[shuffled])
    assert sorted(shuffled[again].tolist()) == [[0, 2], [0, 4], [3, 1]]


def test_equal_rewards_give_no_pairs_and_no_update():  # row 11, 27
    pairs = arl.preference_pairs(torch.ones(4), torch.zeros(4))
    assert pairs.shape == (0, 2)
    logp = torch.zeros(4, 3, requires_grad=True)
    loss, stats = arl.preference_loss(logp, torch.zeros(4, 3), torch.ones(4, 3), pairs, P(nll_coef=1.0))
    loss.backward()
    assert loss.item() == 0 and (logp.grad == 0).all() and all(math.isfinite(v) for v in stats.values())
    model = agent()
    before = weights(model)
    bad = [replace(t, info=t.info | {"group": 0}) for t in sampled() if t.reward == 0][:2]
    stats = arl.preference_update(model, adam(model), bad, tokenizer(), arl.RLConfig())
    assert stats == {"n_pairs": 0.0, "updates": 0.0} and distance(before, model) == 0


def test_a_limit_of_pairs_a_group_draws_from_the_generator():
    rewards, groups = torch.tensor([1.0, 1, 0, 0, 1, 0, 0, 0]), torch.arange(8) // 4
    one = [arl.preference_pairs(rewards, groups, 1, gen(s)) for s in range(20)]
    assert all(len(p) == 2 and p[0, 0] in (0, 1) and p[1, 0] == 4 for p in one)
    assert len({tuple(p.flatten().tolist()) for p in one}) > 3
    assert torch.equal(one[0], arl.preference_pairs(rewards, groups, 1, gen(0)))
    with pytest.raises(ValueError, match="per_group is 0"):
        arl.preference_pairs(rewards, groups, 0)
    with pytest.raises(ValueError, match=r"groups has shape \(3,\)"):
        arl.preference_pairs(rewards, groups[:3])


# Losses of pairs.


@pytest.mark.parametrize("kind, at_0, at_5", [("dpo", 0.6931, 0.4741), ("ipo", 25.0, 0.0), ("hinge", 1.0, 0.5)])
def test_the_loss_of_a_pair_is_the_one_by_hand(kind, at_0, at_5):
    assert arl.pair_losses(torch.tensor([0.0, 5.0]), P(kind=kind)).tolist() == pytest.approx([at_0, at_5], abs=5e-5)


def test_label_smoothing_moves_the_minimum_to_the_log_odds():
    pref = P(beta=0.5, label_smoothing=0.2)
    m = torch.tensor([math.log(4) / 0.5], requires_grad=True)
    arl.pair_losses(m, pref).sum().backward()
    assert m.grad.item() == pytest.approx(0, abs=1e-6)


def test_tool_tokens_have_no_part_in_value_or_gradient():  # row 22
    logp = (-torch.rand(3, 5, generator=gen(1))).requires_grad_()
    ref = -torch.rand(3, 5, generator=gen(2))
    mask = torch.tensor([[1, 0, 1, 0, 1]] * 3)
    pairs = torch.tensor([[0, 1], [0, 2]])
    loss, stats = arl.preference_loss(logp, ref, mask, pairs, P(nll_coef=0.5))
    loss.backward()
    assert (logp.grad[:, 1::2] == 0).all() and (logp.grad[0, ::2] != 0).all()
    other = torch.where(mask.bool(), logp.detach(), math.nan)
    again, same = arl.preference_loss(other, ref, mask, pairs, P())
    assert same == stats and math.isfinite(again.item())


def test_the_reference_gets_no_gradient():
    logp, ref = (torch.zeros(2, 3, requires_grad=True) for _ in range(2))
    arl.preference_loss(logp, ref, torch.ones(2, 3), torch.tensor([[0, 1]]), P())[0].backward()
    assert ref.grad is None and logp.grad.abs().sum() > 0


def test_length_norm_takes_the_mean_of_a_row_s_own_tokens():
    logp, mask = torch.tensor([[1.0, 2.0, 9.0], [0.0, 0.0, 0.0]]), torch.tensor([[1, 1, 0], [0, 0, 0]])
    ref = torch.zeros(2, 3)
    assert arl.log_ratios(logp, ref, mask).tolist() == [3.0, 0.0]
    assert arl.log_ratios(logp, ref, mask, True).tolist() == [1.5, 0.0]
    with pytest.raises(ValueError, match=r"mask has shape \(2, 2\)"):
        arl.log_ratios(logp, ref, mask[:, :2])


@pytest.mark.parametrize("pairs", ([[0, 3]], [[-1, 0]], [0, 1]))
def test_pairs_outside_the_batch_are_refused(pairs):
    with pytest.raises(ValueError, match="pairs has shape"):
        arl.preference_loss(torch.zeros(3, 2), torch.zeros(3, 2), torch.ones(3, 2), torch.tensor(pairs), P())


def test_all_pairs_at_the_reference_are_the_mean_centred_gradient():
    model, batch = agent(), batch_of()
    mask, cfg = batch["action_mask"], arl.RLConfig(group_size=4, prompts_per_step=4, adv_mode="mean", loss_mode="seq_mean_token_sum")
    pairs = arl.preference_pairs(batch["rewards"], batch["groups"])
    logp = arl.action_log_probs(model, batch["ids"], mask)
    by_pairs = gradient(model, arl.preference_loss(logp, logp.detach(), mask, pairs, P(beta=2.0))[0])
    logp = arl.action_log_probs(model, batch["ids"], mask)
    by_mean = gradient(model, arl.policy_loss(logp, batch["sampler_logps"], arl.compute_advantages(batch, cfg), mask, cfg)[0])
    factor = 2.0 / 2 * 4 * 16 / len(pairs)
    assert len(pairs) > 2
    assert torch.allclose(by_pairs, factor * by_mean, atol=1e-4 * by_pairs.abs().max().item())


def optimum(loss, n):
    z = torch.zeros(n, dtype=torch.double, requires_grad=True)
    solver = torch.optim.LBFGS([z], max_iter=400, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe")

    def closure():
        solver.zero_grad()
        value = loss(z.log_softmax(0))
        value.backward()
        return value

    solver.step(closure)
    return z.detach().log_softmax(0)


@pytest.mark.parametrize("beta", (0.3, 1.0))
def test_the_optimum_is_that_of_the_penalised_reward(beta):
    """DPO with Bradley-Terry labels; IPO with a verifier's labels, at twice the strength."""
    q = torch.randn(6, generator=gen(3), dtype=torch.double).log_softmax(0)
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 0], dtype=torch.double)
    i, j = (x.flatten() for x in torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij"))
    wins = torch.sigmoid(rewards[i] - rewards[j])
    dpo = optimum(lambda lp: (wins * arl.pair_losses((lp - q)[i] - (lp - q)[j], P(beta=beta))).sum(), 6)
    assert torch.allclose(dpo, arl.tilted_policy(q, rewards, beta), atol=1e-4)
    pairs = arl.preference_pairs(rewards, torch.zeros(6))
    ipo = optimum(lambda lp: arl.pair_losses((lp - q)[pairs[:, 0]] - (lp - q)[pairs[:, 1]], P(kind="ipo", beta=beta)).sum(), 6)
    assert torch.allclose(ipo, arl.tilted_policy(q, rewards, 2 * beta), atol=1e-4)


# Weights of tasks.


@pytest.mark.parametrize("p", (0.02, 0.5, 0.9))
def test_the_weights_have_their_closed_forms(p):
    weight = lambda method: arl.first_update_weight(p, 8, method)
    assert weight("all successes") == pytest.approx(1)
    assert weight("all pairs") == pytest.approx(7 / 8)
    assert weight("one success") == pytest.approx((1 - (1 - p) ** 8) / p)
    assert weight("one pair") == pytest.approx((1 - p**8 - (1 - p) ** 8) / (p * (1 - p)))


def test_grpo_s_weight_is_that_of_its_advantages():
    p, G, total = 0.3, 8, 0.0
    for k in range(G + 1):
        A = arl.group_advantages(torch.tensor([1.0] * k + [0.0] * (G - k), dtype=torch.double), G)
        up, down = A[:k].sum().item() / G / p, A[k:].sum().item() / G / (1 - p)
        total += math.comb(G, k) * p**k * (1 - p) ** (G - k) * (up - down)
    assert arl.first_update_weight(p, G, "grpo") == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("args, match", [((0.0, 8, "grpo"), "p is 0.0"), ((0.5, 1, "grpo"), "group_size is 1"), ((0.5, 8, "two pairs"), "method is 'two pairs'")])
def test_a_wrong_question_about_weights_is_refused(args, match):
    with pytest.raises(ValueError, match=match):
        arl.first_update_weight(*args)


# Settings, updates, the loop.


@pytest.mark.parametrize(
    "field, value",
    [("kind", "ppo"), ("beta", 0.0), ("beta", -1), ("beta", math.nan), ("beta", True), ("label_smoothing", 0.5), ("label_smoothing", -0.1),
     ("length_norm", 1), ("nll_coef", -1.0), ("nll_coef", math.inf), ("per_group", 0), ("per_group", 1.5)],
)
def test_a_wrong_setting_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} is"):
        P(**{field: value})


def test_an_update_raises_the_margin_of_its_own_pairs():
    model, trajs = agent(), sampled()
    cfg = arl.RLConfig(group_size=4, prompts_per_step=4, epochs=6, minibatches=1)
    batch = batch_of() | {}
    batch["ref_logps"] = batch["sampler_logps"]
    pairs = arl.preference_pairs(batch["rewards"], batch["groups"])
    path = list(arl.preference_steps(model, adam(model), batch, pairs, cfg, P(), gen()))
    assert len(path) == 6 and abs(path[0]["margin"]) < 1e-3 and path[-1]["margin"] > 0.05
    assert path[0]["pref_loss"] == pytest.approx(math.log(2), abs=1e-3)
    stats = arl.preference_update(agent(), adam(agent()), trajs, tokenizer(), cfg, gen(), ref_model=agent())
    assert stats["n_pairs"] == len(pairs) and stats["updates"] == 6


@pytest.mark.parametrize("missing", ("groups", "ref_logps"))
def test_a_batch_without_reference_or_groups_is_refused(missing):
    batch = batch_of() | {"ref_logps": batch_of()["sampler_logps"]}
    del batch[missing]
    with pytest.raises(ValueError, match=f"no '{missing}'"):
        next(arl.preference_steps(agent(), None, batch, torch.tensor([[0, 1]]), arl.RLConfig(), P()))


def test_the_loop_with_chapter_9_s_update_is_chapter_9_s_training():
    def update(model, optimizer, trajs, tok, cfg, generator):
        batch = arl.collate(trajs, tok.pad_id)
        return arl.rl_update(model, optimizer, batch, arl.compute_advantages(batch, cfg), cfg, generator=generator)

    cfg = arl.RLConfig(group_size=4, prompts_per_step=2, seed=3)
    one, other = agent(), agent()
    a = arl.train_rounds(one, train_tasks(), tokenizer(), cfg, 2, update)
    b = arl.train_rl(other, train_tasks(), tokenizer(), cfg, 2)
    assert [r["reward"] for r in a] == [r["reward"] for r in b] and distance(one, other) < 1e-6
    assert [r["n_episodes"] for r in a] == [8, 8] and all(r["sample_seconds"] > 0 for r in a)
    assert arl.train_rounds(one, train_tasks(), tokenizer(), cfg, 0, update) == []
    with pytest.raises(ValueError, match="rounds is -1"):
        arl.train_rounds(one, train_tasks(), tokenizer(), cfg, -1, update)
    with pytest.raises(ValueError, match="tasks is empty"):
        arl.train_rounds(one, [], tokenizer(), cfg, 1, update)


@pytest.mark.parametrize("update", (arl.expert_update, arl.preference_update))
def test_a_run_is_reproducible(update):
    cfg = arl.RLConfig(group_size=4, prompts_per_step=2, seed=1)
    one, other = agent(), agent()
    for model in (one, other):
        arl.train_rounds(model, train_tasks(), tokenizer(), cfg, 2, update)
    assert distance(one, other) == 0 and distance(one, agent()) > 0
