"""Chapter 0: intervals, the seed band, seeds in processes, the figures' look, the log."""

import contextlib
import io
import logging
import math
import os
import statistics

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import agentrl as arl

# Two-sided 95% quantiles as printed in tables of Student's t distribution.
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980}


@pytest.fixture
def ax():
    _, ax = plt.subplots()
    yield ax
    plt.close("all")


@pytest.mark.parametrize("df, value", TABLE.items())
def test_quantiles_are_those_of_the_printed_table(df, value):
    assert abs(arl.t_quantile(0.975, df) - value) < 6e-4


@pytest.mark.parametrize("p", [0.5, 0.6, 0.9, 0.995, 0.9999])
def test_quantiles_have_their_closed_forms(p):
    assert math.isclose(arl.t_quantile(p, 1), math.tan(math.pi * (p - 0.5)), abs_tol=1e-9, rel_tol=1e-8)
    two = (2 * p - 1) / math.sqrt(2 * p * (1 - p))
    assert math.isclose(arl.t_quantile(p, 2), two, abs_tol=1e-9, rel_tol=1e-8)


@pytest.mark.parametrize("p", [0.6, 0.975, 0.99999])
def test_many_degrees_of_freedom_tend_to_the_normal_distribution(p):
    normal = statistics.NormalDist().inv_cdf(p)
    for df in (10**5, 10**6):  # the first term of the expansion of the t quantile in powers of 1 / df
        assert abs(arl.t_quantile(p, df) - normal - (normal**3 + normal) / (4 * df)) < 1e-5


@pytest.mark.parametrize(
    "p, df",
    [(0.4, 3), (1.0, 3), (0.975, 0), (0.975, -1), (float("nan"), 3), (0.975, 10**8), (0.975, float("inf"))],
)
def test_wrong_quantiles_are_refused(p, df):
    with pytest.raises(ValueError, match="t_quantile") as error:
        arl.t_quantile(p, df)
    assert repr(p) in str(error.value) and repr(df) in str(error.value)


def test_an_interval_by_hand():
    mean, low, high = arl.mean_interval([1, 2, 3, 4, 5])
    assert mean == 3 and high - mean == pytest.approx(mean - low)
    assert mean - low == pytest.approx(2.776445 * math.sqrt(2.5) / math.sqrt(5), rel=1e-6)
    assert arl.mean_interval([0.5, 0.5]) == (0.5, 0.5, 0.5)
    narrow = arl.mean_interval([1, 2, 3, 4, 5], level=0.5)
    assert low < narrow[1] < 3 < narrow[2] < high
    assert arl.mean_interval(torch.tensor([1.0, 2, 3, 4, 5])) == (mean, low, high)


@pytest.mark.parametrize(
    "values, level, words",
    [
        ([], 0.95, "0 given"),
        ([1.0], 0.95, "1 given"),
        ([1.0, float("nan")], 0.95, "finite"),
        ([1.0, float("inf")], 0.95, "finite"),
        ([1.0, 2.0], 0.0, "level=0.0"),
        ([1.0, 2.0], 95, "level=95"),
    ],
)
def test_wrong_values_have_no_interval(values, level, words):
    with pytest.raises(ValueError) as error:
        arl.mean_interval(values, level)
    assert words in str(error.value)


def test_the_band_is_the_interval_at_each_point(ax):
    ys = np.array([[0.0, 1.0, 2.0], [2.0, 1.0, 4.0]])
    line = arl.seed_band(ax, [10, 20, 30], ys, "two seeds")
    assert line.get_label() == "two seeds"
    assert line.get_xdata().tolist() == [10, 20, 30] and line.get_ydata().tolist() == [1, 1, 3]
    corners = ax.collections[0].get_paths()[0].vertices
    for x, column in zip((10, 20, 30), ys.T):
        here = corners[corners[:, 0] == x, 1]
        _, low, high = arl.mean_interval(column)
        assert here.min() == pytest.approx(low) and here.max() == pytest.approx(high)


def test_each_band_of_a_figure_looks_different(ax):
    lines = [arl.seed_band(ax, [0, 1], [[0, i], [1, i]]) for i in range(6)]
    for get in ("get_color", "get_marker"):
        assert len({getattr(line, get)() for line in lines}) == 6
    chosen = arl.seed_band(ax, [0, 1], [[0, 1], [1, 1]], color="black", style=1)
    assert (chosen.get_color(), chosen.get_linestyle(), chosen.get_marker()) == ("black", "--", "s")


