"""Chapter 13: schedules, live runs, lagged training, coarse samplers, workers; and the corrections in small batches.

'Row n' is a number of the project's list of bugs in other libraries.
"""

import copy
import dataclasses
import importlib.util
import random
from dataclasses import replace

import pytest
import torch
from toys import agent, distance, gen, says, tokenizer, train_tasks, weights

import agentrl as arl

CFG = arl.RLConfig(group_size=4, prompts_per_step=2, max_turns=3, minibatches=1)


def drawn(n=200, seed=0, **named):
    rng = random.Random(seed)
    return arl.draw_latencies([rng.randint(1, 4) for _ in range(n)], rng, **named)


def lengths(episodes):
    return [sum(map(sum, episode)) for episode in episodes]


# Latencies and schedules.


@pytest.mark.parametrize("tail, shape", [("lognormal", 1.0), ("pareto", 3.0), ("none", 1.0)])
def test_latencies_have_the_means_asked_for_and_come_from_the_generator_alone(tail, shape):
    draw = lambda seed: arl.draw_latencies([2] * 4000, random.Random(seed), tail, shape, tool=0.5, generation=0.25)
    episodes = draw(1)
    assert episodes == draw(1) and episodes != draw(2)
    turns = [turn for episode in episodes for turn in episode]
    assert len(turns) == 8000 and all(g > 0 and t > 0 for g, t in turns)
    assert sum(g for g, _ in turns) / 8000 == pytest.approx(0.25, rel=0.03)
    assert sum(t for _, t in turns) / 8000 == pytest.approx(0.5, rel=0.08)


@pytest.mark.parametrize("named", [{"tail": "normal"}, {"tail": "pareto", "shape": 1.0}, {"shape": 0.0}, {"shape": float("nan")}])
def test_wrong_latencies_are_refused(named):
    with pytest.raises(ValueError, match="tail is .* and shape"):
        arl.draw_latencies([1], random.Random(0), **named)


@pytest.mark.parametrize(
    "turns, named, message",
    [
        ([2, 0], {}, r"turns\[1\] is 0; it must be a whole number of at least 1"),
        ([1.5], {}, r"turns\[0\] is 1.5"),
        ([1], {"tool": -0.5}, "tool is -0.5; it must be a number of seconds, at least 0"),
        ([1], {"tool": float("nan")}, "tool is nan"),
        ([1], {"generation": float("inf")}, "generation is inf"),
        ([1], {"generation": True}, "generation is True"),
        ([1], {"shape": "wide"}, "shape 'wide'"),
    ],
)
def test_wrong_turns_and_seconds_are_refused(turns, named, message):
    with pytest.raises(ValueError, match=message):
        arl.draw_latencies(turns, random.Random(0), **named)


def test_no_seconds_are_zero_seconds():
    assert arl.draw_latencies([2], random.Random(0), "none", tool=0, generation=0) == [[(0.0, 0), (0.0, 0)]]


@pytest.mark.parametrize(
    "field, value",
    [("mode", "asynchronous"), ("mode", None), ("slots", 0), ("slots", 1.5), ("batch", True), ("max_lag", -1),
     ("update", -1.0), ("update", float("nan")), ("update", float("inf")), ("update", "1")],
)  # fmt: skip
def test_a_wrong_schedule_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value!r}"):
        arl.Schedule(**{field: value})


def test_two_schedules_have_a_formula():
    for seed in range(3):
        episodes, B, U = drawn(200, seed), 8, 2.0
        longest = [max(lengths(episodes[b * B : b * B + B])) for b in range(10)]
        sync = arl.simulate(arl.Schedule("sync", 8, 8, U), episodes, 10)
        assert sync.updates[-1][1] == pytest.approx(sum(longest) + 10 * U)
        one = arl.simulate(arl.Schedule("one_step_off", 8, 8, U), episodes, 10)
        assert one.updates[-1][1] == pytest.approx(longest[0] + sum(max(x, U) for x in longest[1:]) + U)


