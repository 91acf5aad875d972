"""Summaries of heads from a record alone: role, mean entropy, distance, sink, peak; and the head to show first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.explore.attention_map import AttentionMap
from clearhead.explore.scene_json import HeadJson
from clearhead.lens.analysis.roles import NEAR, NONE, ROLES, HeadRoles, counts_queries
from clearhead.lens.record.attention_views import Sight

ALIGNMENT = "alignment"  # the role of cross-attention heads that point at the source of what is written
ALIGNMENT_THRESHOLD = 0.5
BROKEN = "no numbers"  # instead of the role of a head with weights that are NaN or infinite
LESS_THAN_ONE = 0.999  # rows whose weights sum to less leave some attention to sinks
CONTENT_ROLES = ("induction", "duplicate")  # which follow the tokens, not their positions

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


def summarise_heads(sight: Sight, sample: int, delimiters: Sequence[bool] | None = None) -> list[HeadJson]:
    """One summary a head; `delimiters` says which keys are punctuation.

    A head with weights that are no finite numbers has no role.
    """
    seeing = sight.logsumexp[sample] > -math.inf
    measures = (sight.entropy, sight.distance, sight.first, sight.peak)
    entropy, distance, sink, peak = (mean_over_queries(values[sample], seeing) for values in measures)
    most = mean_over_queries(_bound_entropy(sight, sample, seeing), seeing)
    whole = (~_has_sinks(sight, sample, seeing)).tolist()
    finite = (sight.peak[sample].isfinite() & sight.entropy[sample].isfinite()).all(-1).tolist()
    summaries = list[HeadJson]()
    for index, (role, score) in enumerate(_measure_roles(sight, sample, seeing, delimiters)):
        role, score = (role, score) if finite[index] else (BROKEN, math.nan)
        summaries.append(
            {
                "number": sight.heads[index],
                "role": role,
                "score": None if role == NONE else round_for_json(score),
                "entropy": round_for_json(entropy[index]),
                "most_entropy": round_for_json(most[index]),
                "distance": round_for_json(distance[index]),
                "sink": round_for_json(sink[index]),
                "peak": round_for_json(peak[index]),
                "whole": whole[index],
                "effect": None,
            }
        )
    return summaries


def round_for_json(value: float | Float[Tensor, ""]) -> float | None:
    """Five significant digits; None for NaN and infinity, which JSON does not have."""
    return float(f"{float(value):.5g}") if math.isfinite(value) else None


def _measure_roles(
    sight: Sight, sample: int, seeing: Bool[Tensor, "heads queries"], delimiters: Sequence[bool] | None
) -> list[tuple[str, float]]:
    """The roles of `clearhead.lens.analysis.roles` that one record can tell, by the same formulas.

    Weights on neighbours come from the top keys: any weight above 1/8 is among the eight largest.
    """
    visible = _count_visible(sight, sample)
    counted = {role: seeing & counts_queries(role, visible) for role in ROLES}
    scores: dict[str, Tensor] = {"first": mean_over_queries(sight.first[sample], counted["first"])}
    scores["broad"] = mean_over_queries(sight.entropy[sample] / visible.clamp(min=2).log(), counted["broad"])
    if delimiters is not None and any(delimiters):
        marks = torch.tensor(list(delimiters)[: sight.keys], dtype=torch.bool)
        received = sight.received[sample]
        scores["delimiter"] = (received[:, : len(marks)] * marks).sum(-1) / received.sum(-1).clamp(min=1e-12)
    if not sight.cross:
        apart = sight.top_keys[sample].int() - sight.queries.int().view(1, -1, 1)
        weights = sight.top_weights[sample]  # 0 where there is no key
        for role, step in (("previous", -1), ("itself", 0), ("next", 1)):
            inside = (sight.queries + step >= 0) & (sight.queries + step < sight.keys)
            scores[role] = mean_over_queries((weights * (apart == step)).sum(-1), counted[role] & inside)
        local = (weights * (apart.abs_() <= NEAR)).sum(-1)
        scores["local"] = mean_over_queries(local, counted["local"])
    heads = HeadRoles(
        (sight.name, index, {role: float(value[index]) for role, value in scores.items() if value[index] > -1})
        for index in range(len(sight.heads))
    ).heads
    roles = [(head.role, head.score) for head in heads]
    if not sight.cross:
        return roles
    return [_check_alignment(sight, sample, index, role) for index, role in enumerate(roles)]


def _check_alignment(sight: Sight, sample: int, index: int, role: tuple[str, float]) -> tuple[str, float]:
    """The role "alignment" for a cross-attention head with sharp peaks on many keys, else its role so far."""
    keys = sight.peak_key[sample, index]
    seeing = keys >= 0
    queries = int(seeing.sum())
    if queries < 2:
        return role
    spread = len(keys[seeing].unique()) / min(queries, max(int(_count_visible(sight, sample).max()), 1))
    score = float(sight.peak[sample, index][seeing].mean()) * spread
    special = role[0] in ROLES and ROLES[role[0]].rank < ROLES["broad"].rank
    return (ALIGNMENT, score) if score >= ALIGNMENT_THRESHOLD and not special else role


def _bound_entropy(sight: Sight, sample: int, seeing: Bool[Tensor, "heads queries"]) -> Float[Tensor, "heads queries"]:
    """The largest entropy that the visible keys of each query allow."""
    visible = _count_visible(sight, sample)
    even = visible.clamp(min=1).double().log().expand(seeing.shape)
    # −Σ w ln w of a sum below 1 is largest where every weight is 1/e: with one or two keys that is more than ln n
    sinks = _has_sinks(sight, sample, seeing)
    return torch.where(sinks[:, None] & (visible <= 2), visible / math.e, even)


def _has_sinks(sight: Sight, sample: int, seeing: Bool[Tensor, "heads queries"]) -> Bool[Tensor, " heads"]:
    """Which heads leave some attention to no token."""
    sinks: Tensor = sight.received[sample].sum(-1) < LESS_THAN_ONE * seeing.sum(-1)
    return sinks


def _count_visible(sight: Sight, sample: int) -> Int[Tensor, "#heads queries"]:
    """How many keys each query sees."""
    counts: Tensor = sight.visible[sample if len(sight.visible) > 1 else 0]
    return counts


def mean_over_queries(values: Float[Tensor, "heads queries"], counted: Bool[Tensor, "..."]) -> Float[Tensor, " heads"]:
    """Over the queries that count, head by head; −inf where none does."""
    counted = counted.expand(values.shape)
    number = counted.sum(-1)
    mean = (values.double() * counted).sum(-1) / number.clamp(min=1)
    return mean.masked_fill(number == 0, -math.inf)


def choose_opening_head(
    maps: Mapping[str, AttentionMap], heads: Mapping[str, Sequence[HeadJson]], *, pictured: bool = False
) -> tuple[str, int]:
    """The name and head: the best alignment, else one of the last cross-attention.

    The best has the largest score times agreement with the other heads; among equals, the one in a later layer. Over
    patches and frames it is the head with the largest mutual information of words and places. Without cross-attention,
    heads that only follow positions are left out. Of the induction and duplicate heads, or else of those without a
    role, it is the one with the largest mutual information of queries and keys.
    """
    crossing = [name for name, attention in maps.items() if attention.sight.cross]
    sights, samples = [maps[name].sight for name in crossing], [maps[name].sample for name in crossing]
    if pictured and crossing:
        return find_most_informative(sights, samples)
    agreements = measure_agreement(sights, samples)
    scored = [
        (round((head["score"] or 0.0) * agreement, 2), layer, name, head["number"])
        for layer, name in enumerate(crossing)
        for head, agreement in zip(heads[name], agreements[layer], strict=True)
        if head["role"] == ALIGNMENT
    ]
    if scored:
        _, _, name, number = max(scored, key=lambda score: score[:2])
        return name, number
    if not crossing and (telling := _find_telling_head(maps, heads)) is not None:
        return telling
    name = crossing[-1] if crossing else next(iter(maps))
    named = [head for head in heads[name] if head["role"] not in (NONE, BROKEN)] or heads[name]
    return name, named[0]["number"] if named else 0


def _find_telling_head(
    maps: Mapping[str, AttentionMap], heads: Mapping[str, Sequence[HeadJson]]
) -> tuple[str, int] | None:
    """The head with the most information that positions alone do not give; None if all heads are positional."""
    scored = [
        (head["role"] in CONTENT_ROLES, round(information, 2), layer, name, head["number"])
        for layer, (name, attention) in enumerate(maps.items())
        if attention.sight.map.numel()
        for head, information in zip(heads[name], measure_information(attention.sight, attention.sample), strict=True)
        if head["role"] in (*CONTENT_ROLES, NONE) and not math.isnan(information)
    ]
    return max(scored)[3:] if scored else None


def measure_agreement(sights: Sequence[Sight], samples: Sequence[int]) -> list[list[float]]:
    """How far each head has its peaks at the same queries and keys as the other heads: one number per head, 0 to 1.

    Of the peaks of all other heads on a key, the share at queries where this head has its peak there too. A head that
    follows the word read is one step behind those that follow the word written. 1 for a single head.
    """
    heads = [len(sight.heads) for sight in sights]
    if len({(len(sight.queries), sight.keys) for sight in sights}) != 1 or sum(heads) < 2:
        return [[1.0] * count for count in heads]
    pairs = list(zip(sights, samples, strict=True))
    keys = torch.cat([sight.peak_key[sample] for sight, sample in pairs]).long()
    seeing = keys >= 0
    keys, peaks = keys.clamp(min=0), torch.cat([sight.peak[sample] for sight, sample in pairs]).double() * seeing
    _, cells = (torch.arange(keys.shape[1]) * sights[0].keys + keys).unique(return_inverse=True)
    here = torch.zeros(int(cells.max()) + 1 if cells.numel() else 0, dtype=torch.double)
    here = here.index_add(0, cells.flatten(), peaks.flatten())[cells] - peaks
    ever = torch.zeros(len(keys), sights[0].keys, dtype=torch.double).scatter_add(1, keys, peaks)
    others = (ever.sum(0) - ever).gather(1, keys)
    shares = mean_over_queries(here / others.clamp(min=1e-9), seeing).clamp(min=0)
    return [part.tolist() for part in shares.split(heads)]


def find_most_informative(sights: Sequence[Sight], samples: Sequence[int]) -> tuple[str, int]:
    """The name and head with the largest mutual information of queries and keys, by the maps of these attentions.

    In this head every query attends to few keys, and each to other ones. It is shown first where a word belongs to many
    patches or frames, so that no single weight is large. Among equals it is the later one.
    """
    scored = [
        (information, layer, head)
        for layer, (sight, sample) in enumerate(zip(sights, samples, strict=True))
        for information, head in zip(measure_information(sight, sample), sight.heads, strict=True)
    ]
    _, layer, head = max(scored)
    return sights[layer].name, head


def measure_information(sight: Sight, sample: int) -> list[float]:
    """For each head, the mutual information of queries and keys in nats, from its map."""
    maps = sight.map[sample].float()
    rows = maps / maps.sum(-1, keepdim=True).clamp(min=1e-12)
    apart = torch.special.entr(rows.mean(-2)).sum(-1) - torch.special.entr(rows).sum(-1).mean(-1)
    information: list[float] = apart.clamp(min=0).tolist()
    return information
