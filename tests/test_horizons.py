"""Chapter 12: jobs of several tickets, credit at tickets, and contexts that are too long. 'Row n' is a row of cases/algorithms.md."""

import random
from dataclasses import replace

import pytest
import torch
from toys import fresh_agent, gen, tokenizer

import agentrl as arl

TASKS = arl.make_tasks("train")
PAIR = arl.Job((TASKS[0], TASKS[4]))


def call(text):
    return f"<call> {text} </call>"


def played(calls, job=PAIR, **settings):
    """The final info of an episode of `calls`, its observations and its reward."""
    env = arl.JobEnv(**settings)
    replies, reward, info = [env.reset(job)], 0.0, {}
    for text in calls:
        obs, reward, _, info = env.step(call(text))
        replies.append(obs)
    return info, replies, reward


FIXES = [f"edit {t.fix_op}" for t in PAIR.tasks]


def test_a_ticket_opens_when_the_one_before_it_is_submitted():
    info, replies, reward = played([FIXES[0], "submit", "read", FIXES[1], "submit"])
    assert replies[0] == TASKS[0].issue and replies[2] == TASKS[4].issue
    assert "sum_to" in replies[3] and "clamp" not in replies[3]
    assert reward == 1.0 and info["solved"] == [True, True] and info["hidden_pass"] and info["share"] == 1.0
    assert info["turn_rewards"] == [0.0, 0.5, 0.0, 0.0, 0.5] and info["ticket_of_turn"] == [0, 0, 1, 1, 1]


def test_the_edit_budget_is_a_tickets():
    info, *_ = played(["edit fix_init", FIXES[0], "submit", FIXES[1], "submit"])
    assert info["solved"] == [False, True] and not info["hidden_pass"]
    info, *_ = played(["edit fix_init", FIXES[0], "submit", FIXES[1], "submit"], max_edits=2)
    assert info["solved"] == [True, True]


@pytest.mark.parametrize("settings, want", [
    ({}, [0.0, 0.5, 0.0]),
    ({"step_cost": 0.125}, [-0.125, 0.375, -0.125]),
    ({"step_cost": 0.125, "truncation_cost": 0.25}, [-0.125, 0.375, -0.375]),
    ({"all_or_nothing": True}, [0.0, 0.0, 0.0]),
])  # fmt: skip
def test_an_episode_that_is_cut_off_keeps_what_it_earned_less_costs(settings, want):
    info, _, reward = played([FIXES[0], "submit", "read"], max_turns=3, **settings)
    assert info["turn_rewards"] == want and reward == sum(want) and not info["submitted"] and info["share"] == 0.5


@pytest.mark.parametrize("name", ["step_cost", "truncation_cost"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "0", None, True])
def test_wrong_costs_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        arl.JobEnv(**{name: value})


@pytest.mark.parametrize("n_tickets, n, word", [(0, 1, "n_tickets"), (21, 1, "n_tickets"), (2, 0, "n is"), (True, 1, "n_tickets"), (2, 1.0, "n is")])
def test_wrong_counts_of_jobs_are_refused(n_tickets, n, word):
    with pytest.raises(ValueError, match=word):
        arl.make_jobs(TASKS, n_tickets, n, random.Random(0))


def test_jobs_hold_different_tasks_and_come_from_the_seed():
    jobs = arl.make_jobs(TASKS, 3, 20, random.Random(5))
    assert all(len({t.name for t in job.tasks}) == 3 for job in jobs)
    assert jobs == arl.make_jobs(TASKS, 3, 20, random.Random(5)) != arl.make_jobs(TASKS, 3, 20, random.Random(6))


def episodes(seed=0, n_tickets=2, **costs):
    cfg = arl.RLConfig(group_size=4, max_turns=8)
    jobs = arl.make_jobs(TASKS, n_tickets, 3, random.Random(seed))
    return arl.sample_jobs(fresh_agent(), jobs, tokenizer(), cfg, gen(seed), **costs)


