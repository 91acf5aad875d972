"""Every head in a few numbers, from a record alone: what it is called, how broad, how far, how sharp it looks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.lens.analysis.roles import NONE, ROLES, HeadRoles
from clearhead.lens.record.attention_views import Sight

LEAST = 5  # keys that a query must see to count: of fewer, each gets much by chance alone
NEAR = 2
ALIGNMENT = 0.5  # from which on a head that looks sharply, and ever elsewhere, is said to align
DELIMITERS = frozenset(".,;:!?。，、；：！？…")


def summaries(
    sight: Sight,
    sample: int,
    delimiters: Sequence[bool] | None = None,
    *,
    roles: HeadRoles | None = None,
    effects: Mapping[str, Sequence[float]] | None = None,
) -> list[dict[str, Any]]:
    """One dictionary a head. `delimiters` says which keys are punctuation; `roles` measured on more text win."""
    seeing = sight.logsumexp[sample] > -math.inf
    means = {
        "entropy": _mean(sight.entropy[sample], seeing),
        "distance": _mean(sight.distance[sample], seeing),
        "sink": _mean(sight.first[sample], seeing),
        "peak": _mean(sight.peak[sample], seeing),
    }
    found = _known(roles, sight) or _measured(sight, sample, seeing, delimiters)
    effect = None if effects is None else effects.get(sight.name)
    heads = []
    for place, head in enumerate(sight.heads):
        one: dict[str, Any] = {"number": head, "role": found[place][0], "score": rounded(found[place][1])}
        one |= {name: rounded(float(values[place])) for name, values in means.items()}
        heads.append({**one, "effect": None if effect is None else rounded(float(effect[head])), "aer": None})
    return heads


def rounded(value: float) -> float | None:
    """Five digits; None for what is no number, which JSON does not know."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _known(roles: HeadRoles | None, sight: Sight) -> list[tuple[str, float]]:
    if roles is None:
        return []
    named = {(one.name, one.head): one for one in roles.heads}
    own = [named.get((sight.name, head)) for head in sight.heads]
    return [(one.role, one.score) for one in own if one is not None] if all(own) else []


def _measured(sight: Sight, sample: int, seeing: Tensor, delimiters: Sequence[bool] | None) -> list[tuple[str, float]]:
    """The roles of `clearhead.lens.analysis.roles` that the record can tell of, by their formulas.

    A weight of more than 1/8 is always among the eight largest: what a role needs is there.
    """
    visible = _visible(sight, sample)
    real = seeing & (visible >= LEAST)
    scores: dict[str, Tensor] = {"first": _mean(sight.first[sample], real)}
    scores["broad"] = _mean(sight.entropy[sample] / visible.clamp(min=2).log(), real)
    if delimiters is not None and any(delimiters) and sight.received is not None:
        marks = torch.tensor(list(delimiters)[: sight.keys], dtype=torch.bool)
        received = sight.received[sample]
        scores["delimiter"] = (received[:, : len(marks)] * marks).sum(-1) / received.sum(-1).clamp(min=1e-12)
    if not sight.cross:
        apart = sight.top_keys[sample].int() - sight.queries.int().view(1, -1, 1)
        weights = sight.top_weights[sample]  # 0 where there is no key
        for role, step in (("previous", -1), ("itself", 0), ("next", 1)):
            inside = (sight.queries + step >= 0) & (sight.queries + step < sight.keys)
            scores[role] = _mean((weights * (apart == step)).sum(-1), real & inside)
        local = (weights * (apart.abs_() <= NEAR)).sum(-1)
        scores["local"] = _mean(local, real & (visible >= 2 * (2 * NEAR + 1)))
    named = HeadRoles(
        (sight.name, place, {role: float(value[place]) for role, value in scores.items() if value[place] > -1})
        for place in range(len(sight.heads))
    )
    found = [(one.role, one.score) for one in named.heads]
    return [_aligned(sight, sample, place, *one) for place, one in enumerate(found)] if sight.cross else found


def _aligned(sight: Sight, sample: int, place: int, role: str, score: float) -> tuple[str, float]:
    """A cross-attention head that looks sharply, and at ever other tokens, follows the translation."""
    keys = sight.peak_key[sample, place]
    seeing = keys >= 0
    if int(seeing.sum()) < 2:
        return role, score
    spread = len(keys[seeing].unique()) / min(int(seeing.sum()), max(sight.keys, 1))
    value = float(sight.peak[sample, place][seeing].mean()) * spread
    special = role in ROLES and ROLES[role].rank < ROLES["broad"].rank
    return ("alignment", value) if value >= ALIGNMENT and not special else (role, score)


def in_step(sights: Sequence[Sight], samples: Sequence[int]) -> list[list[float]]:
    """How much each head of these attentions looks where the others look at the same time: one number a head, 0 to 1.

    Of all sharp looks of other heads at a key, the share that falls on the queries for which this head looks there too.
    A head that follows the word read is one step behind those that follow the word written. 1 for a head alone.
    """
    if len({(len(sight.queries), sight.keys) for sight in sights}) != 1 or sum(len(one.heads) for one in sights) < 2:
        return [[1.0] * len(sight.heads) for sight in sights]
    pairs = list(zip(sights, samples, strict=True))
    keys = torch.cat([sight.peak_key[sample] for sight, sample in pairs]).long()
    seeing = keys >= 0
    keys, peaks = keys.clamp(min=0), torch.cat([sight.peak[sample] for sight, sample in pairs]).double() * seeing
    _, cells = (torch.arange(keys.shape[1]) * sights[0].keys + keys).unique(return_inverse=True)
    here = torch.zeros(int(cells.max()) + 1 if cells.numel() else 0, dtype=torch.double)
    here = here.index_add(0, cells.flatten(), peaks.flatten())[cells] - peaks
    ever = torch.zeros(len(keys), sights[0].keys, dtype=torch.double).scatter_add(1, keys, peaks)
    others = (ever.sum(0) - ever).gather(1, keys)
    shares = _mean(here / others.clamp(min=1e-9), seeing).clamp(min=0).tolist()
    return [[shares.pop(0) for _ in sight.heads] for sight in sights]


def _visible(sight: Sight, sample: int) -> Tensor:
    """How many keys each query sees, (heads or 1, queries)."""
    visible = getattr(sight, "visible", None)
    if visible is None:
        return torch.full((1, len(sight.queries)), sight.keys)
    own: Tensor = visible[sample if len(visible) > 1 else 0]
    return own


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """Over the queries that count, head by head; −inf where none does."""
    counted = counted.expand(values.shape)
    number = counted.sum(-1)
    mean = (values.double() * counted).sum(-1) / number.clamp(min=1)
    return mean.masked_fill(number == 0, -math.inf)


__all__ = ["DELIMITERS", "NONE", "in_step", "rounded", "summaries"]