@pytest.mark.parametrize("mode", arl.MODES)
def test_a_simulation_keeps_the_rules(mode):
    """No slot does two things at once, turns of an episode come in order and whole, an episode trains one update."""
    episodes, s = drawn(300), arl.Schedule(mode, 6, 4, 0.7, max_lag=2)
    line = arl.simulate(s, episodes, 20)
    assert len(line.updates) == len(line.trained) == 20 and all(len(b) == 4 for b in line.trained)
    trained = [e for batch in line.trained for e in batch]
    assert len(set(trained)) == 80
    for slot in range(6):
        turns = sorted((t for t in line.turns if t.slot == slot), key=lambda t: t.start)
        assert all(a.end <= b.start + 1e-9 for a, b in zip(turns, turns[1:], strict=False))
    for (a, b), (c, _) in zip(line.updates, line.updates[1:], strict=False):
        assert b == pytest.approx(a + 0.7) and c >= b - 1e-9
    versions_at = lambda time: sum(end <= time + 1e-12 for _, end in line.updates)
    for update, batch in enumerate(line.trained):
        for e in batch:
            turns = [t for t in line.turns if t.episode == e]
            assert [(t.tool - t.start, t.end - t.tool) for t in turns] == [pytest.approx(x) for x in episodes[e]]
            assert turns[-1].end <= line.updates[update][0] + 1e-9
            for t in turns:
                assert t.version <= update and t.version <= versions_at(t.start)
                if mode in ("async", "partial"):
                    assert t.version == versions_at(t.start)
                if mode == "sync":
                    assert t.version == update
                if mode == "one_step_off":
                    assert update - t.version in (0, 1)
                if mode == "partial":
                    assert not any(a - 1e-9 < t.start < b - 1e-9 for a, b in line.updates)


