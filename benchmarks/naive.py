"""The rollout and the update as one would first write them: nothing cached, nothing skipped.

They give the same episodes and the same weights as the library, token for token and up to float error, and are what
`benchmarks/run.py` measures the library against.
"""
import contextlib, random

import torch

import agentrl as arl
from agentrl import gym


@torch.no_grad()
def rollout(model, envs, tasks, tok, max_turns, temperature, generator):
    """`arl.rollout_batch` with a full forward pass over everything so far for each token."""
    trajs = [arl.Trajectory() for _ in tasks]
    for traj, env, task in zip(trajs, envs, tasks):
        traj.observe(arl.observation_ids(tok, env.reset(task)))
    live = list(range(len(tasks)))
    for turn in range(max_turns):
        rows = [list(trajs[b].ids) for b in live]
        calls = [([], [], []) for _ in live]
        alive = [True] * len(live)
        for _ in range(arl.MAX_CALL_TOKENS):
            ids, lengths = arl.pad(rows)
            logits = model(ids)[torch.arange(len(rows)), lengths - 1]               # head at every position
            sampled = [x.tolist() for x in arl.sample_tokens(logits, temperature, generator)]
            for row, *token in zip(range(len(rows)), *sampled):
                if not alive[row]: continue
                for kept, value in zip(calls[row], token): kept.append(value)
                rows[row].append(token[0])
                alive[row] = token[0] != tok.end_call_id
            if not any(alive): break
        last = turn == max_turns - 1
        live = [b for b, call in zip(live, calls) if arl.take_turn(trajs[b], envs[b], tok, *call, last)]
        if not live: break
    return trajs


@contextlib.contextmanager
def nothing_remembered(tok):
    """Within it source tokens, test runs and the ids of observations are computed each time they are asked for."""
    class Forgetful(dict):
        def __setitem__(self, key, value):
            self.clear()
            super().__setitem__(key, value)
        def __contains__(self, key): return False
    kept = gym.compact, gym.outcomes, tok.observations
    gym.compact, tok.observations = lambda source, name: gym.compact_source(source), Forgetful()
    gym.outcomes = lambda source, task, which: gym.run_tests(source, getattr(task, f'{which}_tests'), task.fn_name)
    try: yield
    finally: gym.compact, gym.outcomes, tok.observations = kept


def log_probs(model, batch, temperature):
    """Log-probs of all tokens, at every position of every row."""
    logits = model(batch['ids'])[:, :-1] / temperature
    return arl.selected_log_probs(logits, batch['ids'][:, 1:]), arl.entropy_from_logits(logits)


def update(model, optimizer, batch, advantages, cfg, ref_model=None, generator=None, old=None, logps=None):
    """`arl.rl_update` with old log-probs and entropy computed anew, and every row in every pass.

    Steps on the way to the library: old [B, T-1] gives old log-probs instead; logps(model, batch) those of each pass.
    """
    mask, records, entropy = batch['action_mask'], [], batch['entropies']
    logps = logps or (lambda model, part: log_probs(model, part, cfg.temperature)[0])
    if old is None:
        with torch.no_grad(): old, entropy = log_probs(model, batch, cfg.temperature)
    for _ in range(cfg.epochs):
        order = torch.arange(len(advantages)) if generator is None else torch.randperm(len(advantages), generator=generator)
        for rows in order.tensor_split(cfg.minibatches):
            logp = logps(model, {key: batch[key][rows] for key in ('ids', 'action_mask')})
            loss, stats = arl.policy_loss(logp, old[rows], advantages[rows], mask[rows], cfg)
            records.append({**stats, 'grad_norm': arl.descend(model, optimizer, loss, cfg.max_grad_norm)})
    means = {key: sum(r[key] for r in records) / len(records) for key in records[0]}
    return {**means, 'entropy': arl.masked_mean(entropy, mask).item()}


@torch.no_grad()
def extend_padded(model, cache, ids, counts):
    """`arl.extend` as a cache is first written: all rows padded to the longest, padding computed, head everywhere."""
    n = ids.shape[1]
    at = cache.length[:, None] + torch.arange(n)                                                # [B, n]
    top = int(at.max()) + 1
    cache.reserve(top)
    rows, turns = torch.arange(len(ids))[:, None], model.turns_at(at)
    bias = torch.zeros(*at.shape, top).masked_fill_(torch.arange(top) > at[..., None], float('-inf'))[:, None]

    def attend(layer, qkv):
        q, k = arl.rotate(qkv[..., :2, :, :], turns[:, :, None]).unbind(2)
        cache.k[layer, rows, at], cache.v[layer, rows, at] = k, qkv[..., 2, :, :]
        q, k, v = (x.transpose(1, 2) for x in (q, cache.k[layer, :, :top], cache.v[layer, :, :top]))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)
    logits = model.head(model.run(ids, attend))
    cache.length = cache.length + counts
    return logits[torch.arange(len(ids)), (counts - 1).clamp(min=0)]


def sample_groups(model, env_factory, tasks, tok, cfg, generator, play=None):
    """`arl.sample_groups` on the naive rollout, or on `play(model, envs, tasks, tok, max_turns, temperature, generator)`."""
    rng = random.Random(int(torch.randint(2**62, (1,), generator=generator)))
    attempts = [task for task in tasks for _ in range(cfg.group_size)]
    if cfg.rename: attempts = [arl.randomize_names(task, rng) for task in attempts]
    envs = [env_factory(cfg) for _ in attempts]
    trajs = (play or rollout)(model, envs, attempts, tok, cfg.max_turns, cfg.temperature, generator)
    for i, traj in enumerate(trajs): traj.info['group'] = i // cfg.group_size
    return trajs
