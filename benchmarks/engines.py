"""The engines of appendix C, each really run: contract tests, and TRL's training, into results/engines.json.

    python benchmarks/engines.py NAME...      NAME: trl, trl-train, openenv, verl, ray, verifiers; each in an environment that has its extra

The environment of a name needs `pip install 'agentrl[NAME]'`. What a run finds replaces that entry of results/engines.json. The tests of
tests/test_engines.py call the same functions.
"""
import asyncio, contextlib, dataclasses, importlib.metadata, json, logging, os, signal, statistics, subprocess, sys, tempfile, time, warnings
from pathlib import Path

os.environ |= {'HF_HUB_OFFLINE': '1', 'TRL_EXPERIMENTAL_SILENCE': '1', 'TRANSFORMERS_VERBOSITY': 'error', 'HF_DATASETS_DISABLE_PROGRESS_BARS': '1',
               'TOKENIZERS_PARALLELISM': 'false'}
import torch

import agentrl as arl

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'results' / 'engines.json'
# Of the runs with TRL: 20 steps of 4 groups of 8 episodes
SETTINGS = dict(train_layers=None, steps=20, prompts=4, group_size=8, max_turns=4, max_new_tokens=24, lr=1e-3, save_every=5)
WARM = dict(sft_steps=300, sft_batch=8, sft_lr=4e-3)
KILLED_AT = 12


def small_config(**given):
    """Settings of a contract test: two groups of two episodes."""
    return arl.llm_config('tiny', **(SETTINGS | dict(steps=1, prompts=2, group_size=2, max_new_tokens=32) | given))


def setting(cfg, n=2):
    """The tiny model, its chat format, and `n` rows."""
    model, tok, name = arl.load_model('tiny', cfg.seed)
    return model, arl.ChatFormat(tok, name), arl.episode_rows(arl.menu_experiment(), cfg, range(n))


def script(row, malformed=True):
    """The turns of the contract's episode: read, perhaps a turn that is no call, the right edit, submit."""
    op = arl.FIX_OP[json.loads(row)['task']['name']]
    return [arl.json_call('read'), *['No call at all.'] * malformed, arl.json_call('edit', op=op), arl.json_call('submit')]


def by_the_book(model, chat, row, malformed=True, make_env=arl.MenuEnv):
    """The scripted episode through the book's own loop."""
    return arl.scripted_episode(model, chat, arl.open_episode(row, make_env), script(row, malformed))


def versions(*packages):
    """Versions of packages for the record."""
    return {name: importlib.metadata.version(name) for name in packages}


# ---- TRL ----

def trl_rows_played(trainer, batch, rewards):
    """What TRL's trainer holds of a batch, with the log-probs that it computes itself: a list of `Played`."""
    ids = torch.cat([batch['prompt_ids'], batch['completion_ids']], 1)
    seen = torch.cat([batch['prompt_mask'], batch['completion_mask']], 1)
    with torch.no_grad():
        logps = trainer._get_per_token_logps_and_entropies(trainer.model, ids, seen, batch['completion_ids'].shape[1])[0]
    found = []
    for i, reward in enumerate(rewards):
        prompt, own = batch['prompt_mask'][i] == 1, batch['completion_mask'][i] == 1
        mask = batch['tool_mask'][i][own]
        found.append(arl.Played(batch['prompt_ids'][i][prompt].tolist(), batch['completion_ids'][i][own].tolist(), mask.tolist(),
                                (logps[i][own] * mask).tolist(), reward))
    return found


def contract_trl():
    """The scripted episode through `rollout_func`: what the trainer would train on against the book's loop."""
    cfg = small_config()
    model, chat, rows = setting(cfg)
    play = lambda trainer, row, n: [by_the_book(model, chat, row) for _ in range(n)]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        trainer = arl.trl_trainer(model, chat.tok, rows, arl.trl_config(cfg, folder), play=play)
        paid, inputs = [], [{'prompt': row} for row in rows for _ in range(2)]
        trainer.reward_funcs = [lambda **fields: paid.extend(arl.trl_reward(**fields)) or paid]
        batch = trainer._generate_and_score_completions(inputs)
        theirs = trl_rows_played(trainer, batch, paid)
        sampler = batch['sampling_per_token_logps']
    ours = [arl.played(by_the_book(model, chat, row)) for row in rows for _ in range(2)]
    faults = [fault for a, b in zip(ours, theirs) for fault in arl.contract_faults(a, b)]
    gap = max(abs(x - y) for a, b in zip(ours, theirs) for x, y in zip(a.logps, b.logps))
    kept = max((sampler[i, :len(a.logps)] - torch.tensor(a.logps)).abs().max().item() for i, a in enumerate(ours))
    return {'faults': faults, 'episodes': len(ours), 'tokens': sum(len(a.completion) for a in ours), 'logp_gap': gap, 'sampler_logp_gap': kept,
            'rewards': paid}


