"""Chapter 7: reward-to-go and GAE, and credit on chapter 2's MDP. 'Row n' is a row of cases/algorithms.md."""

import itertools
import math

import pytest
import torch
from toys import gen

import agentrl as arl

NAN, INF = float("nan"), float("inf")


def random_turns(rows=5, length=8, seed=0):
    """rewards, values, mask with holes, last_values; rewards are 0 where the mask is."""
    g = gen(seed)
    mask = torch.rand(rows, length, generator=g) < 0.7
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.double)
    return torch.where(mask, draw(rows, length), 0.0), draw(rows, length), mask, draw(rows)


def slow_gae(rewards, values, mask, last, gamma, lam):
    """The definition, row by row: the sum of (gamma lam)^l times the TD errors that follow."""
    result = torch.zeros_like(rewards)
    for i in range(len(rewards)):
        at = mask[i].nonzero().flatten().tolist()
        after = [*values[i, at].tolist()[1:], last[i].item()]
        delta = [
            rewards[i, t].item() + gamma * n - values[i, t].item()
            for t, n in zip(at, after, strict=bool(at))
        ]
        for k, t in enumerate(at):
            result[i, t] = sum((gamma * lam) ** j * d for j, d in enumerate(delta[k:]))
    return result


def test_gae_by_hand():
    r, v = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.2, 0.5, 0.8]])
    for lam, want in ((0.0, [0.3, 0.3, 0.2]), (0.5, [0.5, 0.4, 0.2]), (1.0, [0.8, 0.5, 0.2])):
        assert torch.allclose(arl.gae(r, v, 1.0, lam), torch.tensor([want]))


