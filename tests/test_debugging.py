"""Chapter 18: planted faults, probes and the diagnosis. 'Row n' is a row of cases/algorithms.md."""

import copy
import math

import matplotlib.pyplot as plt
import pytest
import torch
from toys import agent, gen, sampled, tokenizer, train_tasks

import agentrl as arl
from agentrl import grpo

CFG = {"group_size": 4, "prompts_per_step": 4, "kl_coef": 0.05, "kl_kind": "k2"}


def run(fault, steps=2, probes=True, **fields):
    cfg = arl.RLConfig(**{**CFG, **fields})
    start = agent() if cfg.kl_coef else None
    return arl.train_faulty(fault, agent(), train_tasks(), tokenizer(), cfg, steps, probes, ref_model=start)


def plain(steps=2, **fields):
    cfg = arl.RLConfig(**{**CFG, **fields})
    return arl.train_rl(agent(), train_tasks(), tokenizer(), cfg, steps, ref_model=agent())


# Planting.


def test_the_loop_is_as_before_afterwards_also_after_an_error():
    before = dict(vars(grpo))
    with pytest.raises(KeyError):
        with arl.probed(), arl.planted("mask shift"):
            assert grpo.collate is not before["collate"]
            raise KeyError
    assert all(vars(grpo)[name] is value for name, value in before.items())


@pytest.mark.parametrize("name", ["colate", "CHOICES", ""])
def test_a_part_that_the_loop_lacks_is_refused(name):
    with pytest.raises(ValueError, match="no function of agentrl.grpo"):
        with arl.replaced(**{name: print}):
            pass


def test_an_unknown_fault_is_refused_and_named():
    with pytest.raises(ValueError, match="'mask'.*mask shift"):
        run("mask")


def test_no_fault_and_no_probes_is_the_loop_itself():
    assert arl.first_difference(run(None, probes=False), plain()) is None


def test_the_probes_change_nothing_of_the_run():
    probed, bare = run(None), plain()
    kept = [{key: r[key] for key in b} for r, b in zip(probed, bare)]
    assert arl.first_difference(kept, bare) is None
    assert set(arl.LIMITS) <= set(probed[0])


# Diagnosis.


@pytest.mark.parametrize("fault", arl.FAULTS)
def test_each_planted_fault_is_named_within_two_steps_or_with_the_first_idle_group(fault):
    """Rows 4, 6, 12 and 22 are among them: temperature, a shift by one, groups by stride, the environment's tokens."""
    findings = arl.diagnose(run(fault, steps=3 if fault == "zero-variance epsilon" else 2))
    assert findings and findings[0].fault == fault
    assert findings[0].value > arl.LIMITS[findings[0].shown_by]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"adv_mode": "rloo", "loss_mode": "seq_mean_token_sum", "kl_kind": "k3"},
        {"adv_mode": "mean", "loss_mode": "constant", "kl_coef": 0.0, "temperature": 0.6},
        {"loss_mode": "seq_mean_token_mean", "overlong_buffer": 2, "epochs": 2, "entropy_coef": 0.01},
        {"ratio_level": "sequence", "dynamic_sampling": True, "max_sample_rounds": 2, "kl_kind": "k1"},
        {"correction": "truncate", "max_edits": None, "reward": "public", "minibatches": 4},
    ],
)
def test_settings_of_every_kind_are_called_healthy(fields):
    assert arl.diagnose(run(None, **fields)) == []


def test_the_temperature_is_read_off():
    """Row 4, with a sampler that is hotter than the trainer."""
    with arl.probed(), arl.planted("wrong temperature", factor=1.5):
        history = plain(1)
    assert history[0]["temperature_factor"] == 1.5
    assert history[0]["logp_gap_there"] < 1e-5 < history[0]["logp_gap"]