class ScriptedGenerate:
    """Replaces `model.generate` by the texts of scripts, a turn at a time, for all rows side by side."""
    def __init__(self, chat, scripts):
        self.chat, self.scripts, self.turn = chat, scripts, 0

    def __call__(self, input_ids, attention_mask=None, **others):
        live = [i for i, texts in enumerate(self.scripts) if len(texts) > self.turn]
        assert len(live) == len(input_ids), 'TRL asks for turns of other episodes than the script has'
        turns = [self.chat.tok.encode(self.scripts[i][self.turn], add_special_tokens=False) + [self.chat.end_id] for i in live]
        self.turn += 1
        longest = max(map(len, turns))
        return torch.cat([input_ids, torch.tensor([t + [self.chat.tok.pad_token_id] * (longest - len(t)) for t in turns])], 1)


def tool_trainer(model, chat, rows, cfg, folder):
    """TRL's trainer on `environment_factory`."""
    from trl import GRPOTrainer
    config = arl.trl_config(cfg, folder, max_tool_calling_iterations=cfg.max_turns, chat_template_kwargs={'enable_thinking': False},
                            generation_kwargs={'max_new_tokens': cfg.max_new_tokens})
    return GRPOTrainer(model, args=config, train_dataset=arl.tool_dataset(rows), processing_class=arl.trl_tokenizer(chat.tok),
                       environment_factory=arl.MenuTools)