def test_reward_to_go_by_hand():
    """The environment's positions cost no discount."""
    r, mask = torch.tensor([[-0.1, 0.0, 0.0, -0.1, 1.0]]), torch.tensor([[1, 0, 0, 1, 1]])
    assert torch.allclose(arl.reward_to_go(r, 1.0, mask), torch.tensor([[0.8, 0, 0, 0.9, 1.0]]))
    assert torch.allclose(arl.reward_to_go(r, 0.5, mask), torch.tensor([[0.1, 0, 0, 0.4, 1.0]]))


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("lam", [0.0, 0.3, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_gae_is_the_sum_of_its_definition(gamma, lam, seed):
    r, v, mask, last = random_turns(seed=seed)
    assert torch.allclose(
        arl.gae(r, v, gamma, lam, mask, last), slow_gae(r, v, mask, last, gamma, lam), atol=1e-12
    )


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_the_ends_of_lambda_are_the_td_error_and_the_return_less_the_value(gamma):
    r, v, mask, _ = random_turns()
    full = torch.ones_like(mask)
    td = r + gamma * torch.cat([v[:, 1:], torch.zeros(len(v), 1)], 1) - v
    assert torch.allclose(arl.gae(r, v, gamma, 0.0, full), td, atol=1e-12)
    back = torch.where(mask, arl.reward_to_go(r, gamma, mask) - v, 0.0)
    assert torch.allclose(arl.gae(r, v, gamma, 1.0, mask), back, atol=1e-12)


def test_reward_to_go_is_gae_without_values_and_chapter_2s_return():
    r, _, mask, _ = random_turns()
    zero = torch.zeros_like(r)
    assert torch.equal(arl.reward_to_go(r, 0.9, mask), arl.gae(r, zero, 0.9, 1.0, mask))
    assert torch.equal(arl.reward_to_go(r, 0.9), arl.discounted_returns(r, 0.9))


def test_a_cut_episode_is_worth_what_came_after_and_an_ended_one_nothing():
    r, v = torch.tensor([[0.0, 1.0]] * 2), torch.tensor([[0.5, 0.4]] * 2)
    got = arl.gae(r, v, 0.9, 0.5, last_values=torch.tensor([0.2, 0.0]))
    assert torch.allclose(got, torch.tensor([[0.211, 0.78], [0.13, 0.6]]))
    assert torch.equal(got[1:], arl.gae(r[1:], v[1:], 0.9, 0.5))


def test_a_cut_at_any_turn_with_the_true_value_leaves_the_expected_advantage():
    """On the endless repair MDP: cut after one turn, bootstrapping is exact in the mean; zero is not."""
    mdp = arl.repair_mdp(turns=None)
    policy = arl.uniform_policy(mdp)
    values, exact = arl.policy_values(mdp, policy), arl.exact_advantages(mdp, policy)
    pays = mdp.R[..., None].expand(mdp.P.shape) if mdp.R_next is None else mdp.R_next
    boot, zero = torch.zeros(2, *mdp.R.shape, dtype=torch.double)
    for s, a, after in (mdp.P > 0).nonzero().tolist():
        args = pays[s, a, after].view(1, 1), values[s].view(1, 1), 1.0, 0.7
        last = values[after].view(1)
        boot[s, a] += mdp.P[s, a, after] * arl.gae(*args, last_values=last)[0, 0]
        zero[s, a] += mdp.P[s, a, after] * arl.gae(*args)[0, 0]
    live = ~mdp.terminal
    assert torch.allclose(boot[live], exact[live], atol=1e-12)
    assert (zero - exact)[live].abs().max() > 0.1


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_with_true_values_every_lambda_has_the_exact_advantage_in_the_mean(lam):
    """Every episode of the two-turn repair MDP, with its probability."""
    mdp = arl.repair_mdp(families=("minmax", "range"), turns=2)
    policy = arl.uniform_policy(mdp)
    values, exact = arl.policy_values(mdp, policy), arl.exact_advantages(mdp, policy)
    pays = mdp.R[..., None].expand(mdp.P.shape) if mdp.R_next is None else mdp.R_next
    start = int(mdp.start.argmax())
    total = torch.zeros(mdp.n_actions, dtype=torch.double)

    def follow(s, p, states, rewards):
        if mdp.terminal[s]:
            r, v = (torch.tensor([x], dtype=torch.double) for x in (rewards, values[states].tolist()))
            total[actions[0]] += p * arl.gae(r, v, 1.0, lam)[0, 0].item()
            return
        for a, after in (mdp.P[s] > 0).nonzero().tolist():
            actions.append(a)
            follow(
                after, p * policy[s, a].item() * mdp.P[s, a, after].item(),
                [*states, s], [*rewards, pays[s, a, after].item()],
            )  # fmt: skip
            actions.pop()

    actions = []
    follow(start, 1.0, [], [])
    assert torch.allclose(total / policy[start], exact[start], atol=1e-12)


@pytest.mark.parametrize("fn", ["gae", "reward_to_go"])
def test_what_stands_where_nobody_acts_has_no_say(fn):
    r, v, mask, last = random_turns()
    if fn == "gae":
        call = lambda v, mask: arl.gae(r, v, 0.9, 0.8, mask, last)
    else:
        call = lambda v, mask: arl.reward_to_go(r, 0.9, mask)
    want = call(v, mask)
    assert torch.equal(call(torch.where(mask, v, NAN), mask), want)
    assert torch.equal(call(v, mask.float()), want) and torch.equal(call(v, mask.long()), want)
    assert not want[~mask].any() and want[mask].abs().min() > 0


def test_padding_and_masked_rows_change_nothing():
    """Rows 2 and 18: wider padding, another row, and a row without any turn."""
    r, v, mask, last = random_turns()
    want = arl.gae(r, v, 0.9, 0.8, mask, last)
    wide = [torch.nn.functional.pad(x, (3, 5)) for x in (r, v, mask)]
    assert torch.equal(arl.gae(*wide[:2], 0.9, 0.8, wide[2], last)[:, 3:-5], want)
    more = [torch.cat([x, torch.zeros_like(x[:1])]) for x in (r, v, mask, last)]
    got = arl.gae(*more[:2], 0.9, 0.8, more[2], more[3])
    assert torch.equal(got[:-1], want) and not got[-1].any()


def test_no_gradient_flows_through_advantages():
    r, v, mask, last = random_turns()
    v.requires_grad_()
    assert not arl.gae(r, v, 0.9, 0.8, mask, last.requires_grad_()).requires_grad
    assert not arl.reward_to_go(r.requires_grad_(), 0.9, mask).requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_narrow_numbers_are_added_up_in_float32(dtype):
    r = torch.ones(1, 300).to(dtype)
    got = arl.reward_to_go(r)
    assert got[0, 0] == 300 and got.dtype == torch.promote_types(dtype, torch.float32)
    assert arl.gae(r, torch.zeros(1, 300).to(dtype), 1.0, 1.0)[0, 0] == 300


def test_a_reward_that_belongs_to_no_action_is_refused():
    r, v = torch.tensor([[1.0, 0.5, 0.0]]), torch.zeros(1, 3)
    mask = torch.tensor([[1, 0, 1]])
    for call in (lambda: arl.gae(r, v, mask=mask), lambda: arl.reward_to_go(r, 1.0, mask)):
        with pytest.raises(ValueError, match="rewards must be finite, and 0 where mask is 0"):
            call()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"gamma": -0.1}, ["gamma", "-0.1"]),
        ({"gamma": 1.01}, ["gamma", "1.01"]),
        ({"gamma": NAN}, ["gamma", "nan"]),
        ({"gamma": None}, ["gamma", "None"]),
        ({"gamma": torch.tensor([0.9, 1.0])}, ["gamma", "0.9"]),
        ({"lam": -0.1}, ["lam", "-0.1"]),
        ({"lam": "0.9"}, ["lam", "'0.9'"]),
        ({"lam": 2}, ["lam", "2"]),
        ({"lam": NAN}, ["lam", "nan"]),
        ({"rewards": torch.zeros(3)}, ["rewards", "(3,)", "[B, T]"]),
        ({"rewards": torch.full((2, 3), NAN)}, ["rewards", "finite"]),
        ({"rewards": torch.full((2, 3), INF)}, ["rewards", "finite"]),
        ({"values": torch.zeros(2, 4)}, ["values", "(2, 4)", "(2, 3)"]),
        ({"values": torch.zeros(2)}, ["values", "(2,)"]),
        ({"values": torch.full((2, 3), NAN)}, ["values", "finite"]),
        ({"mask": torch.ones(2, 2)}, ["mask", "(2, 2)", "(2, 3)"]),
        ({"mask": torch.ones(3)}, ["mask", "(3,)"]),
        ({"mask": torch.full((2, 3), 0.5)}, ["mask", "0.5", "0 and 1"]),
        ({"mask": torch.full((2, 3), NAN)}, ["mask", "0 and 1"]),
        ({"last_values": torch.zeros(3)}, ["last_values", "(3,)", "[2]"]),
        ({"last_values": torch.zeros(2, 1)}, ["last_values", "(2, 1)"]),
        ({"last_values": torch.tensor([0.0, NAN])}, ["last_values", "finite"]),
    ],
)
def test_wrong_values_are_refused(change, words):
    args = {"rewards": torch.zeros(2, 3), "values": torch.zeros(2, 3)} | change
    with pytest.raises(ValueError) as error:
        arl.gae(**args)
    assert all(word in str(error.value) for word in words)
    if not change.keys() & {"lam", "values", "last_values"}:
        args.pop("values")
        with pytest.raises(ValueError) as error:
            arl.reward_to_go(**args)
        assert all(word in str(error.value) for word in words)


