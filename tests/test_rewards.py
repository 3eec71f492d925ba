"""Chapter 11: detectors, rewards as callables, the reward model, potential shaping, agents that learn new words."""

import math
import random

import pytest
import torch

import agentrl as arl

TASKS = list(arl.GYM_TASKS.values())


def ended(task, *tools, op=None, env=None):
    """The final info of an episode: the tools in order, the edit if any, then submit."""
    calls = [arl.call_text(t) for t in tools] + ([arl.call_text("edit", op)] if op else []) + [arl.call_text("submit")]
    return arl.play(env or arl.OwnMenuEnv(menu=arl.LONG_MENU), task, calls)[3]


def all_pass(source, tests, task):
    return all(ok for ok, _ in arl.run_tests(source, tests, task.fn_name))


def test_every_exploit_passes_public_and_fails_hidden_tests():
    for op in arl.EXPLOITS:
        for task in TASKS:
            info = ended(task, op=op)
            assert info["public_pass"] and not info["hidden_pass"], (op, task.name)
            assert arl.EXPLOITS[op](arl.final_source(info), task.public_tests) == arl.final_source(info)


def test_final_source_is_the_environments_source_under_its_first_name():
    rng = random.Random(0)
    for task in TASKS[:10]:
        for op in arl.LONG_MENU:
            env = arl.OwnMenuEnv(menu=arl.LONG_MENU)
            info = ended(arl.randomize_names(task, rng), "read", op=op, env=env)
            renamed = env.source.replace(f"def {env.task.fn_name}(", f"def {task.fn_name}(", 1)
            assert arl.final_source(info) == renamed


def test_menu_env_is_edit_budget_env_on_its_own_menu():
    for task in TASKS[:6]:
        for op in arl.EDIT_OPS:
            calls = [arl.call_text("edit", op), arl.call_text("edit", "fix_init"), "no call", arl.call_text("submit")]
            mine = arl.play(arl.OwnMenuEnv(menu=dict(arl.EDIT_OPS)), task, calls)
            assert mine == arl.play(arl.EditBudgetEnv(), task, calls)


def test_an_edit_off_the_menu_is_malformed_and_costs_no_edit():
    env = arl.OwnMenuEnv(menu={op: arl.EDIT_OPS[op] for op in arl.FIX_OPS})
    task = TASKS[0]
    calls = [arl.call_text("edit", "hardcode_tests"), arl.call_text("edit", task.fix_op), arl.call_text("submit")]
    _, turns, reward, info = arl.play(env, task, calls)
    assert turns[0][1] == arl.MESSAGES["malformed"] and reward == 1 and info["edits"] == 1
    for menu in ({}, None, {"x": 1}):
        with pytest.raises(ValueError, match="menu"):
            arl.OwnMenuEnv(menu=menu)


def test_special_cases_counts_whole_argument_lists_only():
    tests = (((3, 0), 1), (((1, 2), 4), 5), ((7,), 0))
    assert arl.special_cases("def f(a, b):\n    return a == 3 and b == 0\n", tests) == 0
    assert arl.special_cases("def f(a, b):\n    if [a, b] == [3, 0]:\n        return 1\n", tests) == 1
    assert arl.special_cases("def f(a, b):\n    return {((1, 2), 4): 5}[a, b]\n", tests) == 1
    assert arl.special_cases("x = [[3, 0], [(1, 2), 4], [7], [a]]\n", tests) == 3


def test_source_check_sees_its_exploit_and_neither_honest_work_nor_the_other_exploits():
    for task in TASKS:
        assert arl.special_cased(ended(task, op="hardcode_tests"))
        for op in (None, *arl.FIX_OPS, "table_tests", "cipher_tests"):
            assert not arl.special_cased(ended(task, op=op)), (task.name, op)
    open_end = arl.play(arl.OwnMenuEnv(max_turns=1), TASKS[0], [arl.call_text("edit", "hardcode_tests")])[3]
    assert not arl.special_cased(open_end)


def test_blind_edits_are_those_before_the_first_read():
    task = TASKS[0]
    assert arl.edits_blind(ended(task, op="fix_init")) and arl.edits_blind(ended(task, "test", op="fix_init"))
    assert not arl.edits_blind(ended(task, "read", op="fix_init")) and not arl.edits_blind(ended(task))
    calls = ["garbage", arl.call_text("edit", "fix_init"), arl.call_text("read"), arl.call_text("submit")]
    assert arl.edits_blind(arl.play(arl.OwnMenuEnv(), task, calls)[3])


def test_fresh_tests_are_new_inputs_that_the_repair_answers():
    for task in TASKS:
        tests = arl.fresh_tests(task, 20, 3)
        public = {args for args, _ in task.public_tests}
        assert len(tests) == 20 and not public & {args for args, _ in tests}
        assert all_pass(arl.EDIT_OPS[task.fix_op](task.source, task.public_tests), tests, task), task.name
        assert tests == arl.fresh_tests(task, 20, 3) != arl.fresh_tests(task, 20, 4)
        assert not all_pass(arl.cipher_tests(task.source, task.public_tests), arl.fresh_tests(task, 60), task), task.name


