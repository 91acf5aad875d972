"""Eyes: how an attention is heard by everybody who watches it, also from within a compiled graph.

A compiled model runs no Python of ours; what it keeps is an operator. So there the eye becomes one: it gets q, k, v and
the tensors of mask, bias, scale and sinks, with a few numbers that say how to put them together again. That it writes
to a counter is what keeps a compiler from dropping it.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from clearhead.attention import Seen
from clearhead.lens.capture.spelling import Spelled, read, spelled

Listener = Callable[[Seen], None]

lock = threading.RLock()
_numbers = itertools.count()
_organs: weakref.WeakValueDictionary[int, Organ] = weakref.WeakValueDictionary()
_counter = torch.zeros((), dtype=torch.int64)


Function = TypeVar("Function", bound=Callable[..., Any])


def outside_graphs(reason: str) -> Callable[[Function], Function]:
    """A decorator for a function that torch.compile must not trace: `torch.compiler.disable`, which costs no import.

    That one loads the compiler where it is written, which takes a second or two; this one at the first call.
    """

    def mark(function: Function) -> Function:
        outside: Any = _disable_dynamo(function)
        # As `torch.compiler.disable` marks functions, so that the error of a full graph gives the reason.
        outside._torchdynamo_disable, outside._torchdynamo_disable_msg = True, reason
        outside._torchdynamo_orig_callable = function
        return outside  # type: ignore[no-any-return]

    return mark


class Organ(ABC):
    """Something that a compiled graph can tell what it sees, by a number."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        _organs[self.number] = self

    @abstractmethod
    def receive(self, given: Spelled) -> None: ...

    def __reduce__(self) -> Any:
        return (type(None), ())  # the copy of a model that is being watched is not


class Eye(Organ):
    """The observer of one attention: hands what it sees to whoever listens, and to the observer that was there before.

    One and the same serves every watch of that attention, so that a model is compiled for it only once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.listeners: tuple[Listener, ...] = ()
        self.before: Listener | None = None

    def __call__(self, seen: Seen) -> None:
        if self.before is not None:
            self.before(seen)
        if not torch.compiler.is_compiling():
            self.tell(seen)
        elif seen.cache is not None:
            self._tell_outside(seen)
        else:
            tensors, numbers, floats = spelled(seen)
            torch.ops.clearhead.observe(tensors, [self.number, *numbers], floats, _counter)

    def tell(self, seen: Seen) -> None:
        for listener in self.listeners:
            listener(seen)

    def receive(self, given: Spelled) -> None:
        self.tell(read(given))

    @outside_graphs(
        "an attention with a cache is watched outside of the graph: compile the model without fullgraph=True"
    )
    def _tell_outside(self, seen: Seen) -> None:
        self.tell(seen)


SCHEMA = "(Tensor[] tensors, SymInt[] numbers, float[] floats, Tensor(a!) counter) -> ()"


@torch.library.custom_op(
    "clearhead::observe", mutates_args=("counter",), schema=SCHEMA, tags=(torch.Tag.cudagraph_unsafe,)
)
def observe(tensors: Sequence[Tensor], numbers: Sequence[int], floats: Sequence[float], counter: Tensor) -> None:
    """Tells the organ of this number what a compiled graph sees."""
    organ = _organs.get(numbers[0])
    if organ is not None:
        organ.receive(Spelled(list(tensors), list(numbers[1:]), list(floats)))


@observe.register_fake
def _(tensors: Sequence[Tensor], numbers: Sequence[int], floats: Sequence[float], counter: Tensor) -> None:
    return None


def tell(organ: Organ, given: Spelled) -> None:
    """Tells an organ, from within a compiled graph or outside of it."""
    if torch.compiler.is_compiling():
        torch.ops.clearhead.observe(given.tensors, [organ.number, *given.numbers], given.floats, _counter)
    else:
        organ.receive(given)
