"""Teaching figures: what is drawn is what the formulas say."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from clearhead.errors import ConfigError
from clearhead.explore.figures import Cost, figure_set, lesson_figures
from tests.explore.test_figures import drawn, overlaps
from tests.test_cli import run


def test_the_softmax_of_wide_scores_is_one_peak():
    above, _, below, beside = lesson_figures.saturation().axes
    wide, narrow = (axes.lines[0].get_ydata() for axes in (below, beside))
    for weights in (wide, narrow):
        assert weights.sum() == pytest.approx(1)
    assert wide.max() > 0.99
    assert narrow.max() < 0.01
    scores = np.log(narrow) - np.log(narrow).mean()  # the softmax undone
    assert scores.std() == pytest.approx(1, abs=0.02)
    assert np.allclose(np.exp(100 * (scores - scores.max())) / np.exp(100 * (scores - scores.max())).sum(), wide)
    assert sum(patch.get_height() for patch in above.patches) == 20_000
    assert "standard deviation 100" in above.get_title()


def test_positions_are_drawn_by_their_formulas():
    figure = lesson_figures.positional_encodings(width=6, tokens=11)
    left, middle, right = figure.axes[:3]
    place, pair = np.meshgrid(np.arange(11), np.arange(3), indexing="ij")
    angle = place / 10000 ** (2 * pair / 6)
    assert np.allclose(drawn(left)[:, 0::2], np.sin(angle))
    assert np.allclose(drawn(left)[:, 1::2], np.cos(angle))
    assert np.allclose(drawn(middle), angle % (2 * np.pi))
    assert np.allclose(right.lines[0].get_ydata(), np.cos(angle).mean(1))


def test_costs_are_measured_and_drawn():
    costs = lesson_figures.measure_costs((64, 256))
    memory = {(point.method.split(":")[0], point.tokens): point.memory for point in costs}
    assert memory["the definition", 256] >= 2 * 256 * 256 * 4, "2 heads of 256 × 256 numbers of 4 bytes"
    assert memory["the definition", 256] > 10 * memory["the definition", 64]
    assert memory["a fused kernel", 256] < memory["the definition", 256]
    assert all(point.seconds > 0 for point in costs)
    left, right = lesson_figures.cost(costs).axes
    assert [line.get_label() for line in left.lines[:3]] == list(dict.fromkeys(point.method for point in costs))
    assert np.allclose(right.lines[0].get_ydata() * 1e6, [point.memory for point in costs[:2]])
    assert left.get_xscale() == left.get_yscale() == "log"
    with pytest.raises(ConfigError, match="no costs"):
        lesson_figures.cost([])


def test_a_method_that_takes_too_long_is_not_tried_further(monkeypatch):
    monkeypatch.setattr(lesson_figures, "MAX_SECONDS", 0.0)
    costs = lesson_figures.measure_costs((32, 64))
    assert [point.tokens for point in costs] == [32, 32, 32]


def test_nothing_overlaps():
    costs = [Cost("a", 2**n, 4.0**n, 4**n) for n in range(5, 12)]
    drawings = [lesson_figures.saturation(), lesson_figures.positional_encodings(), lesson_figures.cost(costs)]
    assert not any(map(overlaps, drawings))


def test_the_command_draws_a_lesson_without_a_model(tmp_path, monkeypatch):
    costs = [Cost("a", 8, 1.0, 1), Cost("a", 16, 4.0, 4)]
    monkeypatch.setattr(figure_set, "cost", lambda: lesson_figures.cost(costs))
    folder = tmp_path / "two\nlines"
    done = run("figures", "--lesson", "--out", folder, "--format", "svg", "--dark")
    assert (done.code, done.err) == (0, "")
    names = [Path(line.split("\t")[0]).name for line in done.out.splitlines()]
    assert names == ["saturation.svg", "positions.svg", "cost.svg"]
    for path in folder.glob("*.svg"):
        ElementTree.parse(path)
