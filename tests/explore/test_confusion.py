"""The figure of a confusion matrix."""

import numpy as np
import pytest
from PIL import Image

from clearhead.errors import ShapeError
from clearhead.explore.figures import confusion_matrix, save


def texts_of(figure) -> list[str]:
    (axes, _) = figure.axes
    return [text.get_text() for text in axes.texts]


def test_cells_have_counts_and_the_worst_pairs_are_named():
    counts = np.array([[5, 2, 0], [0, 7, 0], [1, 3, 4]])
    figure = confusion_matrix(["正面", "$x_1$", "c"], counts, title="three")
    assert texts_of(figure) == ["5", "2", "7", "1", "3", "4"]
    assert figure.get_supxlabel().startswith("Most often confused: c → $x_1$ (3), 正面 → $x_1$ (2), c → 正面 (1).")
    shown = figure.axes[0].images[0].get_array()
    assert np.allclose(shown[0], [5 / 7, 2 / 7, 0])


def test_many_labels_have_no_numbers_and_all_names(tmp_path):
    names = [f"a_rather_long_label_{number}" for number in range(77)]
    figure = confusion_matrix(names, np.eye(77, dtype=np.int64))
    assert texts_of(figure) == []
    assert len(figure.axes[0].get_yticklabels()) == 77
    assert figure.get_supxlabel() == "Nothing was confused."
    path = save(figure, tmp_path / "many.png")
    with Image.open(path) as image:
        assert min(image.size) > 1500


def test_a_matrix_of_another_size_is_refused():
    with pytest.raises(ShapeError, match=r"2 labels need a matrix of that size, got \(3, 3\)"):
        confusion_matrix(["a", "b"], np.zeros((3, 3), dtype=np.int64))