def with_info(turn_rewards, ticket_of_turn, n_tickets, submitted=True):
    """A trajectory of one-token calls between one-token observations."""
    traj = arl.Trajectory(info={"turn_rewards": turn_rewards, "ticket_of_turn": ticket_of_turn, "n_tickets": n_tickets, "submitted": submitted})
    for i, _ in enumerate(turn_rewards):
        traj.observe([1])
        traj.act([2] * (i + 1), [0.0] * (i + 1), [0.0] * (i + 1))
    return traj


def test_returns_by_rule():
    trajs = [with_info([0.0, 0.5, -0.25, 0.5], [0, 0, 1, 1], 2), with_info([0.25], [0], 2)]
    got = {c: arl.ticket_returns(trajs, c)[0].tolist() for c in arl.CREDITS}
    assert got == {"episode": [[0.75, 0.75], [0.25, 0.0]], "to_go": [[0.75, 0.25], [0.25, 0.0]], "ticket": [[0.5, 0.25], [0.25, 0.0]]}
    assert arl.ticket_returns(trajs)[1].tolist() == [[True, True], [True, False]]
    with pytest.raises(ValueError, match="credit is 'turn'"):
        arl.ticket_returns(trajs, "turn")
    with pytest.raises(ValueError, match="trajs is empty"):
        arl.ticket_returns([])


def test_each_token_gets_the_number_of_its_ticket_and_others_none():
    trajs = [with_info([0.0, 0.0, 0.0], [0, 1, 1], 2), with_info([0.0], [0], 2)]
    spread = arl.at_tokens(trajs, torch.tensor([[3.0, 5.0], [7.0, 9.0]]))
    assert spread.tolist() == [[3, 0, 5, 5, 0, 5, 5, 5], [7, 0, 0, 0, 0, 0, 0, 0]]
    sampled = episodes()
    ones = arl.at_tokens(sampled, torch.ones(len(sampled), 2))
    assert torch.equal(ones, arl.collate(sampled, tokenizer().pad_id)["action_mask"])


def test_with_one_ticket_the_advantages_are_chapter_7s():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5])
    got = arl.ticket_advantages(rewards[:, None], torch.ones(8, 1, dtype=torch.bool), 4)[:, 0]
    assert torch.allclose(got, arl.group_advantages(rewards, 4)) and (got[4:] == 0).all()


def test_attempts_that_do_not_count_change_nothing():
    """Row 2: rows that are masked out leave the others as they are, also in the mean and the deviation."""
    returns = torch.tensor([[1.0, 9.0], [0.0, 2.0], [0.5, 4.0], [7.0, 1.0]])
    counted = torch.tensor([[True, False], [True, True], [True, True], [False, False]])
    got = arl.ticket_advantages(returns, counted, 4)
    assert torch.allclose(got[:3, 0], arl.group_advantages(returns[:3, 0], 3)) and got[3].tolist() == [0, 0] and got[0, 1] == 0
    assert torch.allclose(got[1:3, 1], arl.group_advantages(torch.tensor([2.0, 4.0]), 2))
    assert not arl.ticket_advantages(returns, torch.zeros(4, 2, dtype=torch.bool), 4).any()
    lonely = torch.tensor([[True], [False], [False], [False]])
    assert not arl.ticket_advantages(returns[:, :1], lonely, 4).any()
    for wrong in ((returns, counted[:3], 4), (returns[:, 0], counted[:, 0], 4), (returns, counted, 3)):
        with pytest.raises(ValueError, match="returns has shape"):
            arl.ticket_advantages(*wrong)


def test_training_is_reproducible_and_refuses_an_unknown_rule_before_any_work():
    cfg = arl.RLConfig(group_size=4, prompts_per_step=2, max_turns=6, seed=3)
    runs = []
    for _ in "ab":
        model = fresh_agent()
        runs.append((arl.train_jobs(model, TASKS, tokenizer(), cfg, 2, step_cost=0.01), model.state_dict()))
    assert runs[0][0] == runs[1][0] and all(torch.equal(a, b) for a, b in zip(runs[0][1].values(), runs[1][1].values()))
    with pytest.raises(ValueError, match="credit is 'x'"):
        arl.train_jobs(None, TASKS, tokenizer(), cfg, 1, credit="x")
    for field, value in (("correction", "truncate"), ("ratio_level", "sequence")):
        with pytest.raises(ValueError, match=f"{field}.* '{value}'"):
            arl.train_jobs(None, TASKS, tokenizer(), arl.RLConfig(**{field: value}), 1)


