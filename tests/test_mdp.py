"""Chapter 2: the MDP, its solvers, beliefs and the value of information."""

import math
from dataclasses import replace

import pytest
import torch

import agentrl as arl

TOY_P = torch.tensor([[[0.5, 0.5], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
TOY_R = torch.tensor([[0.5, 0.0], [0.0, 0.0]])


def toy(**fields):
    """`try` succeeds half of the time and pays 1, `quit` ends; state 1 is the end."""
    return arl.MDP(**{"P": TOY_P, "R": TOY_R, "terminal": torch.tensor([False, True]), **fields})


def random_mdp(seed, gamma=0.9, ends=False, S=7, A=3):
    g = torch.Generator().manual_seed(seed)
    P = torch.rand(S, A, S, generator=g, dtype=torch.double).pow(5)
    R = torch.randn(S, A, generator=g, dtype=torch.double)
    terminal = torch.zeros(S, dtype=torch.bool)
    if ends:
        terminal[-1] = True
        P[-1], R[-1] = torch.eye(S, dtype=torch.double)[-1], 0
    return arl.MDP(P / P.sum(-1, keepdim=True), R, terminal, gamma), g


def random_policy(mdp, g):
    pi = torch.rand(mdp.n_states, mdp.n_actions, generator=g, dtype=torch.double)
    return pi / pi.sum(1, keepdim=True)


def best(mdp):
    return arl.start_value(mdp, arl.value_iteration(mdp)[0])


# Construction.


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"P": TOY_P * 0.9}, ("P", "sum to 1")),
        ({"P": torch.tensor([[[1.5, -0.5], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])}, ("P", "-0.5")),
        ({"P": TOY_P[:, :, :1]}, ("P", "[S, A, S]")),
        ({"P": TOY_P * math.nan}, ("P", "finite")),
        ({"R": TOY_R[:, :1]}, ("R", "(2, 1)")),
        ({"R": TOY_R * math.inf}, ("R", "finite")),
        ({"R": "ab"}, ("R", "numbers")),
        ({"gamma": 1.01}, ("gamma", "1.01", "0 to 1")),
        ({"gamma": math.nan}, ("gamma", "nan")),
        ({"gamma": True}, ("gamma", "True")),
        ({"terminal": torch.tensor([True, True])}, ("terminal", "pay 0")),
        ({"terminal": torch.tensor([0, 1])}, ("terminal", "bool")),
        ({"R": torch.tensor([[0.5, 0.0], [0.1, 0.0]])}, ("terminal", "pay 0")),
        ({"start": torch.tensor([0.5, 0.4])}, ("start", "sum to 1")),
        ({"states": ("a", "a")}, ("states", "2")),
        ({"actions": ("a",)}, ("actions", "2")),
        ({"R_next": torch.ones(2, 2, 2)}, ("R", "R_next")),
        ({"P": None}, ("P is None", "numbers")),
        ({"P": [[[1.0], [0.5, 0.5]]]}, ("P is", "numbers")),
        ({"terminal": None}, ("terminal is None",)),
        ({"terminal": "ab"}, ("terminal is 'ab'",)),
        ({"states": 3}, ("states is 3", "2")),
        ({"states": (["a"], ["b"])}, ("states", "hashable")),
        ({"gamma": "0.9"}, ("gamma is '0.9'", "0 to 1")),
    ],
)
def test_tables_that_are_no_mdp_are_refused(fields, words):
    with pytest.raises(ValueError) as error:
        toy(**fields)
    assert all(word in str(error.value) for word in words), error.value


def test_a_reward_by_next_state_is_kept_and_averaged():
    R = torch.zeros(2, 2, 2)
    R[0, 0, 1] = 1.0
    mdp = toy(R=R)
    assert torch.equal(mdp.R, TOY_R.double()) and torch.equal(mdp.R_next, R.double())
    assert replace(mdp, gamma=0.5).R_next is not None
    played = arl.sample_episodes(mdp, arl.uniform_policy(mdp), 200, torch.Generator().manual_seed(0))
    assert set(played.rewards.flatten().tolist()) == {0.0, 1.0}


def test_unknown_names_are_refused():
    mdp = arl.repair_mdp()
    with pytest.raises(ValueError, match="state is 'old'"):
        mdp.index("old")
    with pytest.raises(ValueError, match="action is 'write'"):
        mdp.action_index("write")
    for odd in ([1], torch.ones(2), None):
        with pytest.raises(ValueError, match="state is"):
            mdp.index(odd)


