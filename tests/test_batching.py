"""Chapter 14: packing, one normaliser, task samplers. 'Row n' is a row of cases/algorithms.md."""

import math

import pytest
import torch
from toys import fresh_agent, gen, sampled, tokenizer, train_tasks

import agentrl as arl


@pytest.fixture(scope="module")
def batch():
    return arl.collate(sampled(1, 1.0), tokenizer().pad_id)


@pytest.fixture(scope="module")
def model():
    return fresh_agent()


def flat(model, loss):
    grads = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([g.flatten() for g in grads])


def left(model):
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()])


def close(a, b, tol=1e-5):
    return (a - b).norm() <= tol * max(b.norm(), 1e-12)


def signed(n):
    """Advantages with zeros among them."""
    return torch.tensor([(-1.0, 0.0, 0.5)[i % 3] for i in range(n)])


# packing


@pytest.mark.parametrize("seed", range(5))
def test_every_sequence_is_in_one_bin_and_none_is_overfull(seed):
    sizes = torch.randint(1, 51, (60,), generator=gen(seed)).tolist()
    bins = arl.first_fit_decreasing(sizes, 50)
    assert sorted(i for b in bins for i in b) == list(range(60))
    assert all(0 < sum(sizes[i] for i in b) <= 50 for b in bins)
    assert sum(sum(sizes[i] for i in b) <= 25 for b in bins) <= 1, "two half-empty bins would be one"


def test_first_fit_decreasing_puts_the_largest_first_and_keeps_the_order_of_ties():
    assert arl.first_fit_decreasing((2, 5, 3, 4, 1, 3), 6) == [[1, 4], [3, 0], [2, 5]]
    assert arl.first_fit_decreasing([], 3) == []


@pytest.mark.parametrize("sizes, capacity, word", [([4], 3, "sizes"), ([0], 3, "sizes"), ([1.0], 3, "sizes"), ([True], 3, "sizes"), ([1], 0, "capacity")])
def test_bins_refuse_what_cannot_fit(sizes, capacity, word):
    with pytest.raises(ValueError, match=word):
        arl.first_fit_decreasing(sizes, capacity)


def test_packing_and_unpacking_are_inverse_and_positions_begin_at_zero():
    lengths = torch.tensor([3, 1, 0, 5])
    x = torch.arange(1.0, 25).view(4, 6)
    plan = arl.plan_packing(lengths, 6)
    used = torch.arange(6) < lengths.clamp(min=1)[:, None]
    assert torch.equal(plan.unpack(plan.pack(x), x.shape), x * used)
    own = plan.rows >= 0
    for i, n in enumerate((3, 1, 1, 5)):
        assert plan.cols[plan.rows == i].tolist() == list(range(n))
    assert (plan.pack(x, -7.0)[~own] == -7).all()
    with pytest.raises(ValueError, match="capacity"):
        arl.plan_packing(lengths, 4)
    with pytest.raises(ValueError, match=r"lengths is \[\]; it must hold at least one length"):
        arl.plan_packing([])


@pytest.mark.parametrize("capacity", [1, 2, 5])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_packed_log_probs_and_gradients_equal_padded_ones(model, batch, capacity, temperature):
    ids, mask = batch["ids"], batch["action_mask"]
    places = capacity * int(arl.input_lengths(mask).max())
    packed = arl.packed_log_probs(model, ids, mask, temperature, places)
    padded = arl.action_log_probs(model, ids, mask, temperature)
    plain = arl.selected_log_probs(model(ids)[:, :-1] / temperature, ids[:, 1:]) * mask
    assert (packed - padded).abs().max() < 1e-5 and (packed - plain).abs().max() < 1e-5
    old, A = batch["sampler_logps"], signed(len(ids))
    losses = [arl.ppo_policy_loss(x, old, A, mask, 0.2, 0.2, "token_mean")[0] for x in (packed, plain)]
    assert abs(losses[0] - losses[1]) < 1e-5 and close(flat(model, losses[0]), flat(model, losses[1]))


def test_a_sequence_does_not_see_its_neighbours_in_the_row(model, batch):
    ids, mask = batch["ids"][:4].clone(), batch["action_mask"][:4]
    places = int(arl.input_lengths(mask).sum())
    before = arl.packed_log_probs(model, ids, mask, capacity=places)
    ids[[0, 1, 3]] = (ids[[0, 1, 3]] + 5) % len(tokenizer())
    after = arl.packed_log_probs(model, ids, mask, capacity=places)
    assert (before[2] - after[2]).abs().max() < 1e-5 and (before[0] - after[0]).abs().max() > 0.1