def test_starts_are_bounded_and_bound_0_is_synchronous():
    episodes = drawn(400)
    for bound in (0, 1, 3):
        line = arl.simulate(arl.Schedule("async", 16, 4, 0.5, bound), episodes, 30)
        first = {}
        for t in line.turns:
            first.setdefault(t.episode, t)
        assert all(e // 4 <= sum(end <= t.start + 1e-12 for _, end in line.updates) + bound for e, t in first.items())
    zero, sync = (arl.simulate(arl.Schedule(m, 4, 4, 0.5, 0), episodes, 30).updates for m in ("async", "sync"))
    assert zero == sync


def test_mean_lag_is_slots_and_episodes_of_an_update_over_batch():
    U, line, first = 0.2, None, {}
    episodes = arl.draw_latencies([2] * 4000, random.Random(0), tool=0.5, generation=0.25)  # mean length 1.5
    line = arl.simulate(arl.Schedule("async", 24, 8, U, 10**6), episodes, 400)
    for t in line.turns:
        first.setdefault(t.episode, t.version)
    lags = [u - first[e] for u, batch in enumerate(line.trained) for e in batch if u > 20]
    assert sum(lags) / len(lags) == pytest.approx((24 + 24 / 1.5 * U) / 8, rel=0.04)


def test_stats_of_a_timeline_by_hand():
    line = arl.simulate(arl.Schedule("sync", 2, 2, 2.0), [[(0.5, 0.5)], [(1.0, 2.0)], [(1.0, 1.0)], [(1.0, 1.0)]], 2)
    stats = arl.timeline_stats(line)
    assert line.updates == [(3.0, 5.0), (7.0, 9.0)]
    assert stats["throughput"] == pytest.approx(4 / 9) and stats["slots_busy"] == pytest.approx(8 / 18)
    assert stats["trainer_busy"] == pytest.approx(4 / 9) and stats["lags"] == {0: 4} and stats["lag"] == 0


@pytest.mark.parametrize("updates", [0, -1, 1.0, True, None, 26])
def test_too_few_episodes_and_wrong_updates_are_refused(updates):
    for run in (arl.simulate, lambda s, e, u: arl.run_live([(s, e, lambda i: iter(()))], u)):
        with pytest.raises(ValueError, match="updates is|episodes has 100 entries"):
            run(arl.Schedule("sync", 4, 4), drawn(100), updates)


# Live runs.


def quick(n=80, seed=0):
    return drawn(n, seed, tool=0.01, generation=0.004)


@pytest.mark.parametrize("mode", arl.MODES)
def test_a_live_run_keeps_the_same_rules(mode):
    stepped = []
    play = lambda e: (stepped.append(e) for _ in range(9))
    episodes = quick()
    (line,) = arl.run_live([(arl.Schedule(mode, 4, 4, 0.01, 1), episodes, play)], 5)
    assert len(line.updates) == 5 and all(len(b) == 4 for b in line.trained) and line.failed == 0
    for update, batch in enumerate(line.trained):
        for e in batch:
            turns = [t for t in line.turns if t.episode == e]
            assert len(turns) == len(episodes[e]) and all(0 <= update - t.version for t in turns)
            assert all(t.end - t.tool >= tool - 1e-3 for t, (_, tool) in zip(turns, episodes[e], strict=True))
            if mode in ("sync", "one_step_off"):
                assert all(update - t.version <= (mode == "one_step_off") for t in turns)
            if mode == "partial":
                assert not any(a < t.start < b for t in turns for a, b in line.updates)
    assert all(stepped.count(e) == len(episodes[e]) for batch in line.trained for e in batch)


@pytest.mark.parametrize("mode", arl.MODES)
def test_a_failing_environment_costs_its_episode_and_not_the_worker(mode):
    """Row 24: in a live run its number is given out again, so that also a fixed batch fills."""

    def play(e):
        if e % 3 == 1:
            raise OSError("broken")
        yield from range(9)

    (line,) = arl.run_live([(arl.Schedule(mode, 4, 4, 0.005), quick(), play)], 5)
    assert len(line.updates) == 5 and all(len(b) == 4 for b in line.trained)
    assert line.failed >= 5 and not any(e % 3 == 1 for batch in line.trained for e in batch)


def test_a_live_run_whose_environments_all_fail_ends_with_an_error():
    def play(e):
        raise OSError("broken")
        yield

    with pytest.raises(RuntimeError, match="12 of 12 episodes failed"):
        arl.run_live([(arl.Schedule("sync", 4, 4, 0.005), quick(12), play)], 2)


# Guarded environments and workers.


class Flaky(arl.EditBudgetEnv):
    """Fails at a given place of the episodes on one task."""

    def __init__(self, cfg, where, name="minmax/clamp"):
        super().__init__(cfg.max_turns, cfg.reward, cfg.max_edits)
        self.where, self.name = where, name

    def fail_if(self, where):
        if self.where == where and self.task.name == self.name:
            raise RuntimeError(f"failed in {where}")

    def reset(self, task):
        text = super().reset(task)
        self.fail_if("reset")
        return text

    def step(self, text):
        self.fail_if("step")
        return super().step(text)

    def final_info(self, submitted):
        self.fail_if("grader")
        return super().final_info(submitted)


@pytest.mark.parametrize("where", ["reset", "step", "grader"])
def test_a_failing_environment_or_grader_drops_its_group_and_the_worker_goes_on(where):
    """Row 24."""
    tasks = train_tasks()[:3]
    trajs, failed = arl.rollout_job(agent(), tasks, tokenizer(), CFG, 0, lambda cfg: Flaky(cfg, where))
    assert failed == 4 and len(trajs) == 8
    assert {t.info["task"] for t in trajs} == {t.name for t in tasks[1:]}
    assert [t.info["group"] for t in trajs] == [1] * 4 + [2] * 4
    arl.compute_advantages(arl.collate(trajs, tokenizer().pad_id), CFG)
    arl.behavior_stats(trajs)


def test_a_failed_episode_says_why_and_has_what_statistics_need():
    env = arl.GuardedEnv(Flaky(CFG, "step"))
    assert env.reset(train_tasks()[0]) == train_tasks()[0].issue
    obs, reward, done, info = env.step("<call> read </call>")
    assert (obs, reward, done) == ("", 0.0, True) and "RuntimeError: failed in step" in info["failed"]
    arl.behavior_stats([arl.Trajectory(info=info)])


def test_a_sound_environment_is_the_same_guarded():
    tasks = train_tasks()[:2]
    plain = arl.sample_groups(agent(), arl.make_env, tasks, tokenizer(), CFG, gen(5))
    trajs, failed = arl.rollout_job(agent(), tasks, tokenizer(), CFG, 5)
    assert failed == 0 and trajs == plain


JOBS = [(slice(0, 2), 3), (slice(2, 3), 4)]


def jobs():
    return [(train_tasks()[part], seed) for part, seed in JOBS]


def by(backend):
    trajs, failed = arl.rollout_workers(agent(), jobs(), tokenizer(), CFG, backend, n_workers=1)
    assert failed == 0
    return trajs


def plain_episodes():
    parts = [arl.sample_groups(agent(), arl.make_env, tasks, tokenizer(), CFG, gen(seed)) for tasks, seed in jobs()]
    return [(t.ids, t.logps, t.action_mask, t.reward) for part in parts for t in part]


def test_workers_make_the_episodes_of_the_plain_sampler():
    trajs = by("serial")
    assert [(t.ids, t.logps, t.action_mask, t.reward) for t in trajs] == plain_episodes()
    assert [t.info["group"] for t in trajs] == [0] * 4 + [1] * 4 + [2] * 4
    by_process = by("processes")
    assert by_process == trajs


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray isn't installed; it is the extra agentrl[ray]")
def test_workers_on_ray_make_the_episodes_of_the_plain_sampler():
    import ray

    assert not ray.is_initialized()
    trajs = by("ray")
    assert [(t.ids, t.logps, t.action_mask, t.reward) for t in trajs] == plain_episodes()
    assert not ray.is_initialized(), "what was started is stopped"


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ImportError, match=r"agentrl\[ray\]"):
        by("ray")


