"""Chapter 16: divergences, token losses, and the loop of distillation. 'Row n' is a row of cases/algorithms.md."""

import math

import pytest
import torch
from toys import agent, fresh_agent, gen, tokenizer, train_tasks

import agentrl as arl


def logits(shape, seed):
    return torch.randn(shape, generator=gen(seed), dtype=torch.double)


def logp(seed, n=6):
    return logits(n, seed).log_softmax(-1)


HALF, NINE = (torch.tensor(x, dtype=torch.double).log() for x in ([0.5, 0.5], [0.9, 0.1]))


# Divergences.


@pytest.mark.parametrize("kind, want", [("forward", 0.3681), ("reverse", 0.5108), ("jsd", 0.1017)])
def test_divergences_are_the_sums_by_hand(kind, want):
    assert arl.divergence(HALF, NINE, kind).item() == pytest.approx(want, abs=5e-5)
    assert abs(arl.divergence(NINE, NINE, kind).item()) < 1e-12


def test_the_ends_of_the_jensen_shannon_divergence_are_the_two_directions():
    a, b, small = logp(1), logp(2), 1e-5
    assert arl.divergence(a, b, "jsd", small) / small == pytest.approx(arl.divergence(a, b, "forward").item(), rel=1e-3)
    assert arl.divergence(a, b, "jsd", 1 - small) / small == pytest.approx(arl.divergence(a, b, "reverse").item(), rel=1e-3)


def test_the_jensen_shannon_divergence_is_bounded_where_the_others_are_infinite():
    a, b = (torch.tensor(x, dtype=torch.double).log() for x in ([1.0, 0.0], [0.0, 1.0]))
    assert arl.divergence(a, b, "jsd").item() == pytest.approx(math.log(2))
    assert arl.divergence(a, b, "forward").isinf() and arl.divergence(a, b, "reverse").isinf()


@pytest.mark.parametrize(
    "change, message",
    [({"kind": "kl"}, "kind is 'kl'"), ({"beta": 0.0}, "beta is 0.0"), ({"beta": 1}, "beta is 1")],
)
def test_a_wrong_divergence_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        arl.divergence(HALF, NINE, **{"kind": "jsd"} | change)
    with pytest.raises(ValueError, match=r"teacher_logp has shape \(6,\)"):
        arl.divergence(HALF, logp(0))


# Losses of tokens.


def rows(x, teacher, kind):
    """Gradient in the logits for each token that could be written, [V, V]."""
    leaf = x.repeat(len(x), 1).requires_grad_()
    loss = arl.distill_losses(leaf.log_softmax(-1), teacher.expand_as(leaf), torch.arange(len(x)), kind)
    return torch.autograd.grad(loss.sum(), leaf)[0]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["reward", "centred"])