def test_build_mdp_stops_at_too_many_states_and_checks_the_rule():
    with pytest.raises(ValueError, match="max_states is 50"):
        arl.build_mdp(lambda s, a: [(1.0, s + 1, 0.0)], 0, ("on",), max_states=50)
    for p in ((0.7,), (1.5, -0.5), (math.nan,)):
        with pytest.raises(ValueError, match="after 'on' in 0 the probabilities are .*sum to 1"):
            arl.build_mdp(lambda s, a: [(q, "end", 0.0) for q in p] if s == 0 else [], 0, ("on",))
    with pytest.raises(ValueError, match="max_states is 0"):
        arl.build_mdp(lambda s, a: [], 0, ("on",), max_states=0)


def test_build_mdp_leaves_out_what_has_no_probability():
    mdp = arl.build_mdp(lambda s, a: [(1.0, "end", 0.0), (0.0, "ghost", 5.0)] if s == 0 else [], 0, ("on",))
    assert mdp.states == (0, "end")


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_one_state_and_one_action(gamma):
    over = arl.MDP(torch.ones(1, 1, 1), torch.zeros(1, 1), torch.tensor([True]), gamma)
    policy = arl.uniform_policy(over)
    assert policy.tolist() == [[1.0]] and arl.policy_values(over, policy).tolist() == [0.0]
    assert arl.value_iteration(over)[0].tolist() == [0.0] and arl.policy_iteration(over)[1].tolist() == [0.0]
    played = arl.sample_episodes(over, policy, 3, torch.Generator().manual_seed(0))
    assert played.states.tolist() == [[0]] * 3 and played.mask.shape == (3, 0) and played.mask.dtype == torch.bool
    assert arl.monte_carlo_values(over, played)[2].tolist() == [0]
    assert arl.td_values(over, played, 0.5).tolist() == [[0.0]] * 3
    assert arl.with_horizon(over, 2).states == (0,)


def test_without_a_future_only_the_next_reward_counts():
    mdp, g = random_mdp(5, gamma=0.0)
    pi = random_policy(mdp, g)
    assert torch.allclose(arl.policy_values(mdp, pi), (pi * mdp.R).sum(1))
    assert torch.equal(arl.value_iteration(mdp)[0], mdp.R.max(1).values)


def test_build_mdp_averages_rewards_of_one_transition():
    mdp = arl.build_mdp(lambda s, a: [(0.25, "end", 4.0), (0.75, "end", 0.0)] if s == 0 else [], 0, ("on",))
    assert mdp.P[0, 0, 1] == 1 and mdp.R[0, 0] == 1 and mdp.terminal.tolist() == [False, True]


# Exact values.


def test_the_toys_values_by_hand():
    for share, gamma, value in ((1.0, 1.0, 1.0), (0.5, 1.0, 1 / 3), (1.0, 0.9, 0.5 / 0.55)):
        V = arl.policy_values(toy(gamma=gamma), torch.tensor([[share, 1 - share], [0.5, 0.5]]))
        assert V.tolist() == pytest.approx([value, 0.0])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 0.99])
def test_value_iteration_equals_the_linear_solve(gamma):
    for seed in range(5):
        for ends in (False, True):
            mdp, _ = random_mdp(seed, gamma, ends)
            V, _ = arl.value_iteration(mdp)
            policy = arl.greedy_policy(arl.action_values(mdp, V))
            assert (V - arl.policy_values(mdp, policy)).abs().max() < 1e-10
            assert (V - arl.policy_iteration(mdp)[1]).abs().max() < 1e-10
            assert not V[mdp.terminal].any()


def test_value_iteration_equals_the_linear_solve_without_discount():
    for cost in (0.0, 0.05, 0.3):
        for turns in (1, 2, 3, 6):
            mdp = arl.repair_mdp(turns=turns, step_cost=cost)
            V, sweeps = arl.value_iteration(mdp)
            policy = arl.greedy_policy(arl.action_values(mdp, V))
            assert (V - arl.policy_values(mdp, policy)).abs().max() < 1e-10 and sweeps <= turns + 1
    mdp, _ = random_mdp(3, 1.0, ends=True)
    V, _ = arl.value_iteration(mdp, tol=1e-13)
    assert (V - arl.policy_values(mdp, arl.greedy_policy(arl.action_values(mdp, V)))).abs().max() < 1e-10