@pytest.mark.parametrize(
    "change, words", [({"backend": "threads"}, "backend is 'threads'"), ({"jobs": []}, "jobs has 0"), ({"jobs": [([], 0)]}, "jobs has 1")]
)
def test_workers_refuse_wrong_values(change, words):
    arguments = {"jobs": jobs(), "backend": "serial"} | change
    with pytest.raises(ValueError, match=words):
        arl.rollout_workers(agent(), arguments["jobs"], tokenizer(), CFG, arguments["backend"])


# Lagged training.


def test_lag_0_is_the_plain_loop_bit_for_bit():
    models, histories = [agent(), agent()], []
    for train, model in zip((arl.train_rl, arl.train_lagged), models, strict=True):
        histories.append(train(model, train_tasks(), tokenizer(), CFG, 3))
    assert distance(*models) == 0 and distance(models[0], agent()) > 0
    for a, b in zip(*histories, strict=True):
        assert {k: a[k] for k in a if k != "zero_adv_frac"} == {k: b[k] for k in a if k != "zero_adv_frac"}


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
def test_the_sampler_holds_the_weights_of_lag_steps_ago(lag):
    seen, trained = [], [weights(agent())]
    model = agent()
    arl.train_lagged(
        model, train_tasks(), tokenizer(), CFG, 4, lag,
        sampler=lambda m: (seen.append(weights(m)), m)[1],
        on_step=lambda step, m: (trained.append(weights(m)), {})[1],
    )  # fmt: skip
    assert len(seen) == 4 and all(distance(w, trained[max(0, i - lag)]) == 0 for i, w in enumerate(seen))
    assert distance(trained[0], trained[4]) > 0


def test_stale_samples_have_the_stale_policy_s_log_probs():
    """Row 29's kind: with lag 1 the weights are old over sampler, and not 1."""
    cfg = replace(CFG, correction="truncate", lr=0.02)
    fresh, stale = (arl.train_lagged(agent(), train_tasks(), tokenizer(), cfg, 5, lag=lag) for lag in (0, 1))
    assert all(r["mismatch_kl"] == pytest.approx(0, abs=1e-6) and r["weight_max"] == pytest.approx(1, abs=1e-3) for r in fresh)
    assert max(r["mismatch_kl"] for r in stale) > 1e-5 and max(r["weight_max"] for r in stale) > 1.05
    assert all(r["ratio_max"] == pytest.approx(1, abs=1e-3) for r in stale)  # old log-probs are the trainer's