# Credit and the expected gradient, by enumeration of a two-turn world.

LOGITS1 = torch.tensor([0.4, -0.2, 0.1], dtype=torch.double)
LOGITS2 = torch.tensor([[0.3, -0.5], [0.0, 0.8], [-0.7, 0.2]], dtype=torch.double)  # by first action


def expected_gradient(weights):
    """Expected gradient [9] of both turns' scores times weights(a1, a2) -> (w1, w2), over all episodes."""
    one, two = LOGITS1.clone().requires_grad_(), LOGITS2.clone().requires_grad_()
    total = 0.0
    for a1, a2 in itertools.product(range(3), range(2)):
        l1, l2 = one.log_softmax(0)[a1], two.log_softmax(1)[a1, a2]
        w1, w2 = weights(a1, a2)
        total = total + (l1 + l2).exp().detach() * (w1 * l1 + w2 * l2)
    return torch.cat([g.flatten() for g in torch.autograd.grad(total, (one, two))])


PAY1, PAY2 = torch.tensor([0.5, -1.0, 0.2]), torch.tensor([[1.0, 0.0], [2.0, -1.0], [0.3, 0.9]])


def by_rule(rule):
    """weights(a1, a2) from a function of rewards [1, 2] that returns advantages [1, 2]."""

    def weights(a1, a2):
        r = torch.tensor([[PAY1[a1], PAY2[a1, a2]]], dtype=torch.double)
        return rule(r, a1)[0].tolist()

    return weights


def test_leaving_out_earlier_pay_and_any_value_baseline_keep_the_expected_gradient():
    whole = expected_gradient(by_rule(lambda r, a1: r.sum(1, keepdim=True).expand(1, 2)))
    togo = expected_gradient(by_rule(lambda r, a1: arl.reward_to_go(r)))
    wrong_values = torch.tensor([3.0, -2.0, 0.7], dtype=torch.double)  # of the second turn, by a1
    critic = lambda a1: torch.tensor([[1.3, wrong_values[a1]]], dtype=torch.double)
    unbiased = expected_gradient(by_rule(lambda r, a1: arl.gae(r, critic(a1), 1.0, 1.0)))
    biased = expected_gradient(by_rule(lambda r, a1: arl.gae(r, critic(a1), 1.0, 0.0)))
    assert torch.allclose(togo, whole, atol=1e-7) and torch.allclose(unbiased, whole, atol=1e-7)
    assert (biased - whole).abs().max() > 0.1 and whole.abs().max() > 0.05


