"""Which beams generate() completes: what they saw is to stay in a record, while the search goes on without them.

A cache tells who goes on, not who is done. The search knows, at every step, right before it moves the cache; so what
is put before its method there is on the class, as with caches, and serves all who listen. The method is one that
transformers keeps to itself: where it is missing or has changed, beams that are done leave the record as others do.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from clearhead.lens.capture.compiled_graphs import lock

METHOD = "_update_finished_beams"
Hear = Callable[[frozenset[int]], None]
_hearing: tuple[Hear, ...] = ()
_wrapper: Wrapper | None = None  # of the method, while anybody listens


@contextmanager
def completed(hear: Hear) -> Iterator[None]:
    """Within it `hear` is told, at every step of a beam search, the rows in which beams were completed."""
    from transformers.generation.utils import GenerationMixin

    _listen(GenerationMixin, hear)
    try:
        yield
    finally:
        _leave(hear)


def _listen(mixin: type, hear: Hear) -> None:
    global _hearing, _wrapper
    with lock:
        if not _hearing and isinstance(inspect.getattr_static(mixin, METHOD, None), FunctionType):
            _wrapper = Wrapper(mixin)
        _hearing = (*_hearing, hear)


def _leave(hear: Hear) -> None:
    global _hearing, _wrapper
    with lock:
        _hearing = tuple(one for one in _hearing if one is not hear)
        if not _hearing and _wrapper is not None:
            _wrapper.restore()
            _wrapper = None


class Wrapper:
    """The method of a class, wrapped from now on until `restore`: it tells those who listen what it returns."""

    def __init__(self, owner: type) -> None:
        self.owner, self.inherited = owner, METHOD not in vars(owner)
        self.own: Callable[..., Any] = inspect.getattr_static(owner, METHOD)
        self.put = self._telling()
        setattr(owner, METHOD, self.put)

    def restore(self) -> None:
        """As it was found. What somebody else has put there meanwhile stays, and may go on calling the wrapper."""
        if vars(self.owner).get(METHOD) is not self.put:
            return
        if self.inherited:
            delattr(self.owner, METHOD)
        else:
            setattr(self.owner, METHOD, self.own)

    def _telling(self) -> Callable[..., Any]:
        @functools.wraps(self.own)
        def update(*args: Any, **kwargs: Any) -> Any:
            result = self.own(*args, **kwargs)
            if _wrapper is self:
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