def test_failed_episodes_are_counted_and_their_groups_not_trained_on():
    """Row 24 in training, down to a step in which everything fails."""
    cfg = replace(CFG, minibatches=8)  # more than the episodes that are left
    history = arl.train_lagged(agent(), train_tasks()[:2], tokenizer(), cfg, 2, env_factory=lambda cfg: Flaky(cfg, "step"))
    assert [r["failed"] for r in history] == [4, 4] and all(r["updated"] and r["n_episodes"] == 8 for r in history)

    class All(Flaky):
        def fail_if(self, where):
            if where == "step":
                raise RuntimeError

    model = agent()
    history = arl.train_lagged(model, train_tasks()[:2], tokenizer(), CFG, 2, env_factory=lambda cfg: All(cfg, "step"))
    assert [(r["failed"], r["updated"]) for r in history] == [(8, False)] * 2 and distance(model, agent()) == 0


def test_a_policy_that_always_fails_ends_each_step_without_an_update():
    """Row 27."""
    cfg = replace(CFG, dynamic_sampling=True, max_sample_rounds=3)
    model = says(tokenizer(), "<call> submit </call>")
    history = arl.train_lagged(model, train_tasks(), tokenizer(), cfg, 2, lag=1)
    assert [r["updated"] for r in history] == [False] * 2 and [r["n_episodes"] for r in history] == [24] * 2


@pytest.mark.parametrize("change, word", [({"lag": -1}, "lag is -1"), ({"lag": 1.0}, "lag is 1.0"), ({"steps": -1}, "steps"), ({"tasks": []}, "tasks")])
def test_lagged_training_refuses_wrong_values(change, word):
    arguments = {"tasks": train_tasks(), "steps": 1, "lag": 0} | change
    with pytest.raises(ValueError, match=word):
        arl.train_lagged(agent(), arguments["tasks"], tokenizer(), CFG, arguments["steps"], arguments["lag"])


# Coarse samplers.


def test_quantized_matrices_are_whole_numbers_times_a_scale():
    model, before = agent(), weights(agent())
    for bits in (2, 4, 8):
        low, top = arl.quantized(model, bits), 2 ** (bits - 1) - 1
        for name, p in low.named_parameters():
            w = before[name]
            if w.dim() < 2:
                assert torch.equal(p, w)
                continue
            scale = w.abs().amax(1, keepdim=True).clamp(min=1e-12) / top
            steps = p / scale
            assert torch.allclose(steps, steps.round(), atol=1e-3) and steps.abs().max() <= top + 1e-3
            assert ((p - w).abs() <= scale / 2 + 1e-6).all()
    assert distance(model, before) == 0
    for bits in (1, 17, 8.0, True):
        with pytest.raises(ValueError, match="bits is"):
            arl.quantized(model, bits)


def test_bfloat16_sampler_rounds_weights_and_products_and_leaves_the_model_alone():
    model, before = agent(), weights(agent())
    low = arl.bfloat16_sampler(model)
    assert distance(model, before) == 0
    assert all(torch.equal(p.float(), p.bfloat16().float()) for p in low.parameters())
    assert all(m.weight.dtype == torch.bfloat16 for m in low.modules() if isinstance(m, torch.nn.Linear))
    ids = torch.randint(len(tokenizer()), (2, 12), generator=gen(1))
    with torch.no_grad():
        exact, coarse = model(ids), low(ids)
        product = low.blocks[0].out(torch.randn(3, 32, generator=gen(2)))
    assert coarse.dtype == torch.float32 and 0 < (exact - coarse).abs().max() < 1
    assert torch.equal(product, product.bfloat16().float())


@pytest.mark.parametrize("sampler", [arl.bfloat16_sampler, arl.quantized])
def test_a_coarse_sampler_plays_with_its_own_numbers(sampler):
    """Recorded log-probs are the sampler's, cached or not, and not the trainer's."""
    model = agent()
    trajs = arl.sample_groups(sampler(model), arl.make_env, train_tasks()[:2], tokenizer(), CFG, gen(3))
    batch = arl.collate(trajs, tokenizer().pad_id)
    own, trainer = (arl.action_log_probs(m, batch["ids"], batch["action_mask"]).detach() for m in (sampler(model), model))
    error, gap = ((x - batch["sampler_logps"]).abs() * batch["action_mask"] for x in (own, trainer))
    assert error.mean() < 0.5 * gap.mean() and gap.max() > 1e-4


# Corrections in small batches.

WEIGHTED = arl.RLConfig(correction="mask", correction_cap=1.5)


