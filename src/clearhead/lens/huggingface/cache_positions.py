"""A forward pass that is under way: what its cache holds, and where its queries and keys stand in the document."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.huggingface.arguments import Masks
from clearhead.lens.huggingface.cache_events import Room


class Attention(NamedTuple):
    """What is known of an attention module beforehand."""

    name: str
    cross: bool
    grows: bool  # with a cache, if there is one
    out: Tensor | None  # the weight that merges its heads


class Growth:
    """Stands for a call that goes on as long as a cache grows from one forward pass to the next."""

    def __init__(self, cache: Any, length: int) -> None:
        self.cache, self.length = weakref.ref(cache), length
        self.counts: Counter[str] = Counter()  # of attentions that have no part in it


class Frame:
    """A forward pass that is under way: of the whole model, or of a model in it."""

    def __init__(
        self, module: nn.Module, cache: Any = None, rooms: dict[int, Room] | None = None, around: Frame | None = None
    ) -> None:
        self.module = module
        inherited = around if cache is None else None
        self.cache: Any = cache if inherited is None else inherited.cache
        self.rooms: dict[int, Room] = rooms or {} if inherited is None else inherited.rooms
        self.masks: Masks = {} if around is None else around.masks
        self.counts: Counter[str] = Counter() if around is None else around.counts
        self.growth: Growth | None = None if around is None else around.growth
        self.reads: bool = around is not None and around.reads  # tokens that are known, it or what is around it
        self.read: dict[str, Tensor | None] = {} if around is None else around.read  # by models in a wrapper

    @property
    def length(self) -> int:
        return longest(self.rooms)

    def place(self, layer: int | None, queries: int, keys: int, known: Attention) -> tuple[int, int, int]:
        """The document positions of the first query and the first key, and how many keys are real.

        A cache that slides hands over only its last keys, a static one also its empty slots.
        """
        room = self.rooms.get(-1 if layer is None else layer, Room())
        if not room.length and keys > queries:  # a layer may look at the keys of another
            filled = (one for one in self.rooms.values() if one.length or not self.length)
            others = (one for one in filled if one.explains(queries, keys))
            room = next(others, room._replace(length=self.length))
        if known.cross:
            return room.length, 0, keys
        if self.cache is None or layer is None or (room.length and keys == queries):
            return max(0, keys - queries) if known.grows else 0, 0, keys
        total = room.length + queries
        if room.explains(queries, keys):
            return room.length, max(0, total - keys), min(keys, total)
        if room.length and known.grows:
            raise LensError(
                f"{known.name!r} looks at {keys} keys where its cache holds {room.length} and {queries} come in: at "
                "another sequence, too, or at summaries. It can be watched in one pass, but not while it generates"
            )
        return 0, 0, keys


def longest(held: Mapping[int, Room]) -> int:
    """How many tokens the layers of a cache have seen."""
    return max((room.length for room in held.values()), default=0)
