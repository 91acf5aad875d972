"""Exact windows of the weights, computed from kept q and k: single weights in float64, or sums of blocks in float32.

With the logsumexp that was measured, a weight is exp(score − logsumexp): a window costs what it holds, however long the
text is. 8,000 × 8,000 tokens are 64 million weights, which are never all in memory at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.attention.tile_scores import TileScorer, VisibleRun
from clearhead.errors import RecordError
from clearhead.lens.attention_names import to_python_number, to_python_numbers
from clearhead.lens.measures.definition import sum_blocks
from clearhead.lens.measures.thread_pool import run_in_threads
from clearhead.lens.record.kept_inputs import KeptInputs, Step

MAX_ROW_SCORES = 2**22  # held at once where a whole row is needed
MAX_TILE_SCORES = 2**19  # held at once where they are summed: they should stay in the processor's cache
MAX_MASKED_WEIGHTS = 2**22  # of a window whose mask is looked at weight by weight
MASK_BLOCK = 128  # queries and keys of a block for which the mask is summarised
LOG2E = math.log2(math.e)

Positions = int | slice | Sequence[int] | Int[Tensor, " positions"] | None  # None is all


class HeadWindows:
    """The weights of one head in one sample, by document position; `index` is that of the head in the tensors."""

    def __init__(self, inputs: KeptInputs, sample: int, index: int) -> None:
        self.inputs, self.sample, self.index = inputs, sample, index
        self.key_index = index // (inputs.q.shape[1] // inputs.k.shape[1])
        scale = inputs.scale.flatten().tolist() if isinstance(inputs.scale, Tensor) else [inputs.scale]
        self.scale: float = scale[index if len(scale) > 1 else 0]
        self._summary: tuple[tuple[int, int], Tensor] | None = None  # of the mask: which blocks show anything

    def weights(self, queries: Positions, keys: Positions) -> Float[Tensor, "queries keys"]:
        """The weights of some queries for some keys, computed in float64."""
        inputs = self.inputs
        rows = _select_positions(queries, inputs.first_query, inputs.q.shape[2], "queries")
        columns = _select_positions(keys, 0, inputs.k.shape[2], "keys")
        window = torch.zeros(len(rows), len(columns), dtype=torch.float64)
        for step, indices in self._split_by_step(rows):
            step_rows = [rows[index] for index in indices]
            scores = self._compute_scores(step, step_rows, columns)
            normaliser = self._compute_logsumexp(step, step_rows)[:, None]
            weights = (scores - normaliser).exp().masked_fill(normaliser == -math.inf, 0.0)
            window[torch.tensor(indices, dtype=torch.long)] = weights
        end = inputs.first_query + int(inputs.lengths[self.sample])
        window[torch.tensor([row >= end for row in rows], dtype=torch.bool)] = 0.0
        return window.to(torch.promote_types(inputs.q.dtype, torch.float32))

    def sums(self, queries: range, keys: range, blocks: tuple[int, int] = (1, 1)) -> Float[Tensor, "rows columns"]:
        """Sums of the weights in blocks from the first query and the first key on; the last block may be short.

        Fast where one mask and bias hold for all queries and all were measured, otherwise from `weights`.
        """
        height, width = (max(1, min(block, len(part))) for block, part in zip(blocks, (queries, keys), strict=True))
        sums = torch.zeros(-(-len(queries) // height), -(-len(keys) // width))
        fast = len(self.inputs.parts) == 1 and self.inputs.logsumexp is not None
        tallest = 2048 if fast else MAX_TILE_SCORES
        rows_together = max(1, min(tallest, MAX_TILE_SCORES // max(1, len(keys))) // height) * height

        def add_rows(start: int) -> None:
            rows, first = queries[start : start + rows_together], start // height
            if not fast:
                weights = self.weights(slice(rows.start, rows.stop), slice(keys.start, keys.stop))
                part = sum_blocks(sum_blocks(weights, height, 0), width, 1)
                sums[first : first + len(part)] = part
                return
            columns, weights = self._compute_tile(rows, keys)
            if columns:
                inset = columns.start - keys.start
                part = sum_blocks(weights, height, 0) if height > 1 else weights
                if width > 1:
                    part = F.pad(part, (inset % width, 0))
                    part = F.pad(part, (0, -part.shape[1] % width)).unflatten(1, (-1, width)).sum(2)
                left = inset // width
                sums[first : first + len(part), left : left + part.shape[1]] = part

        starts = range(0, len(queries), rows_together)
        if fast:
            run_in_threads(add_rows, starts)
        else:
            for start in starts:
                add_rows(start)
        return sums

    def find_hidden_blocks(
        self, queries: range, keys: range, blocks: tuple[int, int] = (1, 1)
    ) -> Bool[Tensor, "rows columns"] | None:
        """The blocks whose keys the mask, or a bias of −inf, hides from all of their queries; None if none are hidden.

        Blocks are those of `sums`. Large ones count as hidden only where the mask itself says so, without its weights.
        """
        inputs = self.inputs
        bare = len(inputs.parts) == 1 and inputs.parts[0].mask is None and inputs.parts[0].bias is None
        if bare and int(inputs.lengths[self.sample]) >= inputs.q.shape[2]:
            return None
        if len(queries) * len(keys) > MAX_MASKED_WEIGHTS:
            return self._find_hidden_from_afar(queries, keys, blocks)
        hidden = torch.ones(len(queries), len(keys), dtype=torch.bool)
        for step, indices in self._split_by_step(queries):
            rows = [queries[index] for index in indices]
            scores = self._score(step, torch.zeros(len(rows), len(keys)), rows, keys)
            hidden[torch.tensor(indices, dtype=torch.long)] = scores == -math.inf
        hidden[max(0, inputs.first_query + int(inputs.lengths[self.sample]) - queries.start) :] = True
        if blocks == (1, 1) or not hidden.numel():
            return hidden
        height, width = (min(block, size) for block, size in zip(blocks, hidden.shape, strict=True))
        return F.max_pool2d((~hidden).float()[None], (height, width), ceil_mode=True)[0] == 0

    def _find_hidden_from_afar(
        self, queries: range, keys: range, blocks: tuple[int, int]
    ) -> Bool[Tensor, "rows columns"] | None:
        """The same from the mask's own summary of its blocks."""
        step = self.inputs.parts[0]
        starts = (queries.start - step.first_query, keys.start - step.first_key)
        aligned = all(start >= 0 and start % block == 0 for start, block in zip(starts, blocks, strict=True))
        cells = math.prod(-(-count // block) for count, block in zip((step.queries, step.keys), blocks, strict=True))
        if len(self.inputs.parts) > 1 or step.mask is None or not aligned or cells > 4 * MAX_ROW_SCORES:
            return None
        if self._summary is None or self._summary[0] != blocks:
            self._summary = (blocks, self._select_head(step.mask.blocks(step.queries, step.keys, *blocks)[0]))
        rows, columns = (
            range(start // block, -(-(start + len(part)) // block))
            for start, part, block in zip(starts, (queries, keys), blocks, strict=True)
        )
        return ~_select_blocks(self._summary[1], rows, columns).expand(len(rows), -1)

    def _split_by_step(self, rows: Sequence[int]) -> Iterator[tuple[Step, list[int]]]:
        """The steps that contain these queries, each with the indices of its queries among them."""
        low, high = (min(rows), max(rows)) if rows else (0, -1)
        for step in self.inputs.parts:
            if low < step.rows.stop and step.rows.start <= high:
                indices = [index for index, row in enumerate(rows) if row in step.rows]
                if indices:
                    yield step, indices

    def _compute_scores(self, step: Step, rows: Sequence[int], columns: Sequence[int]) -> Float[Tensor, "queries keys"]:
        """cap(q·k·scale) + bias in float64; −inf for what is hidden."""
        inputs = self.inputs
        i, j = (torch.tensor(list(numbers), dtype=torch.long) for numbers in (rows, columns))
        q = inputs.q[self.sample, self.index, i - inputs.first_query].double()
        return self._score(step, q @ inputs.k[self.sample, self.key_index, j].double().T * self.scale, rows, columns)

    def _score(
        self, step: Step, products: Float[Tensor, "queries keys"], rows: Sequence[int], columns: Sequence[int]
    ) -> Float[Tensor, "queries keys"]:
        """cap(products) + bias; −inf for what is hidden."""
        i, j = (torch.tensor(list(numbers), dtype=torch.long) for numbers in (rows, columns))
        b, h = torch.tensor([[self.sample]]), torch.tensor([[self.index]])
        i, j = (i - step.first_query)[:, None], (j - step.first_key)[None, :]
        exists = (j >= 0) & (j < step.keys)
        scorer = TileScorer(self.inputs.softcap, step.bias, step.mask, step.queries, step.keys)
        scores = scorer.score_pairs(products, b, h, i, j.clamp(0, max(step.keys - 1, 0)))
        return scores.masked_fill(~exists, -math.inf)

    def _compute_logsumexp(self, step: Step, rows: Sequence[int]) -> Float[Tensor, " queries"]:
        inputs = self.inputs
        if inputs.logsumexp is not None:
            at = torch.tensor(list(rows), dtype=torch.long) - inputs.first_query
            return inputs.logsumexp[self.sample, self.index, at].double()
        parts, rows_together = [], max(1, MAX_ROW_SCORES // max(1, inputs.k.shape[2]))
        for start in range(0, len(rows), rows_together):
            scores = self._compute_scores(step, rows[start : start + rows_together], range(inputs.k.shape[2]))
            blind = (scores == -math.inf).all(-1)
            if inputs.sinks is not None:
                scores = torch.cat([scores, inputs.sinks[self.index].double().expand(len(scores), 1)], -1)
            parts.append(scores.logsumexp(-1).masked_fill(blind, -math.inf))
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    @cached_property
    def _prepared(self) -> list[Tensor]:
        """q, k and logsumexp of the head in float32 or better."""
        inputs, dtype = self.inputs, torch.promote_types(self.inputs.q.dtype, torch.float32)
        assert inputs.logsumexp is not None
        q, logsumexp = inputs.q[self.sample, self.index], inputs.logsumexp[self.sample, self.index]
        return [tensor.to(dtype) for tensor in (q, inputs.k[self.sample, self.key_index], logsumexp)]

    @cached_property
    def _visible_blocks(self) -> list[Bool[Tensor, "rows columns"]]:
        """Which blocks of the mask have any visible key, and which have no hidden one; [] without a mask."""
        step = self.inputs.parts[0]
        blocks = () if step.mask is None else step.mask.blocks(step.queries, step.keys, MASK_BLOCK, MASK_BLOCK)
        return [self._select_head(block) for block in blocks]

    def _compute_tile(self, rows: range, keys: range) -> tuple[range, Tensor]:
        """The span of these keys that these queries may see, and the weights in it."""
        inputs, step, (q, k, logsumexp) = self.inputs, self.inputs.parts[0], self._prepared
        step_rows = slice(rows.start - step.first_query, rows.stop - step.first_query)
        columns, partial = self._find_visible(step_rows, range(keys.start - step.first_key, keys.stop - step.first_key))
        if not columns:
            return range(0), q[:0]
        logsumexp = logsumexp[step_rows]
        q = q[step_rows] * self.scale
        k = k[columns.start + step.first_key : columns.stop + step.first_key]
        if inputs.softcap is None and step.bias is None:
            scores = torch.addmm(logsumexp[:, None] * -LOG2E, q * LOG2E, k.T)
        else:
            scorer = TileScorer(inputs.softcap, step.bias, None, step.queries, step.keys)
            scorer = scorer.select_samples(slice(self.sample, self.sample + 1))
            run, heads = VisibleRun(slice(columns.start, columns.stop), ()), slice(self.index, self.index + 1)
            scores = scorer.score_tile_((q @ k.T)[None, None], step_rows, run, heads)[0, 0]
            scores = scores.sub_(logsumexp[:, None]).mul_(LOG2E)
        weights = scores.exp2_()
        for piece in partial:
            assert step.mask is not None
            visible = self._select_head(step.mask.tile(step_rows, piece, step.queries, step.keys))
            weights[:, piece.start - columns.start : piece.stop - columns.start].masked_fill_(~visible, 0.0)
        length = int(inputs.lengths[self.sample])
        blind = (logsumexp == -math.inf) | (torch.arange(step_rows.start, step_rows.stop) >= length)
        if bool(blind.any()):
            weights[blind] = 0.0
        return range(columns.start + step.first_key, columns.stop + step.first_key), weights

    def _find_visible(self, rows: slice, keys: range) -> tuple[range, list[slice]]:
        """The span of these keys that any of these queries may see, and slices of it that the mask hides in part."""
        keys = range(max(keys.start, 0), min(keys.stop, self.inputs.parts[0].keys))
        if not self._visible_blocks or not keys:
            return keys, []
        any_blocks, all_blocks = self._visible_blocks
        tall, wide = (range(r.start // MASK_BLOCK, -(-r.stop // MASK_BLOCK)) for r in (rows, keys))
        any_visible = _select_blocks(any_blocks, tall, wide).any(0).tolist()
        all_visible = _select_blocks(all_blocks, tall, wide).all(0).tolist()
        seen = [block for block, visible in enumerate(any_visible) if visible]
        if not seen:
            return range(0), []
        edges = [max(keys.start, min(keys.stop, (wide.start + block) * MASK_BLOCK)) for block in range(len(wide) + 1)]
        partial: list[slice] = []
        for block in range(seen[0], seen[-1] + 1):
            if all_visible[block]:
                continue
            if partial and partial[-1].stop == edges[block]:
                partial[-1] = slice(partial[-1].start, edges[block + 1])
            else:
                partial.append(slice(edges[block], edges[block + 1]))
        return range(edges[seen[0]], edges[seen[-1] + 1]), partial

    def _select_head(self, tensor: Tensor) -> Tensor:
        """This sample and head of a tensor whose first two axes may be 1."""
        samples, heads = tensor.shape[:2]
        of_head: Tensor = tensor[self.sample if samples > 1 else 0, self.index if heads > 1 else 0]
        return of_head


def _select_blocks(blocks: Tensor, rows: range, columns: range) -> Tensor:
    """Some rows and columns; an axis of 1 stands for all."""
    blocks = blocks[rows.start : rows.stop] if len(blocks) > 1 else blocks
    blocks = blocks[:, columns.start : columns.stop] if blocks.shape[1] > 1 else blocks
    return blocks.expand(-1, len(columns))


def _select_positions(wanted: Positions, first: int, count: int, what: str) -> Sequence[int]:
    """The positions that a number, a slice or a list selects from `first` on; negative ones count from the end."""
    stop = first + count
    if wanted is None:
        return range(first, stop)
    wanted = to_python_numbers(wanted)
    if isinstance(wanted, slice):
        start, end, step = wanted.indices(stop)
        return range(max(start, first) if step > 0 else start, end if step > 0 else max(end, first - 1), step)
    if isinstance(wanted, Sequence) and not isinstance(wanted, (str, bytes)):
        return [_select_position(number, first, stop, what) for number in wanted]
    position = _select_position(wanted, first, stop, what)
    return range(position, position + 1)


def _select_position(wanted: object, first: int, stop: int, what: str) -> int:
    number = to_python_number(wanted)
    if isinstance(number, bool) or not isinstance(number, int):
        raise RecordError(f"{what} are chosen by a position, a list or a slice of positions, got {wanted!r}")
    position = number + stop if number < 0 else number
    if not first <= position < stop:
        raise RecordError(f"there are {what} at positions {first} to {stop - 1}, not at {number!r}")
    return position
