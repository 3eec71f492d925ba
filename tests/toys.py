"""Small policies and batches for the tests: a scripted Markov policy and a lightly trained agent."""

import functools
import importlib.util
import random
from pathlib import Path

import torch

import agentrl as arl

ROOT = Path(__file__).resolve().parent.parent
torch.set_num_threads(1)


@functools.cache
def naive():
    """benchmarks/naive.py, the rollout and the update with nothing cached and nothing skipped."""
    spec = importlib.util.spec_from_file_location("naive", ROOT / "benchmarks" / "naive.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def tokenizer():
    return arl.build_tokenizer(arl.make_tasks("all"))


@functools.cache
def train_tasks():
    return arl.make_tasks("train")


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def fresh_agent(vocab_size=None, seed=0, **sizes):
    sizes = {"width": 32, "n_layers": 2, "n_heads": 2, "hidden": 48} | sizes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return arl.TinyAgent(vocab_size or len(tokenizer()), **sizes)


@functools.cache
def _trained_weights():
    """Weights after 50 imitation steps: the agent mostly makes well-formed calls, and some episodes pass."""
    tok, model = tokenizer(), fresh_agent()
    demos = arl.demonstrations(tok, ("random", "blind", "oracle"), random.Random(0), per_task=2)
    arl.imitate(model, demos, tok, 50, gen(0), lr=1e-2, batch_size=16)
    return model.state_dict()


def agent():
    """A new copy of the lightly trained agent: training it in a test touches no other test."""
    model = fresh_agent()
    model.load_state_dict(_trained_weights())
    return model


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def distance(a, b):
    """Largest difference between the weights of two models (or of `weights`)."""
    a, b = (x if isinstance(x, dict) else weights(x) for x in (a, b))
    return max((a[name] - b[name]).abs().max().item() for name in a)


class MarkovAgent(arl.TinyAgent):
    """Puts all mass on `follow[last token]`: a TinyAgent whose blocks add nothing and whose head is a look-up."""

    def __init__(self, vocab_size, follow):
        width = -(-vocab_size // 4) * 4
        super().__init__(vocab_size, width=width, n_layers=1, n_heads=2, hidden=4)
        with torch.no_grad():
            self.embed.weight.copy_(torch.eye(vocab_size, width))
            for block in self.blocks:
                block.out.weight.zero_()
                block.down.weight.zero_()
        table = torch.zeros(vocab_size, width)
        for last in range(vocab_size):
            table[follow.get(last, last), last] = 100.0
        self.register_buffer("table", table)

    def head(self, hidden):
        return torch.nn.functional.linear(hidden, self.table)


def says(tok, words):
    """A MarkovAgent that writes `words` as its call each turn, whatever it sees."""
    ids = tok.encode(words)
    assert len(set(ids)) == len(ids)
    follow = dict(zip([tok.ids["</obs>"], *ids], ids, strict=False))
    return MarkovAgent(len(tok), follow)


def random_batch(rows=6, length=9, vocab_size=11, seed=0):
    """logp, old_logp, advantages, mask of random episodes; each row has at least one policy token."""
    g = gen(seed)
    logp = -torch.rand(rows, length, generator=g) * 3
    old = logp + 0.5 * torch.randn(rows, length, generator=g)
    mask = (torch.rand(rows, length, generator=g) < 0.6).float()
    mask[:, 1] = 1
    return logp, old, torch.randn(rows, generator=g), mask


@functools.cache
def _sampled(seed, temperature, max_turns):
    cfg = arl.RLConfig(
        group_size=4, prompts_per_step=4, temperature=temperature, max_turns=max_turns
    )
    return arl.sample_groups(
        agent(), arl.make_env, train_tasks()[:16:4], tokenizer(), cfg, gen(seed)
    )


def sampled(seed=0, temperature=1.0, max_turns=6):
    """16 episodes of `agent()`, 4 on each of 4 tasks."""
    return list(_sampled(seed, temperature, max_turns))
