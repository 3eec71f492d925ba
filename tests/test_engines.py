"""Appendix C: the core, the contract and the checks in every environment; each engine where its extra is installed."""
import asyncio, configparser, dataclasses, importlib.metadata, json, sys, time
from pathlib import Path

import pytest
import torch

import agentrl as arl

ROOT = Path(__file__).resolve().parent.parent
CFG = arl.llm_config('tiny', group_size=2, prompts=2, max_turns=4, max_new_tokens=8, train_layers=None)


@pytest.fixture(scope='module')
def tiny():
    pytest.importorskip('transformers', reason='appendices A to C need transformers')
    model, tok, name = arl.load_model('tiny')
    return model, arl.ChatFormat(tok, name)


@pytest.fixture(scope='module')
def rows():
    return arl.episode_rows(arl.menu_experiment(), CFG, range(10))


def script(row):
    return [arl.json_call('read'), 'No call at all.', arl.json_call('edit', op=arl.FIX_OP[json.loads(row)['task']['name']]), arl.json_call('submit')]


def scripted(tiny, row):
    model, chat = tiny
    return arl.scripted_episode(model, chat, arl.open_episode(row), script(row))


def engine(name):
    """benchmarks/engines.py, if the engine is there; else the test is skipped with what is missing."""
    try:
        arl.require_engine(name)
    except ImportError as error:
        pytest.skip(str(error))
    sys.path.insert(0, str(ROOT / 'benchmarks'))
    try:
        import engines
    finally:
        sys.path.pop(0)
    return engines


# ---- rows ----

def test_rows_are_reproducible_whatever_else_is_made(rows):
    assert rows[3:6] == arl.episode_rows(arl.menu_experiment(), CFG, [3, 4, 5])
    assert rows != arl.episode_rows(arl.menu_experiment(), dataclasses.replace(CFG, seed=1), range(10))
    assert [arl.row_number(r) for r in rows] == list(range(10))
    families = [json.loads(r)['task']['name'].partition('/')[0] for r in rows]
    assert sorted(families[:5]) == sorted(arl.FAMILIES) == sorted(families[5:])


def test_a_row_opens_the_same_episode_and_pays_the_same(rows):
    for row in rows[:5]:
        records = []
        for _ in range(2):
            env = arl.open_episode(row)
            records.append([env.messages(), [env.step(text) for text in script(row)]])
        assert records[0] == records[1] and records[0][1][-1][1] == 1.0
    assert env.gym.max_turns == 4 and env.gym.max_edits == 1


@pytest.mark.parametrize('row', ['', '{}', '[]', '3', '{"number": 1, "task": {}, "max_turns": 4}', None])
def test_what_is_no_row_is_an_error_that_shows_it(row):
    with pytest.raises(ValueError, match='row is'):
        arl.open_episode(row)


def test_rows_take_other_environments(rows):
    made = arl.open_episode(rows[0], lambda task, cfg: (task.fn_name, cfg.max_turns))
    assert made == (json.loads(rows[0])['task']['fn_name'], 4)


def test_what_a_group_samples_depends_on_its_row_and_key_only(tiny, rows):
    model, chat = tiny
    policy, sampler = arl.TreePolicy(model), arl.Sampler(max_new_tokens=6, max_turns=2)
    play = lambda row, key: [(t.ids, t.logps) for t in arl.play_row(policy, chat, row, 3, sampler, key)]
    first = play(rows[0], (0, 1))
    play(rows[1], (0, 1))
    assert play(rows[0], (0, 1)) == first != play(rows[0], (0, 2))


# ---- the contract ----

def test_the_contract_finds_planted_faults(tiny, rows):
    e = arl.played(scripted(tiny, rows[0]))
    assert arl.contract_faults(e, e) == [] and arl.contract_faults(e, dataclasses.replace(e, logps=None)) == []
    swap = lambda **new: arl.contract_faults(e, dataclasses.replace(e, **new))
    assert 'prompt differs from place 0' in swap(prompt=e.prompt[1:])[0]
    assert 'completion' in swap(completion=[*e.completion[:-1], 0])[0] and 'completion' in swap(completion=e.completion[:-1], mask=e.mask[:-1])[0]
    assert 'mask' in swap(mask=[0, *e.mask[:-1]])[0] and 'reward' in swap(reward=0.0)[0]
    assert 'logps differ by' in swap(logps=[x + 2e-4 for x in e.logps])[0] and swap(logps=[x + 5e-5 for x in e.logps]) == []
    assert 'logps differ by' in swap(logps=[float('nan')] * len(e.logps))[0]