def test_rows_without_actions_keep_their_place_and_give_zero(model, batch):
    mask = batch["action_mask"].clone()
    mask[1] = 0
    assert arl.input_lengths(mask)[1] == 0
    packed = arl.packed_log_probs(model, batch["ids"], mask)
    assert (packed[1] == 0).all() and (packed - arl.action_log_probs(model, batch["ids"], mask)).abs().max() < 1e-5
    nothing = arl.packed_log_probs(model, batch["ids"], torch.zeros_like(mask))
    assert (nothing == 0).all() and (flat(model, nothing.sum()) == 0).all()


def test_packed_log_probs_refuse_what_does_not_fit(model, batch):
    ids, mask = batch["ids"], batch["action_mask"]
    with pytest.raises(ValueError, match="action_mask"):
        arl.packed_log_probs(model, ids, mask[:, 1:])
    with pytest.raises(ValueError, match="temperature"):
        arl.packed_log_probs(model, ids, mask, 0.0)
    with pytest.raises(ValueError, match="capacity"):
        arl.packed_log_probs(model, ids, mask, capacity=2)
    with pytest.raises(ValueError, match="action_mask"):
        arl.input_lengths(mask[0])


# one normaliser


def toy(extra_row=False):
    """Row 1: four rows of 1, 2, 3 and 10 policy tokens; row 2: a fifth that is masked out."""
    lengths = torch.tensor([1, 2, 3, 10, 0][: 4 + extra_row])
    return (torch.arange(10) < lengths[:, None]).float()


@pytest.mark.parametrize("mode", arl.LOSS_MODES)
def test_weights_give_the_loss_of_the_whole_batch_however_it_is_cut(mode):
    """Row 1."""
    mask = toy()
    x = torch.randn(4, 10, generator=gen()).requires_grad_()
    whole = arl.aggregate_loss(x, mask, mode, 40)
    weights = arl.token_weights(mask, mode, 40)
    for parts in ([[0], [1], [2], [3]], [[0, 3], [1, 2]], [[0, 1, 2, 3]], [[3], [0, 1, 2]]):
        cut = sum((weights[p] * x[p]).sum() for p in parts)
        assert math.isclose(cut.item(), whole.item(), rel_tol=1e-5, abs_tol=1e-7)
        assert torch.allclose(*(torch.autograd.grad(v, x, retain_graph=True)[0] for v in (cut, whole)))


@pytest.mark.parametrize("mode", arl.LOSS_MODES)
def test_masked_rows_weigh_nothing_and_do_not_count(mode):
    """Row 2."""
    assert torch.equal(arl.token_weights(toy(True), mode, 40)[:4], arl.token_weights(toy(), mode, 40))
    nothing = arl.token_weights(torch.zeros(3, 4), mode, 40)
    assert (nothing == 0).all() and nothing.isfinite().all()


def test_two_workers_with_one_count_equal_one_worker_and_local_means_do_not():
    mask = toy()
    x = torch.tensor([4.0, 3.0, 2.0, 1.0])[:, None].expand(4, 10)
    want = arl.aggregate_loss(x, mask, "token_mean")
    weights, halves = arl.token_weights(mask, "token_mean"), ([0, 1], [2, 3])
    shared = sum(2 * (weights[h] * x[h]).sum() for h in halves) / 2
    local = sum(arl.aggregate_loss(x[h], mask[h], "token_mean") for h in halves) / 2
    assert abs(shared - 26 / 16) < 1e-6 and abs(want - 26 / 16) < 1e-6
    assert math.isclose(local.item(), (10 / 3 + 16 / 13) / 2, rel_tol=1e-6)


def test_weights_refuse_unknown_modes_and_shapes():
    for bad, word in ((("mean",), "loss_mode"), (("constant",), "norm_const"), (("constant", 0), "norm_const")):
        with pytest.raises(ValueError, match=word):
            arl.token_weights(toy(), *bad)
    with pytest.raises(ValueError, match="mask"):
        arl.token_weights(toy()[0], "token_mean")


