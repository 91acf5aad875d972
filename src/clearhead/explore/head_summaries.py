"""Summaries of heads from a record alone: role, mean entropy, distance, sink, peak; and the colours of roles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.explore.scene_json import HeadJson
from clearhead.lens.analysis.roles import NEAR, NONE, ROLES, HeadRoles, counts_queries
from clearhead.lens.record.attention_views import Sight

ALIGNMENT = "alignment"  # the role of cross-attention heads that point at the source of what is written
ALIGNMENT_THRESHOLD = 0.5
BROKEN = "no numbers"  # instead of the role of a head with weights that are NaN or infinite
LESS_THAN_ONE = 0.999  # rows whose weights sum to less leave some attention to sinks

# The role's colour on light and dark ground, after Okabe and Ito; a test checks that page/draw/colours.js has the same.
ROLE_COLOURS = {
    ALIGNMENT: ("#bd4a1f", "#f08a55"),
    "induction": ("#c23f86", "#ee86bb"),
    "duplicate": ("#7d5339", "#c0977a"),
    "previous": ("#2362b5", "#6aa5f0"),
    "itself": ("#2b9bc7", "#62c4ec"),
    "next": ("#00806d", "#3fc4ae"),
    "first": ("#2f8a4c", "#6cc685"),
    "delimiter": ("#8650ab", "#bb8be0"),
    "local": ("#7a86a1", "#a3aec6"),
    "broad": ("#b8860b", "#e0b64a"),
    NONE: ("#9a978e", "#83868e"),
    BROKEN: ("#5b2a86", "#7fd6ff"),
}


def summarise_heads(
    sight: Sight,
    sample: int,
    delimiters: Sequence[bool] | None = None,
    *,
    roles: HeadRoles | None = None,
) -> list[HeadJson]:
    """One summary a head. `delimiters` says which keys are punctuation; `roles` that were measured before are kept.

    A head with weights that are no finite numbers has no role, whatever was measured before.
    """
    seeing = sight.logsumexp[sample] > -math.inf
    measures = (sight.entropy, sight.distance, sight.first, sight.peak)
    entropy, distance, sink, peak = (mean_over_queries(values[sample], seeing) for values in measures)
    named = _known_roles(roles, sight) or _measure_roles(sight, sample, seeing, delimiters)
    finite = (sight.peak[sample].isfinite() & sight.entropy[sample].isfinite()).all(-1).tolist()
    named = [one if known else (BROKEN, math.nan) for one, known in zip(named, finite, strict=True)]
    most = mean_over_queries(_bound_entropy(sight, sample, seeing), seeing)
    return [
        {
            "number": head,
            "role": named[place][0],
            "score": None if named[place][0] == NONE else round_for_json(named[place][1]),
            "entropy": round_for_json(float(entropy[place])),
            "most_entropy": round_for_json(float(most[place])),
            "distance": round_for_json(float(distance[place])),
            "sink": round_for_json(float(sink[place])),
            "peak": round_for_json(float(peak[place])),
            "effect": None,
        }
        for place, head in enumerate(sight.heads)
    ]


def add_effects(heads: Sequence[HeadJson], effects: Sequence[float] | None) -> list[HeadJson]:
    """The summaries with the effect of each head on the loss, where it was measured."""
    if effects is None:
        return list(heads)
    return [{**head, "effect": round_for_json(float(effects[head["number"]]))} for head in heads]


def round_for_json(value: float) -> float | None:
    """Five significant digits; None for NaN and infinity, which JSON does not have."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _known_roles(roles: HeadRoles | None, sight: Sight) -> list[tuple[str, float]]:
    if roles is None:
        return []
    named = {(one.name, one.head): one for one in roles.heads}
    own = [named.get((sight.name, head)) for head in sight.heads]
    return [(one.role, one.score) for one in own if one is not None] if all(own) else []