def test_played_keeps_every_token_once(tiny, rows):
    traj = scripted(tiny, rows[1])
    e = arl.played(traj)
    assert e.prompt + e.completion == traj.ids and e.mask[0] == 1 and sum(e.mask) == sum(traj.action_mask)
    assert all((x == 0.0) == (m == 0) for x, m in zip(e.logps, e.mask)) and e.reward == 1.0


def test_the_loop_over_an_engine_of_ids_is_the_books(tiny, rows):
    model, chat = tiny
    trajs = [scripted(tiny, row) for row in rows[:3]]
    known = arl.replay_engine(trajs)
    for row, traj in zip(rows, trajs):
        again = arl.run_async(arl.play_tokens(known, chat, arl.open_episode(row)))
        assert arl.played(again) == arl.played(traj) and again.info == traj.info
    with pytest.raises(ValueError, match='no history of a known episode'):
        arl.run_async(arl.play_tokens(known, chat, arl.open_episode(rows[4])))


def test_many_episodes_wait_side_by_side(tiny, rows):
    model, chat = tiny
    trajs = [scripted(tiny, row) for row in rows[:3]]
    known, waiting, most = arl.replay_engine(trajs), 0, 0

    async def slow(ids, n):
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.01)
        waiting -= 1
        return await known(ids, n)

    async def all_of_them():
        return await asyncio.gather(*(arl.play_tokens(slow, chat, arl.open_episode(row)) for row in rows[:3]))
    assert [t.ids for t in arl.run_async(all_of_them())] == [t.ids for t in trajs] and most == 3


def test_an_engine_that_gives_nothing_is_an_error(tiny, rows):
    async def empty(ids, n): return [], []
    async def lost(ids, n): return [1, 2], [0.0]
    for generate in (empty, lost):
        with pytest.raises(ValueError, match='generate gave'):
            arl.run_async(arl.play_tokens(generate, tiny[1], arl.open_episode(rows[0])))


def test_a_turn_cut_by_its_limit_gets_its_end_from_the_loop(tiny, rows):
    chat = tiny[1]
    async def babble(ids, n): return [5] * n, [-1.0] * n
    traj = arl.run_async(arl.play_tokens(babble, chat, arl.open_episode(rows[0]), arl.Sampler(max_new_tokens=3, max_turns=4)))
    e = arl.played(traj)
    assert e.mask[:4] == [1, 1, 1, 0] and e.completion[3] == chat.end_id and e.reward == 0.0 and traj.info['n_turns'] == 4


# ---- versions ----

def installed(**packages):
    def version(name):
        if name not in packages: raise importlib.metadata.PackageNotFoundError(name)
        return packages[name]
    return version


def test_ranges_are_compared_number_by_number():
    assert arl.in_range('1.16.0', '>=1.16,<2') and arl.in_range('1.100', '>=1.16,<2') and not arl.in_range('1.2', '>=1.16,<2')
    assert not arl.in_range('2.0.0rc1', '>=1.16,<2') and not arl.in_range('0.11', '>=0.10,<0.11') and arl.in_range('0.10.9+cpu', '>=0.10,<0.11')


def test_a_missing_or_wrong_version_is_an_error_that_says_what_to_do():
    with pytest.raises(ImportError, match=r"trl needs trl>=1.16,<2, which is not installed: pip install 'agentrl\[trl\]'"):
        arl.require_engine('trl', installed(accelerate='1.15'))
    with pytest.raises(ImportError, match=r'trl needs trl>=1.16,<2, and 2.1.0 is installed'):
        arl.require_engine('trl', installed(trl='2.1.0', accelerate='1.15'))
    with pytest.raises(ImportError, match='accelerate'):
        arl.require_engine('trl', installed(trl='1.16.0', accelerate='0.9'))
    with pytest.raises(ValueError, match='must be one of trl'):
        arl.require_engine('skyrl')
    assert arl.require_engine('trl', installed(trl='1.16.0', accelerate='1.15.0')) == {'trl': '1.16.0', 'accelerate': '1.15.0'}


