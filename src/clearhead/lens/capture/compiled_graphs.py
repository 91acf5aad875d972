"""Observers that also work inside a compiled graph: a custom operator carries each attention call out of it.

torch.compile keeps no Python callback, but it keeps an operator. The operator gets q, k, v and the tensors of mask,
bias, scale and sinks, with integers that say how to rebuild the call, and the id of its receiver. It is declared to
write to a counter so that the compiler does not drop it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from clearhead.attention import Seen
from clearhead.attention.biases import Bias
from clearhead.attention.masks import Mask
from clearhead.errors import LensError

NONE, TENSOR, BOOLEAN, INTEGER, FLOAT, TEXT, LIST, DICT = range(8)


class EncodedCall(NamedTuple):
    """Values as the tensors, integers and floats that a custom operator takes; `numbers` also encodes their types."""

    tensors: list[Tensor]
    numbers: list[int]
    floats: list[float]


def encode_values(value: Any, into: EncodedCall | None = None) -> EncodedCall:
    """None, tensors, numbers, texts, and lists and dictionaries of these, as tensors, integers and floats.

    torch.compile traces it, so it is kept simple.
    """
    into = EncodedCall([], [], []) if into is None else into
    if value is None:
        into.numbers.append(NONE)
    elif isinstance(value, Tensor):
        into.numbers.append(TENSOR)
        into.tensors.append(value.detach())
    elif isinstance(value, bool):
        into.numbers.extend([BOOLEAN, int(value)])
    elif isinstance(value, int):
        into.numbers.extend([INTEGER, value])
    elif isinstance(value, float):
        into.numbers.append(FLOAT)
        into.floats.append(value)
    elif isinstance(value, str):
        into.numbers.extend([TEXT, len(value), *[ord(letter) for letter in value]])
    elif isinstance(value, (list, tuple)):
        into.numbers.extend([LIST, len(value)])
        for element in value:
            encode_values(element, into)
    else:
        into.numbers.extend([DICT, len(value)])
        for name, element in value.items():
            encode_values(name, into)
            encode_values(element, into)
    return into


def decode_values(encoded: EncodedCall) -> list[Any]:
    """The inverse of `encode_values`; tensors come back detached.

    >>> decode_values(encode_values([None, 2, 0.5, {"side": "left", "sizes": [3, True]}]))
    [None, 2, 0.5, {'side': 'left', 'sizes': [3, True]}]
    """
    values: list[Any] = _decode_value(iter(encoded.tensors), iter(encoded.numbers), iter(encoded.floats))
    return values


def encode_seen(seen: Seen) -> EncodedCall:
    """An attention call without its cache, for the operator."""
    states = []
    for part in (seen.mask, seen.bias):
        states.append(None if part is None else part.state())
        if part is not None and states[-1] is None:
            raise LensError(
                f"a compiled model cannot be watched with {part!r}, only with built-in masks, biases and "
                "bucket functions; watch the model without torch.compile"
            )
    mask, bias = states
    q, k, v, *_ = seen
    return encode_values([q, k, v, mask, seen.scale, bias, seen.softcap, seen.sinks, seen.logsumexp, seen.cross])


def decode_seen(encoded: EncodedCall) -> Seen:
    """The inverse of `encode_seen`."""
    q, k, v, mask, scale, bias, softcap, sinks, logsumexp, cross = decode_values(encoded)
    mask = None if mask is None else Mask.from_state(mask)
    bias = None if bias is None else Bias.from_state(bias)
    return Seen(q, k, v, mask, scale, bias, softcap, sinks, logsumexp, cross=cross)


def _decode_value(tensors: Iterator[Tensor], numbers: Iterator[int], floats: Iterator[float]) -> Any:
    kind = next(numbers)
    if kind == NONE:
        return None
    if kind == TENSOR:
        return next(tensors)
    if kind == FLOAT:
        return next(floats)
    number = next(numbers)
    if kind in (BOOLEAN, INTEGER):
        return bool(number) if kind == BOOLEAN else number
    if kind == TEXT:
        return "".join(chr(next(numbers)) for _ in range(number))
    values = [_decode_value(tensors, numbers, floats) for _ in range(number if kind == LIST else 2 * number)]
    return values if kind == LIST else dict(zip(values[::2], values[1::2], strict=True))


Listener = Callable[[Seen], None]

_ids = itertools.count()
_receivers: weakref.WeakValueDictionary[int, GraphReceiver[Any]] = weakref.WeakValueDictionary()
_counter = torch.zeros((), dtype=torch.int64)


Function = TypeVar("Function", bound=Callable[..., Any])


def exclude_from_graphs(reason: str) -> Callable[[Function], Function]:
    """Like `torch.compiler.disable`, without importing the compiler at decoration time.

    That one loads the compiler where it is written, which takes a second or two; this one at the first call.
    """

    def mark(function: Function) -> Function:
        outside: Any = _disable_dynamo(function)
        # As `torch.compiler.disable` marks functions, so that the error of a full graph gives the reason.
        outside._torchdynamo_disable, outside._torchdynamo_disable_msg = True, reason
        outside._torchdynamo_orig_callable = function
        return outside  # type: ignore[no-any-return]

    return mark


def is_recomputing() -> bool:
    """Whether autograd runs backward, so that this forward pass only recomputes a checkpointed layer."""
    return bool(torch._C._current_graph_task_id() != -1)


Value = TypeVar("Value")


class GraphReceiver(Generic[Value]):
    """Passes values to callbacks, also from a compiled graph, which addresses it by an integer id.

    One serves all watches of a module, so that code compiled under the first serves the others.
    """

    def __init__(self, decode: Callable[[EncodedCall], Value]) -> None:
        self.id, self.decode = next(_ids), decode
        self.callbacks: tuple[Callable[[Value], None], ...] = ()
        _receivers[self.id] = self

    def receive(self, encoded: EncodedCall) -> None:
        self.notify(self.decode(encoded))

    def notify(self, value: Value) -> None:
        for callback in self.callbacks:
            callback(value)


class AttentionObserver(GraphReceiver[Seen]):
    """The observer of one attention: calls its callbacks, and the observer that was set before it."""

    def __init__(self) -> None:
        super().__init__(decode_seen)
        self.previous: Listener | None = None

    def __call__(self, seen: Seen) -> None:
        if self.previous is not None:
            self.previous(seen)
        if not torch.compiler.is_compiling():
            self.notify(seen)
        elif seen.cache is not None:
            self._notify_outside_graph(seen)
        else:
            tensors, numbers, floats = encode_seen(seen)
            torch.ops.clearhead.observe(tensors, [self.id, *numbers], floats, _counter)

    @exclude_from_graphs(
        "an attention with a cache is watched outside of the graph: compile the model without fullgraph=True"
    )
    def _notify_outside_graph(self, seen: Seen) -> None:
        self.notify(seen)


SCHEMA = "(Tensor[] tensors, SymInt[] numbers, float[] floats, Tensor(a!) counter) -> ()"


@torch.library.custom_op(
    "clearhead::observe", mutates_args=("counter",), schema=SCHEMA, tags=(torch.Tag.cudagraph_unsafe,)
)
def observe(tensors: Sequence[Tensor], numbers: Sequence[int], floats: Sequence[float], counter: Tensor) -> None:
    """Custom operator: delivers a call from a compiled graph to the receiver with this id."""
    receiver = _receivers.get(numbers[0])
    if receiver is not None:
        receiver.receive(EncodedCall(list(tensors), list(numbers[1:]), list(floats)))


@observe.register_fake
def _(tensors: Sequence[Tensor], numbers: Sequence[int], floats: Sequence[float], counter: Tensor) -> None:
    return None


def send_to_receiver(receiver: GraphReceiver[Any], encoded: EncodedCall) -> None:
    """Delivers a call to a receiver, from inside a compiled graph or outside."""
    if torch.compiler.is_compiling():
        torch.ops.clearhead.observe(encoded.tensors, [receiver.id, *encoded.numbers], encoded.floats, _counter)
    else:
        receiver.receive(encoded)