@pytest.mark.parametrize("budget", [30, 64, 1000])
def test_micro_batches_hold_every_row_once_within_the_budget(budget):
    lengths = torch.tensor([3, 30, 0, 7, 7, 12, 1])
    parts = arl.budget_batches(lengths, budget)
    assert sorted(torch.cat(parts).tolist()) == list(range(7))
    assert all(len(p) * int(lengths[p].max()) <= budget for p in parts)
    assert arl.budget_batches(torch.tensor([], dtype=torch.long), 4) == []
    with pytest.raises(ValueError, match="budget is 29"):
        arl.budget_batches(lengths, 29)
    with pytest.raises(ValueError, match="budget"):
        arl.budget_batches(lengths, 0)


VARIED = [
    {}, {"loss_mode": "seq_mean_token_mean"}, {"loss_mode": "seq_mean_token_sum"}, {"loss_mode": "constant"},
    {"loss_mode": "constant", "norm_const": 50.0}, {"entropy_coef": 0.1}, {"kl_coef": 0.2, "kl_kind": "k2"},
    {"kl_coef": 0.2, "kl_in": "reward"}, {"temperature": 0.7},
]


@pytest.mark.parametrize("fields", VARIED)
@pytest.mark.parametrize("budget", [0, 10**6])
def test_accumulated_gradient_is_that_of_the_whole_minibatch(model, batch, fields, budget):
    cfg, A = arl.RLConfig(**fields), signed(len(batch["ids"]))
    batch = arl.with_reference(batch, fresh_agent(seed=5) if cfg.kl_coef else None, cfg)
    mask = batch["action_mask"].clone()
    mask[0] = 0  # row 2: an episode that is masked out
    batch = {**batch, "action_mask": mask}
    rows = torch.arange(len(A) - 1)
    want, _ = arl.minibatch_loss(model, batch, rows, A, cfg)
    g = flat(model, want)
    model.zero_grad()
    budget = budget or int(arl.input_lengths(mask).max())
    stats = arl.accumulate(model, batch, A, cfg, budget, rows)
    assert close(left(model), g) and math.isclose(stats["loss"], want.item(), rel_tol=1e-4, abs_tol=1e-6)
    live = (A[rows] != 0) & mask[rows].any(1)
    if not cfg.entropy_coef and not (cfg.kl_coef and cfg.kl_in == "loss"):
        assert stats["rows"] == live.sum()
    else:
        assert stats["rows"] == mask[rows].any(1).sum()
    assert (stats["micro_batches"] == 1) == (budget == 10**6)


def test_gradients_add_up_over_calls_and_nothing_to_do_leaves_them(model, batch):
    cfg, A = arl.RLConfig(), signed(len(batch["ids"]))
    model.zero_grad()
    arl.accumulate(model, batch, A, cfg, 10**6)
    once = left(model)
    arl.accumulate(model, batch, A, cfg, 10**6)
    assert close(left(model), 2 * once)
    stats = arl.accumulate(model, batch, torch.zeros_like(A), cfg, 10**6)
    assert stats == {"loss": 0.0, "micro_batches": 0.0, "rows": 0.0, "tokens": 0.0} and close(left(model), 2 * once)
    masked = {**batch, "action_mask": torch.zeros_like(batch["action_mask"])}
    assert arl.accumulate(model, masked, A, cfg, 10**6)["loss"] == 0
    model.zero_grad()


def test_accumulate_refuses_before_any_work(model, batch):
    A = signed(len(batch["ids"]))
    model.zero_grad()
    for bad, cfg, budget, word in (
        (A[1:], arl.RLConfig(), 10**6, "advantages"),
        (A, arl.RLConfig(ratio_level="sequence"), 10**6, "ratio_level"),
        (A, arl.RLConfig(correction="truncate"), 10**6, "correction"),
        (A, arl.RLConfig(kl_coef=0.1), 10**6, "ref_model"),
        (A, arl.RLConfig(), 1, "budget"),
    ):
        with pytest.raises(ValueError, match=word):
            arl.accumulate(model, batch, bad, cfg, budget)
    assert (left(model) == 0).all()


# which tasks


