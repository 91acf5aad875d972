"""Logistic regression with an L2 penalty, by Newton's method with conjugate gradients, in float64."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from clearhead.errors import ConfigError, DataError, ShapeError
from clearhead.tasks.lexical.ngrams import SparseRows

LARGEST_ERROR = 1e-3  # of a weight, at which the fit ends
LARGEST_STEPS = 100  # most fits need 5 to 15
LARGEST_INNER_STEPS = 200


class LinearScores(NamedTuple):
    """A linear model: `safetensors` stores its `_asdict()`."""

    weight: Float[Tensor, "width labels"]
    bias: Float[Tensor, " labels"]

    def scores(self, features: Tensor | SparseRows) -> Float[Tensor, "rows labels"]:
        """Before the softmax, or before the sigmoid of each label."""
        return features @ self.weight + self.bias


def fit_softmax(
    features: Tensor | SparseRows,
    targets: Tensor,
    *,
    strength: float,
    weights: Tensor | None = None,
    multi_label: bool = False,
) -> LinearScores:
    """The linear model with the smallest strength · Σ weight · loss + ½ ‖W‖²; biases are not penalised.

    `targets` are the number of each row's label, or shares (rows, labels). With `multi_label` they are 0 to 1 for each
    label, which has a sigmoid of its own. `weights` belong to rows, or, with `multi_label`, to rows × labels.
    `strength` is scikit-learn's C; but for two labels scikit-learn fits one sigmoid: half of its C is the same here.

    >>> model = fit_softmax(torch.tensor([[-1.0], [-2.0], [1.0], [2.0]]), torch.tensor([0, 0, 1, 1]), strength=10.0)
    >>> model.scores(torch.tensor([[-0.5], [0.5]])).argmax(1).tolist()
    [0, 1]
    """
    shares = torch.ones(features.shape[0], dtype=torch.float64) if weights is None else weights.double()
    total = float(shares.sum())
    if not strength * total > 0:
        raise ConfigError(f"strength and the sum of weights must be larger than 0, got {strength} and {total}")
    goals = F.one_hot(targets.long()).double() if targets.ndim == 1 else targets.double()
    if len(goals) != features.shape[0]:
        raise ShapeError(f"{features.shape[0]} rows of features have {len(goals)} targets; give one for each row")
    if not multi_label and not torch.allclose(goals.sum(1), goals.new_ones(len(goals)), atol=1e-4):
        raise DataError("the shares of a row's labels do not add up to 1; correct them, or set multi_label=True")
    shares = (shares if shares.ndim == 2 else shares[:, None]) / total
    inputs = features.double()
    fitted = _minimize(_Objective(inputs, inputs.T, goals, shares, 1 / (strength * total), multi_label))
    dtype = features.values.dtype if isinstance(features, SparseRows) else features.dtype
    return LinearScores(fitted[:-1].to(dtype), fitted[-1].to(dtype))


class _Objective(NamedTuple):
    """The weighted mean of the loss, with the penalty; `parameters` are the weights, and the biases as a last row."""

    features: Tensor | SparseRows
    transposed: Tensor | SparseRows
    goals: Tensor
    shares: Tensor  # weights that sum to 1
    penalty: float
    multi_label: bool

    def scores(self, parameters: Tensor) -> Tensor:
        return self.features @ parameters[:-1] + parameters[-1]

    def value(self, scores: Tensor, parameters: Tensor) -> float:
        loss = F.binary_cross_entropy_with_logits if self.multi_label else F.cross_entropy
        losses = loss(scores, self.goals, reduction="none").view(len(scores), -1)
        return float((losses * self.shares).sum() + self.penalty / 2 * parameters[:-1].square().sum())

    def gradient(self, slopes: Tensor, parameters: Tensor) -> Tensor:
        """With respect to the parameters, from the slopes of the loss in the scores."""
        penalised = torch.add(self.transposed @ slopes, parameters[:-1], alpha=self.penalty)
        return torch.cat([penalised, slopes.sum(0, keepdim=True)])

    def bend(self, direction: Tensor, probabilities: Tensor) -> Tensor:
        """The Hessian times a direction."""
        scores = self.scores(direction)
        mean = probabilities * scores
        mean = mean if self.multi_label else mean.sum(1, keepdim=True)
        return self.gradient(probabilities * (scores - mean) * self.shares, direction)


def _minimize(objective: _Objective) -> Tensor:
    parameters = torch.zeros(objective.features.shape[1] + 1, objective.goals.shape[1], dtype=torch.float64)
    for _ in range(LARGEST_STEPS):
        scores = objective.scores(parameters)
        value = objective.value(scores, parameters)
        if not math.isfinite(value):
            raise DataError("logistic regression got NaN or infinite features, targets or weights; remove them")
        probabilities = scores.sigmoid() if objective.multi_label else scores.softmax(1)
        gradient = objective.gradient((probabilities - objective.goals) * objective.shares, parameters)
        if float(gradient.abs().max()) <= objective.penalty * LARGEST_ERROR:
            return parameters
        direction = _newton_direction(objective, probabilities, gradient)
        step, slope, change = 1.0, float((gradient * direction).sum()), objective.scores(direction)
        while objective.value(scores + step * change, parameters + step * direction) > value + 1e-4 * step * slope:
            step /= 2
        parameters.add_(direction, alpha=step)
    problem = f"logistic regression did not converge in {LARGEST_STEPS} steps"
    warnings.warn(f"{problem}; scale the features, or choose a smaller strength", stacklevel=3)
    return parameters


def _newton_direction(objective: _Objective, probabilities: Tensor, gradient: Tensor) -> Tensor:
    """Minus the inverse Hessian times the gradient, by conjugate gradients; more exact close to the minimum."""
    solution, rest = torch.zeros_like(gradient), -gradient
    direction, square = rest.clone(), float(rest.square().sum())
    enough = square * min(0.01, math.sqrt(square))
    for _ in range(LARGEST_INNER_STEPS):
        bent = objective.bend(direction, probabilities)
        length = square / float((direction * bent).sum())
        solution.add_(direction, alpha=length)
        rest.add_(bent, alpha=-length)
        before, square = square, float(rest.square().sum())
        if square <= enough:
            break
        direction.mul_(square / before).add_(rest)
    return solution