def test_no_policy_is_better_than_the_optimum():
    mdp, g = random_mdp(1)
    V, _ = arl.value_iteration(mdp)
    for _ in range(50):
        assert (arl.policy_values(mdp, random_policy(mdp, g)) <= V + 1e-12).all()


def test_bellman_operators_contract_and_fix_their_values():
    mdp, g = random_mdp(2)
    pi = random_policy(mdp, g)
    V, U = torch.randn(2, mdp.n_states, generator=g, dtype=torch.double)
    for operator in (lambda x: arl.bellman_policy(mdp, pi, x), lambda x: arl.bellman_optimal(mdp, x)):
        assert (operator(V) - operator(U)).abs().max() <= 0.9 * (V - U).abs().max()
    exact = arl.policy_values(mdp, pi)
    assert torch.allclose(arl.bellman_policy(mdp, pi, exact), exact)


def test_advantages_average_to_zero():
    mdp, g = random_mdp(4)
    pi = random_policy(mdp, g)
    assert ((pi * arl.exact_advantages(mdp, pi)).sum(1).abs() < 1e-12).all()


def test_a_policy_that_never_ends_has_no_undiscounted_value():
    untimed = arl.repair_mdp(turns=None)
    forever = arl.fixed_policy(untimed, lambda state: "read")
    with pytest.raises(ValueError, match="never ends.*gamma = 1"):
        arl.policy_values(untimed, forever)
    discounted = arl.policy_values(replace(untimed, gamma=0.9), forever)
    assert not discounted.any()
    with pytest.raises(ValueError, match="max_turns is 20"):
        arl.sample_episodes(untimed, forever, 3, torch.Generator(), max_turns=20)


def test_value_iteration_refuses_endless_reward():
    mdp = arl.MDP(torch.ones(1, 1, 1), torch.ones(1, 1), torch.tensor([False]))
    for sweeps in (30, 0):
        with pytest.raises(ValueError, match=f"max_sweeps is {sweeps}"):
            arl.value_iteration(mdp, max_sweeps=sweeps)


def test_episodes_of_another_mdp_are_refused():
    played = arl.sample_episodes(arl.repair_mdp(), arl.uniform_policy(arl.repair_mdp()), 5, torch.Generator().manual_seed(0))
    for fn in (arl.monte_carlo_values, lambda mdp, episodes: arl.td_values(mdp, episodes, 0.1)):
        with pytest.raises(ValueError, match="episodes has state"):
            fn(toy(), played)
        with pytest.raises(ValueError, match="episodes is a list"):
            fn(toy(), [])


@pytest.mark.parametrize(
    "policy", [torch.ones(2, 2), torch.ones(3, 2) / 2, [[1.5, -0.5], [1, 0]], [[math.nan, 1], [1, 0]]]
)
def test_tables_that_are_no_policy_are_refused(policy):
    for fn in (arl.policy_values, arl.exact_advantages):
        with pytest.raises(ValueError, match="policy"):
            fn(toy(), policy)


def test_policy_values_can_be_differentiated():
    mdp = arl.repair_mdp(turns=3)
    theta = torch.zeros(mdp.n_states, mdp.n_actions, dtype=torch.double, requires_grad=True)
    (mdp.start @ arl.policy_values(mdp, theta.softmax(-1))).backward()
    first = theta.grad[mdp.index((3, "new"))]
    advantage = arl.exact_advantages(mdp, arl.uniform_policy(mdp))[mdp.index((3, "new"))]
    assert torch.allclose(first, advantage / mdp.n_actions)


@pytest.mark.parametrize("Q", [torch.tensor([[math.nan, 1.0]]), torch.ones(3), None, torch.ones(0, 2)])
def test_greedy_policy_refuses_what_is_no_table(Q):
    with pytest.raises(ValueError, match="Q "):
        arl.greedy_policy(Q)


