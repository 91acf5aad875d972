"""Losses of labels: cross entropy of one label or of several, with smoothing and weights, and R-Drop's divergence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from clearhead.errors import ConfigError
from clearhead.formatting import suggest_name
from clearhead.tasks.losses import UNCOUNTED, consistency_loss


def weigh_labels(
    labels: Sequence[str], counts: Sequence[int], wanted: str | Mapping[str, float], *, multi_label: bool
) -> list[float]:
    """A weight for each label: as `wanted` (1 for the others), or, for "balanced", inversely to how often it occurs.

    `counts` are the training rows with each label, and last of all rows.

    >>> weigh_labels(["a", "b"], [3, 1, 4], "balanced", multi_label=False)
    [0.6666666666666666, 2.0]
    """
    if isinstance(wanted, Mapping):
        if unknown := [label for label in wanted if label not in labels]:
            hint = suggest_name(unknown[0], labels)
            raise ConfigError(f"loss.class_weights: no label is called {unknown[0]!r}; {hint}")
        return [float(wanted.get(label, 1.0)) for label in labels]
    *each, total = counts
    if multi_label:  # of its presence, against its absence
        return [(total - count) / count for count in each]
    return [sum(each) / (len(each) * count) for count in each]


def label_loss(
    scores: Float[Tensor, "texts labels"],
    labels: Shaped[Tensor, "texts ..."],
    *,
    multi_label: bool,
    smoothing: float = 0.0,
    weights: Float[Tensor, " labels"] | None = None,
) -> Float[Tensor, ""]:
    """The summed cross entropy; `labels` are indices (UNCOUNTED: no loss), or a multi-hot matrix (texts, labels)."""
    if not multi_label:
        return F.cross_entropy(
            scores, labels, weights, ignore_index=UNCOUNTED, reduction="sum", label_smoothing=smoothing
        )
    aims = labels.to(scores) * (1 - smoothing) + smoothing / 2
    return F.binary_cross_entropy_with_logits(scores, aims, pos_weight=weights, reduction="sum")


def scores_divergence(
    one: Float[Tensor, "texts labels"], other: Float[Tensor, "texts labels"], *, multi_label: bool
) -> Float[Tensor, ""]:
    """The loss of R-Drop between the scores of two passes over the same texts."""
    if multi_label:  # a sigmoid is a softmax of two
        one, other = (torch.stack([scores, torch.zeros_like(scores)], -1) for scores in (one, other))
    return consistency_loss(one, other)
