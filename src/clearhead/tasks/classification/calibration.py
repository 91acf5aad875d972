"""Calibration: a temperature that calibrates probabilities, and a decision threshold per label (multi-label)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BINS = 15
COLDEST, HOTTEST = 0.2, 10.0  # temperatures: few rows, all right, would ask for 0
STEPS = 60  # of the golden section: far below any difference that could be seen


def expected_calibration_error(confidence: Floats, right: NDArray[np.bool_]) -> float:
    """The mean distance between confidence and how often it is right, over 15 bins of equal width.

    Each bin weighs as much as it has predictions: Σ n_b / n · |accuracy_b − mean confidence_b| (Guo et al. 2017).

    >>> round(expected_calibration_error(np.array([0.9, 0.9, 0.6, 0.6]), np.array([True, True, True, False])), 3)
    0.1
    """
    if not len(confidence):
        return 0.0
    bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)  # (0, 1/15], (1/15, 2/15], …
    gap = np.bincount(bins, right, BINS) - np.bincount(bins, confidence, BINS)
    return float(np.abs(gap).sum() / len(confidence))


def measure_loss(logits: Floats, labels: NDArray[np.int64]) -> float:
    """The mean cross-entropy; labels are as those of `fit_temperature`."""
    return (_sigmoid_loss if labels.ndim == 2 else _softmax_loss)(logits, labels)


def fit_temperature(logits: Floats, labels: NDArray[np.int64]) -> float:
    """The temperature T at which softmax(logits / T) gives the labels the largest likelihood.

    Labels are numbers (rows), or 0 and 1 (rows, labels) where each label is decided for itself by a sigmoid.

    >>> temperature = fit_temperature(np.array([[8.0, 0], [8, 0], [8, 0], [8, 0]]), np.array([0, 0, 0, 1]))
    >>> round(1 / (1 + math.exp(-8 / temperature)), 4)
    0.75
    """
    loss = _sigmoid_loss if labels.ndim == 2 else _softmax_loss
    return round(math.exp(_minimize(lambda x: loss(logits / math.exp(x), labels))), 6)


def choose_thresholds(probabilities: Floats, labels: NDArray[np.int64]) -> list[float]:
    """For each label the threshold with the best F1 on these rows, halfway between two probabilities.

    0.5 for a label that none of the rows has.

    >>> choose_thresholds(np.array([[0.1], [0.3], [0.4], [0.2]]), np.array([[0], [1], [1], [0]]))
    [0.25]
    """
    return [
        _best_threshold(column, right) for column, right in zip(probabilities.T, labels.T.astype(bool), strict=True)
    ]


def undo_temperature(probabilities: Floats, temperature: float, *, multi_label: bool) -> Floats:
    """The probabilities that there would be at temperature 1."""
    small = np.finfo(np.float64).tiny
    if multi_label:
        odds = np.log(np.maximum(probabilities, small)) - np.log(np.maximum(1 - probabilities, small))
        return np.asarray(1 / (1 + np.exp(-np.clip(odds * temperature, -700, 700))))
    powers = np.exp(temperature * np.log(np.maximum(probabilities, small)))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _best_threshold(probabilities: Floats, right: NDArray[np.bool_]) -> float:
    if not right.any():
        return 0.5
    order = np.argsort(-probabilities, kind="stable")
    sorted_probabilities, hits = probabilities[order], np.cumsum(right[order])
    f1 = 2 * hits / (np.arange(1, len(order) + 1) + right.sum())
    f1[:-1][sorted_probabilities[:-1] == sorted_probabilities[1:]] = -1  # no threshold lies between equal ones
    best = int(f1.argmax())
    below = sorted_probabilities[best + 1] if best + 1 < len(order) else 0.0
    return round(float(sorted_probabilities[best] + below) / 2, 6)


def _softmax_loss(logits: Floats, labels: NDArray[np.int64]) -> float:
    top = logits.max(1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(1)) + top[:, 0]
    return float((total - logits[np.arange(len(labels)), labels]).mean())


def _sigmoid_loss(logits: Floats, labels: NDArray[np.int64]) -> float:
    return float((np.logaddexp(0, logits) - logits * labels).mean())


def _minimize(function: Callable[[float], float]) -> float:
    """The log-temperature with the smallest value, by golden section; the losses are unimodal in it."""
    low, high, ratio = math.log(COLDEST), math.log(HOTTEST), (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return (low + high) / 2