def test_the_extras_say_the_same_ranges():
    parser = configparser.ConfigParser(delimiters=['='])
    parser.read(ROOT / 'settings.ini', encoding='utf-8')
    for name, packages in arl.ENGINES.items():
        wanted = {f'{package}{bounds}' for package, bounds in packages.items()}
        assert wanted == set(parser['DEFAULT'][f'{name}_requirements'].split()), name


@pytest.mark.parametrize('name, use', [
    ('trl', lambda: arl.trl_config(CFG, 'folder')), ('trl', lambda: arl.trl_tokenizer(None)), ('openenv', lambda: arl.openenv_app()),
    ('trl', lambda: arl.trl_config(CFG, 'folder', micro=2)), ('openenv', lambda: arl.RemoteEpisode('http://127.0.0.1:9', '')), ('verl', lambda: arl.verl_files([], CFG, '.')), ('verl', lambda: arl.verl_agent_loop(None, None, None))])
def test_an_adapter_without_its_engine_says_so_before_any_work(name, use):
    try:
        arl.require_engine(name)
    except ImportError as error:
        with pytest.raises(ImportError, match=str(error)[:20]): use()
    else:
        pytest.skip(f'{name} is installed')


# ---- adapters that need no engine ----

def test_groups_are_whole_or_refused():
    assert arl.groups_of(list('aabbcc'), 2) == ['a', 'b', 'c'] and arl.groups_of(list('aaaa'), 2) == ['a', 'a']
    for prompts, size in (('aab', 2), ('abab', 2), ('aabb', 4)):
        with pytest.raises(ValueError, match='whole groups'): arl.groups_of(list(prompts), size)


def test_the_rollout_function_hands_on_what_was_sampled(tiny, rows):
    class Trainer: num_generations = 2
    asked, trajs = [], {row: scripted(tiny, row) for row in rows[:2]}
    def play(trainer, row, n):
        asked.append((row, n))
        return [trajs[row]] * n
    out = arl.trl_rollout(play)([rows[0]] * 2 + [rows[1]] * 2, Trainer())
    e = arl.played(trajs[rows[1]])
    assert asked == [(rows[0], 2), (rows[1], 2)] and {len(v) for v in out.values()} == {4}
    assert (out['prompt_ids'][2], out['completion_ids'][3], out['env_mask'][2], out['logprobs'][3]) == (e.prompt, e.completion, e.mask, e.logps)
    assert arl.trl_reward(None, out['episode_reward']) == [1.0] * 4


def test_sampling_borrows_the_trainers_model_and_gives_it_back(tiny):
    model, _ = tiny
    model.set_attn_implementation('sdpa')
    model.train()
    with pytest.raises(RuntimeError, match='inside'):
        with arl.tree_policy(model) as policy:
            assert model.config._attn_implementation == 'agentrl_tree' and not model.training and len(policy.trainable) == len(list(model.parameters()))
            raise RuntimeError('inside')
    assert model.config._attn_implementation == 'sdpa' and model.training
    model.eval()


def test_menu_tools_are_the_menu(rows):
    tools, env = arl.MenuTools(), arl.open_episode(rows[0])
    tools.reset(row=rows[0], prompt='ignored')
    op = arl.FIX_OP[json.loads(rows[0])['task']['name']]
    for ours, text in ((tools.read, arl.json_call('read')), (tools.test, arl.json_call('test')), (lambda: tools.edit(op), arl.json_call('edit', op=op))):
        assert [ours()] == env.step(text)[0] and tools.get_reward() == 0.0
    tools.reset(rows[0])
    tools.edit(op)
    tools.submit()
    assert tools.get_reward() == 1.0 and tools.read() == 'the episode is over' and tools.get_reward() == 1.0
    tools.reset(rows[0])
    assert tools.get_reward() == 0.0


