"""The written-out versions that benchmarks/ measures against play and learn the same, whole steps together."""

import pytest
import torch
from toys import agent, distance, gen, naive, tokenizer, train_tasks

import agentrl as arl


def run(sample, update, cfg, steps):
    """Training written out: sampled tasks, episodes, advantages, update -> model, and the episodes of each step."""
    model, tok, g, seen = agent(), tokenizer(), gen(cfg.seed), []
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    for _ in range(steps):
        picks = torch.randperm(20, generator=g)[: cfg.prompts_per_step].tolist()
        tasks = [train_tasks()[i] for i in picks]
        trajs = sample(model, arl.make_env, tasks, tok, cfg, g)
        seen.append([(t.ids, t.action_mask, t.reward, t.info) for t in trajs])
        batch = arl.collate(trajs, tok.pad_id)
        update(model, optimizer, batch, arl.compute_advantages(batch, cfg), cfg, generator=g)
    return model, seen


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"adv_mode": "mean", "loss_mode": "constant", "temperature": 0.8},
        {"ratio_level": "sequence", "max_edits": None},
    ],
    ids=["default", "constant", "sequence"],
)
def test_steps_of_the_naive_and_the_library_s_code_are_the_same(fields):
    """Episodes of every step token for token, although the second step's come from updated weights."""

    def pays(info):
        return len(set(info["actions"])) / 6

    cfg = arl.RLConfig(group_size=4, prompts_per_step=3, lr=0.1, reward=pays, **fields)
    plain, plain_seen = run(naive().sample_groups, naive().update, cfg, 3)
    ours, ours_seen = run(arl.sample_groups, arl.rl_update, cfg, 3)
    assert ours_seen == plain_seen
    moved = distance(ours, agent())
    assert moved > 1e-3 and distance(ours, plain) < 1e-2 * moved


def test_the_written_out_loop_is_train_rl():
    """The same prompts and episodes come out of `train_rl`: nothing else draws from its generator."""
    cfg = arl.RLConfig(group_size=2, prompts_per_step=3, lr=0.0, seed=4, reward="public")
    _, seen = run(arl.sample_groups, arl.rl_update, cfg, 3)
    history = arl.train_rl(agent(), train_tasks(), tokenizer(), cfg, 3)
    for record, episodes in zip(history, seen, strict=True):
        assert record["length"] == sum(len(e[0]) for e in episodes) / 6
        assert record["turns"] == sum(e[3]["n_turns"] for e in episodes) / 6
        assert record["reward"] == sum(e[2] for e in episodes) / 6