def test_masked_episodes_have_no_part_in_the_gradient():
    """Row 2: with every episode cut off and masked, nothing moves but for Adam's own state, which is still zero."""
    model = fresh_agent()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    cfg = arl.RLConfig(group_size=4, prompts_per_step=2, max_turns=1, seed=0)
    history = arl.train_jobs(model, TASKS, tokenizer(), cfg, 1, mask_truncated=True)
    assert history[0]["submitted"] == 0.0 and all(torch.equal(before[k], v) for k, v in model.state_dict().items())


PARTS = [("issue", [1, 2]), ("call", [3]), ("reply", [4, 5, 6, 7]), ("issue", [8, 9]), ("call", [10]), ("reply", [11, 12, 13])]
EVERY = [i for _, ids in PARTS for i in ids]


@pytest.mark.parametrize("rule", arl.CONTEXT_RULES)
def test_a_history_that_fits_is_left_alone(rule):
    assert arl.shorten(PARTS, len(EVERY), rule) == EVERY


@pytest.mark.parametrize("rule, limit, want", [
    ("oldest", 5, [9, 10, 11, 12, 13]),
    ("keep issue", 5, [8, 9, 11, 12, 13]),
    ("empty replies", 11, [1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13]),
    ("empty replies", 5, [9, 10, 11, 12, 13]),
])  # fmt: skip
def test_what_goes_first(rule, limit, want):
    before = [(kind, list(ids)) for kind, ids in PARTS]
    assert arl.shorten(PARTS, limit, rule) == want and PARTS == before


def test_wrong_limits_and_rules_are_refused():
    for limit, rule in ((0, "oldest"), (2, "keep issue"), (True, "oldest"), (5.0, "oldest")):
        with pytest.raises(ValueError, match="limit is"):
            arl.shorten(PARTS, limit, rule)
    with pytest.raises(ValueError, match="rule is 'newest'"):
        arl.shorten(PARTS, 5, "newest")


@pytest.mark.parametrize("rule", arl.CONTEXT_RULES)
def test_without_a_limit_that_binds_the_episodes_are_those_of_the_plain_rollout(rule):
    """Row 29's kind: a context built anew each turn says the same as cached keys."""
    cfg, jobs = arl.RLConfig(group_size=2, max_turns=6), arl.make_jobs(TASKS, 2, 3, random.Random(1))
    model = fresh_agent()
    plain = [t.info for t in arl.sample_jobs(model, jobs, tokenizer(), cfg, gen(4))]
    fresh = arl.sample_limited(model, jobs, tokenizer(), cfg, 100_000, rule, gen(4))
    assert [i["actions"] for i in fresh] == [i["actions"] for i in plain]
    assert [i["turn_rewards"] for i in fresh] == [i["turn_rewards"] for i in plain]


def test_recoveries_count_tickets_whose_first_edit_was_wrong():
    right, wrong = FIXES[0], "edit fix_init"
    infos = [played([wrong, right, "submit", FIXES[1], "submit"], max_edits=2)[0],
             played([wrong, "submit", wrong, FIXES[1], "read"], max_edits=2, max_turns=5)[0],
             played([right, "submit", "submit"], max_edits=2)[0]]  # fmt: skip
    assert arl.recoveries(infos) == (3, 1)


def test_an_empty_batch_has_no_statistics():
    with pytest.raises(ValueError, match="trajs is empty"):
        arl.job_stats([])
    stats = arl.job_stats(episodes())
    assert 0 <= stats["share"] <= 1 and stats["turns"] <= 8


def test_renaming_touches_every_ticket():
    renamed = arl.rename_job(PAIR, random.Random(0))
    assert [t.name for t in renamed.tasks] == [t.name for t in PAIR.tasks]
    assert all(new.fn_name != old.fn_name and new.fn_name in new.issue for new, old in zip(renamed.tasks, PAIR.tasks))
    assert replace(renamed.tasks[0], fn_name="clamp", issue=TASKS[0].issue, source=TASKS[0].source) == TASKS[0]