def test_a_sampled_reward_has_the_mean_gradient_of_the_reverse_divergence(kind, seed):
    x, q = logits(6, seed), logp(seed + 50)
    mean = x.softmax(0) @ rows(x, q, kind)
    assert torch.allclose(mean, rows(x, q, "reverse")[0], atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_teachers_tokens_have_the_mean_gradient_of_the_forward_divergence(seed):
    x, q = logits(6, seed), logp(seed + 50)
    assert torch.allclose(q.exp() @ rows(x, q, "tokens"), rows(x, q, "forward")[0], atol=1e-12)
    assert torch.allclose(rows(x, q, "forward")[0], x.softmax(0) - q.exp(), atol=1e-12)


def test_row_8_the_sampled_reward_of_two_words_is_the_value_by_hand():
    x = torch.zeros(2, dtype=torch.double)
    assert rows(x, NINE, "reward")[:, 0].tolist() == pytest.approx([-0.2939, -0.8047], abs=5e-5)
    assert rows(x, NINE, "centred")[:, 0].tolist() == pytest.approx([-0.5493, -0.5493], abs=5e-5)


@pytest.mark.parametrize("kind", arl.LOSSES)
def test_the_teacher_gets_no_gradient(kind):
    x, y = logits((4, 6), 0).requires_grad_(), logits((4, 6), 1).requires_grad_()
    arl.distill_losses(x.log_softmax(-1), y.log_softmax(-1), torch.arange(4), kind).sum().backward()
    assert x.grad.abs().max() > 0 and y.grad is None


def test_wrong_distill_losses_are_named():
    with pytest.raises(ValueError, match="kind is 'sft'.*'tokens'"):
        arl.distill_losses(HALF[None], NINE[None], torch.tensor([0]), "sft")
    with pytest.raises(ValueError, match=r"tokens has shape \(2,\); it must be \(1,\)"):
        arl.distill_losses(HALF[None], NINE[None], torch.tensor([0, 1]), "reward")


# The agent's tokens.


def episodes(model, n=2, seed=0):
    return arl.sample_eval(model, train_tasks()[:n], tokenizer(), 2, generator=gen(seed))


def test_own_log_probs_are_those_of_the_plain_forward_pass_whatever_the_chunk():
    model = agent()
    batch = arl.collate(episodes(model), tokenizer().pad_id)
    own = batch["action_mask"].bool()
    with torch.no_grad():
        plain = (model(batch["ids"][:, :-1]) / 0.6).log_softmax(-1)[own]
        for chunk in (1, 3, 16):
            found = arl.own_log_probs(model, batch["ids"], batch["action_mask"], 0.6, chunk)
            assert (found - plain).abs().max() < 1e-4


def test_row_22_environment_tokens_have_no_part_in_the_loss():
    """What the environment wrote after the last call, and padding, change no row and no loss."""
    model, batch = agent(), arl.collate(episodes(agent()), tokenizer().pad_id)
    ids, mask = batch["ids"], batch["action_mask"]
    longer = torch.cat([ids, torch.randint(5, 60, (len(ids), 7), generator=gen(3))], 1)
    with torch.no_grad():
        plain = arl.own_log_probs(model, ids, mask)
        more = arl.own_log_probs(model, longer, torch.cat([mask, torch.zeros(len(ids), 7)], 1))
    assert plain.shape == (int(mask.sum()), len(tokenizer())) and (plain - more).abs().max() < 1e-4
    one = torch.zeros_like(mask)
    one[0, 5] = 1
    assert arl.own_log_probs(model, ids, one).shape[0] == 1


def test_row_4_the_temperature_reaches_both_models():
    model, trajs = agent(), episodes(agent())
    cfg = arl.RLConfig(temperature=0.5, lr=0.0)
    judged = arl.judge(agent(), trajs, tokenizer(), cfg)
    stats = arl.distill_update(model, torch.optim.Adam(model.parameters(), lr=0.0), trajs, judged, tokenizer(), cfg)
    assert abs(stats["reverse"]) < 1e-6 and abs(stats["loss"]) < 1e-6


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="action_mask has shape"):
        arl.own_log_probs(agent(), torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 5))


def test_the_teacher_is_heard_by_episode_and_other_episodes_judgements_are_refused():
    trajs, teacher, cfg = episodes(agent(), 3), student(), arl.RLConfig(temperature=0.7)
    judged = arl.judge(teacher, trajs, tokenizer(), cfg)
    for traj, found in zip(trajs, judged):
        one = arl.collate([traj], tokenizer().pad_id)
        with torch.no_grad():
            alone = arl.own_log_probs(teacher, one["ids"], one["action_mask"], 0.7)
        assert not found.requires_grad and (found - alone).abs().max() < 1e-4
    model = agent()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    for wrong in (judged[:-1], (*judged[:-1], judged[-1][1:])):
        with pytest.raises(ValueError, match="judged has . entries of .* one for each of 6 episodes"):
            arl.distill_update(model, optimizer, trajs, wrong, tokenizer(), cfg)