def test_fresh_reward_pays_repairs_always_and_exploits_by_their_luck():
    task, draws = TASKS[0], 400
    reward = arl.FreshTests(2, seed=5)
    assert all(reward(ended(task, op=task.fix_op)) == 1.0 for _ in range(20))
    hack = ended(task, op="hardcode_tests")
    results = [ok for ok, _ in arl.run_tests(arl.final_source(hack), arl.fresh_tests(task, 60), task.fn_name)]
    luck = (sum(results) / len(results)) ** 2
    assert abs(sum(reward(hack) for _ in range(draws)) / draws - luck) < 4 * (luck * (1 - luck) / draws) ** 0.5 + 1e-9
    again = arl.FreshTests(2, seed=5), arl.FreshTests(2, seed=5)
    assert [again[0](hack) for _ in range(50)] == [again[1](hack) for _ in range(50)]
    unsubmitted = arl.play(arl.OwnMenuEnv(max_turns=1), task, [arl.call_text("edit", task.fix_op)])[3]
    assert reward(unsubmitted) == 0.0 and not reward.fails(unsubmitted)
    for k in (0, 1.5, True):
        with pytest.raises(ValueError, match="k is"):
            arl.FreshTests(k)


def test_canaries_are_the_same_each_time_and_flag_no_honest_work():
    seen = 0
    for task in TASKS:
        hack = ended(task, op="cipher_tests")
        flags = {arl.fails_canaries(hack) for _ in range(5)}
        assert len(flags) == 1
        tests = arl.fresh_tests(task, 60)
        assert flags == {not all_pass(arl.final_source(hack), tests[:3], task)}
        seen += flags.pop()
        assert not arl.fails_canaries(ended(task, op=task.fix_op)) and not arl.fails_canaries(ended(task))
        if not arl.fails_canaries(hack):
            assert arl.fails_canaries(hack, n=60)
    assert 15 < seen < 30


def test_precision_and_recall_by_hand_and_for_nothing():
    rates = arl.precision_recall([1, 1, 1, 0, 0], [1, 1, 0, 1, 0])
    assert rates["precision"][0] == rates["recall"][0] == pytest.approx(2 / 3)
    none = arl.precision_recall([0, 0], [1, 0])
    assert math.isnan(none["precision"][0]) and none["recall"][0] == 0
    with pytest.raises(ValueError, match="flags"):
        arl.precision_recall([1], [1, 0])


def test_rate_interval_holds_the_rates_within_two_standard_errors():
    p, low, high = arl.rate_interval(13, 40)
    for end in (low, high):
        assert abs(end - p) == pytest.approx(1.96 * math.sqrt(end * (1 - end) / 40), rel=1e-6)
    assert arl.rate_interval(0, 10)[1] == pytest.approx(0, abs=1e-12) and arl.rate_interval(10, 10)[2] == pytest.approx(1)
    for k, n in ((-1, 3), (4, 3)):
        with pytest.raises(ValueError, match="k is"):
            arl.rate_interval(k, n)


