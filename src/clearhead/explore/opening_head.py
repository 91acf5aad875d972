"""The head that a page shows first: the one that says most about the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.explore.attention_map import AttentionMap
from clearhead.explore.head_summaries import ALIGNMENT, BROKEN, mean_over_queries
from clearhead.explore.scene_json import HeadJson
from clearhead.lens.analysis.roles import NONE
from clearhead.lens.record.attention_views import Sight

CONTENT_ROLES = ("induction", "duplicate")  # which follow the tokens, not their positions


def choose_opening_head(
    maps: Mapping[str, AttentionMap], heads: Mapping[str, Sequence[HeadJson]], *, pictured: bool = False
) -> tuple[str, int]:
    """The name and head: the best alignment, else one of the last cross-attention.

    The best has the largest score times agreement with the other heads; among equals, the one in a later layer. Over
    patches and frames it is the head with the largest mutual information of words and places. Without cross-attention
    it is the one with the largest mutual information of queries and keys among the heads that follow more than the
    position: induction and duplicate heads first, then those without a role.
    """
    crossing = [name for name, one in maps.items() if one.sight.cross]
    sights, samples = [maps[name].sight for name in crossing], [maps[name].sample for name in crossing]
    if pictured and crossing:
        return find_most_informative(sights, samples)
    scored = [
        (round((head["score"] or 0.0) * agreement, 2), place, name, head["number"])
        for place, (name, own) in enumerate(zip(crossing, measure_agreement(sights, samples), strict=True))
        for head, agreement in zip(heads[name], own, strict=True)
        if head["role"] == ALIGNMENT
    ]
    if scored:
        *_, name, number = max(scored, key=lambda some: some[:2])
        return name, number
    if not crossing and (found := _find_telling_head(maps, heads)) is not None:
        return found
    name = crossing[-1] if crossing else next(iter(maps))
    named = [head for head in heads[name] if head["role"] not in (NONE, BROKEN)] or heads[name]
    return name, named[0]["number"] if named else 0


def _find_telling_head(
    maps: Mapping[str, AttentionMap], heads: Mapping[str, Sequence[HeadJson]]
) -> tuple[str, int] | None:
    """The head with the most information that positions alone do not give; None if all heads are positional."""
    scored = [
        (head["role"] in CONTENT_ROLES, round(information, 2), place, name, head["number"])
        for place, (name, one) in enumerate(maps.items())
        if one.sight.map.numel()
        for head, information in zip(heads[name], measure_information(one.sight, one.sample), strict=True)
        if head["role"] in (*CONTENT_ROLES, NONE) and information == information  # not NaN
    ]
    if not scored:
        return None
    *_, name, number = max(scored)
    return name, number


def measure_agreement(sights: Sequence[Sight], samples: Sequence[int]) -> list[list[float]]:
    """How far each head has its peaks at the same queries and keys as the other heads: one number per head, 0 to 1.

    Of the peaks of all other heads on a key, the share at queries where this head has its peak there too. A head that
    follows the word read is one step behind those that follow the word written. 1 for a single head.
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
    shares = mean_over_queries(here / others.clamp(min=1e-9), seeing).clamp(min=0).tolist()
    return [[shares.pop(0) for _ in sight.heads] for sight in sights]


def find_most_informative(sights: Sequence[Sight], samples: Sequence[int]) -> tuple[str, int]:
    """The name and head with the largest mutual information of queries and keys, by the maps of these attentions.

    In it every query looks sharply, and each at other keys than the rest: the head to begin with where a word belongs
    to many patches or frames, so that no single weight is large. The later one among equals.
    """
    found = [
        (information, place, number)
        for place, (sight, sample) in enumerate(zip(sights, samples, strict=True))
        for information, number in zip(measure_information(sight, sample), sight.heads, strict=True)
    ]
    _, place, head = max(found)
    return sights[place].name, head


def measure_information(sight: Sight, sample: int) -> list[float]:
    """For each head, the mutual information of queries and keys in nats, from its map."""
    maps = sight.map[sample].float()
    rows = maps / maps.sum(-1, keepdim=True).clamp(min=1e-12)
    information: list[float] = (_entropy(rows.mean(-2)) - _entropy(rows).mean(-1)).clamp(min=0).tolist()
    return information


def _entropy(shares: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows"]:
    entropy: Tensor = torch.special.entr(shares).sum(-1)
    return entropy
