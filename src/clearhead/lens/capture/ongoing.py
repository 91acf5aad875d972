"""Ongoing: a call while it is being watched, with its parts, its tokens and the moves of its samples."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from clearhead.lens.capture.batch_history import Moves, taken
from clearhead.lens.capture.growing_call import Growing
from clearhead.lens.record.attention_views import Forward


class Ongoing(Forward):
    """A call that may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.moves: Moves | None = None  # of what grows with the cache
        self.cache: Callable[[], object | None] | None = None
        self._waiting: list[tuple[Tensor, bool, Collection[int]]] = []  # moves after which no query came yet
        self._tokens: dict[str, list[tuple[int, int, Tensor]]] = {}  # time, position, numbers

    def bind(self, cache: object) -> None:
        """The call goes on when this cache does; one of ours tells when its samples move."""
        self.cache = weakref.ref(cache)
        if hasattr(cache, "followers"):
            cache.followers.append(self.moved)

    def moved(self, rows: Sequence[int] | Tensor, done: bool = False, finished: Collection[int] = ()) -> None:
        """Sample n is now what rows[n] was; with `done` an input without samples is done, not forgotten.

        What was in the rows of `finished` stays in the record. Nothing moves before the next query: who searches with
        beams moves them once more after the last one, and would take away those that were just completed.
        """
        if self.moves is not None:
            with torch.inference_mode(False):  # whose tensors could not be changed later
                self._waiting.append((torch.as_tensor(rows).clone(), done, finished))

    def settle(self) -> None:
        """A query comes: the samples take the places that they were told."""
        for rows, done, finished in self._waiting:
            assert self.moves is not None
            with torch.inference_mode(False):
                gone = len(self.moves.gone)
                move = self.moves.add(rows, done=done, finished=finished)
                for part in self.sights.values():
                    if isinstance(part, Growing) and part.moves is self.moves:
                        part.moved(move, gone)
        self._waiting.clear()

    def add_ids(self, kind: str, numbers: Tensor, position: int) -> None:
        """Token numbers that went in, the first of them at this position."""
        time = 0 if self.moves is None else self.moves.time
        pieces = self._tokens.setdefault(kind, [])
        if kind == "source":
            pieces.clear()
        if not pieces or position >= pieces[-1][1] + pieces[-1][2].shape[1]:
            pieces.append((time, position, numbers.detach().to("cpu", torch.long, copy=True)))

    def forget_ids(self, kind: str) -> None:
        self._tokens.pop(kind, None)

    def inherit(self, other: Ongoing, position: int) -> None:
        """Takes over the tokens before a position, of a call on the same cache that was cropped there."""
        for kind, numbers in other.ids.items():
            self.add_ids(kind, numbers if kind == "source" else numbers[:, :position], 0)

    @property
    def ids(self) -> dict[str, Tensor]:
        return {kind: self._text(pieces, kind != "source") for kind, pieces in self._tokens.items()} | self._ids

    def _text(self, pieces: list[tuple[int, int, Tensor]], moves: bool) -> Tensor:
        found: list[Tensor] = []
        end = 0
        for time, position, numbers in pieces:
            if moves and self.moves is not None:
                numbers = taken(numbers, self.moves.paths(time), -1)
            found.append(torch.nn.functional.pad(numbers, (position - end, 0), value=-1))
            end = position + numbers.shape[1]
        return torch.cat(found, 1)

    @torch.inference_mode(False)
    def close(self) -> None:
        """Nothing more is coming: what was seen so far is put together, and the cache let go."""
        self.release()
        self._ids = self.ids
        # A part without pieces is one whose measuring failed.
        self.sights = {name: self[name] for name, part in self.sights.items() if getattr(part, "pieces", True)}
        self.moves, self._tokens, self._waiting = None, {}, []

    def release(self) -> None:
        """Follows its cache no more."""
        cache = None if self.cache is None else self.cache()
        if cache is not None and hasattr(cache, "followers"):
            cache.followers.remove(self.moved)
        self.cache = None