def test_old_log_probs_of_the_trainer_s_own_hide_nothing_from_the_probe():
    history = run("wrong temperature", steps=1, correction="recompute", minibatches=1, kl_coef=0.0)
    assert history[0]["approx_kl"] < 1e-9
    assert arl.diagnose(history)[0].fault == "wrong temperature"


def test_two_faults_at_once_are_both_named():
    with arl.probed(), arl.planted("shuffled groups"), arl.planted("reward leak"):
        history = plain(2)
    assert {f.fault for f in arl.diagnose(history)} == {"shuffled groups", "reward leak"}


def test_a_filter_in_the_sampler_is_no_known_fault_but_is_seen():
    def filtered(sample_step):
        def faulty(model, *args):
            model.head = lambda hidden: arl.filter_logits(type(model).head(model, hidden), top_p=0.9)
            try:
                return sample_step(model, *args)
            finally:
                del model.head

        return faulty

    with arl.probed(), arl.replaced(sample_step=filtered(grpo.sample_step)):
        history = plain(1)
    assert [f.fault for f in arl.diagnose(history)] == ["sampler and trainer differ"]


def step(number, **values):
    zero = dict.fromkeys(arl.LIMITS, 0.0)
    return {"step": number, "updated": True, "zero_adv_frac": 0.5, **zero, **values}


def test_numbers_that_are_not_finite_are_found_with_their_step():
    findings = arl.diagnose([step(1), step(2, grad_norm=math.nan), step(3, grad_norm=math.inf)])
    assert [(f.fault, f.step, f.shown_by) for f in findings] == [("not finite", 2, "grad_norm")]


def test_a_run_without_signal_is_said_to_have_none_after_five_steps():
    idle = [{"step": i + 1, "updated": False, "zero_adv_frac": 1.0} for i in range(5)]
    assert [f.fault for f in arl.diagnose(idle)] == ["no signal"]
    assert arl.diagnose(idle[:4]) == [] == arl.diagnose([*idle[:4], step(5)])


def test_a_history_without_probes_is_refused_also_where_some_steps_had_no_update():
    bare = {"step": 1, "updated": True, "zero_adv_frac": 0.5}
    for history in ([], [bare], [bare, {**bare, "step": 2, "updated": False}]):
        with pytest.raises(ValueError, match="no probes"):
            arl.diagnose(history)


def test_a_lower_limit_finds_a_gap_that_the_probe_did_not_look_into():
    small = step(1, logp_gap=5e-5)
    assert arl.diagnose([small]) == []
    found = arl.diagnose([small], limits={**arl.LIMITS, "logp_gap": 1e-5})
    assert [f.fault for f in found] == ["sampler and trainer differ"]


def test_a_gap_from_the_first_step_on_is_not_called_stale():
    gap = {"logp_gap": 0.1, "temperature_factor": 0.9, "logp_gap_there": 0.09}
    late, early = [step(1), step(2, **gap)], [step(1, **gap), step(2, **gap)]
    assert [f.fault for f in arl.diagnose(late)] == ["stale old log-probs"]
    assert [f.fault for f in arl.diagnose(early)] == ["sampler and trainer differ"]


@pytest.mark.parametrize("history", [[], [{"step": 1, "updated": True, "zero_adv_frac": 0.0}]])
def test_without_probes_there_is_no_verdict(history):
    with pytest.raises(ValueError, match="no probes"):
        arl.diagnose(history)


# The probes one by one.


def test_the_mask_probe_counts_both_ways():
    trajs = sampled(1)
    own = arl.collate(trajs, tokenizer().pad_id)["action_mask"]
    assert arl.probe_mask(own, trajs) == {"mask_extra": 0.0, "mask_missed": 0.0}
    some = own.clone()
    first = own.nonzero()[0]
    some[first[0], first[1]] = 0
    assert arl.probe_mask(some, trajs)["mask_missed"] == pytest.approx(1 / own.sum().item())
    everything = torch.ones_like(own)
    assert arl.probe_mask(everything, trajs)["mask_extra"] == pytest.approx(1 - own.mean().item())


