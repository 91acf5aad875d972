"""Batch plans: examples of similar length grouped by a token budget, the same list in all processes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import DataError

if TYPE_CHECKING:
    from typing import Self

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Indices of examples, and the padded length of each side (source, target)."""

    examples: Whole
    sizes: tuple[int, ...]

    def part(self, rank: int, processes: int) -> Batch:
        """The share of one of several processes; empty if there are fewer examples than processes."""
        return Batch(self.examples[rank::processes], self.sizes)


class BatchPlan:
    """The batches of every epoch: examples of similar length, at most `tokens` tokens (all sides, with padding) each.

    `lengths` is (examples, sides). The plan of an epoch follows from `seed` and its number alone. Every epoch has
    the same number of batches and the same few shapes (at most 2 · `shapes`): a position in training is one
    integer, and torch.compile sees few shapes. An example longer than the budget is a batch by itself.

    >>> plan = BatchPlan(np.array([[3, 4], [9, 7], [4, 4], [8, 8]]), tokens=16, seed=0)
    >>> [(batch.examples.tolist(), batch.sizes) for batch in plan.epoch(0)]
    [([1], (9, 7)), ([0, 2], (4, 4)), ([3], (8, 8))]
    """

    def __init__(self, lengths: Whole, *, tokens: int, seed: int, shapes: int = 16) -> None:
        assert lengths.ndim == 2, f"lengths must be (examples, sides), got shape {lengths.shape}"
        if len(lengths) == 0:
            raise DataError("there are no examples to train on")
        self.seed = seed
        self.buckets = _make_buckets(lengths, shapes)
        self.rows = [max(1, tokens // sum(sizes)) for _, sizes in self.buckets]
        self.batches = sum(-(-len(members) // rows) for (members, _), rows in zip(self.buckets, self.rows, strict=True))

    def epoch(self, number: int) -> list[Batch]:
        """All batches of one epoch, in the order in which they are trained on."""
        chance = np.random.default_rng([self.seed, number])
        batches = []
        for (members, sizes), rows in zip(self.buckets, self.rows, strict=True):
            # Evenly, not all full and one with the rest: a step on three sentences would be noise.
            mixed, count = chance.permutation(members), -(-len(members) // rows)
            batches += [Batch(part, sizes) for part in np.array_split(mixed, count)]
        return [batches[number] for number in chance.permutation(len(batches))]


class Ragged:
    """Sequences of different lengths in one flat tensor, from which padded batches are gathered on its device.

    >>> Ragged([[5, 6], [7, 8, 9]]).pad(torch.tensor([1, 0]), size=4, fill=0)
    (tensor([[7, 8, 9, 0],
            [5, 6, 0, 0]]), tensor([3, 2]))
    """

    content: ClassVar[tuple[str, ...]] = ("flat", "lengths")  # attributes that hold the sequences

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        # One more element: the padding of an empty data set indexes it.
        flat = np.fromiter(chain(chain.from_iterable(sequences), [0]), np.int32, int(lengths.sum()) + 1)
        self.flat, self.lengths = torch.from_numpy(flat), torch.from_numpy(lengths)
        self.starts = self.lengths.cumsum(0) - self.lengths

    @classmethod
    def from_flat(cls, flat: Int[Tensor, " tokens"], lengths: Int[Tensor, " rows"]) -> Ragged:
        """The sequences that lie one after the other in a flat tensor, on its device."""
        made = cls([])
        made.flat = torch.cat([flat, flat.new_zeros(1)])  # one more element, as in __init__
        made.lengths, made.starts = lengths, lengths.cumsum(0) - lengths
        return made

    def to(self, device: torch.device) -> Self:
        for name in (*self.content, "starts"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name in self.content:
            digest.update(getattr(self, name).cpu().numpy().tobytes())
        return digest.hexdigest()

    def pad(
        self, rows: Int[Tensor, " rows"], size: int, fill: int
    ) -> tuple[Int[Tensor, "rows size"], Int[Tensor, " rows"]]:
        """These sequences, padded to `size` with `fill`, and their lengths."""
        lengths, columns = self.lengths[rows], torch.arange(size, device=rows.device)
        inside = columns < lengths[:, None]
        where = torch.where(inside, self.starts[rows][:, None] + columns, 0)
        return torch.where(inside, self.flat[where].long(), fill), lengths


def pad_sequences(sequences: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Padded tokens (sequences, tokens) and the lengths."""
    ragged = Ragged(sequences)
    tokens, lengths = ragged.pad(torch.arange(len(sequences)), int(ragged.lengths.max()), pad)
    return tokens.to(device), lengths.to(device)


def token_batches(lengths: Sequence[int], tokens: int | None, most: int | None = None) -> list[list[int]]:
    """Indices of sequences in batches of similar length, longest first, so that running out of memory comes early.

    A batch has at most `tokens` tokens, pads included, and `most` sequences; None: any number. A sequence of more
    tokens is a batch by itself.

    >>> token_batches([3, 9, 4, 8, 2, 1], 12), token_batches([3, 9, 4, 8], None, 2)
    ([[1], [3], [2, 0, 4], [5]], [[1, 3], [2, 0]])
    """
    batches: list[list[int]] = []
    room = 0  # sequences that fit into the newest batch
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not batches or len(batches[-1]) == room:
            batches.append([])
            fitting = len(lengths) if tokens is None else max(1, tokens // max(1, lengths[index]))
            room = min(fitting, most or len(lengths))
        batches[-1].append(index)
    return batches


def _make_buckets(lengths: Whole, shapes: int) -> list[tuple[Whole, tuple[int, ...]]]:
    """At most `shapes` buckets of examples of similar length, with the padded length of each side.

    Lengths are rounded up first; then, while there are too many buckets, the two whose union costs the fewest
    additional pads become one.
    """
    cells, inverse = np.unique(_round_up(lengths), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    counts = np.bincount(inverse).astype(np.float64)
    joined = np.arange(len(cells))  # the bucket that each cell went to
    sizes = cells.astype(np.float64)
    cost = _merge_costs(sizes, counts, sizes, counts)
    np.fill_diagonal(cost, np.inf)
    for _ in range(len(cells) - shapes):
        union, gone = divmod(int(cost.argmin()), len(cells))
        sizes[union], counts[union] = np.maximum(sizes[union], sizes[gone]), counts[union] + counts[gone]
        joined[joined == gone] = union
        cost[gone], cost[:, gone] = np.inf, np.inf
        fresh = _merge_costs(sizes[union : union + 1], counts[union : union + 1], sizes, counts)[0]
        fresh[np.isinf(cost[union])] = np.inf
        cost[union], cost[:, union] = fresh, fresh
    bucket_of = joined[inverse]
    buckets = []
    for bucket in np.unique(bucket_of):
        members = np.flatnonzero(bucket_of == bucket)
        # The longest example, not the rounded length: less padding, and no more shapes.
        buckets.append((members, tuple(int(size) for size in lengths[members].max(axis=0))))
    return buckets


def _merge_costs(
    sizes: NDArray[np.float64], counts: NDArray[np.float64], others: NDArray[np.float64], their: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The padding that merging two buckets would add, for each pair."""
    joint = np.maximum(sizes[:, None], others[None]).sum(-1)
    grown: NDArray[np.float64] = (joint - sizes.sum(-1)[:, None]) * counts[:, None] + (joint - others.sum(-1)) * their
    return grown


def _round_up(lengths: Whole) -> Whole:
    """Rounds lengths up to a multiple of 2 below 16, of 4 below 32, of 8 below 64, …: at most an eighth more."""
    powers = np.ceil(np.log2(np.maximum(lengths, 16) + 1)).astype(np.int64) - 1
    step = 2 ** np.maximum(powers - 3, 1)
    rounded: Whole = -(-lengths // step) * step
    return rounded
