"""Detectors of out-of-scope questions, their calibration on dev, and the area under the ROC curve.

Every detector gives a number that is larger, the more likely the question is one that the model can answer:

- probability: of the likeliest answer (Hendrycks and Gimpel 2017)
- energy: the logarithm of the summed exponentials of all scores (Liu et al. 2020)
- neighbours: the mean similarity of the nearest known questions (Sun et al. 2022)
- mahalanobis: minus the distance from the nearest answer's mean under a shared covariance (Lee et al. 2018)
- mean: of the last three, each in standard deviations of dev, on a logarithmic scale
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from clearhead.tasks.settings import Section

Scores1d = NDArray[np.float64]
AVERAGED = ("energy", "neighbours", "mahalanobis")  # with the probability, their mean was worse than without
DEFAULT = "mean"  # where dev has no out-of-scope questions to choose by
QUANTILES = np.linspace(0, 1, 201)  # at which scores of dev are kept
SHRINKAGE = 0.1  # towards a multiple of the unit matrix: classes have few questions


def area_under_curve(inside: Scores1d, outside: Scores1d) -> float:
    """The probability that a score of `inside` is larger than one of `outside`; ties count half (AUROC).

    >>> area_under_curve(np.array([0.9, 0.5]), np.array([0.5, 0.1]))
    0.875
    """
    values = np.sort(outside)
    below = np.searchsorted(values, inside, side="left")
    up_to = np.searchsorted(values, inside, side="right")
    return float((below + up_to).mean() / 2 / len(outside))


class Gaussians:
    """Normal distributions with a mean for each class of vectors, and one covariance for all."""

    def __init__(self, means: Float[Tensor, "classes width"], whitening: Float[Tensor, "width width"]) -> None:
        self.means, self.whitening = means, whitening

    @classmethod
    def fit(cls, vectors: Float[Tensor, "rows width"], classes: Int[Tensor, " rows"], count: int) -> Gaussians:
        """Means, and the inverse root of the covariance, shrunk a little towards a multiple of the unit matrix."""
        vectors = vectors.double()
        sizes = torch.bincount(classes, minlength=count).clamp(min=1)[:, None]
        means = torch.zeros(count, vectors.shape[1], dtype=torch.float64).index_add_(0, classes, vectors) / sizes
        rest = vectors - means[classes]
        covariance = rest.T @ rest / len(vectors)
        level = covariance.diagonal().mean().clamp(min=1e-12)
        unit = torch.eye(len(covariance), dtype=torch.float64)
        values, axes = torch.linalg.eigh((1 - SHRINKAGE) * covariance + SHRINKAGE * level * unit)
        whitening = axes / values.clamp(min=1e-12).sqrt()
        return cls((means @ whitening).float().contiguous(), whitening.float().contiguous())

    def nearness(
        self, vectors: Float[Tensor, "rows width"], present: Int[Tensor, " present"] | None = None
    ) -> Float[Tensor, " rows"]:
        """Minus the distance of each vector from the nearest mean, of the classes that are `present`."""
        means = self.means if present is None else self.means[present]
        if not len(means):
            return torch.full((len(vectors),), -1e3)
        return -torch.cdist(vectors @ self.whitening, means).amin(-1)


class Calibration(Section):
    """What was fitted on dev: the detector in use, the thresholds below which a question is unknown, a temperature."""

    detector: str
    reject: float  # share of answerable questions of dev that lie below the thresholds
    thresholds: dict[str, float]
    centres: dict[str, float]  # mean of each detector over the answerable questions of dev
    spreads: dict[str, float]  # standard deviation of each detector over these questions
    nearest: float  # the threshold for the similarity of the nearest known question
    # Of each detector, and of "nearest", over the same questions: thresholds for other shares come from them.
    quantiles: dict[str, list[float]]
    temperature: float  # that probabilities were calibrated by
    auroc: dict[str, float]  # of each detector on dev, if it has out-of-scope questions

    @classmethod
    def fit(
        cls,
        evidence: Mapping[str, Scores1d],
        nearest: Scores1d,
        inside: NDArray[np.bool_],
        *,
        detector: str,
        reject: float,
        temperature: float,
    ) -> Calibration:
        """From the detectors' scores of dev; `inside` says which questions have an answer.

        With `detector="auto"` the one with the largest AUROC is used; "mean" if it is among equals, or if dev has no
        out-of-scope questions.
        """
        centres = {name: float(scores[inside].mean()) for name, scores in evidence.items()}
        spreads = {name: float(scores[inside].std()) or 1.0 for name, scores in evidence.items()}
        whole = {**evidence, "mean": average_detectors(evidence, centres, spreads)}
        auroc = {}
        if not inside.all():
            auroc = {name: area_under_curve(scores[inside], scores[~inside]) for name, scores in whole.items()}
        best = max(auroc, key=lambda name: (round(auroc[name], 4), name == DEFAULT), default=DEFAULT)
        thresholds = {name: float(np.quantile(scores[inside], reject)) for name, scores in whole.items()}
        return cls(
            detector=best if detector == "auto" else detector,
            reject=reject,
            thresholds=thresholds,
            centres=centres,
            spreads=spreads,
            nearest=float(np.quantile(nearest[inside], reject)),
            quantiles={
                name: np.quantile(scores[inside], QUANTILES).tolist()
                for name, scores in {**whole, "nearest": nearest}.items()
            },
            temperature=temperature,
            auroc={name: round(value, 4) for name, value in auroc.items()},
        )

    def with_reject(self, reject: float) -> Calibration:
        """With the thresholds below which another share of the answerable questions of dev lies."""
        thresholds = {name: float(np.interp(reject, QUANTILES, values)) for name, values in self.quantiles.items()}
        return self.model_copy(
            update={"reject": reject, "nearest": thresholds.pop("nearest"), "thresholds": thresholds}
        )

    def complete(self, evidence: Mapping[str, Scores1d]) -> dict[str, Scores1d]:
        """The scores of all detectors, the mean included."""
        return {**evidence, "mean": average_detectors(evidence, self.centres, self.spreads)}


def average_detectors(
    evidence: Mapping[str, Scores1d], centres: Mapping[str, float], spreads: Mapping[str, float]
) -> Scores1d:
    """The mean of three detectors, each centred, divided by its standard deviation, and put on a logarithmic scale.

    The scale is `±ln(1 + |z|)`: else a detector that hardly varies on dev would outweigh the others.
    """
    parts = [(evidence[name] - centres[name]) / spreads[name] for name in AVERAGED if name in evidence]
    return np.asarray(np.mean([np.sign(part) * np.log1p(np.abs(part)) for part in parts], axis=0), dtype=np.float64)