def lines(lengths_, seed=0):
    """logp (with gradient), old, sampler, mask of rows with so many policy tokens each."""
    T = max(lengths_)
    mask = torch.tensor([[1.0] * n + [0.0] * (T - n) for n in lengths_])
    g = gen(seed)
    old = -torch.rand(len(lengths_), T, generator=g) * 3
    sampler = old + 0.5 * torch.randn(old.shape, generator=g)
    return (old + 0.1 * torch.randn(old.shape, generator=g)).requires_grad_(), old, sampler, mask


def loss_of(logp, old, sampler, mask, advantages, cfg=WEIGHTED):
    weighted, _ = arl.corrected_advantages(advantages, old, sampler, mask, cfg)
    return arl.policy_loss(logp, old, weighted, mask, cfg)[0]


@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_micro_batches_with_one_divisor_are_the_whole_batch(kind):
    """Row 1 with weights: also masked tokens count, so the divisor is known before the weights are."""
    cfg = replace(WEIGHTED, correction=kind)
    logp, old, sampler, mask = lines([1, 2, 3, 10])
    advantages = torch.tensor([1.0, -1.0, 0.5, 2.0])
    whole = loss_of(logp, old, sampler, mask, advantages, cfg)
    (wanted,) = torch.autograd.grad(whole, logp)
    total, grads = 0.0, []
    for row in range(4):
        rows = slice(row, row + 1)
        part = loss_of(logp[rows], old[rows], sampler[rows], mask[rows], advantages[rows], cfg)
        part = part * mask[rows].sum() / mask.sum()
        grads.append(torch.autograd.grad(part, logp)[0])
        total = total + part
    assert total.item() == pytest.approx(whole.item(), rel=1e-5) and torch.allclose(sum(grads), wanted, atol=1e-6)


def test_a_masked_out_episode_and_an_empty_batch_change_nothing():
    """Row 2 with weights."""
    logp, old, sampler, mask = lines([3, 5, 4])
    advantages = torch.tensor([1.0, -1.0, 2.0])
    before = loss_of(logp[:2], old[:2], sampler[:2], mask[:2], advantages[:2])
    emptied = torch.cat([mask[:2], torch.zeros_like(mask[2:])])
    assert loss_of(logp, old, sampler, emptied, advantages).item() == pytest.approx(before.item(), rel=1e-6)
    nothing = loss_of(logp, old, sampler, torch.zeros_like(mask), advantages)
    (grad,) = torch.autograd.grad(nothing, logp)
    assert nothing.item() == 0 and (grad == 0).all()


def test_a_token_of_weight_0_has_no_gradient_and_still_counts():
    logp, old, sampler, mask = lines([4])
    sampler = old.clone()
    sampler[0, 1] -= 3.0
    loss = loss_of(logp, old, sampler, mask, torch.ones(1))
    (grad,) = torch.autograd.grad(loss, logp)
    assert grad[0, 1] == 0 and (grad[0, [0, 2, 3]] != 0).all()
    rest = torch.tensor([0, 2, 3])
    without = loss_of(logp[:, rest], old[:, rest], sampler[:, rest], mask[:, rest], torch.ones(1))
    assert loss.item() == pytest.approx(without.item() * 3 / 4, rel=1e-5)


@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_enumerated_bias_is_the_derived_one(kind):
    g = gen(7)
    old, mu = (torch.randn(9, generator=g, dtype=torch.double).log_softmax(0) for _ in "ab")
    f = torch.randn(9, generator=g, dtype=torch.double)
    got, _ = arl.correction_weights(old[None], mu[None], torch.ones(1, 9), kind, 1.3)
    w, wanted = (old - mu).exp(), (old.exp() * f).sum()
    lost = (1 - 1.3 / w).clamp(min=0) if kind == "truncate" else ((w > 1.3) | (w < 1 / 1.3)).double()
    assert ((mu.exp() * got[0] * f).sum() - wanted).item() == pytest.approx(-(old.exp() * lost * f).sum().item(), abs=1e-6)


def test_settings_of_a_schedule_can_be_varied():
    s = dataclasses.replace(arl.Schedule(), mode="async", max_lag=0)
    assert (s.slots, s.batch, s.update, s.max_lag) == (8, 8, 1.0, 0) and copy.copy(s) == s