def test_filter_keeps_tasks_strictly_inside_the_band():
    tasks = train_tasks()[:4]
    assert arl.in_band(tasks, [0.0, 0.25, 1.0, 0.75]) == [tasks[1], tasks[3]]
    assert arl.in_band(tasks, [0.0, 0.25, 1.0, 0.75], 0.3, 0.9) == [tasks[3]]
    for args, word in (((tasks, [0.5]), "rates"), ((tasks, [0.5] * 4, 0.6, 0.4), "low"), ((tasks, [0.0] * 4), "no task")):
        with pytest.raises(ValueError, match=word):
            arl.in_band(*args)


def test_pass_rates_are_means_of_the_episodes_sampled():
    tasks, tok = train_tasks()[:3], tokenizer()
    model = fresh_agent()
    rates = arl.pass_rates(model, tasks, tok, 2, gen(), arl.RLConfig(reward=lambda info: 0.5))
    assert rates == [0.5] * 3


def test_slots_follow_the_shares_and_reports_move_only_known_tasks():
    tasks = train_tasks()[:3]
    c = arl.Curriculum(tasks, rate=0.5, floor=0.02, start=0.5, slots=400)
    c.rates.update(zip(c.rates, (0.5, 0.9, 0.0)))
    want = [0.27 / 0.4, 0.11 / 0.4, 0.02 / 0.4]
    assert torch.allclose(c.shares(), torch.tensor(want, dtype=torch.double))
    got = [c[i] for i in range(len(c))]
    assert all(abs(sum(t is task for t in got) - 400 * w) <= 1 for task, w in zip(tasks, want))
    assert c[torch.tensor(0)] is tasks[0] and list(c)[-1] is tasks[2]
    c.report("another/task", 1.0)
    c.report(tasks[2].name, 3.0)
    assert c.rates == {tasks[0].name: 0.5, tasks[1].name: 0.9, tasks[2].name: 0.5}
    with pytest.raises(IndexError):
        c[400]


@pytest.mark.parametrize("fields", [{"rate": 0}, {"rate": 1.5}, {"floor": 0}, {"start": 2}, {"slots": 2}])
def test_curriculum_refuses_wrong_settings(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        arl.Curriculum(train_tasks()[:3], **fields)


def test_curriculum_refuses_no_tasks_and_equal_names():
    for tasks in ([], [train_tasks()[0], train_tasks()[0]]):
        with pytest.raises(ValueError, match="tasks"):
            arl.Curriculum(tasks)


def test_every_episode_is_reported_once_also_one_cut_off_from_outside():
    told = []
    env = arl.ReportingEnv(arl.BugFixEnv(6), lambda name, reward: told.append((name, reward)))
    task = train_tasks()[0]
    env.reset(task)
    env.step("<call> read </call>")
    assert not told and env.turn == 1
    env.final_info(False)
    assert told == [(task.name, 0.0)]
    env.reset(task)
    for call in (f"<call> edit {task.fix_op} </call>", "<call> submit </call>"):
        env.step(call)
    env.final_info(True)
    assert told[1:] == [(task.name, 1.0)]


def test_a_curriculum_trains_and_is_reproducible_and_ignores_evaluation():
    tok, tasks = tokenizer(), train_tasks()[:4]
    cfg = arl.RLConfig(group_size=2, prompts_per_step=2, max_turns=2, reward=lambda info: 1.0)
    ends = []
    for _ in range(2):
        c = arl.Curriculum(tasks)
        held_out = arl.make_tasks("heldout")[:1]
        history = arl.train_rl(fresh_agent(), c, tok, cfg, 2, eval_tasks=held_out, env_factory=c.env)
        ends.append((history, dict(c.rates)))
    assert ends[0] == ends[1] and set(ends[0][1]) == {t.name for t in tasks}
    assert sum(p != 0.5 for p in ends[0][1].values()) >= 2


def test_a_policy_that_always_fails_ends_at_the_cap_of_rounds_also_with_a_curriculum():
    """Row 27."""
    tok, model = tokenizer(), fresh_agent()
    c = arl.Curriculum(train_tasks())
    cfg = arl.RLConfig(group_size=2, prompts_per_step=2, max_turns=1, dynamic_sampling=True, max_sample_rounds=3, reward=lambda info: 0.0)
    before = [p.clone() for p in model.parameters()]
    (record,) = arl.train_rl(model, c, tok, cfg, 1, env_factory=c.env)
    assert record["n_episodes"] == 12 and record["updated"] is False and record["zero_adv_frac"] == 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert max(c.rates.values()) <= 0.5 and min(c.rates.values()) < 0.5