@pytest.mark.parametrize(
    "fn, kwargs",
    [
        (arl.value_iteration, {"tol": math.nan}),
        (arl.value_iteration, {"tol": "small"}),
        (arl.value_iteration, {"max_sweeps": 2.5}),
        (arl.policy_iteration, {"tol": math.nan}),
        (arl.policy_iteration, {"max_rounds": 0}),
        (lambda mdp, tol: arl.greedy_policy(mdp.R, tol), {"tol": -1.0}),
    ],
)
def test_solvers_check_their_settings(fn, kwargs):
    ((name, value),) = kwargs.items()
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        fn(toy(), **kwargs)


def test_greedy_policy_shares_ties():
    assert arl.greedy_policy(torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]])).tolist() == [[0.5, 0.5, 0], [0, 1, 0]]


# Episodes.


def test_returns_by_hand():
    G = arl.discounted_returns(torch.tensor([[0.0, 0.0, 1.0], [1.0, 2.0, 0.0]], dtype=torch.double), 0.9)
    assert torch.allclose(G, torch.tensor([[0.81, 0.9, 1.0], [2.8, 2.0, 0.0]], dtype=torch.double))
    for gamma in (2, math.nan, "1"):
        with pytest.raises(ValueError, match=f"gamma is {gamma!r}"):
            arl.discounted_returns(G, gamma)
    for rewards in (G[0], [[1.0]], torch.ones(1, 3).long(), G * math.nan):
        with pytest.raises(ValueError, match="rewards "):
            arl.discounted_returns(rewards, 0.5)
    assert arl.discounted_returns(torch.zeros(2, 0)).shape == (2, 0)


def test_episodes_come_from_the_generator_alone_and_end():
    mdp = arl.repair_mdp()
    a, b = (arl.sample_episodes(mdp, arl.uniform_policy(mdp), 50, torch.Generator().manual_seed(3)) for _ in "ab")
    assert all(torch.equal(getattr(a, f), getattr(b, f)) for f in ("states", "actions", "rewards", "mask"))
    assert mdp.terminal[a.states[:, -1]].all() and a.states.shape[1] == a.actions.shape[1] + 1
    assert torch.equal(a.mask, ~mdp.terminal[a.states[:, :-1]])
    assert not a.rewards[~a.mask].any() and not a.actions[~a.mask].any()


def test_actions_follow_the_policy():
    """Chi-square of 8,000 first actions against unequal probabilities: 3 degrees of freedom, p above 1e-4."""
    mdp = arl.build_mdp(lambda s, a: [(1.0, "end", 0.0)] if s == 0 else [], 0, tuple("abcd"))
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.double)
    played = arl.sample_episodes(mdp, torch.stack([p, p]), 8000, torch.Generator().manual_seed(0))
    counts = torch.bincount(played.actions[:, 0], minlength=4)
    assert ((counts - 8000 * p).square() / (8000 * p)).sum() < 21.1


@pytest.mark.parametrize("kwargs", [{"n": 0}, {"n": 2.0}, {"n": True}, {"generator": 3}, {"max_turns": 0}])
def test_sampling_checks_its_arguments(kwargs):
    mdp = arl.repair_mdp(turns=2)
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        arl.sample_episodes(mdp, arl.uniform_policy(mdp), **{"n": 3, "generator": torch.Generator(), **kwargs})


def test_monte_carlo_intervals_cover_the_exact_value():
    """200 repetitions of 500 episodes: between 179 and 200 intervals hold it (3.5 standard errors)."""
    mdp = arl.repair_mdp()
    pi = arl.uniform_policy(mdp)
    exact, hits, s = arl.policy_values(mdp, pi), 0, mdp.index((6, "new"))
    for i in range(200):
        played = arl.sample_episodes(mdp, pi, 500, torch.Generator().manual_seed(i))
        V, error, visits = arl.monte_carlo_values(mdp, played)
        hits += bool((V[s] - exact[s]).abs() <= 1.96 * error[s])
        assert visits[s] == 500
    assert abs(hits / 200 - 0.95) < 3.5 * math.sqrt(0.95 * 0.05 / 200)


def test_monte_carlo_counts_first_visits_only():
    mdp = toy()
    played = arl.Episodes(torch.tensor([[0, 0, 1], [0, 1, 1]]), torch.zeros(2, 2).long(),
                          torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.double),
                          torch.tensor([[True, True], [True, False]]))
    V, error, visits = arl.monte_carlo_values(mdp, played)
    assert V.tolist() == [0.5, 0.0] and visits.tolist() == [2, 0] and error.tolist() == [0.5, 0.0]