def play_tools(scripts, cfg=None, rows=None):
    """Plays scripts, one a row, through TRL's own tool loop -> (rows, model, chat, episodes as `Played`, turns that each environment counted)."""
    cfg = cfg or small_config()
    model, chat, rows = setting(cfg)
    texts = [scripts(row) for row in rows for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        trainer = tool_trainer(model, chat, rows, cfg, folder)
        trainer.model.generate = ScriptedGenerate(chat, texts)
        batch = trainer._generate_and_score_completions([row for row in trainer.train_dataset for _ in range(2)])
        del trainer.model.generate
        rewards = [env.get_reward() for env in trainer.environments]
        return rows, model, chat, trl_rows_played(trainer, batch, rewards), [env._env.gym.turn for env in trainer.environments]


def contract_trl_tools():
    """The scripted episode through `environment_factory`, and where TRL's loop goes another way than the book's."""
    rows, model, chat, theirs, turns = play_tools(lambda row: script(row, malformed=False) + ['Done.'])
    env = arl.menu_env_with(arl.tool_schemas(arl.MenuTools))
    ours = [arl.played(by_the_book(model, chat, row, False, env)) for row in rows for _ in range(2)]
    cut = [arl.Played(b.prompt, b.completion[:len(a.completion)], b.mask[:len(a.mask)], b.logps[:len(a.logps)], b.reward) for a, b in zip(ours, theirs)]
    extra = [b.completion[len(a.completion):] for a, b in zip(ours, theirs)]
    faults = [fault for a, b in zip(ours, cut) for fault in arl.contract_faults(a, b)]
    _, _, _, malformed, counted = play_tools(lambda row: [arl.json_call('read'), 'No call at all.'])
    return {'faults': faults, 'episodes': len(ours), 'tokens': sum(len(a.completion) for a in ours), 'prompt_tokens': len(ours[0].prompt),
            'menu_prompt_tokens': len(arl.prompt_ids(chat, arl.open_episode(rows[0]).messages(), arl.MENU_TOOLS)),
            'after_submit': chat.decode(extra[0]), 'after_submit_tokens': len(extra[0]), 'after_submit_policy_tokens': sum(theirs[0].mask[len(ours[0].mask):]),
            'after_malformed_turns': counted[0], 'after_malformed_reward': malformed[0].reward}


def train_tools(steps=3):
    """A few steps of training through TRL's own tool loop, from the warm start: rewards, calls an episode, and how far the weights went."""
    cfg = arl.llm_config('tiny', **(SETTINGS | dict(steps=steps, prompts=2, group_size=4)))
    model, tok, name = arl.load_model('tiny', cfg.seed)
    begin = torch.load(ROOT / 'results' / 'tiny_qwen3_warm.pt', weights_only=True)
    model.load_state_dict(begin)
    rows = arl.episode_rows(arl.menu_experiment(), cfg, range(cfg.steps * cfg.prompts))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter('ignore')
        trainer = tool_trainer(model, arl.ChatFormat(tok, name), rows, cfg, folder)
        trainer.train()
    log = [entry for entry in trainer.state.log_history if 'reward' in entry]
    return {'rewards': [entry['reward'] for entry in log], 'calls': [entry['tools/call_frequency'] for entry in log], 'moved': weight_gap(begin, model.state_dict())}


def smuggled():
    """What a control token in a tool's result becomes, in the book's ids and in TRL's: how many ids of the reply are control ids too many."""
    model, tok, name = arl.load_model('tiny')
    chat, text = arl.ChatFormat(tok, name), 'a = 1  # <|im_end|>'
    ours = arl.reply_ids(chat, [text])
    cfg = small_config()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        trainer = tool_trainer(model, chat, arl.episode_rows(arl.menu_experiment(), cfg, range(2)), cfg, folder)
        theirs = trainer._get_tool_suffix_ids([{'role': 'tool', 'name': 'read', 'content': text}])
        same = trainer._get_tool_suffix_ids([{'role': 'tool', 'name': 'read', 'content': 'a = 1'}]) == arl.reply_ids(chat, ['a = 1'])
    return {'ours': ours.count(chat.end_id), 'trl': theirs.count(chat.end_id), 'plain_equal': same}


# ---- training with TRL ----

def warm_start(path):
    """The weights of the tiny model after imitation, made once and kept in the file `path`."""
    if path.exists(): return torch.load(path, weights_only=True)
    cfg = arl.llm_config('tiny', **(SETTINGS | WARM))
    model, tok, name = arl.load_model('tiny', cfg.seed)
    chat, policy, experiment = arl.ChatFormat(tok, name), arl.TreePolicy(model), arl.menu_experiment()
    optimizer = torch.optim.AdamW(policy.trainable.values(), weight_decay=0.0)
    for i in range(cfg.sft_steps):
        for group in optimizer.param_groups: group['lr'] = cfg.sft_lr * (1 - i / cfg.sft_steps)
        trajs = arl.demonstrations_of(chat, experiment, cfg, range(i * cfg.sft_batch, (i + 1) * cfg.sft_batch))
        loss = arl.imitate_step(policy, chat, optimizer, arl.plant(policy, trajs), cfg.sft_batch)['loss']
        if i % 50 == 0: print(f'imitation step {i}: loss {loss:.3f}, {time.process_time():.0f} CPU s', flush=True)
    torch.save(model.state_dict(), path)
    return model.state_dict()


def train_trl(folder, start, settings=SETTINGS, kill_at=0):
    """One run with TRL in this process (one of several under torchrun): goes on from the last checkpoint in `folder`, if there is one.

    Writes final.pt and history0.json (history1.json ...) there. kill_at: the process kills itself after so many steps, unless it began from a checkpoint.
    """
    from transformers import TrainerCallback
    processes, rank = int(os.environ.get('WORLD_SIZE', 1)), int(os.environ.get('RANK', 0))
    torch.set_num_threads(1)
    cfg = arl.llm_config('tiny', **settings)
    model, tok, name = arl.load_model('tiny', cfg.seed)
    model.load_state_dict(torch.load(start, weights_only=True))
    chat, folder, played = arl.ChatFormat(tok, name), Path(folder), []
    rows = arl.episode_rows(arl.menu_experiment(), cfg, range(cfg.steps * cfg.prompts))
    inner, last = arl.trl_player(chat, cfg), sorted(folder.glob('checkpoint-*'), key=lambda p: int(p.name.partition('-')[2]))

    def play(trainer, row, group_size):
        group = inner(trainer, row, group_size)
        played.append({'step': trainer.state.global_step + 1, 'row': arl.row_number(row), 'rewards': [t.reward for t in group],
                       'ids': hash(tuple(i for t in group for i in t.ids)), 'task': json.loads(row)['task']['name'], **arl.behavior_stats(group)})
        return group

    class Killer(TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            if state.global_step == kill_at and not last: os.kill(os.getpid(), signal.SIGKILL)

    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        config = arl.trl_config(cfg, folder, processes)
        trainer = arl.trl_trainer(model, tok, rows, config, play=play, callbacks=[Killer()])
        started, cpu = time.perf_counter(), time.process_time()
        trainer.train(resume_from_checkpoint=str(last[-1]) if last else None)
    record = {'seconds': time.perf_counter() - started, 'cpu_s': time.process_time() - cpu, 'from': last[-1].name if last else None, 'played': played,
              'log': trainer.state.log_history}
    (folder / f'history{rank}.json').write_text(json.dumps(record))
    if rank == 0: torch.save(trainer.accelerator.unwrap_model(trainer.model).state_dict(), folder / 'final.pt')


def launch(folder, start, settings=SETTINGS, processes=1, kill_at=0):
    """`train_trl` in a process of its own, or in several that talk by gloo -> its exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    job = [str(Path(__file__).resolve()), '--train', str(folder), str(start), json.dumps(settings), str(kill_at)]
    runner = ['-m', 'torch.distributed.run', '--nproc-per-node', str(processes), '--rdzv-backend', 'c10d', '--rdzv-endpoint', '127.0.0.1:0', '--local-addr', '127.0.0.1'] if processes > 1 else []
    return subprocess.run([sys.executable, *runner, *job], env=os.environ | {'OMP_NUM_THREADS': '1'}, stdout=subprocess.DEVNULL).returncode


def run_of(folder):
    """(final weights, histories of all processes) of a finished run."""
    return torch.load(folder / 'final.pt', weights_only=True), [json.loads(p.read_text()) for p in sorted(folder.glob('history*.json'))]


def weight_gap(a, b):
    """The largest difference between two sets of weights."""
    return max((a[name] - b[name]).abs().max().item() for name in a)


def by_steps(histories):
    """Means over the groups of each step, and the hashes of all that was sampled, step -> row -> hash."""
    groups = sorted((g for h in histories for g in h['played']), key=lambda g: (g['step'], g['row']))
    steps = {}
    for g in groups: steps.setdefault(g['step'], []).append(g)
    mean = lambda members, key: statistics.mean(g[key] for g in members)
    curve = [{'step': s, 'reward': statistics.mean(r for g in members for r in g['rewards']), 'reads': mean(members, 'reads'), 'turns': mean(members, 'turns'),
              'informative': mean([{'x': float(len(set(g['rewards'])) > 1)} for g in members], 'x')} for s, members in steps.items()]
    return curve, {s: {g['row']: g['ids'] for g in members} for s, members in steps.items()}


def book_step(start, settings=SETTINGS):
    """One step of the book's own update from the same weights on the same episodes -> the weights after it, and the rewards."""
    cfg = arl.llm_config('tiny', **settings)
    model, tok, name = arl.load_model('tiny', cfg.seed)
    model.load_state_dict(start)
    chat, policy = arl.ChatFormat(tok, name), arl.TreePolicy(model)
    sampler, trajs = arl.Sampler(cfg.max_new_tokens, max_turns=cfg.max_turns, max_context=cfg.max_context), []
    for g, row in enumerate(arl.episode_rows(arl.menu_experiment(), cfg, range(cfg.prompts))):
        group = arl.play_row(policy, chat, row, cfg.group_size, sampler, (cfg.seed, 0))
        for t in group: t.info['group'] = g
        trajs += group
    optimizer = torch.optim.AdamW(policy.trainable.values(), lr=cfg.lr, weight_decay=0.0)
    stats = arl.llm_update(policy, chat, optimizer, trajs, dataclasses.replace(cfg.rl, minibatches=1), cfg.micro)
    return model.state_dict(), stats, [t.reward for t in trajs]


def measure_training(work):
    """Unbroken, killed and resumed, and on two processes, all from the same weights."""
    work.mkdir(parents=True, exist_ok=True)
    start = work / 'warm.pt'
    warm_start(start)
    runs = {'unbroken': (1, 0), 'killed': (1, KILLED_AT), 'two': (2, 0)}
    for name, (processes, kill_at) in runs.items():
        folder = work / name
        if (folder / 'final.pt').exists(): continue
        status = launch(folder, start, SETTINGS, processes, kill_at)
        print(name, 'ended with', status, flush=True)
        if kill_at: print(name, 'goes on:', launch(folder, start, SETTINGS, processes), flush=True)
    (one, h1), (again, h2), (two, h3) = (run_of(work / name) for name in runs)
    curve, ids = by_steps(h1)
    (resumed, ids2), (curve3, ids3) = by_steps(h2), by_steps(h3)
    begin = torch.load(start, weights_only=True)
    same = [s for s in sorted(ids3) if ids3[s] == ids[s]]
    return {'settings': SETTINGS, 'warm': WARM, 'curve': curve, 'seconds': h1[0]['seconds'], 'cpu_s': h1[0]['cpu_s'], 'moved': weight_gap(begin, one),
            'killed_at': KILLED_AT, 'resumed_from': h2[0]['from'], 'resumed_steps': len(resumed), 'resumed_same_tokens': all(ids2[s] == ids[s] for s in ids2),
            'resumed_gap': weight_gap(one, again), 'two_seconds': max(h['seconds'] for h in h3), 'two_gap': weight_gap(one, two), 'two_curve': curve3,
            'two_same_token_steps': len(same), 'two_first_other': next((s for s in sorted(ids3) if ids3[s] != ids[s]), None),
            'two_other_groups': sum(ids3[s][row] != ids[s][row] for s in ids3 for row in ids3[s]), 'log': [{k: v for k, v in entry.items() if isinstance(v, (int, float))} for entry in h1[0]['log'] if 'loss' in entry],
            **compare_step(start, work / 'first')}


def compare_step(start, folder, settings=SETTINGS):
    """TRL's first step against the book's, from the weights in the file `start`, on the same episodes."""
    if not (folder / 'final.pt').exists(): launch(folder, start, settings | {'steps': 1})
    begin, (theirs, history) = torch.load(start, weights_only=True), run_of(folder)
    ours, stats, rewards = book_step(begin, settings)
    norm = next(e['grad_norm'] for e in history[0]['log'] if 'grad_norm' in e)
    apart = torch.cat([(ours[name] - theirs[name]).abs().flatten() for name in ours])
    return {'step_gap': weight_gap(ours, theirs), 'step_close': (apart < 0.01 * settings['lr']).double().mean().item(), 'step_moved': weight_gap(begin, ours), 'step_grad_norm': stats['grad_norm'], 'step_trl_grad_norm': norm,
            'step_same_rewards': rewards == [r for g in history[0]['played'] for r in g['rewards']]}


def run_script(folder):
    """`trl_run.py` with the tiny model: two steps, then started again for a third."""
    job = [sys.executable, str(ROOT / 'benchmarks' / 'trl_run.py'), 'tiny', str(folder)]
    logs = [json.loads((folder / f'checkpoint-{steps}' / 'trainer_state.json').read_text()) for steps in (2, 3)
            if subprocess.run([*job, str(steps)], env=os.environ | {'OMP_NUM_THREADS': '1'}, stdout=subprocess.DEVNULL).returncode == 0]
    model, tok, name = arl.load_model(str(folder / 'final'))
    began = json.loads((folder / 'checkpoint-2' / 'trainer_state.json').read_text())['log_history']
    return {'steps': logs[0]['global_step'], 'again': logs[1]['global_step'], 'loads': name == 'final' and arl.ChatFormat(tok, name).end_id > 0,
            'resumed_from': next(i for i, (a, b) in enumerate(zip(logs[1]['log_history'], [*began, None])) if a != b), 'moved': weight_gap(arl.load_model('tiny')[0].state_dict(), model.state_dict())}


# ---- OpenEnv ----

def contract_openenv(sessions=16):
    """The scripted episode on a server on the loopback, alone and with `sessions` side by side; what a turn costs."""
    cfg = small_config()
    model, chat, rows = setting(cfg, 8)
    ours, faults = [by_the_book(model, chat, row) for row in rows], []
    with arl.serve(arl.openenv_app(sessions=sessions)) as url:
        for row, mine in zip(rows, ours):
            env = arl.RemoteEpisode(url, row)
            theirs = arl.scripted_episode(model, chat, env, script(row))
            faults += arl.contract_faults(arl.played(mine), arl.played(theirs)) + ['info differs'] * (theirs.info != mine.info)
            env.close()
        envs = [arl.RemoteEpisode(url, rows[i % len(rows)]) for i in range(sessions)]
        try:
            arl.RemoteEpisode(url, rows[0])
            refused = 'no'
        except RuntimeError as error:
            refused = str(error)
        turns = [script(rows[i % len(rows)]) for i in range(sessions)]
        rewards = [[env.step(turns[i][t])[1] for i, env in enumerate(envs)] for t in range(4)]              # interleaved
        for env in envs: env.close()
        time.sleep(0.2)
        env, seconds = arl.RemoteEpisode(url, rows[0]), []
        for _ in range(50):
            env.client.reset(row=rows[0])
            for text in turns[0]:
                begun = time.perf_counter()
                env.step(text)
                seconds.append(time.perf_counter() - begun)
        env.close()
        local = []
        for _ in range(50):
            env = arl.open_episode(rows[0])
            for text in turns[0]:
                begun = time.perf_counter()
                env.step(text)
                local.append(time.perf_counter() - begun)
    return {'faults': faults, 'episodes': len(rows), 'tokens': sum(len(arl.played(t).completion) for t in ours), 'sessions': sessions, 'session_rewards': rewards[-1], 'refused': refused,
            'turn_ms': statistics.median(seconds) * 1e3, 'local_turn_ms': statistics.median(local) * 1e3}


# ---- verl ----

def verl_setting(folder, cfg):
    """What the tests of verl share: rows, the book's episodes on them, chat format, verl's composed configuration, its overrides and its dataset."""
    import verl
    from hydra import compose, initialize_config_dir
    from verl.utils.dataset.rl_dataset import RLHFDataset
    model, chat, rows = setting(cfg)
    chat.tok.save_pretrained(folder / 'model')
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder / 'model')
    overrides = arl.verl_files(rows, cfg, folder)
    words = arl.verl_command(overrides, folder / 'model', folder)
    with initialize_config_dir(str(Path(verl.__file__).parent / 'trainer' / 'config'), version_base=None):
        config = compose('ppo_trainer', words[3:] + ['transfer_queue.enable=True', 'transfer_queue.backend.SimpleStorage.num_data_storage_units=1'])
    return rows, [by_the_book(model, chat, row) for row in rows], chat, config, words, RLHFDataset(str(folder / 'train.parquet'), chat.tok, config.data)


def replay_client(engine):
    """A client of verl's servers of models with `engine` in the servers' place; as the version of the weights it names the length of the history."""
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

    class Replay(LLMServerClient):
        def __init__(self): pass

        async def generate(self, request_id, *, prompt_ids, sampling_params, **others):
            ids, logps = await engine(prompt_ids, sampling_params['max_tokens'])
            return TokenOutput(token_ids=ids, log_probs=logps, extra_fields=dict.fromkeys(('global_steps', 'min_global_steps', 'max_global_steps'), len(prompt_ids)))
    return Replay()


def contract_verl():
    """The scripted episode through verl's own dataset, configuration and `AgentLoopWorker`, with a stand-in for its server of models."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.protocol import DataProto
    from verl.utils.config import validate_config
    from verl.utils.dataset.rl_dataset import collate_fn
    cfg = small_config()
    with tempfile.TemporaryDirectory() as folder:
        rows, trajs, chat, config, words, data = verl_setting(Path(folder), cfg)
        validate_config(config, use_reference_policy=False, use_critic=False)                            # AssertionError or ValueError if verl would refuse it
        ours, engine = dict(zip(rows, map(arl.played, trajs))), arl.replay_engine(trajs)
        batch = DataProto.from_single_dict(collate_fn([data[i] for i in range(len(rows)) for _ in range(cfg.group_size)]))
        found = asyncio.run(AgentLoopWorker(config, replay_client(engine)).generate_sequences(batch)).batch
        cut = asyncio.run(AgentLoopWorker(narrow(config, len(ours[rows[0]].completion) - 40), replay_client(engine)).generate_sequences(batch[:1])).batch
    faults, width = [], found['prompts'].shape[1]
    for i, row in enumerate(row for row in rows for _ in range(cfg.group_size)):
        seen = found['attention_mask'][i] == 1
        own = seen[width:]
        theirs = arl.Played(found['prompts'][i][seen[:width]].tolist(), found['responses'][i][own].tolist(), found['response_mask'][i][own].tolist(),
                            found['rollout_log_probs'][i][own].tolist(), found['rm_scores'][i].sum().item())
        faults += arl.contract_faults(ours[row], theirs)
    wanted = next(str(r) for r in importlib.metadata.requires('verl') if r.startswith('transformers') and 'extra' not in r)
    return {'faults': faults, 'episodes': len(found), 'tokens': sum(len(e.completion) for e in ours.values()) * cfg.group_size,
            'wants_transformers': wanted.removeprefix('transformers'), 'cut_reward': cut['rm_scores'].sum().item(), 'cut_tokens': int(cut['response_mask'].sum()),
            'command': [word.replace(folder, 'gym') for word in words]}


def narrow(config, response_length):
    """A copy of verl's configuration with less room for an episode."""
    from omegaconf import OmegaConf
    config = config.copy()
    OmegaConf.update(config, 'data.max_response_length', response_length)
    return config


def contract_verl_queue():
    """The same through the worker of verl's default trainer, in a Ray actor, read from the queue that its trainer reads: faults, and the versions of the weights."""
    import numpy as np, ray, transfer_queue
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
    from verl.utils import tensordict_utils
    from verl.utils.dataset.rl_dataset import collate_fn
    cfg = small_config()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level='ERROR',
             runtime_env={'env_vars': {'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path]), 'TRANSFER_QUEUE_ENABLE': '1'}})
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows, trajs, chat, config, words, data = verl_setting(Path(folder), cfg)
            fields = collate_fn([data[i] for i in range(len(rows))])
            fields['uid'] = names = np.array([f'row{i}' for i in range(len(rows))], dtype=object)
            batch = tensordict_utils.get_tensordict(fields)
            tensordict_utils.assign_non_tensor_data(batch, 'global_steps', 1)
            transfer_queue.init(config.transfer_queue)
            worker = AgentLoopWorkerTQ.options(num_cpus=0).remote(config, replay_client(arl.replay_engine(trajs)))
            transfer_queue.kv_batch_put(keys=list(names), partition_id='train', tags=[{'is_prompt': True, 'status': 'pending', 'global_steps': 1}] * len(rows))
            ray.get(worker.generate_sequences.remote(batch))
            until = time.monotonic() + 60
            while any((tags := transfer_queue.kv_list('train')['train'])[name]['status'] not in ('finished', 'failure') for name in names) and time.monotonic() < until: time.sleep(0.1)
            keys = [key for key in tags if '_' in key]
            found = transfer_queue.kv_batch_get(keys=keys, partition_id='train')
            theirs = {key: arl.Played(*(found[name][i].tolist() for name in ('prompts', 'responses', 'response_mask', 'rollout_log_probs')), found['rm_scores'][i].sum().item())
                      for i, key in enumerate(keys)}
            transfer_queue.close()
    finally:
        ray.shutdown()
    ours = dict(zip(names, map(arl.played, trajs)))
    return {'queue_episodes': len(theirs), 'queue_faults': [fault for key, e in theirs.items() for fault in arl.contract_faults(ours[key.partition('_')[0]], e)],
            'queue_versions': [all(isinstance(tags[key][name], int) for key in keys) for name in ('min_global_steps', 'max_global_steps')],
            'queue_versions_differ': all(tags[key]['min_global_steps'] == len(ours[key.partition('_')[0]].prompt) < tags[key]['max_global_steps'] for key in keys)}


# ---- Ray ----

def contract_ray(workers=2):
    """The scripted episode in a worker of Ray, and four sampled groups in several against the same in this process."""
    cfg = small_config()
    model, chat, rows = setting(cfg, 4)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    os.environ['PYTHONPATH'] = os.pathsep.join([str(ROOT), str(ROOT / 'benchmarks')])                       # for the workers
    scripted = arl.ray_map(by_the_book, [(model, chat, row) for row in rows[:2]], workers)
    groups = arl.ray_map(arl.play_job, [(state, row, cfg, 0) for row in rows], workers)
    ours = [arl.played(by_the_book(model, chat, row)) for row in rows[:2]]
    faults = [fault for a, b in zip(ours, map(arl.played, scripted)) for fault in arl.contract_faults(a, b)]
    here = [arl.play_job(state, row, cfg, 0) for row in rows]
    same = [not any(arl.contract_faults(a, b) for a, b in zip(x, y)) for x, y in zip(here, groups)]
    gap = max(abs(p - q) for x, y in zip(here, groups) for a, b in zip(x, y) for p, q in zip(a.logps, b.logps))
    return {'faults': faults, 'episodes': len(ours), 'tokens': sum(len(e.completion) for e in ours), 'workers': workers, 'groups': sum(same), 'groups_total': len(same), 'logp_gap': gap}


# ---- verifiers ----

async def verifiers_episodes(chat, engine, n, client='train', turns=4):
    """Plays the first `n` rows through verifiers' own environment, harness and tool servers -> their episodes.

    engine: `generate` of `play_tokens`, behind a server on the loopback; client: 'train' asks it for ids, 'eval' for messages.
    """
    import verifiers.v1 as vf
    from renderers import Qwen3RendererConfig
    with tempfile.TemporaryDirectory() as folder, arl.serve(arl.model_app(chat, engine)) as url:
        chat.tok.save_pretrained(folder)
        common = {'base_url': f'{url}/v1', 'api_key_var': 'NO_KEY_IS_NEEDED'}
        kinds = {'train': lambda: vf.TrainClientConfig(**common, renderer=Qwen3RendererConfig(enable_thinking=False), renderer_model_name=folder),
                 'eval': lambda: vf.EvalClientConfig(**common)}
        env = vf.load_environment(vf.SingleAgentEnvConfig(taskset={'id': 'agentrl-gym-v1', 'num_tasks': n, 'max_turns': turns},
                                                          agent={'harness': {'id': 'null'}, 'runtime': {'type': 'subprocess'}}))
        context = vf.ModelContext(client=kinds[client](), model='tiny', sampling=vf.SamplingConfig(temperature=1.0, max_tokens=64))
        async with env.serving():
            return [await env.run_slot(env.slots(task)[0], context) for task in env.taskset]


def contract_verifiers():
    """The scripted episode through a `Taskset`, its `Toolset` on a tool server, and the null harness, with ids as prime-rl takes them; and the
    same evaluated against an OpenAI-compatible server."""
    from verifiers.v1.clients.train import tool_to_wire
    sys.path.insert(0, str(ROOT / 'benchmarks' / 'verifiers_gym'))
    os.environ['PYTHONPATH'] = os.pathsep.join([str(ROOT), str(ROOT / 'benchmarks' / 'verifiers_gym')])                  # for the tool server
    cfg = small_config()
    model, chat, rows = setting(cfg)
    async def done(ids, max_new_tokens): return (new := chat.tok.encode('Done.') + [chat.end_id]), [0.0] * len(new)
    probe = asyncio.run(verifiers_episodes(chat, done, 1))[0].traces[0]
    schemas = [tool_to_wire(tool) for tool in probe.tools]
    trajs = [by_the_book(model, chat, row, False, arl.menu_env_with(schemas)) for row in rows]
    began = time.perf_counter()
    found, faults = asyncio.run(verifiers_episodes(chat, arl.replay_engine(trajs), len(rows))), []
    seconds = (time.perf_counter() - began) / len(rows)
    for traj, episode in zip(trajs, found):
        trace, ours = episode.traces[0], arl.played(traj)
        branch, = trace.branches
        mask = [int(m) for m in branch.sampled_mask]
        cut = mask.index(1)
        faults += arl.contract_faults(ours, arl.Played(branch.token_ids[:cut], branch.token_ids[cut:], mask[cut:], branch.logprobs[cut:], trace.reward))
    texts = [script(row, False) for row in rows]
    async def talk(ids, max_new_tokens):                     # by messages the ids of earlier turns are rendered anew, so the script goes by turns
        history = chat.decode(ids)
        which = next(i for i, row in enumerate(rows) if json.loads(row)['task']['fn_name'] in history)
        new = chat.tok.encode(texts[which][history.count('<tool_response>')], add_special_tokens=False) + [chat.end_id]
        return new, [0.0] * len(new)
    evaluated = asyncio.run(verifiers_episodes(chat, talk, len(rows), 'eval'))
    return {'faults': faults, 'episodes': len(rows), 'tokens': sum(len(arl.played(t).completion) for t in trajs), 'stop': found[0].traces[0].stop_condition,
            'prompt_tokens': len(arl.played(trajs[0]).prompt), 'episode_s': seconds, 'eval_rewards': [e.traces[0].reward for e in evaluated],
            'eval_has_ids': bool(evaluated[0].traces[0].branches[0].token_ids), 'after_malformed': probe.stop_condition, 'malformed_reward': probe.reward}


# ---- the record ----

def in_folder(run):
    """`run` with a folder that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder: return run(Path(folder))


def measure(name):
    """The entry of results/engines.json for a name."""
    match name:
        case 'trl': return {'versions': arl.require_engine('trl') | versions('transformers'), 'rollout_func': contract_trl(), 'environment_factory': contract_trl_tools(), 'smuggled': smuggled(), 'trained': train_tools(),
                        'script': in_folder(run_script)}
        case 'trl-train': return {'versions': arl.require_engine('trl') | versions('transformers'), **measure_training(Path(os.environ.get('ENGINES_WORK', tempfile.gettempdir() + '/agentrl-engines')))}
        case 'openenv': return {'versions': arl.require_engine('openenv'), **contract_openenv()}
        case 'verifiers': return {'versions': arl.require_engine('verifiers') | versions('renderers', 'mcp'), **contract_verifiers()}
        case 'ray': return {'versions': arl.require_engine('ray'), **contract_ray()}
        case 'verl': return {'versions': arl.require_engine('verl') | versions('ray', 'transformers'), **contract_verl(), **contract_verl_queue()}
    raise SystemExit(f'unknown name {name!r}')


def main(names):
    logging.getLogger('agentrl').setLevel(logging.WARNING)
    torch.set_num_threads(1)
    for name in names:
        started = time.process_time()
        entry = measure(name) | {'date': time.strftime('%Y-%m-%d'), 'process_cpu_s': time.process_time() - started}
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        draft = RESULTS.with_name('.draft-engines.json')
        draft.write_text(json.dumps(known | {name: entry}, indent=1, sort_keys=True) + '\n')
        draft.replace(RESULTS)
        print(name, {k: v for k, v in entry.items() if k not in ('curve', 'log', 'two_curve')})


if __name__ == '__main__':
    match sys.argv[1:]:
        case ['--train', folder, start, settings, kill_at]: train_trl(folder, start, json.loads(settings), int(kill_at))
        case names if names: main(names)
        case _: sys.exit(__doc__)
