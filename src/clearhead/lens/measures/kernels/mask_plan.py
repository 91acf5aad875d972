"""A mask as the kernels read it: of a few terms one must hold, each a handful of bounds.

A term bounds j − i, the keys and the queries; that is what bands, padding and prefixes come to under `&`. Documents
and dense booleans ride along, one of each for the whole mask. What does not fit is made dense, if it is small.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention.mask_kinds import Band, Both, Dense, Documents, Either, Padding, Prefix
from clearhead.attention.masks import Mask
from clearhead.lens.measures.kernels.reusing import reused

FAR = 2**30
TERMS = 4  # more are not worth a kernel of their own
DENSE = 2**28  # cells of a mask that may be built whole


class Bound(NamedTuple):
    """Which of the six bounds of a term it is, and its number: the same for all samples, or plus or minus lengths."""

    place: int
    number: int
    lengths: Tensor | None = None
    sign: int = 1


class Term(NamedTuple):
    """Bounds, by their places: 0, 1 of j − i (both included), 2, 3 of j, 4, 5 of i (the end excluded)."""

    bounds: tuple[Bound, ...] = ()
    documents: Documents | None = None
    dense: Dense | None = None


class Rules(NamedTuple):
    """The arguments of `scoring.visible`, and its constants."""

    arguments: tuple[Tensor | int, ...]
    terms: int
    bounds: int
    documents: int
    dense: int


def refusal(mask: Mask | None, sizes: tuple[int, int, int, int]) -> str | None:
    """Why the kernels cannot read a mask, or None."""
    if mask is None or terms(mask, *sizes[2:]) is not None:
        return None
    cells = (mask.batch or 1) * (mask.heads or 1) * sizes[2] * sizes[3]
    if cells <= DENSE:
        return None
    return f"{mask!r} has too many parts for it, and {cells:,} cells are too many to build it whole"


def rules(mask: Mask | None, sizes: tuple[int, int, int, int], device: torch.device) -> Rules:
    """What the kernels are told about a mask; worked out once for all layers that share it."""
    if mask is None:
        nothing = _nothing(device)
        return Rules((nothing, 0, nothing, 0, nothing, 0, nothing, 0, 0, 0, 0), 0, 0, 0, 0)
    found: Rules = mask.once(("lens rules", sizes, device), lambda: _rules(mask, sizes, device))
    return found


def terms(mask: Mask, queries: int, keys: int) -> list[Term] | None:
    """The terms of which one must hold, or None if there are too many, or more than the kernels know."""
    found = _terms(mask, queries, keys)
    if found is None or len(found) > TERMS:
        return None
    for kind in ("documents", "dense"):
        if len({id(part) for term in found if (part := getattr(term, kind)) is not None}) > 1:
            return None
    return found


def _terms(mask: Mask, queries: int, keys: int) -> list[Term] | None:
    match mask:
        case Both():
            found: list[Term] = [Term()]
            for part in mask.masks:
                more = _terms(part, queries, keys)
                joined = [] if more is None else [_joined(a, b) for a in found for b in more]
                if more is None or None in joined or len(joined) > TERMS:
                    return None
                found = [term for term in joined if term is not None]
            return found
        case Either():
            sides = [_terms(part, queries, keys) for part in mask.masks]
            return None if None in sides else [term for side in sides for term in side or []]
        case Documents():
            return [Term(documents=mask)]
        case Dense():
            return [Term(dense=mask)]
    bounds = _bounds(mask, queries, keys)
    return None if bounds is None else [Term(bounds)]


def _joined(a: Term, b: Term) -> Term | None:
    """Both terms at once; None if that takes two documents or two booleans."""
    if any(x is not None and y is not None and x is not y for x, y in zip(a[1:], b[1:], strict=True)):
        return None
    documents = b.documents if a.documents is None else a.documents
    return Term(a.bounds + b.bounds, documents, b.dense if a.dense is None else a.dense)


def _bounds(mask: Mask, queries: int, keys: int) -> tuple[Bound, ...] | None:
    match mask:
        case Band(left=left, right=right):
            start = mask.start(queries, keys)
            low = () if left is None else (Bound(0, start - left),)
            return low if right is None else (*low, Bound(1, start + right))
        case Prefix(lengths=lengths):
            return (Bound(3, 0, lengths),)
        case Padding(lengths=lengths, side="right", hide_queries=hides):
            of_queries = (Bound(5, queries - keys, lengths),) if hides else ()
            return (Bound(3, 0, lengths), *of_queries)
        case Padding(lengths=lengths, hide_queries=hides):
            of_queries = (Bound(4, queries, lengths, -1),) if hides else ()
            return (Bound(2, keys, lengths, -1), *of_queries)
    return None


def _rules(mask: Mask, sizes: tuple[int, int, int, int], device: torch.device) -> Rules:
    queries, keys = sizes[2:]
    found = terms(mask, queries, keys)
    if found is None:
        found = [Term(dense=Dense(mask.dense(queries, keys, device)))]
    bounds = _table(found, device)
    documents = next((term.documents for term in found if term.documents is not None), None)
    dense = next((term.dense for term in found if term.dense is not None), None)
    of_queries = of_keys = seen = _nothing(device)
    if documents is not None:
        of_queries, of_keys = documents.of_queries(queries).contiguous(), documents.ids.contiguous()
    if dense is not None:
        seen = dense.seen.view(torch.uint8)
    arguments: tuple[Tensor | int, ...] = (
        *(bounds, 0 if len(bounds) == 1 else bounds.stride(0)),
        *(of_queries, 0 if len(of_queries) == 1 else of_queries.stride(0)),
        *(of_keys, 0 if len(of_keys) == 1 else of_keys.stride(0)),
        seen,
        *((0, 0, 0, 0) if dense is None else strides(seen)),
    )
    used = sum(1 << bit for bit in {6 * row + one.place for row, term in enumerate(found) for one in term.bounds})
    return Rules(arguments, len(found), used, *(_marked(found, kind) for kind in ("documents", "dense")))


def _table(found: list[Term], device: torch.device) -> Tensor:
    """The six bounds of each term, for each sample or for all: (samples, terms, 6)."""
    numbers: list[list[int]] = [[-FAR, FAR] * 3 for _ in found]
    own: list[tuple[int, int, Tensor]] = []
    for row, term in enumerate(found):
        for place, number, lengths, sign in term.bounds:
            if lengths is None:
                numbers[row][place] = (min if place % 2 else max)(numbers[row][place], number)
            else:
                own.append((row, place, lengths if (number, sign) == (0, 1) else number + sign * lengths))
    table: Tensor = reused(
        ("bounds", tuple(map(tuple, numbers))),
        device,
        lambda: torch.tensor([numbers], dtype=torch.int32, device=device),
    )
    if own:
        table = table.repeat(max(len(bound) for *_, bound in own), 1, 1)
    for row, place, bound in own:
        column = table[:, row, place]
        (torch.minimum if place % 2 else torch.maximum)(column, bound.to(device), out=column)
    return table


def _nothing(device: torch.device) -> Tensor:
    """Stands for what is not there, and is not read."""
    found: Tensor = reused("nothing", device, lambda: torch.zeros(1, dtype=torch.int32, device=device))
    return found


def _marked(found: list[Term], kind: str) -> int:
    return sum(1 << number for number, term in enumerate(found) if getattr(term, kind) is not None)


def strides(tensor: Tensor) -> tuple[int, ...]:
    """Its strides, with 0 for an axis of 1, which serves all."""
    return tuple(0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
