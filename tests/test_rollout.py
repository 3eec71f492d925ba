"""Chapter 5, and the group sampler of chapter 9. 'Row n' is a row of cases/algorithms.md."""

import inspect
import random

import pytest
import torch
from toys import (
    MarkovAgent,
    agent,
    fresh_agent,
    gen,
    naive,
    sampled,
    says,
    tokenizer,
    train_tasks,
)

import agentrl as arl

TASKS = arl.make_tasks("all")


def rollout(model, tasks, tok=None, max_turns=6, temperature=1.0, seed=0, play=None, **env):
    envs = [arl.BugFixEnv(max_turns=max_turns, **env) for _ in tasks]
    play = play or arl.rollout_batch
    return play(model, envs, tasks, tok or tokenizer(), max_turns, temperature, gen(seed))


# The tokenizer.


def test_tokenizer_knows_everything_the_gym_can_say():
    """Issues, sources under any edits, also renamed, test lines and replies: never an unknown word."""
    tok, rng = tokenizer(), random.Random(0)
    texts = [*arl.MESSAGES.values(), *arl.CALLS]
    texts += [line for _, line in arl.run_tests("def (", TASKS[0].public_tests, "f")]
    for task in TASKS:
        for version in (task, arl.randomize_names(task, rng)):
            texts += [version.issue, *map(arl.compact_source, arl.reachable_sources(version))]
            texts += [o for _, o in arl.run_tests(task.source, task.public_tests, task.fn_name)]
    for text in texts:
        ids = tok.encode(text)
        assert tok.unk_id not in ids, text
        assert tok.decode(ids) == text


def test_tokenizer_of_some_tasks_still_knows_all_names():
    tok = arl.build_tokenizer(train_tasks())
    assert all(tok.unk_id not in tok.encode(name) for name in arl.FN_NAMES)
    assert len(tok) <= len(tokenizer())


def test_tokenizer_keeps_to_its_contract():
    tok = tokenizer()
    assert tok.encode("zebra clamp") == [tok.unk_id, *tok.encode("clamp")]
    assert tok.pad_id != tok.unk_id and tok.decode([tok.pad_id]) == "<pad>"
    assert sorted(tok.ids.values()) == list(range(len(tok)))
    assert arl.build_tokenizer(TASKS).words == tok.words, "the same ids each time"
    assert tok.encode("") == [] and tok.decode([]) == ""


def test_every_call_fits_into_a_turn():
    longest = max(len(tokenizer().encode(call)) for call in arl.CALLS)
    assert longest <= arl.MAX_CALL_TOKENS == 6


# Episodes.


def test_an_episode_alternates_observations_and_sampled_calls():
    tok = tokenizer()
    for traj in sampled():
        n = len(traj.ids)
        assert len(traj.action_mask) == len(traj.logps) == len(traj.entropies) == n
        text = tok.decode(traj.ids)
        assert text.startswith("<obs> issue : ") and traj.action_mask[-1] == 1
        calls, call = [], []
        for token, own, logp, entropy in zip(
            traj.ids, traj.action_mask, traj.logps, traj.entropies, strict=True
        ):
            if own:
                call.append(token)
                assert logp <= 0 and entropy >= 0
            else:
                assert logp == entropy == 0
            if call and (not own or token == tok.end_call_id):
                calls.append(tok.decode(call))
                call = []
        calls += [tok.decode(call)] if call else []
        assert calls == traj.info["actions"] and len(calls) == traj.info["n_turns"] <= 6


def test_info_holds_what_the_contract_promises():
    for traj in sampled():
        info = traj.info
        assert {"task", "actions", "ops", "n_turns", "submitted", "hidden_pass"} <= set(info)
        assert info["task"] in arl.FIX_OP and all(isinstance(a, str) for a in info["actions"])
        assert traj.reward == float(info["hidden_pass"])
        assert info["submitted"] == ("<call> submit </call>" in info["actions"])