def test_menu_tools_and_the_menu_name_the_same_edits():
    text = arl.MenuTools.edit.__doc__
    assert json.loads(text[text.index('['):text.index(']') + 1]) == list(arl.EDIT_OPS)


# ---- the stand-in for a server of models ----

def ask(app, path, body=None):
    """(status, content type, body) of one request to an ASGI application."""
    sent = []
    async def send(message): sent.append(message)
    parts = [json.dumps(body).encode() if body is not None else b'']
    cut = len(parts[0]) // 2
    queue = [{'body': parts[0][:cut], 'more_body': True}, {'body': parts[0][cut:]}]
    async def receive(): return queue.pop(0)
    asyncio.run(app({'type': 'http', 'method': 'POST' if body is not None else 'GET', 'path': path}, receive, send))
    return sent[0]['status'], dict(sent[0]['headers'])[b'content-type'].decode(), sent[1]['body']


def test_the_server_answers_ids_and_messages(tiny, rows):
    model, chat = tiny
    traj = scripted(tiny, rows[0])
    e, app = arl.played(traj), arl.model_app(chat, arl.replay_engine([traj]))
    status, _, body = ask(app, '/inference/v1/generate', {'token_ids': e.prompt, 'sampling_params': {'max_tokens': 64}})
    choice = json.loads(body)['choices'][0]
    n = len(choice['token_ids'])
    assert status == 200 and choice['token_ids'] == e.completion[:n] and [x['logprob'] for x in choice['logprobs']['content']] == e.logps[:n]
    assert choice['logprobs']['content'][0]['token'] == f"token_id:{e.completion[0]}" and choice['token_ids'][-1] == chat.end_id
    env = arl.open_episode(rows[0])
    talk = {'model': 'tiny', 'messages': env.messages(), 'tools': env.tools}
    status, kind, body = ask(app, '/v1/chat/completions', talk)
    message = json.loads(body)['choices'][0]['message']
    assert (status, kind) == (200, 'application/json') and message['tool_calls'][0]['function'] == {'name': 'read', 'arguments': '{}'}
    status, kind, stream = ask(app, '/v1/chat/completions', talk | {'stream': True})
    chunks = [json.loads(line[6:]) for line in stream.decode().split('\n\n') if line and line != 'data: [DONE]']
    assert kind == 'text/event-stream' and chunks[0]['choices'][0]['delta'] == message and chunks[1]['choices'][0]['finish_reason'] == 'tool_calls' and stream.endswith(b'data: [DONE]\n\n')
    assert json.loads(ask(app, '/v1/models')[2])['data'][0]['id'] == 'tiny'
    status, _, body = ask(app, '/inference/v1/generate', {'token_ids': [1, 2, 3], 'sampling_params': {}})
    assert status == 400 and 'no history' in json.loads(body)['error']['message']


def test_messages_of_the_openai_interface_become_a_templates(tiny):
    chat = tiny[1]
    call = {'index': 0, 'id': 'x', 'type': 'function', 'function': {'name': 'edit', 'arguments': '{"op": "fix_init"}'}}
    assert arl.plain_message({'role': 'assistant', 'tool_calls': [call]}) == {'role': 'assistant', 'content': '', 'tool_calls': [{'function': {'name': 'edit', 'arguments': {'op': 'fix_init'}}}]}
    assert arl.plain_message({'role': 'tool', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]}) == {'role': 'tool', 'content': 'ab'}
    ids = chat.tok.encode(arl.json_call('edit', op='fix_init')) + [chat.end_id]
    assert arl.chat_message(chat, ids)['tool_calls'][0]['function'] == call['function']
    for text in ('Done.', '<tool_call>{"name": "read"}</tool_call>', arl.json_call('read') + '<tool_call>'):
        assert arl.chat_message(chat, chat.tok.encode(text)) == {'role': 'assistant', 'content': text}


# ---- the engines, where they are ----

def test_trl_with_our_loop():
    found = engine('trl').contract_trl()
    assert found['faults'] == [] and found['logp_gap'] < 1e-4 and found['sampler_logp_gap'] == 0 and found['rewards'] == [1.0] * 4