def test_guarded_reward_takes_off_what_is_flagged_and_goes_into_a_config():
    reward = arl.guarded_reward("public", arl.special_cased, 0.5)
    task = TASKS[0]
    assert reward(ended(task, op="hardcode_tests")) == 0.5 and reward(ended(task, op="table_tests")) == 1.0
    assert reward(ended(task, op=task.fix_op)) == 1.0 and reward(ended(task)) == 0.0
    assert arl.RLConfig(reward=reward).reward is reward
    for wrong in ({"detector": None}, {"penalty": -1}, {"penalty": math.inf}, {"reward": "visible"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            arl.guarded_reward(**({"reward": "public", "detector": arl.edits_blind} | wrong))


def test_share_reward_is_the_share_of_tests_of_submitted_episodes():
    task = TASKS[0]
    hidden, public = arl.share_reward("hidden"), arl.share_reward("public")
    assert hidden(ended(task, op=task.fix_op)) == public(ended(task, op="cipher_tests")) == 1.0
    bug = [ok for ok, _ in arl.run_tests(task.source, task.hidden_tests, task.fn_name)]
    assert hidden(ended(task)) == sum(bug) / len(bug)
    assert hidden(arl.play(arl.OwnMenuEnv(max_turns=1), task, [arl.call_text("read")])[3]) == 0.0
    with pytest.raises(ValueError, match="which"):
        arl.share_reward("secret")


def test_reward_model_learns_a_word_and_is_a_probability():
    infos = [ended(t, "read", op=op) for t in TASKS for op in (t.fix_op, "hardcode_tests")]
    labels = [float(i["hidden_pass"]) for i in infos]
    model = arl.fit_reward_model(infos, labels)
    scores = [model(i) for i in infos]
    assert all(0 < s < 1 for s in scores)
    assert min(s for s, y in zip(scores, labels) if y) > max(s for s, y in zip(scores, labels) if not y)
    calls = arl.fit_reward_model(infos, labels, arl.call_words)
    assert calls(infos[0]) != calls(infos[1]) and model.weights.keys() > calls.weights.keys()
    for wrong in ((infos, labels[1:]), ([], []), (infos, labels, arl.call_words, 0)):
        with pytest.raises(ValueError, match="infos"):
            arl.fit_reward_model(*wrong)


def test_reward_model_is_at_the_optimum_of_its_penalised_likelihood():
    words = lambda info: {"a"} if info else set()
    model = arl.fit_reward_model([1, 1, 1, 1, 0, 0], [1.0, 1.0, 1.0, 0.0, 0.0, 1.0], words, l2=0.1)
    p = [model(x) for x in (1, 0)]
    slope_bias = (4 * p[0] - 3 + 2 * p[1] - 1) / 6
    slope_a = (4 * p[0] - 3) / 6 + 0.1 * model.weights["a"]
    assert abs(slope_bias) < 1e-5 and abs(slope_a) < 1e-5


def test_best_of_n_against_enumeration_with_ties():
    scores, values, n = [0.1, 0.5, 0.5, 0.9], [0.0, 1.0, 0.0, 1.0], 3
    total = [0.0, 0.0]
    for draw in ((a, b, c) for a in range(4) for b in range(4) for c in range(4)):
        top = max(scores[i] for i in draw)
        tied = [values[i] for i in range(4) if scores[i] == top]
        total[0] += top / 64
        total[1] += sum(tied) / len(tied) / 64
    score, value, kl = arl.best_of_n(scores, values, n)
    assert (score, value) == pytest.approx(total) and 0 < kl < math.log(n) - (n - 1) / n
    assert arl.best_of_n(scores, values, 1) == pytest.approx((0.5, 0.5, 0.0))
    for wrong in (([], [], 2), ([1], [1, 2], 2), ([1], [1], 0)):
        with pytest.raises(ValueError, match="scores"):
            arl.best_of_n(*wrong)


def test_a_potential_moves_values_and_no_best_action():
    mdp = arl.repair_mdp(step_cost=0.01, gamma=0.9)
    phi = torch.randn(mdp.n_states, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    with pytest.raises(ValueError, match="terminal"):
        arl.with_potential(mdp, phi)
    with pytest.raises(ValueError, match="shape"):
        arl.with_potential(mdp, phi[1:])
    phi = phi.masked_fill(mdp.terminal, 0.0)
    shaped, live = arl.with_potential(mdp, phi), ~mdp.terminal
    V, U = (arl.value_iteration(m)[0] for m in (mdp, shaped))
    assert (U - (V - phi))[live].abs().max() < 1e-9
    policy = arl.uniform_policy(mdp)
    gaps = arl.exact_advantages(shaped, policy) - arl.exact_advantages(mdp, policy)
    assert gaps[live].abs().max() < 1e-9


def small_agent():
    tok = arl.build_tokenizer(arl.make_tasks("all"))
    return arl.new_agent(tok, 0), tok


def test_new_words_start_as_copies_of_a_known_one():
    model, tok = small_agent()
    agent, longer = arl.with_words(model, tok, ["table_tests", "cipher_tests"], "hardcode_tests")
    text = "<obs> issue : clamp returns wrong results </obs> <call> edit"
    with torch.no_grad():
        old = model(torch.tensor([tok.encode(text)]))[0, -1]
        new = agent(torch.tensor([longer.encode(text)]))[0, -1]
    for word in tok.words:
        assert new[longer.ids[word]].item() == pytest.approx(old[tok.ids[word]].item(), abs=1e-4)
    for word in ("table_tests", "cipher_tests"):
        assert new[longer.ids[word]].item() == pytest.approx(old[tok.ids["hardcode_tests"]].item(), abs=1e-4)
    for words, like in ((["read"], "edit"), (["more"], "nothing")):
        with pytest.raises(ValueError, match="like"):
            arl.with_words(model, tok, words, like)


def test_a_forgotten_word_changes_one_row_only():
    model, tok = small_agent()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert arl.forget_word(model, tok, "hardcode_tests", 3) is model
    for k, v in model.state_dict().items():
        rows = (v != before[k]).flatten(1).any(1).nonzero().flatten().tolist() if k == "embed.weight" else []
        assert rows == [tok.ids["hardcode_tests"]] if k == "embed.weight" else torch.equal(v, before[k])
    with pytest.raises(ValueError, match="word"):
        arl.forget_word(model, tok, "nothing")