def test_replaying_the_actions_gives_the_episode_again():
    """The environment's words in the ids are its answers to the calls in the ids."""
    tok, tasks, same_ids = tokenizer(), train_tasks()[:6], 0
    for task, traj in zip(tasks, rollout(agent(), tasks), strict=True):
        prompt, turns, reward, info = arl.play(arl.BugFixEnv(), task, traj.info["actions"])
        again = arl.encode_play(tok, prompt, turns, reward, info)
        same_ids += (again.ids, again.action_mask) == (traj.ids, traj.action_mask)
        assert (reward, info) == (traj.reward, traj.info)
    assert same_ids == len(tasks)


def test_episodes_come_in_the_order_of_their_tasks():
    tasks = [TASKS[i] for i in (7, 0, 21, 7, 3)]
    trajs = rollout(agent(), tasks)
    assert [t.info["task"] for t in trajs] == [t.name for t in tasks]
    for traj, task in zip(trajs, tasks, strict=True):
        assert tokenizer().decode(traj.ids).startswith(f"<obs> {task.issue} </obs>")


@pytest.mark.parametrize("max_turns", [1, 2, 5])
def test_an_episode_that_never_submits_ends_with_its_turns(max_turns):
    tok = tokenizer()
    for env_turns in (max_turns, max_turns + 3):
        envs = [arl.BugFixEnv(max_turns=env_turns, reward=lambda info: 1.0)]
        model = says(tok, "<call> read </call>")
        (traj,) = arl.rollout_batch(model, envs, TASKS[:1], tok, max_turns, 1.0, gen())
        assert traj.info["n_turns"] == max_turns and not traj.info["submitted"]
        assert traj.info["actions"] == ["<call> read </call>"] * max_turns
        if env_turns > max_turns:
            assert traj.reward == 0.0, "cut off by the rollout, not ended by the environment"


def test_a_turn_holds_at_most_max_call_tokens():
    tok = tokenizer()
    words = "read read read read read read read".split()
    follow = {tok.ids["</obs>"]: tok.ids["read"], tok.ids["read"]: tok.ids["read"]}
    (traj,) = rollout(MarkovAgent(len(tok), follow), TASKS[:1], max_turns=2)
    assert traj.info["actions"] == [" ".join(words[: arl.MAX_CALL_TOKENS])] * 2
    assert sum(traj.action_mask) == 2 * arl.MAX_CALL_TOKENS


@pytest.mark.parametrize(
    "words",
    ["<call> edit </call>", "<call> submit read </call>", "submit </call>", "<call> ( </call>"],
)
def test_a_policy_of_malformed_calls_gets_errors_and_keeps_playing(words):
    """Row 23 through the rollout: an error observation, a used turn, the episode goes on."""
    tok = tokenizer()
    (traj,) = rollout(says(tok, words), TASKS[:1], max_turns=4)
    error = f"<obs> {arl.MESSAGES['malformed']} </obs>"
    assert tok.decode(traj.ids).count(error) == 3, "one after each turn but the last"
    assert traj.info["actions"] == [words] * 4
    assert traj.reward == 0 and traj.info["ops"] == []


class MergingTokenizer:
    """Characters a and b, and ab, which encoding always prefers."""

    def __init__(self):
        self.words = ["<pad>", "<unk>", "<obs>", "</obs>", "</call>", "a", "b", "ab", " "]
        self.pad_id, self.unk_id, self.end_call_id = 0, 1, 4
        self.observations = {}

    def __len__(self):
        return len(self.words)

    def encode(self, text):
        ids = []
        while text:
            word = max((w for w in self.words if text.startswith(w)), key=len, default=None)
            ids.append(self.words.index(word) if word else self.unk_id)
            text = text[len(word) if word else 1 :]
        return ids

    def decode(self, ids):
        return "".join(self.words[i] for i in ids)