def test_trl_with_its_own_loop():
    found = engine('trl').contract_trl_tools()
    assert found['faults'] == [] and found['after_submit_policy_tokens'] > 0 and found['after_malformed_turns'] == 1
    assert engine('trl').smuggled() == {'ours': 1, 'trl': 2, 'plain_equal': True}


def test_trl_trains_through_its_own_loop():
    found = engine('trl').train_tools(steps=1)
    assert len(found['rewards']) == len(found['calls']) == 1 and found['calls'][0] > 0


def test_trl_needs_whole_groups_a_process_and_whole_parts():
    engine('trl')
    with pytest.raises(ValueError, match='must divide prompts'): arl.trl_config(CFG, 'folder', processes=3)
    with pytest.raises(ValueError, match='micro is 3; it must divide the 4 episodes'): arl.trl_config(CFG, 'folder', micro=3)
    with pytest.raises(ValueError, match='micro is 0'): arl.trl_config(CFG, 'folder', micro=0)


def test_trl_in_parts_takes_the_same_step(tmp_path):
    engines = engine('trl')
    start = torch.load(ROOT / 'results' / 'tiny_qwen3_warm.pt', weights_only=True)
    cfg, norms = arl.llm_config('tiny', **(engines.SETTINGS | dict(steps=1, prompts=2, group_size=4))), []
    rows = arl.episode_rows(arl.menu_experiment(), cfg, range(2))
    for micro in (None, 2):
        model, tok, name = arl.load_model('tiny')
        model.load_state_dict(start)
        config = arl.trl_config(cfg, tmp_path / str(micro), micro=micro)
        trainer = arl.trl_trainer(model, tok, rows, config, arl.ChatFormat(tok, name), cfg)
        trainer.train()
        norms.append(next(e['grad_norm'] for e in trainer.state.log_history if 'grad_norm' in e))
    assert config.per_device_train_batch_size == 2 and norms[0] > 1e-3 and abs(norms[0] - norms[1]) < 1e-4 * norms[0]


def test_trls_script_runs_and_resumes(tmp_path):
    found = engine('trl').run_script(tmp_path)
    assert found['steps'] == found['resumed_from'] == 2 and found['again'] == 3 and found['loads']


def test_trl_killed_resumed_and_on_two_processes(tmp_path):
    engines = engine('trl')
    start = ROOT / 'results' / 'tiny_qwen3_warm.pt'
    settings = engines.SETTINGS | dict(steps=4, prompts=2, group_size=4, save_every=2)
    for name, processes, kill_at in (('unbroken', 1, 0), ('killed', 1, 3), ('two', 2, 0)):
        status = engines.launch(tmp_path / name, start, settings, processes, kill_at)
        if kill_at:
            assert status == -9 and not (tmp_path / name / 'final.pt').exists()
            status = engines.launch(tmp_path / name, start, settings, processes)
        assert status == 0
    (one, h1), (again, h2), (two, h3) = (engines.run_of(tmp_path / name) for name in ('unbroken', 'killed', 'two'))
    ids, ids2, ids3 = (engines.by_steps(h)[1] for h in (h1, h2, h3))
    assert h2[0]['from'] == 'checkpoint-2' and set(ids2) == {3, 4} and all(ids2[s] == ids[s] for s in ids2)
    assert engines.weight_gap(one, again) == 0 and engines.weight_gap(one, torch.load(start, weights_only=True)) > 1e-4
    assert len(h3) == 2 and ids3[1] == ids[1] and engines.weight_gap(one, two) < 1e-3


def test_trl_takes_the_books_step(tmp_path):
    engines = engine('trl')
    found = engines.compare_step(ROOT / 'results' / 'tiny_qwen3_warm.pt', tmp_path / 'first', engines.SETTINGS | dict(prompts=2, group_size=4))
    assert found['step_same_rewards'] and found['step_moved'] > 1e-4 and abs(found['step_grad_norm'] - found['step_trl_grad_norm']) < 2e-3 * found['step_grad_norm']


def test_openenv_over_the_loopback():
    found = engine('openenv').contract_openenv(sessions=4)
    assert found['faults'] == [] and found['session_rewards'] == [1.0] * 4 and 'CAPACITY_REACHED' in found['refused']