def test_the_padding_probe_has_its_closed_form():
    """A sum over w positions divided by w changes by the share c / (w + c) when c are added."""
    cfg, trajs = arl.RLConfig(), sampled(1)
    batch = arl.collate(trajs, tokenizer().pad_id)
    rows, width = torch.arange(len(trajs)), batch["action_mask"].shape[1]
    assert arl.probe_loss(agent(), batch, rows, cfg)["pad_gap"] < 1e-6
    with arl.planted("wrong normaliser"):
        assert arl.probe_loss(agent(), batch, rows, cfg)["pad_gap"] == pytest.approx(16 / (width + 16), abs=1e-5)


@pytest.mark.parametrize("eps, least, most", [(1e-8, 0.3, 2.5), (1e-3, 0.0, 1e-3)])
def test_rounding_becomes_a_signal_only_where_eps_is_below_it(eps, least, most):
    trajs = copy.deepcopy(sampled(1))
    for i, t in enumerate(trajs):
        t.info["group"], t.reward = i // 4, 1.0
    cfg, batch = arl.RLConfig(group_size=4), arl.collate(trajs, tokenizer().pad_id)
    with arl.planted("zero-variance epsilon", eps=eps):
        advantages = grpo.compute_advantages(batch, cfg)
    assert least <= arl.probe_advantages(batch, advantages, trajs, cfg)["adv_idle"] <= most


# Curves.


def test_a_signature_leaves_the_probes_out():
    with_probes, bare = arl.signature(run(None)), arl.signature(plain())
    assert with_probes == bare and not set(arl.LIMITS) & set(bare)


def test_the_nearest_signature_is_that_of_its_own_runs():
    quiet, loud = ([{**plain_step(), "grad_norm": g * (1 + 0.1 * i)} for i in range(3)] for g in (0.4, 40.0))
    runs = {None: [[q] for q in quiet], "loud": [[r] for r in loud]}
    patterns = arl.Signatures(runs)
    assert patterns.nearest([quiet[1]]) is None and patterns.nearest([loud[2]]) == "loud"
    with pytest.raises(ValueError, match="at least 2"):
        arl.Signatures({None: [[quiet[0]]]})


def plain_step():
    keys = ("approx_kl", "ratio_max", "ratio_min", "reward", "reads", "length", "clip_frac", "entropy", "zero_adv_frac", "kl_ref")
    return {"step": 1, **dict.fromkeys(keys, 0.5)}


def test_histories_part_at_the_first_thing_that_differs():
    a, b = plain(2), plain(2)
    assert arl.first_difference(a, b) is None
    b[1]["entropy"] *= 1 + 1e-5
    assert arl.first_difference(a, b)[:2] == (2, "entropy")
    assert arl.first_difference(a, b, tolerance=1e-3) is None
    assert arl.first_difference(a, b[:1]) == (2, "steps", 2, 1)


def test_a_dashboard_has_a_panel_for_each_subject():
    history = run(None)
    fig = arl.dashboard(history, [history, plain()])
    assert len(fig.axes) == len(arl.PANELS) and all(ax.lines for ax in fig.axes)
    plt.close(fig)
    with pytest.raises(ValueError, match="empty"):
        arl.dashboard([])


def test_a_marked_episode_brackets_what_the_policy_wrote():
    tok = tokenizer()
    ids = torch.tensor(tok.encode("<obs> issue </obs> <call> read </call> <obs>") + [tok.pad_id])
    mask = torch.tensor([0, 0, 1, 1, 1, 0, 0])
    assert arl.marked(ids, mask, tok) == "<obs> issue </obs> [<call> read </call>] <obs>"
    with pytest.raises(ValueError, match=r"\(8,\).*\(7,\)"):
        arl.marked(ids, torch.zeros(8), tok)
