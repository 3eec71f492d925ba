"""Speed of the library against the naive code, the matrix-product floor and TRL: `make bench`.

All in one process on one thread, interleaved, in CPU seconds (time.process_time), medians. Prints tables and writes
results/benchmark.json. Options: --repeats N (default 8), --trl-steps N (default 4), --no-trl.
"""
import argparse, contextlib, copy, dataclasses, importlib.metadata, importlib.util, json, os, statistics, sys, time
from collections import Counter
from pathlib import Path

os.environ.setdefault('OMP_NUM_THREADS', '1')
import torch
import torch.nn.functional as F

import agentrl as arl
from agentrl import policy, rollout
import naive

torch.set_num_threads(1)
TASKS, HELDOUT, CFG = arl.make_tasks('train'), arl.make_tasks('heldout'), arl.RLConfig()
TOK = arl.build_tokenizer(arl.make_tasks('all'))
median = statistics.median


def clock(fn, *args, **kwargs):
    """`fn`'s result and the CPU seconds it took."""
    start = time.process_time()
    result = fn(*args, **kwargs)
    return result, time.process_time() - start


def sample(model, seed, how=None, play=None):
    """64 episodes from a generator seeded with `seed`: the library's, or with another rollout."""
    generator = torch.Generator().manual_seed(seed)
    tasks = [TASKS[i] for i in torch.randperm(len(TASKS), generator=generator)[:CFG.prompts_per_step]]
    return (how or arl.sample_groups)(model, arl.make_env, tasks, TOK, CFG, generator, **({'play': play} if play else {}))


@contextlib.contextmanager
def replaced(owner, name, value):
    """`owner.name` is `value` for the time being."""
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try: yield
    finally: setattr(owner, name, kept)


# ---- rollouts -----------------------------------------------------------------------------------------------------------
def naive_rollout(model, seed):
    with naive.nothing_remembered(TOK): return sample(model, seed, naive.sample_groups)


def padded_rollout(model, seed):
    with replaced(rollout, 'extend', naive.extend_padded): return sample(model, seed)


def unsplit_rollout(model, seed):
    whole = lambda cache, counts, n: [policy.AttentionBlock(cache, counts, slice(None), 0, n)]
    with replaced(policy, 'attention_blocks', whole): return sample(model, seed)


ROLLOUTS = {
    'naive: full forward a token': naive_rollout,
    '+ replies remembered': lambda model, seed: sample(model, seed, naive.sample_groups),
    '+ key-value cache, padded chunks': padded_rollout,
    '+ packed tokens, head at the last one': unsplit_rollout,
    '+ attention in two blocks (the library)': sample,
}


def where_parted(model, a, b):
    """Where two episodes part: the token's place, and how far the model's log-probs there are apart when computed from
    the same prefix alone and in the middle of a batch. A float tie parts episodes only if this gap is tiny, not zero."""
    t = next((i for i, (x, y) in enumerate(zip(a.ids, b.ids)) if x != y), min(len(a.ids), len(b.ids)) - 1)
    prefix = torch.tensor([a.ids[:t]])
    with torch.no_grad():
        alone, batched = model(prefix)[0, -1].log_softmax(-1), model(prefix.expand(64, -1))[0, -1].log_softmax(-1)
        cached = arl.extend(model, arl.KVCache(model, 1), prefix, torch.tensor([t]))[0].log_softmax(-1)
    gap = max((alone - other).exp().sub(1).abs().max().item() for other in (batched, cached))
    return {'token': t, 'naive': TOK.words[a.ids[t]], 'library': TOK.words[b.ids[t]], 'relative_rounding': gap}


def bench_rollouts(model, repeats):
    times, same, total, gap, parted = {name: [] for name in ROLLOUTS}, 0, 0, 0.0, []
    for seed in range(-1, repeats):                                         # the first round warms up
        results = {}
        for name, fn in ROLLOUTS.items():
            results[name], seconds = clock(fn, model, 1000 + seed)
            if seed >= 0: times[name].append(seconds)
        first, *_, last = results.values()
        for a, b in zip(first, last):
            equal = a.ids == b.ids and a.reward == b.reward and a.action_mask == b.action_mask
            same, total = same + equal, total + 1
            if equal: gap = max([gap, *(abs(x - y) for x, y in zip(a.logps, b.logps))])
            else: parted.append(where_parted(model, a, b))
    return times, {'identical': same, 'of': total, 'largest_logp_gap': gap, 'parted': parted}