def test_turns_are_counted_from_the_first_call():
    mask = torch.tensor([[0, 1, 1, 0, 0, 1], [1, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0]])
    assert arl.turn_of_token(mask).tolist() == [[0, 1, 1, 1, 1, 2], [1, 1, 2, 2, 3, 3], [0] * 6]
    with pytest.raises(ValueError, match="action_mask has shape"):
        arl.turn_of_token(mask[0])


# The loop.


SETTINGS = {"group_size": 2, "prompts_per_step": 2, "lr": 3e-3}


def student():
    return fresh_agent(seed=3)


@pytest.mark.parametrize("kind", ["forward", "reverse", "jsd", "tokens"])
def test_updates_bring_the_student_closer_to_its_teacher(kind):
    trajs, one, teacher = episodes(agent(), 4), student(), agent()
    optimizer = torch.optim.Adam(one.parameters(), lr=1e-2)
    cfg = arl.RLConfig(**SETTINGS, epochs=8)
    judged = arl.judge(teacher, trajs, tokenizer(), cfg)
    first = arl.distill_update(one, optimizer, trajs, judged, tokenizer(), cfg, kind, gen(0))
    last = arl.distill_update(one, optimizer, trajs, judged, tokenizer(), cfg, kind, gen(0))
    assert last["forward"] < 0.8 * first["forward"]
    assert all(torch.equal(a, b) for a, b in zip(teacher.state_dict().values(), agent().state_dict().values()))


def test_the_same_seed_gives_the_same_run_and_the_history_says_what_was_done():
    cfg = arl.RLConfig(**SETTINGS, seed=4)
    run = lambda: arl.distill(agent(), agent(), train_tasks(), tokenizer(), cfg, 2, "reverse", 0.5, train_tasks()[:2], 1)
    a, b = run(), run()
    assert a == b and [r["step"] for r in a] == [1, 2]
    assert all(r["n_episodes"] == 4 and r["n_own"] == 2 and "eval_pass" in r for r in a)


@pytest.mark.parametrize(
    "kind, share, message",
    [
        ("tokens", 1.0, "student_share is 1.0; kind 'tokens' needs 0"),
        ("reward", 0, "student_share is 0; kind 'reward' needs 1"),
        ("centred", 0.5, "kind 'centred' needs 1"),
        ("sft", 1.0, "kind is 'sft'"),
        ("reverse", 1.5, "student_share is 1.5"),
        ("reverse", True, "student_share is True"),
    ],
)
def test_combinations_without_a_meaning_are_refused_before_any_work(kind, share, message):
    with pytest.raises(ValueError, match=message):
        arl.distill(None, None, train_tasks(), None, arl.RLConfig(), 1, kind, share)


def test_no_tasks_and_no_steps_are_errors_of_the_loop():
    with pytest.raises(ValueError, match="tasks is empty"):
        arl.distill(agent(), agent(), [], tokenizer(), arl.RLConfig(), 1)
    with pytest.raises(ValueError, match="steps is -1"):
        arl.distill(agent(), agent(), train_tasks(), tokenizer(), arl.RLConfig(), -1)


def test_policy_loss_fed_with_the_teachers_log_ratio_is_on_policy_distillation():
    model, teacher = agent(), fresh_agent(seed=9)
    batch = arl.collate(episodes(model, 3), tokenizer().pad_id)
    ids, mask, params = batch["ids"], batch["action_mask"], tuple(model.parameters())
    flat = lambda loss: torch.cat([g.flatten() for g in torch.autograd.grad(loss, params)])
    old, other = (arl.action_log_probs(m, ids, mask).detach() for m in (model, teacher))
    loss, _ = arl.policy_loss(arl.action_log_probs(model, ids, mask), old, (other - old) * mask, mask, arl.RLConfig())
    with torch.no_grad():
        judged = arl.own_log_probs(teacher, ids, mask)
    tokens = ids[:, 1:][mask.bool()]
    want = flat(arl.distill_losses(arl.own_log_probs(model, ids, mask), judged, tokens, "reward").mean())
    assert (flat(loss) - want).norm() < 1e-4 * want.norm()