@pytest.mark.parametrize("play", ["cached", "naive"])
def test_sampled_ids_are_kept_as_sampled_not_tokenized_again(play):
    """Row 15: the policy samples [a, b] where the tokenizer would write [ab]."""
    tok = MergingTokenizer()
    a, b, end = 5, 6, tok.end_call_id
    assert tok.encode(tok.decode([a, b, end])) == [7, end]
    model = MarkovAgent(len(tok), {3: a, a: b, b: end})
    fn = arl.rollout_batch if play == "cached" else naive().rollout
    (traj,) = rollout(model, TASKS[:1], tok, max_turns=3, play=fn)
    own = [i for i, m in zip(traj.ids, traj.action_mask, strict=True) if m]
    assert own == [a, b, end] * 3
    assert traj.info["actions"] == ["ab</call>"] * 3


def test_later_turns_are_computed_from_the_ids_as_sampled():
    """Row 15: the sampler's log-probs in later turns are those after [a, b], not after [ab]."""
    tok = MergingTokenizer()
    model = fresh_agent(vocab_size=len(tok), seed=2)
    plain, likely = model.head, torch.zeros(len(tok))
    likely[[5, 6]] = 3.0
    model.head = lambda hidden: plain(hidden) + likely
    trajs = rollout(model, TASKS[:8], tok, max_turns=4)
    drifting = 0
    for traj in trajs:
        drifting += tok.encode(tok.decode(traj.ids)) != traj.ids
        batch = arl.collate([traj], tok.pad_id)
        logp = arl.action_log_probs(model, batch["ids"], batch["action_mask"])
        assert torch.allclose(logp, batch["sampler_logps"], atol=1e-4)
    assert drifting > 4, "tokenizing again would give other ids"


# Cached and naive, reproducibility.


def same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.ids == y.ids and x.action_mask == y.action_mask
        assert (x.reward, x.info) == (y.reward, y.info)
        assert torch.allclose(torch.tensor(x.logps), torch.tensor(y.logps), atol=1e-4)
        assert torch.allclose(torch.tensor(x.entropies), torch.tensor(y.entropies), atol=1e-4)


@pytest.mark.parametrize("policy", ["trained", "untrained"])
@pytest.mark.parametrize("seed, temperature, max_turns", [(0, 1.0, 6), (1, 0.6, 6), (2, 1.5, 3)])
def test_cached_rollout_gives_the_naive_episodes(policy, seed, temperature, max_turns):
    """The same generator, the same episodes: calls of unequal length, episodes that end early."""
    model = agent() if policy == "trained" else fresh_agent(seed=seed)
    both = [
        rollout(model, TASKS[::4], None, max_turns, temperature, seed, play)
        for play in (arl.rollout_batch, naive().rollout)
    ]
    same(*both)
    if policy == "trained" and max_turns == 6:
        assert len({t.info["n_turns"] for t in both[0]}) > 1, "some episodes end early"


def test_cached_and_naive_group_samplers_agree_renamed_names_included():
    cfg = arl.RLConfig(group_size=3, temperature=0.8)
    both = [
        sample(agent(), arl.make_env, train_tasks()[:4], tokenizer(), cfg, gen(3))
        for sample in (arl.sample_groups, naive().sample_groups)
    ]
    same(*both)


@pytest.mark.parametrize("rename", [True, False])
def test_groups_are_reproducible_from_their_generator_alone(rename):
    cfg = arl.RLConfig(group_size=3, rename=rename)

    def sample(seed):
        return arl.sample_groups(
            agent(), arl.make_env, train_tasks()[:3], tokenizer(), cfg, gen(seed)
        )

    torch.manual_seed(1)
    random.seed(1)
    first = sample(5)
    torch.manual_seed(2)
    random.seed(2)
    states = torch.random.get_rng_state(), random.getstate()
    again = sample(5)
    same(first, again)
    assert torch.equal(states[0], torch.random.get_rng_state()) and states[1] == random.getstate()
    assert [t.ids for t in sample(6)] != [t.ids for t in first]


def test_a_missing_generator_is_a_fresh_one_of_seed_0():
    model, tok = agent(), tokenizer()
    a, b = (
        arl.rollout_batch(model, [arl.BugFixEnv()], TASKS[:1], tok, generator=g)
        for g in (None, gen(0))
    )
    same(a, b)