# ---- updates ------------------------------------------------------------------------------------------------------------
def by_chunk(size):
    """The library's log-probs at action positions in chunks of `size` rows; None: all rows at once."""
    return lambda model, part: arl.action_log_probs(model, part['ids'], part['action_mask'], CFG.temperature,
                                                    size or len(part['ids']))


UPDATES = {
    'plain: old log-probs anew, head everywhere': lambda *a: naive.update(*a[:5], None, a[5]),
    "+ the sampler's log-probs": lambda *a: naive.update(*a[:5], None, a[5], old=a[2]['sampler_logps']),
    '+ head where the policy acts': lambda *a: naive.update(*a[:5], None, a[5], a[2]['sampler_logps'], by_chunk(None)),
    '+ length-sorted chunks': lambda *a: naive.update(*a[:5], None, a[5], a[2]['sampler_logps'], by_chunk(8)),
    '+ zero-advantage rows skipped (the library)': lambda *a: arl.rl_update(*a[:5], None, a[5]),
}


def bench_updates(model, repeats):
    times, collates, gap, zero = {name: [] for name in UPDATES}, [], 0.0, []
    for seed in range(-1, repeats):
        trajs, weights = sample(model, 1000 + seed), {}
        (batch, advantages), seconds = clock(prepare, trajs)
        if seed >= 0: collates.append(seconds)
        zero.append((advantages == 0).float().mean().item())
        for name, fn in UPDATES.items():
            trained = copy.deepcopy(model)
            optimizer = torch.optim.Adam(trained.parameters(), lr=CFG.lr, fused=True)
            _, seconds = clock(fn, trained, optimizer, batch, advantages, CFG, torch.Generator().manual_seed(seed + 1))
            if seed >= 0: times[name].append(seconds)
            weights[name] = torch.cat([p.detach().flatten() for p in trained.parameters()])
        first, *_, last = weights.values()
        gap = max(gap, (first - last).abs().max().item())
    return times, collates, {'largest_weight_gap': gap, 'zero_advantage_share': statistics.mean(zero)}


def prepare(trajs):
    batch = arl.collate(trajs, TOK.pad_id)
    return batch, arl.compute_advantages(batch, CFG)