@pytest.mark.parametrize("ys", [[1, 2, 3], [[1, 2], [3, 4]], [[[1, 2, 3]]], [[1, 2, 3]]])
def test_a_band_of_another_shape_or_of_one_seed_is_refused(ax, ys):
    with pytest.raises(ValueError):
        arl.seed_band(ax, [1, 2, 3], ys)


def job(seed, power=1):
    return seed**power, torch.get_num_threads(), os.getpid()


def fails(seed):
    return 1 / seed


def test_results_come_in_the_order_of_the_jobs_from_processes_of_one_thread():
    jobs = [dict(seed=3, power=2), (4,), (5, 0), (6,)]
    results = arl.run_seeds(job, jobs, n_workers=2, name="trial")
    assert [r[0] for r in results] == [9, 4, 1, 6]
    assert {r[1] for r in results} == {1} and os.getpid() not in {r[2] for r in results}


def test_an_error_in_a_job_is_raised_with_its_arguments():
    with pytest.raises(ZeroDivisionError) as error:
        arl.run_seeds(fails, [(1,), (0,)], n_workers=2)
    assert any("(0,)" in note for note in error.value.__notes__)


@pytest.mark.parametrize(
    "wrong, words",
    [
        (dict(fn=3, jobs=[(1,)]), "fn=3"),
        (dict(fn=job, jobs=[]), "jobs: empty"),
        (dict(fn=job, jobs=[3]), "type int"),
        (dict(fn=job, jobs=[(1,)], n_workers=0), "n_workers=0"),
        (dict(fn=job, jobs=[(1,)], n_workers=1.5), "n_workers=1.5"),
    ],
)
def test_wrong_jobs_are_refused_before_any_work(wrong, words):
    with pytest.raises(ValueError) as error:
        arl.run_seeds(**wrong)
    assert words in str(error.value)


def test_colours_stand_out_from_white_and_from_dark():
    assert arl.contrast("black", "white") == pytest.approx(21) and arl.contrast("red", "red") == 1
    assert arl.contrast("white", "black") == arl.contrast("black", "white")
    assert all(arl.contrast(c, page) >= 3 for c in arl.PALETTE for page in ("#ffffff", "#16181d"))
    assert len(arl.PALETTE) == len(set(arl.LINES)) == len(set(arl.MARKERS)) == 6


def test_the_style_is_transparent_and_grey_on_both_pages():
    with plt.rc_context():
        arl.use_style()
        for key in ("figure.facecolor", "axes.facecolor", "savefig.facecolor"):
            assert plt.rcParams[key] == "none"
        assert plt.rcParams["text.color"] == arl.GREY == plt.rcParams["axes.labelcolor"]


def test_diagrams_have_boxes_arrows_and_no_axes():
    fig, ax = arl.diagram_axes(5, 2, xlim=(0, 4), ylim=(0, 2))
    box = arl.draw_box(ax, 1, 0.5, 2, 1, "policy", style=1)
    arrow = arl.draw_arrow(ax, (0, 1), (1, 1), "ids")
    assert box.get_bbox().bounds == (1, 0.5, 2, 1) and {box, arrow} <= set(ax.patches)
    assert [t.get_text() for t in ax.texts] == ["policy", "ids"]
    assert not ax.axison and tuple(fig.get_size_inches()) == (5, 2) and ax.get_xlim() == (0, 4)
    plt.close(fig)


def test_progress_lines_are_shown_once_and_from_their_level(capsys):
    logger = logging.getLogger("agentrl")
    before, level, propagate = list(logger.handlers), logger.level, logger.propagate
    try:
        arl.show_log()
        arl.show_log()
        logger.info("step %d", 3)
        arl.show_log(logging.WARNING)
        logger.info("nobody sees this")
        assert capsys.readouterr().out == "step 3\n"
        arl.show_log()
        with contextlib.redirect_stdout(io.StringIO()) as cell:      # as runners do that keep the output of each cell
            logger.info("step %d", 4)
        assert cell.getvalue() == "step 4\n" and not capsys.readouterr().out
    finally:
        logger.handlers, logger.propagate = before, propagate
        logger.setLevel(level)