def test_groups_are_consecutive_and_marked():
    cfg = arl.RLConfig(group_size=4)
    tasks = train_tasks()[3:6]
    trajs = arl.sample_groups(agent(), arl.make_env, tasks, tokenizer(), cfg, gen())
    assert [t.info["task"] for t in trajs] == [t.name for t in tasks for _ in range(4)]
    assert [t.info["group"] for t in trajs] == [0] * 4 + [1] * 4 + [2] * 4


def test_each_attempt_gets_its_own_new_name_only_if_asked():
    tok = tokenizer()
    for rename in (True, False):
        cfg = arl.RLConfig(group_size=8, rename=rename, max_turns=1)
        trajs = arl.sample_groups(agent(), arl.make_env, train_tasks()[:1], tok, cfg, gen())
        issues = {tok.decode(t.ids).split(" </obs>")[0] for t in trajs}
        assert len(issues) > 3 if rename else issues == {"<obs> issue : clamp returns wrong results"}


def test_groups_use_the_environment_of_the_factory_and_the_settings():
    seen = []

    class Env(arl.BugFixEnv):
        def reset(self, task):
            seen.append(task.name)
            return super().reset(task)

    cfg = arl.RLConfig(group_size=2, max_turns=2, temperature=0.7)

    def factory(got):
        assert got is cfg
        return Env(got.max_turns, lambda info: 0.5)

    trajs = arl.sample_groups(agent(), factory, train_tasks()[:2], tokenizer(), cfg, gen())
    assert seen == ["minmax/clamp"] * 2 + ["minmax/cap"] * 2
    assert {t.reward for t in trajs} == {0.5} and max(t.info["n_turns"] for t in trajs) <= 2


# Sampler and trainer.


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_sampler_log_probs_are_the_trainer_s_at_the_sampling_temperature(temperature):
    """Row 4: every ratio is 1 before any update; with another temperature it isn't."""
    model = agent()
    batch = arl.collate(sampled(1, temperature), tokenizer().pad_id)
    args = model, batch["ids"], batch["action_mask"]
    ratio = (arl.action_log_probs(*args, temperature) - batch["sampler_logps"]).exp()
    assert torch.allclose(ratio, torch.ones_like(ratio), atol=1e-4)
    other = (arl.action_log_probs(*args, temperature * 1.3) - batch["sampler_logps"]).exp()
    assert (other - 1).abs().max() > 0.05
    plain, entropy = naive().log_probs(model, batch, temperature)
    mask = batch["action_mask"].bool()
    assert torch.allclose(plain[mask], batch["sampler_logps"][mask], atol=1e-4)
    assert torch.allclose(entropy[mask], batch["entropies"][mask], atol=1e-4)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_rollout_after_an_update_uses_the_new_weights(seed):
    """Row 29: no stale key-value cache."""
    model, tok = agent(), tokenizer()
    cfg = arl.RLConfig(group_size=4, prompts_per_step=2, lr=0.01, rename=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)

    def sample():
        trajs = arl.sample_groups(model, arl.make_env, train_tasks()[:2], tok, cfg, gen(seed))
        return arl.collate(trajs, tok.pad_id)

    first = sample()
    advantages = torch.linspace(-1, 1, 8)
    arl.rl_update(model, optimizer, first, advantages, cfg)
    second = sample()
    new = arl.action_log_probs(model, second["ids"], second["action_mask"])
    assert torch.allclose(new, second["sampler_logps"], atol=1e-4)
    moved = arl.action_log_probs(model, first["ids"], first["action_mask"])
    assert (moved - first["sampler_logps"]).abs().max() > 0.01, "the update changed something"


