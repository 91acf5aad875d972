"""PackedDocuments: documents of any length cut and packed into rows of equal length, with next to no padding."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import DataError
from clearhead.text.batches import Ragged

Whole = NDArray[np.int64]
UNCOUNTED = -100  # the label of a place that is not predicted: a pad
SPARE_ROWS = 1.02  # one piece a row, with plain causal attention, takes at most this many times the packed rows


class PackedRows(NamedTuple):
    """A batch of packed rows: tokens, the next token of each, and what keeps documents apart.

    `documents` numbers the pieces of documents, and `positions` count from the beginning of each piece. Where every
    row has a single piece both have no columns: a causal mask is enough.
    """

    tokens: Int[Tensor, "rows context"]
    labels: Int[Tensor, "rows context"]  # UNCOUNTED after the last document of a row
    documents: Int[Tensor, "rows columns"]
    positions: Int[Tensor, "rows columns"]


class _Pieces(NamedTuple):
    """Pieces of documents in the order of their places in the rows, one value for each piece."""

    document: Whole
    order: Whole  # among the pieces of its document
    row: Whole
    column: Whole  # where it begins in its row


class PackedDocuments:
    """Documents as rows of `context` tokens, each of which predicts the next one.

    A document is given with its start and end token; all but the start are predicted, each in exactly one row. One
    of more than `context` predictions is cut into pieces; the others stay whole. Pieces fill the rows by best fit.
    Where that saves next to no rows, as for a few long documents, each piece has a row of its own.

    With a `seed`, `draw_cuts` moves the cuts of long documents, as they follow from seed and epoch; the number of rows
    and of the pieces in them stays the same. Without one, documents are cut from their beginnings on.

    >>> packed = PackedDocuments([[1, 5, 6, 2], [1, 7, 2], [1, 8, 9, 8, 9, 8, 2]], context=5)
    >>> batch = packed.gather(torch.arange(packed.rows))
    >>> batch.tokens
    tensor([[1, 8, 9, 8, 9],
            [1, 5, 6, 1, 7],
            [8, 0, 0, 0, 0]])
    >>> batch.documents, batch.labels[1:]
    (tensor([[0, 0, 0, 0, 0],
            [1, 1, 1, 2, 2],
            [3, 3, 3, 3, 3]]), tensor([[   5,    6,    2,    7,    2],
            [   2, -100, -100, -100, -100]]))
    """

    counts: Whole  # predictions of each row
    _sources: Tensor  # where the tokens of each piece begin
    _lengths: Tensor  # how many predictions it has

    def __init__(
        self, documents: Sequence[Sequence[int]], context: int, *, seed: int | None = None, pad: int = 0
    ) -> None:
        self.seed, self.pad, self.device = seed, pad, torch.device("cpu")
        tokens = Ragged(documents)
        self.flat, self.starts = tokens.flat, tokens.starts.numpy()
        self.predictions = tokens.lengths.numpy() - 1  # of each document
        if len(documents) == 0 or int(self.predictions.min()) < 1:
            raise DataError("every document must have a token to predict after its first, and one at least is needed")
        self.context = min(context, int(self.predictions.sum()))
        fitted, separate = self._fit_pieces(), self._separate_pieces()
        self.packed = len(separate.row) > SPARE_ROWS * (int(fitted.row.max()) + 1)
        self.pieces = fitted if self.packed else separate
        self.rows = int(self.pieces.row.max()) + 1
        self._begins = self._move(self.pieces.row * self.context + self.pieces.column)
        self._cut(self.predictions // self.context if self.packed else np.full_like(self.predictions, self.context))

    def draw_cuts(self, epoch: int) -> None:
        """Cuts long documents at other places, which follow from the seed and the epoch; nothing without a seed."""
        if self.seed is None:
            return
        chance, documents = np.random.default_rng([self.seed, epoch]), len(self.predictions)
        if self.packed:
            self._cut(chance.integers(0, self.predictions // self.context + 1))
        else:
            self._cut(chance.integers(1, self.context + 1, size=documents))

    def gather(self, rows: Int[Tensor, " rows"]) -> PackedRows:
        """These rows, on the device of the data."""
        rows = rows.to(self.device, non_blocking=True)
        columns = torch.arange(self.context, device=self.device)
        if self.packed:
            cells = rows[:, None] * self.context + columns
            piece = torch.searchsorted(self._begins, cells, right=True) - 1
            inside = cells - self._begins[piece]
            documents, positions = piece, inside
        else:
            piece, inside = rows[:, None], columns[None]
            documents = positions = rows.new_empty(len(rows), 0)
        real = inside < self._lengths[piece]
        where = torch.where(real, self._sources[piece] + inside, 0)
        tokens = torch.where(real, self.flat[where].long(), self.pad)
        labels = torch.where(real, self.flat[where + 1].long(), UNCOUNTED)
        return PackedRows(tokens, labels, documents, positions)

    def to(self, device: torch.device) -> PackedDocuments:
        self.device = device
        self.flat, self._begins = self.flat.to(device), self._begins.to(device)
        self._sources, self._lengths = self._sources.to(device), self._lengths.to(device)
        return self

    def first_document(self, row: int) -> int:
        """The number of the first document in a row."""
        return int(self.pieces.document[np.searchsorted(self.pieces.row, row)])

    def fingerprint(self) -> str:
        """A SHA-256 of the documents and of what decides how they are packed."""
        digest = hashlib.sha256(f"{self.context} {self.seed} {self.packed}".encode())
        for part in (self.flat.cpu().numpy(), self.predictions):
            digest.update(part.tobytes())
        return digest.hexdigest()

    def _move(self, values: Whole) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def _cut(self, drawn: Whole) -> None:
        """Sets where each piece begins in the tokens, and its length, from a number drawn for each document.

        Packed, a document is cut into full pieces and one shorter piece: the number says how many full pieces come
        before the shorter one. In rows of their own, the number is the length of the first piece; the next are full.
        """
        context, order = self.context, self.pieces.order
        total, drawn = self.predictions[self.pieces.document], drawn[self.pieces.document]
        if self.packed:
            fulls, rest = total // context, total % context
            begins = np.where(order == fulls, drawn, order) * context
            begins += np.where((order >= drawn) & (order < fulls), rest, 0)
            lengths = np.where(order == fulls, rest, context)
        else:
            first = np.where(total > context, drawn, context)
            begins = np.where(order == 0, 0, first + (order - 1) * context)
            lengths = np.maximum(np.minimum(first + order * context, total) - begins, 0)
        self.counts = np.bincount(self.pieces.row, lengths, minlength=self.rows).astype(np.int64)
        self._sources = self._move(self.starts[self.pieces.document] + begins)
        self._lengths = self._move(lengths)

    def _fit_pieces(self) -> _Pieces:
        """Full pieces in rows of their own, shorter ones packed by best fit."""
        fulls, rests = np.divmod(self.predictions, self.context)
        document, order = _number_members(fulls)
        short = np.flatnonzero(rests)
        row, column = fit_best(rests[short], self.context)
        rows = np.concatenate([np.arange(len(document)), row + len(document)])
        columns = np.concatenate([np.zeros_like(document), column])
        fields = np.concatenate([document, short]), np.concatenate([order, fulls[short]]), rows, columns
        places = np.lexsort((columns, rows))
        return _Pieces(*(field[places] for field in fields))

    def _separate_pieces(self) -> _Pieces:
        """Every piece in a row of its own; where cuts move, with as many rows as the worst cut needs."""
        counts = -(-self.predictions // self.context)
        if self.seed is not None:
            counts = np.where(self.predictions > self.context, self.predictions // self.context + 2, counts)
        document, order = _number_members(counts)
        return _Pieces(document, order, np.arange(len(document)), np.zeros_like(document))


def fit_best(lengths: Whole, capacity: int) -> tuple[Whole, Whole]:
    """The row and the column of each piece, packed into rows by best fit, the longest pieces first.

    A piece goes to the row with the least space that is enough for it.

    >>> rows, columns = fit_best(np.array([2, 4, 3, 1]), 5)
    >>> rows.tolist(), columns.tolist()
    ([1, 0, 1, 0], [3, 0, 0, 4])
    """
    rows, columns, used = np.zeros_like(lengths), np.zeros_like(lengths), 0
    by_space: list[list[int]] = [[] for _ in range(capacity + 1)]  # rows by the space that is left in them
    spaces = 0  # bit n: some row has space for exactly n more
    for piece in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[piece])
        enough = spaces >> length
        if enough:
            space = length + (enough & -enough).bit_length() - 1
            row = by_space[space].pop()
            if not by_space[space]:
                spaces &= ~(1 << space)
        else:
            row, space, used = used, capacity, used + 1
        rows[piece], columns[piece] = row, capacity - space
        if space > length:
            by_space[space - length].append(row)
            spaces |= 1 << (space - length)
    return rows, columns


def _number_members(counts: Whole) -> tuple[Whole, Whole]:
    """For groups of these sizes, member by member: the number of its group, and its own number in the group."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
