"""Which beams generate() completes: what they saw is to stay in a record, while the search goes on without them.

A cache tells who goes on, not who is done. The search knows, at every step, right before it moves the cache; so what
is put before its method there is on the class, as with caches, and serves all who listen. The method is one that
transformers keeps to itself: where it is missing or has changed, beams that are done leave the record as others do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from clearhead.lens.eyes import lock

METHOD = "_update_finished_beams"
Hear = Callable[[frozenset[int]], None]
_hearing: tuple[Hear, ...] = ()


@contextmanager
def completed(hear: Hear) -> Iterator[None]:
    """Within it `hear` is told, at every step of a beam search, the rows in which beams were completed."""
    from transformers.generation.utils import GenerationMixin

    _listen(GenerationMixin, hear)
    try:
        yield
    finally:
        _leave(GenerationMixin, hear)


def _listen(mixin: Any, hear: Hear) -> None:
    global _hearing
    with lock:
        if not _hearing and hasattr(mixin, METHOD):
            setattr(mixin, METHOD, _telling(getattr(mixin, METHOD)))
        _hearing = (*_hearing, hear)


def _leave(mixin: Any, hear: Hear) -> None:
    global _hearing
    with lock:
        _hearing = tuple(one for one in _hearing if one is not hear)
        if not _hearing and hasattr(mixin, METHOD):
            setattr(mixin, METHOD, getattr(mixin, METHOD).__wrapped__)


def _telling(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def update(*args: Any, **kwargs: Any) -> Any:
        result = own(*args, **kwargs)
        found = _rows(result, **kwargs)
        for hear in _hearing:
            hear(found)
        return result

    return update


def _rows(result: Any, *, cur_len: int | None = None, decoder_prompt_len: int = 0, **_: Any) -> frozenset[int]:
    """Of the best so far it has the row of each at every step, −1 after its last; and which of them are complete."""
    if cur_len is None or not isinstance(result, tuple) or len(result) != 4:
        return frozenset()
    _, _, beams, complete = result
    rows = beams[..., cur_len - decoder_prompt_len]
    return frozenset(rows.masked_fill(~complete, -1).flatten().tolist()) - {-1}