def test_a_certain_policy_has_log_prob_zero_at_every_policy_position_of_a_batch():
    """Row 6: mask, ids and log-probs are shifted together, by one."""
    tok = tokenizer()
    model = says(tok, "<call> edit fix_init </call>")
    trajs = rollout(model, TASKS[:3], max_turns=2)
    batch = arl.collate(trajs, tok.pad_id)
    mask = batch["action_mask"].bool()
    assert mask.sum() == 3 * 2 * 4
    assert arl.action_log_probs(model, batch["ids"], mask)[mask].abs().max() < 1e-5
    assert set(batch["ids"][:, 1:][mask].tolist()) == set(tok.encode("<call> edit fix_init </call>"))
    late = torch.zeros_like(mask)
    late[:, 1:] = mask[:, :-1]
    assert arl.action_log_probs(model, batch["ids"], late)[late].min() < -50


# Collate.


def toy_trajectories():
    first = arl.Trajectory(reward=1.0, info={"n_turns": 2, "group": 0})
    first.observe([7, 8])
    first.act([9], [-0.5], [0.25])
    first.observe([10])
    first.act([11, 12], [-1.0, -2.0], [1.25, 0.75])
    second = arl.Trajectory(reward=0.0, info={"n_turns": 1, "group": 1})
    second.observe([7])
    second.act([13], [-3.0], [0.5])
    return [first, second]


def test_collate_aligns_everything_with_the_prediction_of_the_next_token():
    batch = arl.collate(toy_trajectories(), pad_id=99)
    assert batch["ids"].tolist() == [[7, 8, 9, 10, 11, 12], [7, 13, 99, 99, 99, 99]]
    assert batch["action_mask"].tolist() == [[0, 1, 0, 1, 1], [1, 0, 0, 0, 0]]
    assert batch["sampler_logps"].tolist() == [[0, -0.5, 0, -1, -2], [-3, 0, 0, 0, 0]]
    assert batch["entropies"].tolist() == [[0, 0.25, 0, 1.25, 0.75], [0.5, 0, 0, 0, 0]]
    assert batch["rewards"].tolist() == [1, 0]
    assert batch["n_turns"].tolist() == [2, 1] and batch["groups"].tolist() == [0, 1]
    assert batch["ids"].dtype == torch.long and batch["action_mask"].dtype == torch.float


def test_collate_refuses_what_it_cannot_align():
    with pytest.raises(ValueError, match="trajs is empty"):
        arl.collate([], 0)
    trajs = toy_trajectories()
    trajs[1].logps = trajs[1].logps[:-1]
    with pytest.raises(ValueError, match="trajectory 1 .*length"):
        arl.collate(trajs, 0)


def test_padding_changes_neither_log_probs_nor_entropy():
    """Rows 18 and 20: the same episode alone and beside a much longer one."""
    model, tok = agent(), tokenizer()
    trajs = sorted(sampled(2), key=lambda t: len(t.ids))
    short, long = trajs[0], trajs[-1]
    assert len(long.ids) > 2 * len(short.ids)
    alone, beside = arl.collate([short], tok.pad_id), arl.collate([short, long], tok.pad_id)
    n = len(short.ids) - 1
    for batch in (alone, beside):
        batch["logp"] = arl.action_log_probs(model, batch["ids"], batch["action_mask"])
        batch["own"] = arl.masked_mean(batch["entropies"], batch["action_mask"], 1)
        plain, entropy = naive().log_probs(model, batch, 1.0)
        batch["again"] = arl.masked_mean(entropy, batch["action_mask"], 1)
    assert torch.allclose(alone["logp"], beside["logp"][:1, :n], atol=1e-5)
    assert not beside["action_mask"][0, n:].any() and not beside["logp"][0, n:].any()
    for key in ("own", "again"):
        assert alone[key][0].item() == pytest.approx(beside[key][0].item(), abs=1e-5)
        assert beside[key].min() >= 0