def test_a_penalty_that_ignores_the_action_has_expected_gradient_zero_as_a_per_turn_reward():
    """Row 30: paid each turn, a constant, or one set by the words before; it reaches the first turn's action only
    through what that action leads to."""
    same = expected_gradient(lambda a1, a2: arl.reward_to_go(torch.full((1, 2), -0.3))[0].tolist())
    assert same.abs().max() < 1e-7
    by_place = lambda a1: torch.tensor([[-0.4, [0.1, -0.6, 0.3][a1]]])  # second turn: by its history
    reached = expected_gradient(lambda a1, a2: arl.reward_to_go(by_place(a1))[0].tolist())
    assert reached[3:].abs().max() < 1e-7, "nothing at the turn whose action it ignores"
    assert reached[:3].abs().max() > 0.01, "the first action does lead there"


def test_a_worthless_call_gets_credit_for_its_place_from_the_whole_episode_and_none_from_gae():
    mdp = arl.repair_mdp(turns=None)
    best = arl.greedy_policy(arl.action_values(mdp, arl.value_iteration(mdp)[0]))
    policy = 0.5 * arl.uniform_policy(mdp) + 0.5 * best
    values = arl.policy_values(mdp, policy)
    known, test = mdp.index("known minmax"), mdp.action_index("test")
    assert arl.exact_advantages(mdp, policy)[known, test].abs() < 1e-12
    assert mdp.P[known, test, known] == 1
    company = values[known].item() - arl.start_value(mdp, values)
    assert abs(company) > 0.01
    credit = arl.action_values(mdp, values)[known, test].item() - arl.start_value(mdp, values)
    assert credit == pytest.approx(company)  # E[R - J] after the call
    r = torch.zeros(1, 2, dtype=torch.double)
    stays = arl.gae(r, values[[known, known]][None], 1.0, 0.0, last_values=values[known].view(1))
    assert stays.abs().max() == 0


# Groups.


def test_the_deviation_s_eps_must_be_a_number_and_a_long_list_of_rewards_is_not_printed():
    for eps in (-1e-6, NAN, INF, None, "1e-6", torch.zeros(2)):
        with pytest.raises(ValueError, match="^eps is "):
            arl.group_advantages([0.0, 1.0], 2, eps=eps)
    assert arl.group_advantages([0.0, 1.0], 2, eps=0).tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])
    for fn in (arl.group_advantages, arl.rloo_advantages):
        with pytest.raises(ValueError, match="rewards has an entry nan") as error:
            fn([0.0] * 511 + [NAN], 8)
        assert len(str(error.value)) < 100


def test_the_weight_of_a_task_is_that_of_the_formulas():
    """Groups of 0/1 rewards: k(G-k)/G^2 centred, sqrt(G(G-1)k(G-k))/G^2 divided, 0 without a difference."""
    for size in (2, 3, 8):
        for k in range(size + 1):
            r = torch.tensor([1.0] * k + [0.0] * (size - k), dtype=torch.double)
            half = {flag: arl.group_advantages(r, size, flag).clamp(min=0).sum().item() / size for flag in (False, True)}
            assert half[False] == pytest.approx(k * (size - k) / size**2, abs=1e-12)
            assert half[True] == pytest.approx(math.sqrt(size * (size - 1) * k * (size - k)) / size**2, rel=1e-5)


def test_shuffled_rows_keep_their_advantage_when_sorted_by_id():
    """Row 12: rows shuffled together with their group ids, of all three kinds."""
    rewards, ids = torch.rand(24, generator=gen(1)), torch.arange(6).repeat_interleave(4)
    shuffle = torch.randperm(24, generator=gen(2))
    for fn in (arl.group_advantages, arl.rloo_advantages, lambda r, g: arl.group_advantages(r, g, False)):
        want = fn(rewards, 4)
        order = ids[shuffle].argsort(stable=True)
        got = torch.empty(24)
        got[order] = fn(rewards[shuffle][order], 4)
        assert torch.allclose(got, want[shuffle], atol=1e-6)
        assert not torch.allclose(fn(rewards[shuffle], 4), want[shuffle], atol=1e-2)
