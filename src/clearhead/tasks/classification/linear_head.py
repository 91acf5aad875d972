"""Linear head: logistic regression over the vector of a text and its n-grams, for few examples.

The part for vectors becomes the output layer of the model; that for n-grams is stored beside it. Cross-validation
chooses what is used: the vectors, the n-grams or both, and whether unlabelled texts are learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearhead.errors import CheckpointError
from clearhead.tasks.classification.calibration import fit_temperature, measure_loss
from clearhead.tasks.lexical.logistic_regression import LinearScores, fit_softmax
from clearhead.tasks.lexical.ngrams import NgramFeatures, SparseRows

WEIGHTS = "ngrams.safetensors"
STRENGTH = 5.0  # C of the regression; of 3, 5, 10 and 30 the best on titles and reviews, all within a point
# The length of a standardised vector beside n-grams, whose rows have length one; 0.7 was best of 0.3, 0.5, 0.7 and 1.
VECTOR_LENGTH = 0.7
FOLDS = 5
PSEUDO_SHARE = 0.6  # of the unlabelled texts that get each label: the surest
PSEUDO_WEIGHT = 3.0  # of all of them together, the labelled ones being 1
MOST_UNLABELLED = 3000


class NgramHead(NamedTuple):
    """Scores of labels from the n-grams of a text."""

    features: NgramFeatures
    weight: Float[Tensor, "ngrams labels"]

    def scores(self, texts: Sequence[str]) -> Float[Tensor, "texts labels"]:
        return self.features.transform(texts) @ self.weight

    def save(self, folder: Path) -> None:
        self.features.save(folder)
        save_file({"weight": self.weight.contiguous()}, folder / WEIGHTS)

    @classmethod
    def load(cls, folder: Path, labels: int) -> NgramHead | None:
        """None if the folder has none."""
        if not (folder / WEIGHTS).exists():
            return None
        head = cls(NgramFeatures.load(folder), load_file(folder / WEIGHTS)["weight"])
        wanted = (len(head.features.counts), labels)
        if tuple(head.weight.shape) != wanted:
            raise CheckpointError(f"{folder / WEIGHTS} has shape {tuple(head.weight.shape)}, {wanted} is needed")
        return head


class Texts(NamedTuple):
    """Texts with the vectors that the encoder gives them."""

    texts: Sequence[str]
    vectors: Float[Tensor, "texts width"]

    def pick(self, rows: NDArray[np.int64]) -> Texts:
        return Texts([self.texts[row] for row in rows], self.vectors[torch.from_numpy(rows)])


class HeadWeights(NamedTuple):
    """Weights for vectors as the encoder gives them, and for n-grams (None: they are not used)."""

    vectors: LinearScores
    ngrams: NgramHead | None

    def scores(self, texts: Texts) -> Float[Tensor, "texts labels"]:
        scores = self.vectors.scores(texts.vectors)
        return scores if self.ngrams is None else scores + self.ngrams.scores(texts.texts)


@dataclass(frozen=True)
class LinearHead:
    """A fitted head, its temperature, and how every candidate did in cross-validation."""

    weights: HeadWeights
    temperature: float
    losses: dict[str, float]
    accuracies: dict[str, float]
    chosen: str

    def describe(self) -> str:
        """A line about what cross-validation chose.

        >>> scores = LinearScores(torch.zeros(2, 2), torch.zeros(2))
        >>> shares = {"vectors": 0.75, "vectors and n-grams": 0.8}
        >>> LinearHead(HeadWeights(scores, None), 1.0, {}, shares, "vectors and n-grams").describe()
        'vectors and n-grams: 0.80 right in cross-validation (vectors 0.75)'
        """
        others = ", ".join(f"{name} {share:.2f}" for name, share in self.accuracies.items() if name != self.chosen)
        return f"{self.chosen}: {self.accuracies[self.chosen]:.2f} right in cross-validation ({others})"


@dataclass(frozen=True)
class Candidate:
    """What a head may be fitted to."""

    vector_length: float  # 0: without vectors
    ngrams: bool
    unlabelled: bool = False

    @property
    def name(self) -> str:
        names = ["vectors"] * bool(self.vector_length) + ["n-grams"] * self.ngrams
        return " and ".join(names) + ", unlabelled texts" * self.unlabelled


CANDIDATES = (Candidate(0.0, True), Candidate(VECTOR_LENGTH, False), Candidate(VECTOR_LENGTH, True))


class HeadFitter:
    """Fits heads to labelled texts, and to unlabelled ones. `targets` are numbers, or (texts, labels) of 0 and 1."""

    def __init__(self, unlabelled: Texts, *, multi_label: bool, labels: int, mean: Tensor, spread: Tensor) -> None:
        self.unlabelled, self.multi_label, self.labels = unlabelled, multi_label, labels
        self.mean, self.spread = mean, spread

    def fit(self, train: Texts, targets: Tensor, candidate: Candidate) -> HeadWeights:
        goals = targets.double() if self.multi_label else torch.eye(self.labels, dtype=torch.float64)[targets]
        first = self._fit_once(train, goals, None, candidate)
        if not candidate.unlabelled:
            return first
        rows, guesses = choose_surest(first.scores(self.unlabelled), PSEUDO_SHARE)
        chosen = self.unlabelled.pick(rows)
        both = Texts([*train.texts, *chosen.texts], torch.cat([train.vectors, chosen.vectors]))
        weights = torch.ones(len(both.texts))
        weights[len(train.texts) :] = PSEUDO_WEIGHT * len(train.texts) / max(1, len(rows))
        guessed = torch.eye(self.labels, dtype=torch.float64)[torch.from_numpy(guesses)]
        return self._fit_once(both, torch.cat([goals, guessed]), weights, candidate)

    def _fit_once(self, train: Texts, goals: Tensor, weights: Tensor | None, candidate: Candidate) -> HeadWeights:
        width = train.vectors.shape[1]
        scale = candidate.vector_length / self.spread / width**0.5
        parts, features = list[Tensor | SparseRows](), None
        if candidate.ngrams:
            features = NgramFeatures.fit(train.texts, rarest=1 if weights is None else 2)
            parts.append(features.transform(train.texts))
        if candidate.vector_length:
            parts.append((train.vectors - self.mean) * scale)
        fitted = fit_softmax(
            join_columns(parts), goals, strength=STRENGTH, weights=weights, multi_label=self.multi_label
        )
        count = 0 if features is None else len(features.counts)
        weight = torch.zeros(width, self.labels)
        if candidate.vector_length:
            weight = fitted.weight[count:] * scale[:, None]
        vectors = LinearScores(weight, fitted.bias - self.mean @ weight)
        return HeadWeights(vectors, None if features is None else NgramHead(features, fitted.weight[:count]))


def fit_linear_head(
    train: Texts, targets: Tensor, unlabelled: Texts, *, labels: int, multi_label: bool, seed: int
) -> LinearHead:
    """The head that cross-validation finds best, fitted to all texts, with the temperature of the held-out scores."""
    seen = torch.cat([train.vectors, unlabelled.vectors])
    mean, spread = seen.mean(0), seen.std(0, correction=0).clamp(min=1e-6)
    fitter = HeadFitter(unlabelled, multi_label=multi_label, labels=labels, mean=mean, spread=spread)
    candidates = list(CANDIDATES)
    if len(unlabelled.texts) and not multi_label:
        candidates += [Candidate(VECTOR_LENGTH, True, unlabelled=True)]
    folds = assign_folds(targets if targets.ndim == 1 else targets.argmax(1), seed)
    wanted = targets.long().numpy()
    temperatures, losses, accuracies = dict[str, float](), dict[str, float](), dict[str, float]()
    for candidate in candidates:
        held = torch.zeros(len(train.texts), labels, dtype=torch.float64)
        for fold in range(FOLDS):
            inside, outside = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            if len(inside) and len(outside):
                weights = fitter.fit(train.pick(inside), targets[torch.from_numpy(inside)], candidate)
                held[torch.from_numpy(outside)] = weights.scores(train.pick(outside)).double()
        name = candidate.name
        temperatures[name] = fit_temperature(held.numpy(), wanted)
        losses[name] = measure_loss(held.numpy() / temperatures[name], wanted)
        right = ((held > 0).long() == targets).all(1) if multi_label else held.argmax(1) == targets
        accuracies[name] = float(right.double().mean())
    best = min(candidates, key=lambda candidate: losses[candidate.name])
    return LinearHead(fitter.fit(train, targets, best), temperatures[best.name], losses, accuracies, best.name)


def join_columns(parts: Sequence[Tensor | SparseRows]) -> Tensor | SparseRows:
    """Features side by side: n-grams, vectors, or n-grams and then vectors as sparse rows.

    >>> sparse = SparseRows(torch.tensor([0, 1, 1]), torch.tensor([1]), torch.tensor([5.0]), 2)
    >>> join_columns([sparse, torch.tensor([[1.0], [2.0]])]).dense().tolist()
    [[0.0, 5.0, 1.0], [0.0, 0.0, 2.0]]
    """
    if len(parts) == 1:
        return parts[0]
    sparse, dense = parts
    assert isinstance(sparse, SparseRows)
    assert isinstance(dense, Tensor)
    rows, width = dense.shape
    sizes = sparse.starts.diff()
    starts = torch.cat([torch.zeros(1, dtype=torch.long), (sizes + width).cumsum(0)])
    row = torch.arange(rows)
    of_sparse = torch.arange(len(sparse.values)) + width * row.repeat_interleave(sizes)
    of_dense = ((starts[:-1] + sizes)[:, None] + torch.arange(width)).flatten()
    columns = torch.empty(int(starts[-1]), dtype=torch.long)
    values = torch.empty(int(starts[-1]), dtype=dense.dtype)
    columns[of_sparse], values[of_sparse] = sparse.columns, sparse.values.to(dense.dtype)
    columns[of_dense], values[of_dense] = sparse.width + torch.arange(width).repeat(rows), dense.flatten()
    return SparseRows(starts, columns, values, sparse.width + width)


def choose_surest(scores: Float[Tensor, "texts labels"], share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The texts whose likeliest label is surest, as many of each label at most as a share of an equal part; and labels.

    >>> choose_surest(torch.tensor([[3.0, 0], [2.0, 0], [0, 1.0], [1.0, 0]]), 0.5)
    (array([0, 2]), array([0, 1]))
    """
    best = scores.softmax(-1).max(1)
    most = max(1, round(share * len(scores) / scores.shape[1]))
    chosen = list[int]()
    for label in range(scores.shape[1]):
        rows = (best.indices == label).nonzero()[:, 0]
        chosen += rows[best.values[rows].argsort(descending=True, stable=True)[:most]].tolist()
    kept = np.array(sorted(chosen), dtype=np.int64)
    return kept, best.indices.numpy()[kept]


def assign_folds(labels: Tensor, seed: int) -> NDArray[np.int64]:
    """A fold for each row, with each label spread evenly over the folds.

    >>> np.bincount(assign_folds(torch.tensor([0] * 5 + [1] * 10), seed=1)).tolist()
    [3, 3, 3, 3, 3]
    """
    chance = np.random.default_rng([seed, len(labels)])
    order = np.lexsort((chance.random(len(labels)), labels.numpy()))  # by label, each in random order
    folds = np.empty(len(labels), dtype=np.int64)
    folds[order] = np.arange(len(labels)) % FOLDS
    return folds
