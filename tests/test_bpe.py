"""Chapter 5 with a real BPE tokenizer: what is sampled is kept (row 15 of cases/algorithms.md), also across turns (row 16)."""

import functools
from unittest import mock

import pytest
import torch
from toys import fresh_agent, gen

import agentrl as arl

tokenizers = pytest.importorskip("tokenizers")
TASKS = arl.make_tasks("all")
SPECIALS = ["<pad>", "<unk>", "<obs>", "</obs>", "<call>", "</call>"]


class BPE:
    """A byte-level BPE tokenizer of the gym's texts with the interface that a rollout asks for."""

    def __init__(self, size=300):
        texts = [t for task in TASKS for t in (task.issue, task.source)] + list(arl.CALLS)
        self.model = tokenizers.Tokenizer(tokenizers.models.BPE())
        self.model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.model.decoder = tokenizers.decoders.ByteLevel()
        self.model.train_from_iterator(
            texts,
            tokenizers.trainers.BpeTrainer(
                vocab_size=size, special_tokens=SPECIALS, show_progress=False
            ),
        )
        self.pad_id, self.unk_id, self.end_call_id = 0, 1, 5
        self.observations = {}

    def __len__(self):
        return self.model.get_vocab_size()

    def encode(self, text):
        return self.model.encode(text).ids

    def decode(self, ids):
        return self.model.decode(ids, skip_special_tokens=False)


@functools.cache
def bpe():
    return BPE()


def play(model, n=20, max_turns=3, seed=0):
    envs = [arl.BugFixEnv(max_turns) for _ in range(n)]
    return arl.rollout_batch(model, envs, TASKS[:n], bpe(), max_turns, 1.0, gen(seed))


def writer(seed=0):
    """An untrained policy over BPE tokens: it writes nonsense, which drifts often."""
    return fresh_agent(vocab_size=len(bpe()), seed=seed)


def test_training_is_deterministic_and_canonical_encodings_come_back():
    assert BPE().model.to_str() == bpe().model.to_str()
    for task in TASKS:
        for text in (task.issue, task.source):
            ids = bpe().encode(text)
            assert bpe().decode(ids) == text and bpe().encode(bpe().decode(ids)) == ids


def test_many_ids_say_one_text():
    split = [i for piece in ("ret", "urn") for i in bpe().encode(piece)]
    assert bpe().decode(split) == "return" and bpe().encode("return") != split


def drifts(traj):
    return bpe().encode(bpe().decode(traj.ids)) != traj.ids


@pytest.mark.parametrize("seed", [0, 1])
def test_sampled_ids_are_kept_where_encoding_again_would_change_them(seed):
    """Row 15: the trainer's log-probs of the kept ids are the sampler's."""
    model = writer(seed)
    trajs = play(model, seed=seed)
    assert sum(map(drifts, trajs)) > 4, "encoding again would give other ids"
    batch = arl.collate(trajs, 0)
    logp = arl.action_log_probs(model, batch["ids"], batch["action_mask"])
    assert torch.allclose(logp, batch["sampler_logps"], atol=1e-4)


def test_scores_of_the_text_are_not_scores_of_the_sample():
    """The same rollouts, encoded again: other lengths or other log-probs."""
    model, moved = writer(), 0
    for traj in play(model):
        own = [i for i, m in zip(traj.ids, traj.action_mask, strict=True) if m]
        again = bpe().encode(bpe().decode(own))
        if again != own:
            with torch.no_grad():
                scores = [
                    arl.selected_log_probs(model(x[None])[:, :-1], x[None, 1:]).sum().item()
                    for x in (torch.tensor([2, *own]), torch.tensor([2, *again]))
                ]
            moved += abs(scores[0] - scores[1]) > 0.2
    assert moved > 5


def test_each_turn_s_prompt_begins_with_all_ids_of_the_turn_before():
    """Row 16: what the model computes is append-only, and together it is the recorded episode."""
    fed, real = [[] for _ in range(12)], arl.extend
    rows = list(range(12))

    def spy(model, cache, ids, counts):
        assert cache.length.tolist() == [len(fed[b]) for b in rows], "the past is kept, not made anew"
        for b, new, n in zip(rows, ids.tolist(), counts.tolist(), strict=True):
            fed[b] += new[:n]
        return real(model, cache, ids, counts)

    class Cache(arl.KVCache):
        def keep(self, kept):
            super().keep(kept)
            rows[:] = [rows[i] for i in kept]

    with mock.patch("agentrl.rollout.extend", spy), mock.patch("agentrl.rollout.KVCache", Cache):
        trajs = play(writer(), n=12)
    assert any(map(drifts, trajs))
    for ids, traj in zip(fed, trajs, strict=True):
        assert ids == traj.ids[: len(ids)]


def test_two_models_played_in_turns_share_nothing():
    """Row 29: a cache belongs to one rollout of one model."""
    one, two = writer(0), writer(1)
    alone = [t.ids for t in play(two)]
    play(one)
    assert [t.ids for t in play(two)] == alone
    two.load_state_dict(one.state_dict())
    swapped, first = play(two), play(one)
    assert [(t.ids, t.logps) for t in swapped] == [(t.ids, t.logps) for t in first]
    assert [t.ids for t in swapped] != alone


def test_collate_keeps_groups_only_if_every_episode_has_one():
    trajs = play(writer(), n=3)
    assert "groups" not in arl.collate(trajs, 0)
    for i, traj in enumerate(trajs):
        assert "groups" not in arl.collate(trajs, 0)
        traj.info["group"] = i
    assert arl.collate(trajs, 0)["groups"].tolist() == [0, 1, 2]