def _measure_roles(
    sight: Sight, sample: int, seeing: Bool[Tensor, "heads queries"], delimiters: Sequence[bool] | None
) -> list[tuple[str, float]]:
    """The roles of `clearhead.lens.analysis.roles` that one record can tell, by the same formulas.

    Weights on neighbours come from the top keys: any weight above 1/8 is among the eight largest.
    """
    visible = _count_visible(sight, sample)
    real = {role: seeing & counts_queries(role, visible) for role in ROLES}
    scores: dict[str, Tensor] = {"first": mean_over_queries(sight.first[sample], real["first"])}
    scores["broad"] = mean_over_queries(sight.entropy[sample] / visible.clamp(min=2).log(), real["broad"])
    if delimiters is not None and any(delimiters) and sight.received is not None:
        marks = torch.tensor(list(delimiters)[: sight.keys], dtype=torch.bool)
        received = sight.received[sample]
        scores["delimiter"] = (received[:, : len(marks)] * marks).sum(-1) / received.sum(-1).clamp(min=1e-12)
    if not sight.cross:
        apart = sight.top_keys[sample].int() - sight.queries.int().view(1, -1, 1)
        weights = sight.top_weights[sample]  # 0 where there is no key
        for role, step in (("previous", -1), ("itself", 0), ("next", 1)):
            inside = (sight.queries + step >= 0) & (sight.queries + step < sight.keys)
            scores[role] = mean_over_queries((weights * (apart == step)).sum(-1), real[role] & inside)
        local = (weights * (apart.abs_() <= NEAR)).sum(-1)
        scores["local"] = mean_over_queries(local, real["local"])
    named = HeadRoles(
        (sight.name, place, {role: float(value[place]) for role, value in scores.items() if value[place] > -1})
        for place in range(len(sight.heads))
    )
    found = [(one.role, one.score) for one in named.heads]
    return [_check_alignment(sight, sample, place, *one) for place, one in enumerate(found)] if sight.cross else found


def _check_alignment(sight: Sight, sample: int, place: int, role: str, score: float) -> tuple[str, float]:
    """The role "alignment" for a cross-attention head with sharp peaks on many keys, else its role so far."""
    keys = sight.peak_key[sample, place]
    seeing = keys >= 0
    if int(seeing.sum()) < 2:
        return role, score
    spread = len(keys[seeing].unique()) / min(int(seeing.sum()), max(int(_count_visible(sight, sample).max()), 1))
    value = float(sight.peak[sample, place][seeing].mean()) * spread
    special = role in ROLES and ROLES[role].rank < ROLES["broad"].rank
    return (ALIGNMENT, value) if value >= ALIGNMENT_THRESHOLD and not special else (role, score)


def _bound_entropy(sight: Sight, sample: int, seeing: Bool[Tensor, "heads queries"]) -> Float[Tensor, "heads queries"]:
    """The largest entropy that the visible keys of each query allow; NaN in records that do not count them."""
    if sight.visible is None or sight.received is None:
        return torch.full(seeing.shape, math.nan)
    visible = _count_visible(sight, sample)
    even = visible.clamp(min=1).double().log().expand(seeing.shape)
    # −Σ w ln w of a sum below 1 is largest where every weight is 1/e: with one or two keys that is more than ln n
    sinks = sight.received[sample].sum(-1) < LESS_THAN_ONE * seeing.sum(-1)
    return torch.where(sinks[:, None] & (visible <= 2), visible / math.e, even)


def _count_visible(sight: Sight, sample: int) -> Int[Tensor, "#heads queries"]:
    """How many keys each query sees; all of them in records that do not say."""
    visible = sight.visible
    if visible is None:
        return torch.full((1, len(sight.queries)), sight.keys)
    own: Tensor = visible[sample if len(visible) > 1 else 0]
    return own


def mean_over_queries(values: Float[Tensor, "heads queries"], counted: Bool[Tensor, "..."]) -> Float[Tensor, " heads"]:
    """Over the queries that count, head by head; −inf where none does."""
    counted = counted.expand(values.shape)
    number = counted.sum(-1)
    mean = (values.double() * counted).sum(-1) / number.clamp(min=1)
    return mean.masked_fill(number == 0, -math.inf)