# ---- the floor ----------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def counted(shapes):
    """Counts in `shapes` every matrix product of the model: ('linear', N, K, M) and ('attention', multiply-adds)."""
    linear, attention = F.linear, F.scaled_dot_product_attention
    def count_linear(x, w, bias=None):
        shapes['linear', x.numel() // x.shape[-1], x.shape[-1], w.shape[0]] += 1
        return linear(x, w, bias)
    def count_attention(q, k, v, **kwargs):
        shapes['attention', 2 * q.numel() * k.shape[-2]] += 1
        return attention(q, k, v, **kwargs)
    with replaced(F, 'linear', count_linear), replaced(F, 'scaled_dot_product_attention', count_attention): yield


def product_seconds(N, K, M, backward):
    """CPU seconds of x [N, K] times w [M, K], and with `backward` of the two products of its gradient."""
    x, w, y = torch.randn(N, K), torch.randn(M, K), torch.randn(N, M)
    def products():
        F.linear(x, w)
        if backward: y @ w, y.T @ x
    products()
    repeats = max(3, int(2e7 / (N * K * M)))
    return clock(lambda: [products() for _ in range(repeats)])[1] / repeats


def floor(shapes, backward):
    """FLOPs of the counted products, and the seconds that they alone take here; attention at the rate of the others."""
    flops, seconds, passes = 0, 0.0, 3 if backward else 1
    with torch.no_grad():
        for (kind, *shape), n in shapes.items():
            if kind != 'linear' or not shape[0]: continue
            flops += n * passes * 2 * shape[0] * shape[1] * shape[2]
            seconds += n * product_seconds(*shape, backward)
    rate = flops / seconds if seconds else 1.0
    attention = sum(n * passes * 2 * shape[0] for (kind, *shape), n in shapes.items() if kind == 'attention')
    return flops + attention, seconds + attention / rate


def bench_floor(model, repeats):
    total = Counter()
    for seed in range(repeats):
        for part in ('rollout', 'update'):
            shapes, trained = Counter(), copy.deepcopy(model)
            optimizer = torch.optim.Adam(trained.parameters(), lr=CFG.lr, fused=True)
            with counted(shapes) if part == 'rollout' else contextlib.nullcontext(): trajs = sample(model, 1000 + seed)
            batch, advantages = prepare(trajs)
            with counted(shapes) if part == 'update' else contextlib.nullcontext():
                arl.rl_update(trained, optimizer, batch, advantages, CFG, None, torch.Generator().manual_seed(seed))
            flops, seconds = floor(shapes, backward=part == 'update')
            total[f'{part}_gflop'] += flops / 1e9 / repeats
            total[f'{part}_floor_ms'] += seconds * 1e3 / repeats
    return {**total, 'gflop_per_s': sum(total[f'{p}_gflop'] for p in ('rollout', 'update'))
            / sum(total[f'{p}_floor_ms'] for p in ('rollout', 'update')) * 1e3}


# ---- TRL ----------------------------------------------------------------------------------------------------------------
def bench_trl(model, steps):
    """TRL and the library on the same work, step by step in turn, at learning rate 0 so that the work stays the same."""
    import trl_multi_turn
    cfg = dataclasses.replace(CFG, lr=0.0)
    ours, times, rollouts, work = copy.deepcopy(model), [], [], Counter()
    optimizer, generator = torch.optim.Adam(ours.parameters(), lr=0.0, fused=True), torch.Generator().manual_seed(0)

    def between():
        (_, trajs), first = clock(arl.sample_step, ours, arl.make_env, TASKS, TOK, cfg, generator)
        _, second = clock(lambda: arl.rl_update(ours, optimizer, *prepare(trajs), cfg, None, generator))
        times.append(first + second)
        rollouts.append(first)
        work.update({'tokens': sum(len(t.ids) for t in trajs), 'own tokens': sum(sum(t.action_mask) for t in trajs),
                     'turns': sum(t.info['n_turns'] for t in trajs), 'episodes': len(trajs)})
    theirs, parts, their_work = trl_multi_turn.measure(ours, TASKS, TOK, cfg, steps, between)
    return {'trl_step_s': statistics.mean(theirs), 'step_s': statistics.mean(times[1:]), 'ratio': statistics.mean(theirs) / statistics.mean(times[1:]),
            'trl_rollout_s': parts['rollout'], 'rollout_s': statistics.mean(rollouts[1:]), 'rollout_ratio': parts['rollout'] / statistics.mean(rollouts[1:]),
            'trl_parts_s': parts, 'trl_work': their_work, 'work': {k: v / len(times) for k, v in work.items()}}


# ---- report -------------------------------------------------------------------------------------------------------------
def table(title, times):
    """Prints medians, and how much more the first entry took over all rounds -> {name: ms}, {name: ratio of totals}."""
    base = next(iter(times.values()))
    ratios = {name: sum(base) / sum(t) for name, t in times.items()}
    print(f'\n{title:<54}{"CPU ms":>9}{"times faster":>15}')
    for name, t in times.items(): print(f'  {name:<52}{median(t) * 1e3:>9.1f}{ratios[name]:>15.2f}')
    return {name: round(median(t) * 1e3, 2) for name, t in times.items()}, {name: round(r, 3) for name, r in ratios.items()}


def bench_agent(label, model, args):
    times, same = bench_rollouts(model, args.repeats)
    result = {'episodes': same}
    result['rollout_ms'], result['rollout_ratio'] = table(f'Rollout of 64 episodes, {label}', times)
    print(f"  {same['identical']} of {same['of']} episodes identical to the naive ones; largest gap in a log-prob {same['largest_logp_gap']:.0e}")
    for each in same['parted']: print(f'  parted: {each}')
    updates, collates, info = bench_updates(model, args.repeats)
    result['update_ms'], result['update_ratio'] = table(f'Update, {label}', updates)
    print(f"  largest gap in a weight {info['largest_weight_gap']:.0e}; rows of advantage 0: {info['zero_advantage_share']:.0%}")
    ends = lambda parts: [next(iter(parts.values())), list(parts.values())[-1]]
    steps = {name: [r + u + c for r, u, c in zip(rs, us, collates)] for name, rs, us in zip(('naive', 'the library'), ends(times), ends(updates))}
    result['step_ms'], result['step_ratio'] = table(f'Whole step, {label}', steps)
    result |= {'update_info': info, 'collate_ms': median(collates) * 1e3, 'floor': bench_floor(model, args.repeats)}
    least = result['floor']['rollout_floor_ms'] + result['floor']['update_floor_ms']
    result['floor']['step_over_floor'] = statistics.mean(steps['the library']) * 1e3 / least
    print('  floor: {rollout_gflop:.2f} + {update_gflop:.2f} GFLOP a step (rollout + update) at {gflop_per_s:.0f} GFLOP/s = '
          '{rollout_floor_ms:.0f} + {update_floor_ms:.0f} ms; the step takes {step_over_floor:.1f} times that on average'.format(**result['floor']))
    return result


def report_trl(label, r):
    print(f'\nAgainst TRL, {label}: step {r["trl_step_s"] * 1e3:.0f} / {r["step_s"] * 1e3:.0f} ms = {r["ratio"]:.2f} times, '
          f'rollout {r["trl_rollout_s"] * 1e3:.0f} / {r["rollout_s"] * 1e3:.0f} ms = {r["rollout_ratio"]:.2f} times')
    print('  TRL: ' + ', '.join(f'{k} {v * 1e3:.0f} ms' for k, v in r['trl_parts_s'].items()))
    for who, work in (('TRL', r['trl_work']), ('ours', r['work'])):
        print(f'  work a step, {who}: ' + ', '.join(f'{v:.0f} {k}' for k, v in work.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--repeats', type=int, default=8)
    parser.add_argument('--trl-steps', type=int, default=4)
    parser.add_argument('--no-trl', action='store_true')
    args = parser.parse_args()
    if args.repeats < 1 or args.trl_steps < 1: parser.error('--repeats and --trl-steps must be at least 1')
    if not args.no_trl and importlib.util.find_spec('trl') is None:
        sys.exit('trl is missing; run `make bench`, which installs it, or pass --no-trl')
    base = arl.make_rl_base(TOK)
    trained = copy.deepcopy(base)
    (history, seconds) = clock(arl.train_rl, trained, TASKS, TOK, CFG, 80, eval_tasks=HELDOUT, eval_every=20)
    print(f"Default run: 80 steps and 4 evaluations take {seconds:.1f} CPU s; held-out pass at the end {history[-1]['eval_pass']:.2f}")
    results = {'torch': torch.__version__, 'repeats': args.repeats, 'default_run_cpu_s': seconds}
    agents = {'RL base': base, 'trained 80 steps': trained}
    for label, model in agents.items(): results[label] = bench_agent(label, model, args)
    if not args.no_trl:
        for label, model in agents.items():
            results[label]['trl'] = bench_trl(model, args.trl_steps)
            report_trl(label, results[label]['trl'])
        results |= {name: importlib.metadata.version(name) for name in ('trl', 'transformers')}
    path = Path(__file__).resolve().parent.parent / 'results' / 'benchmark.json'
    path.parent.mkdir(exist_ok=True)
    draft = path.with_name('.draft-benchmark.json')
    draft.write_text(json.dumps(results, indent=1) + '\n')
    os.replace(draft, path)
    print('\nwritten: results/benchmark.json')


if __name__ == '__main__':
    main()