def test_openenv_episodes_are_sampled_like_any_other(tiny, rows):
    engine('openenv')
    model, chat = tiny
    policy = arl.TreePolicy(model)
    for share in (True, False):
        sampler = arl.Sampler(max_new_tokens=6, max_turns=2, share=share)
        ours = arl.play_row(policy, chat, rows[0], 3, sampler, (0,))
        with arl.serve(arl.openenv_app(sessions=16)) as url:
            envs = [arl.RemoteEpisode(url, rows[0]) for _ in range(3)]
            theirs = arl.sample_tree_episodes(policy, chat, [envs], arl.named_generator('row', 0, 0), sampler)
            for env in envs: env.close()
        assert [(t.ids, t.reward, t.info) for t in ours] == [(t.ids, t.reward, t.info) for t in theirs]


def test_trl_plays_on_an_openenv_server_and_leaves_no_session_open(tiny, rows):
    engine('openenv')
    model, chat = tiny
    class Trainer:
        class accelerator: unwrap_model = staticmethod(lambda model: model)
        class state: global_step = 3
    Trainer.model = model
    cfg = dataclasses.replace(CFG, max_turns=2, max_new_tokens=6)
    ours = arl.play_row(arl.TreePolicy(model), chat, rows[0], 2, arl.Sampler(6, max_turns=2), (cfg.seed, 3))
    with arl.serve(arl.openenv_app(sessions=2)) as url:
        play = arl.remote_player(chat, cfg, url)
        for _ in range(3):                                                       # two places, so a group that stays would be in the way
            assert [(t.ids, t.reward) for t in play(Trainer, rows[0], 2)] == [(t.ids, t.reward) for t in ours]
            time.sleep(0.2)
        with pytest.raises(RuntimeError, match='CAPACITY_REACHED'): play(Trainer, rows[0], 3)
        time.sleep(0.2)
        assert len(play(Trainer, rows[1], 2)) == 2


def test_openenv_turns_have_a_limit(rows):
    engine('openenv')
    class Slow(arl.MenuEnv):
        def step(self, text):
            time.sleep(0.5)
            return super().step(text)
    with arl.serve(arl.openenv_app(Slow, sessions=2)) as url:
        env = arl.RemoteEpisode(url, rows[0], patience=0.1)
        with pytest.raises(TimeoutError): env.step(arl.json_call('read'))
        env.close()


def test_openenv_errors_reach_the_client(rows):
    engine('openenv')
    with arl.serve(arl.openenv_app(sessions=2)) as url:
        with pytest.raises(RuntimeError, match='row is'): arl.RemoteEpisode(url, 'nonsense')
        env = arl.RemoteEpisode(url, rows[0])
        for text in script(rows[0]): env.step(text)
        with pytest.raises(RuntimeError, match='after the end'): env.step('more')
        env.close()


def test_ray_workers():
    found = engine('ray').contract_ray()
    assert found['faults'] == [] and found['groups'] == found['groups_total'] == 4


def test_verifiers_traces():
    found = engine('verifiers').contract_verifiers()
    assert found['faults'] == [] and found['stop'] == 'submitted' and found['eval_rewards'] == [1.0, 1.0]


def test_verls_batch():
    found = engine('verl').contract_verl()
    assert found['faults'] == [] and found['episodes'] == 4 and found['cut_tokens'] == 20 and found['cut_reward'] == 0.0


def test_verl_gets_a_recipe_that_it_can_follow(tmp_path, rows):
    engine('verl')
    with pytest.raises(ValueError, match='max_context is 1024'): arl.verl_files(rows, dataclasses.replace(CFG, max_context=1024), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_queue_of_verls_default_trainer():
    found = engine('verl').contract_verl_queue()
    assert found['queue_faults'] == [] and found['queue_episodes'] == 4 and found['queue_versions'] == [True, True] and found['queue_versions_differ']


# ---- the record ----

def test_the_stored_record_is_of_versions_in_range():
    records = json.loads((ROOT / 'results' / 'engines.json').read_text())
    for name, record in records.items():
        for package, bounds in arl.ENGINES[name.partition('-')[0]].items():
            if package in record['versions']: assert arl.in_range(record['versions'][package], bounds), (name, package)