def test_td_by_hand_and_td_one_is_monte_carlo():
    mdp = toy()
    one = arl.Episodes(torch.tensor([[0, 0, 1]]), torch.zeros(1, 2).long(),
                       torch.tensor([[0.0, 1.0]]), torch.ones(1, 2).bool())
    assert arl.td_values(mdp, one, 0.5).tolist() == [[0.5, 0.0]]
    mdp = arl.repair_mdp()
    played = arl.sample_episodes(mdp, arl.uniform_policy(mdp), 300, torch.Generator().manual_seed(0))
    V, _, visits = arl.monte_carlo_values(mdp, played)
    learnt = arl.td_values(mdp, played, lambda n: 1 / n, lam=1.0)
    assert learnt.shape == (300, mdp.n_states)
    assert torch.allclose(learnt[-1][visits > 0], V[visits > 0])


def test_td_approaches_the_exact_values():
    mdp = arl.repair_mdp(turns=3)
    pi = arl.uniform_policy(mdp)
    played = arl.sample_episodes(mdp, pi, 4000, torch.Generator().manual_seed(0))
    learnt, s = arl.td_values(mdp, played, lambda n: n**-0.7), mdp.index((2, "guessed"))
    exact = arl.policy_values(mdp, pi)
    assert (learnt[-1, s] - exact[s]).abs() < 0.02 and not learnt[-1][mdp.terminal].any()