@pytest.mark.parametrize("extra", [1, 40])
def test_entropy_of_an_update_ignores_padding(extra):
    """Row 20: extend the padding of a whole batch."""
    tok, cfg = tokenizer(), arl.RLConfig(group_size=4, lr=0.0)
    batch = arl.collate(sampled(2), tok.pad_id)
    longer = {"ids": torch.nn.functional.pad(batch["ids"], (0, extra), value=tok.pad_id)}
    for key in ("action_mask", "sampler_logps", "entropies"):
        longer[key] = torch.nn.functional.pad(batch[key], (0, extra))
    stats = []
    for b in (batch, batch | longer):
        model = agent()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
        stats.append(arl.rl_update(model, optimizer, b, torch.linspace(-1, 1, 16), cfg))
    assert stats[0]["entropy"] == pytest.approx(stats[1]["entropy"], abs=1e-6) and stats[0]["entropy"] > 0
    assert stats[0]["grad_norm"] == pytest.approx(stats[1]["grad_norm"], rel=1e-4)


def test_played_demonstrations_count_as_the_policy_s_calls():
    tok = tokenizer()
    task = TASKS[0]
    prompt, turns, reward, info = arl.play(arl.BugFixEnv(), task, arl.oracle_player(task, None))
    traj = arl.encode_play(tok, prompt, turns, reward, info)
    own = [i for i, m in zip(traj.ids, traj.action_mask, strict=True) if m]
    assert tok.decode(own) == " ".join(info["actions"]) and reward == traj.reward == 1.0
    assert traj.action_mask[-1] == 1, "nothing is predicted after the last call"


# Wrong values.


@pytest.mark.parametrize(
    "change, words",
    [
        ({"max_turns": 0}, ["max_turns", "0", "at least 1"]),
        ({"max_turns": True}, ["max_turns", "True", "at least 1"]),
        ({"max_turns": 2.0}, ["max_turns", "2.0", "at least 1"]),
        ({"max_turns": None}, ["max_turns", "None", "at least 1"]),
        ({"temperature": 0}, ["temperature", "0", "above 0"]),
        ({"temperature": -0.5}, ["temperature", "-0.5", "above 0"]),
        ({"temperature": float("nan")}, ["temperature", "nan", "above 0"]),
        ({"temperature": float("inf")}, ["temperature", "inf", "above 0"]),
        ({"temperature": "hot"}, ["temperature", "hot", "above 0"]),
        ({"envs": 1}, ["envs", "1", "2"]),
        ({"envs": "shared"}, ["envs", "twice"]),
        ({"tasks": []}, ["tasks", "at least one"]),
        ({"tok": "other"}, ["tok", "words"]),
        ({"generator": 0}, ["generator", "0", "torch.Generator"]),
    ],
)
def test_rollout_refuses_wrong_values_before_any_work(change, words):
    started = []

    class Env(arl.BugFixEnv):
        def reset(self, task):
            started.append(task)
            return super().reset(task)

    envs = [Env(), Env()]
    settings = {"tasks": TASKS[:2], "max_turns": 6, "temperature": 1.0, "generator": gen()} | change
    if change.get("envs") == 1:
        envs = envs[:1]
    if change.get("envs") == "shared":
        envs = envs[:1] * 2
    if change.get("tasks") == []:
        envs = []
    tok = arl.build_tokenizer(TASKS[:1]) if change.get("tok") else tokenizer()
    with pytest.raises(ValueError) as error:
        arl.rollout_batch(
            fresh_agent(), envs, settings["tasks"], tok, settings["max_turns"],
            settings["temperature"], settings["generator"],
        )  # fmt: skip
    assert all(word in str(error.value) for word in words) and not started


def test_argument_orders_and_defaults_of_the_contract():
    def parameters(fn):
        return list(inspect.signature(fn).parameters)

    assert parameters(arl.rollout_batch) == [
        "model", "envs", "tasks", "tok", "max_turns", "temperature", "generator",
    ]  # fmt: skip
    assert parameters(arl.collate) == ["trajs", "pad_id"]
    assert parameters(arl.sample_groups) == [
        "model", "env_factory", "tasks", "tok", "cfg", "generator",
    ]  # fmt: skip


def test_a_rollout_leaves_no_gradient_and_does_not_touch_the_model():
    model = agent()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    rollout(model, TASKS[:2])
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
