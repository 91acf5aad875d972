"""The figures of examples/lesson_figures.py: what is drawn is what the formulas say."""

from pathlib import Path

import numpy as np
import pytest
from examples import lesson_figures
from examples.lesson_figures import Cost

from clearhead.explore.figures import style
from tests.explore.test_figures import drawn, overlaps


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
    with pytest.raises(ValueError, match="no costs"):
        lesson_figures.cost([])


def test_a_method_that_takes_too_long_is_not_tried_further(monkeypatch):
    monkeypatch.setattr(lesson_figures, "MAX_SECONDS", 0.0)
    costs = lesson_figures.measure_costs((32, 64))
    assert [point.tokens for point in costs] == [32, 32, 32]


def test_nothing_overlaps_and_every_figure_has_a_file(tmp_path, monkeypatch, capsys):
    costs = [Cost("a", 2**n, 4.0**n, 4**n) for n in range(5, 12)]
    monkeypatch.setitem(lesson_figures.FIGURES, "cost", lambda: lesson_figures.cost(costs))
    assert not [name for name, draw in lesson_figures.FIGURES.items() if overlaps(draw())]
    lesson_figures.main(str(tmp_path))
    written = [Path(line).name for line in capsys.readouterr().out.split()]
    assert written == ["saturation.png", "positions.png", "cost.png"]
    assert all(style.is_our_figure(path) for path in tmp_path.iterdir())