@pytest.mark.parametrize(
    "kwargs",
    [
        {"alpha": 0}, {"alpha": 1.5}, {"alpha": "a"}, {"alpha": lambda n: math.nan}, {"lam": -0.1}, {"lam": 2},
        {"V": torch.zeros(3)}, {"V": [0.0, 5.0]},
    ],
)
def test_td_checks_its_arguments(kwargs):
    mdp = toy()
    played = arl.sample_episodes(mdp, arl.uniform_policy(mdp), 2, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        arl.td_values(mdp, played, **{"alpha": 0.1, **kwargs})


# The repair problem, its beliefs, and what its tools are worth.


@pytest.mark.parametrize("turns, value", [(1, 0.0), (2, 0.2), (3, 1.0), (6, 1.0)])
def test_the_best_repair_value(turns, value):
    assert best(arl.repair_mdp(turns=turns)) == pytest.approx(value)
    assert best(arl.with_horizon(arl.belief_mdp(arl.repair_pomdp()), turns)) == pytest.approx(value)


def test_the_table_of_what_is_known_equals_the_belief_mdp():
    beliefs = arl.belief_mdp(arl.repair_pomdp(step_cost=0.03))
    for turns in (1, 2, 4, 6):
        a, b = arl.repair_mdp(turns=turns, step_cost=0.03), arl.with_horizon(beliefs, turns)
        for solve in (lambda m: arl.value_iteration(m)[0], lambda m: arl.policy_values(m, arl.uniform_policy(m))):
            assert arl.start_value(a, solve(a)) == pytest.approx(arl.start_value(b, solve(b)), abs=1e-12)


def test_bayes_by_hand():
    pomdp = arl.repair_pomdp()
    ((_, seen, belief),) = arl.belief_update(pomdp, pomdp.mdp.start, "edit zero")
    assert seen == "done"
    after = {seen: (p, b) for p, seen, b in arl.belief_update(pomdp, belief, "test")}
    assert after["pass"][0] == pytest.approx(0.2) and after["pass"][1].max() == pytest.approx(1)
    assert after["fail"][0] == pytest.approx(0.8) and after["fail"][1].max() == pytest.approx(0.25)


def test_what_read_and_test_are_worth():
    for cost in (0.0, 0.05, 0.15):
        mdp = arl.repair_mdp(step_cost=cost)
        assert arl.tool_value(mdp, "read") == pytest.approx(0.8 - cost)
        assert arl.tool_value(mdp, "test") == pytest.approx(0)
        assert arl.action_margin(mdp, "test") == pytest.approx(-cost)
        assert arl.tool_value(mdp, "read", (2, "new")) == pytest.approx(0)


@pytest.mark.parametrize("q, cost", [(0.3, 0.0), (0.5, 0.02), (0.7, 0.05), (0.95, 0.1), (1.0, 0.0)])
def test_test_pays_when_edits_can_fail_and_be_repeated(q, cost):
    mdp = arl.with_horizon(arl.belief_mdp(arl.repair_pomdp(max_edits=2, fix_prob=q, step_cost=cost)), 6)
    once, twice = q - 3 * cost, 2 * q * (1 - q) - 4 * cost
    want = max(0.0, q * (2 - q) - (5 - q) * cost - max(once, twice, -cost))
    assert arl.tool_value(mdp, "test") == pytest.approx(want, abs=1e-9)


def test_results_in_the_reply_make_test_worthless():
    mdp = arl.with_horizon(arl.belief_mdp(arl.repair_pomdp(max_edits=2, fix_prob=0.6, tested_edits=True)), 5)
    assert arl.tool_value(mdp, "test") == pytest.approx(0, abs=1e-9)


def test_the_prediction_for_chapter_9():
    want = {"pass_rate": 1, "blind_pass_rate": 0.2, "read_value": 0.8, "test_value": 0, "fewest_turns": 3,
            "edit_first_loss": 0.8, "test_first_loss": 0, "submit_first_loss": 1}
    assert arl.repair_prediction() == pytest.approx(want, abs=1e-12)
    short = arl.repair_prediction(turns=2)
    assert short["pass_rate"] == pytest.approx(0.2) and short["fewest_turns"] == 2
    assert short["edit_first_loss"] == pytest.approx(0) and short["test_first_loss"] == pytest.approx(0.2)
    assert arl.read_ceiling(0) == pytest.approx(0.2) and arl.read_ceiling(1) == pytest.approx(1)
    assert arl.read_ceiling(torch.tensor([0.0, 0.5])).tolist() == pytest.approx([0.2, 0.6])
    with pytest.raises(ValueError, match="read_share is 1.2"):
        arl.read_ceiling(1.2)
    for kwargs in ({"read_share": math.nan}, {"read_share": "a"}, {"read_share": 0.5, "n_families": 0}):
        with pytest.raises(ValueError, match=list(kwargs)[-1]):
            arl.read_ceiling(**kwargs)
    assert arl.read_ceiling([0.0, 0.5]).tolist() == pytest.approx([0.2, 0.6])


@pytest.mark.parametrize(
    "fn, kwargs, word",
    [
        (arl.repair_mdp, {"turns": 0}, "turns"),
        (arl.repair_mdp, {"turns": 2.5}, "turns"),
        (arl.repair_mdp, {"families": ("a", "a")}, "families"),
        (arl.repair_mdp, {"families": "minmax"}, "families"),
        (arl.repair_mdp, {"step_cost": math.nan}, "step_cost"),
        (arl.repair_mdp, {"gamma": -0.1}, "gamma"),
        (arl.repair_mdp, {"families": ("a b", "a c")}, "families"),
        (arl.repair_mdp, {"families": ("",)}, "families"),
        (arl.repair_pomdp, {"families": (1, 2)}, "families"),
        (arl.repair_pomdp, {"families": ("pass", "minmax")}, "families"),
        (arl.repair_pomdp, {"fix_prob": "half"}, "fix_prob"),
        (arl.repair_prediction, {"turns": None}, "turns"),
        (arl.repair_pomdp, {"max_edits": -1}, "max_edits"),
        (arl.repair_pomdp, {"fix_prob": 1.2}, "fix_prob"),
    ],
)
def test_wrong_settings_are_refused(fn, kwargs, word):
    with pytest.raises(ValueError, match=word):
        fn(**kwargs)


def test_a_belief_or_observation_table_that_is_none_is_refused():
    pomdp = arl.repair_pomdp()
    with pytest.raises(ValueError, match="belief"):
        arl.belief_update(pomdp, pomdp.mdp.start * 2, "read")
    for Z in (pomdp.Z[:, :, :-1], 0.5, None):
        with pytest.raises(ValueError, match="Z"):
            replace(pomdp, Z=Z)
    with pytest.raises(ValueError, match="max_states is 10"):
        arl.belief_mdp(pomdp, max_states=10)


def test_the_last_action_stays_on_the_menu():
    mdp = arl.build_mdp(lambda s, a: [(1.0, "end", 0.0)] if s == 0 else [], 0, ("only",))
    with pytest.raises(ValueError, match="only"):
        arl.without_action(mdp, "only")
    with pytest.raises(ValueError, match="only"):
        arl.action_margin(mdp, "only")
