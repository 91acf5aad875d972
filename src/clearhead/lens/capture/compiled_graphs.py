"""Observers that also work inside a compiled graph: a custom operator carries each attention call out of it.

torch.compile keeps no Python callback, but it keeps an operator. The operator gets q, k, v and the tensors of mask,
bias, scale and sinks, with integers that say how to rebuild the call, and the id of its receiver. It is declared to
write to a counter so that the compiler does not drop it.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from clearhead.attention import Seen
from clearhead.attention import biases as bias_kinds
from clearhead.attention import mask_kinds as kinds
from clearhead.attention.biases import Bias
from clearhead.attention.masks import Mask
from clearhead.errors import LensError

NONE = -(2**40)  # a number that stands for None
BAND, PREFIX, PADDING, DOCUMENTS, DENSE, BOTH, EITHER = range(1, 8)
ALIBI, RELATIVE, FULL = range(1, 4)
CLIPPED, T5 = range(2)


class EncodedCall(NamedTuple):
    tensors: list[Tensor]
    numbers: list[int]
    floats: list[float]


def encode_call(seen: Seen) -> EncodedCall:
    """Everything except the cache, as tensors, integers and floats. torch.compile traces it, so it is kept simple."""
    tensors, numbers, floats = [seen.q.detach(), seen.k.detach(), seen.v.detach()], [int(seen.cross)], []
    for value in (seen.scale, seen.softcap):
        if isinstance(value, Tensor):
            numbers.append(2)
            tensors.append(value.detach())
        elif value is None:
            numbers.append(0)
        else:
            numbers.append(1)
            floats.append(float(value))
    for tensor in (seen.sinks, seen.logsumexp):
        numbers.append(0 if tensor is None else 1)
        if tensor is not None:
            tensors.append(tensor.detach())
    if seen.mask is None:
        numbers.append(0)
    else:
        _encode_mask(seen.mask, tensors, numbers)
    if seen.bias is None:
        numbers.append(0)
    else:
        _encode_bias(seen.bias, tensors, numbers)
    return EncodedCall(tensors, numbers, floats)


def decode_call(given: EncodedCall) -> Seen:
    """The inverse of the encoder."""
    tensors, numbers, floats = iter(given.tensors), iter(given.numbers), iter(given.floats)
    q, k, v, cross = next(tensors), next(tensors), next(tensors), bool(next(numbers))
    options: list[Any] = []
    for _ in range(2):
        kind = next(numbers)
        options.append(next(tensors) if kind == 2 else next(floats) if kind else None)
    for _ in range(2):
        options.append(next(tensors) if next(numbers) else None)
    scale, softcap, sinks, logsumexp = options
    mask = _decode_mask(tensors, numbers)
    bias = _decode_bias(tensors, numbers)
    return Seen(q, k, v, mask, scale, bias, softcap, sinks, logsumexp, cross=cross)


def _encode_mask(mask: Mask, tensors: list[Tensor], numbers: list[int]) -> None:
    if isinstance(mask, kinds.Band):
        numbers.append(BAND)
        for value in (mask.left, mask.right, mask.offset):
            numbers.append(NONE if value is None else value)
    elif isinstance(mask, kinds.Prefix):
        numbers.append(PREFIX)
        tensors.append(mask.lengths)
    elif isinstance(mask, kinds.Padding):
        numbers.extend([PADDING, int(mask.side == "left"), int(mask.hide_queries)])
        tensors.append(mask.lengths)
    elif isinstance(mask, kinds.Documents):
        numbers.extend([DOCUMENTS, int(mask.query_ids is not None)])
        tensors.extend(mask.tensors())
    elif isinstance(mask, kinds.Dense):
        numbers.append(DENSE)
        tensors.append(mask.seen)
    elif isinstance(mask, (kinds.Both, kinds.Either)):
        numbers.extend([BOTH if isinstance(mask, kinds.Both) else EITHER, len(mask.masks)])
        for part in mask.masks:
            _encode_mask(part, tensors, numbers)
    else:
        raise LensError(f"a compiled model cannot be watched with a mask of your own kind, {type(mask).__name__}")


def _decode_mask(tensors: Iterator[Tensor], numbers: Iterator[int]) -> Mask | None:
    kind = next(numbers)
    if kind == BAND:
        left, right, offset = (None if (value := next(numbers)) == NONE else value for _ in range(3))
        return kinds.Band(left, right, offset)
    if kind == PREFIX:
        return kinds.Prefix(next(tensors))
    if kind == PADDING:
        return kinds.Padding(next(tensors), "left" if next(numbers) else "right", bool(next(numbers)))
    if kind == DOCUMENTS:
        return kinds.Documents(next(tensors), next(tensors) if next(numbers) else None)
    if kind == DENSE:
        return kinds.Dense(next(tensors))
    if kind in (BOTH, EITHER):
        parts = [_decode_mask(tensors, numbers) for _ in range(next(numbers))]
        masks = tuple(part for part in parts if part is not None)
        return kinds.Both(masks) if kind == BOTH else kinds.Either(masks)
    return None


def _encode_bias(bias: Bias, tensors: list[Tensor], numbers: list[int]) -> None:
    tensors.append(bias.parameter.detach())
    offset = NONE if bias.offset is None else bias.offset
    if isinstance(bias, bias_kinds.Alibi):
        numbers.extend([ALIBI, offset])
    elif isinstance(bias, bias_kinds.Relative):
        numbers.extend([RELATIVE, offset])
        _encode_buckets(bias.buckets, numbers)
    elif isinstance(bias, bias_kinds.Dense):
        numbers.append(FULL)
    else:
        raise LensError(f"a compiled model cannot be watched with a bias of your own kind, {type(bias).__name__}")


def _decode_bias(tensors: Iterator[Tensor], numbers: Iterator[int]) -> Bias | None:
    kind = next(numbers)
    if kind == FULL:
        return bias_kinds.Dense(next(tensors))
    if kind not in (ALIBI, RELATIVE):
        return None
    parameter = next(tensors)
    offset = None if (value := next(numbers)) == NONE else value
    if kind == ALIBI:
        return bias_kinds.Alibi(parameter, offset)
    return bias_kinds.Relative(parameter, _decode_buckets(numbers), offset)


def _encode_buckets(buckets: Callable[[Tensor], Tensor], numbers: list[int]) -> None:
    if isinstance(buckets, functools.partial) and buckets.func is bias_kinds._clipped:
        numbers.extend([CLIPPED, buckets.keywords["furthest"]])
    elif isinstance(buckets, functools.partial) and buckets.func is bias_kinds._t5:
        given = buckets.keywords
        numbers.extend([T5, given["count"], given["furthest"], int(given["both_ways"])])
    else:
        raise LensError("a compiled model cannot be watched with buckets of your own; t5_buckets can be")


def _decode_buckets(numbers: Iterator[int]) -> Callable[[Tensor], Tensor]:
    if next(numbers) == CLIPPED:
        return bias_kinds.clipped_distance(next(numbers))
    return bias_kinds.t5_buckets(next(numbers), next(numbers), both_ways=bool(next(numbers)))


Listener = Callable[[Seen], None]

registry_lock = threading.RLock()
_ids = itertools.count()
_receivers: weakref.WeakValueDictionary[int, GraphReceiver] = weakref.WeakValueDictionary()
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


class GraphReceiver(ABC):
    """A receiver that a compiled graph addresses by an integer id."""

    def __init__(self) -> None:
        self.id = next(_ids)
        _receivers[self.id] = self

    @abstractmethod
    def receive(self, given: EncodedCall) -> None: ...

    def __reduce__(self) -> Any:
        return (type(None), ())  # the copy of a model that is being watched is not


class AttentionObserver(GraphReceiver):
    """The observer of one attention: calls its listeners, and the observer that was set before it.

    One and the same serves every watch of that attention, so that a model is compiled for it only once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.listeners: tuple[Listener, ...] = ()
        self.previous: Listener | None = None

    def __call__(self, seen: Seen) -> None:
        if self.previous is not None:
            self.previous(seen)
        if not torch.compiler.is_compiling():
            self.notify(seen)
        elif seen.cache is not None:
            self._notify_outside_graph(seen)
        else:
            tensors, numbers, floats = encode_call(seen)
            torch.ops.clearhead.observe(tensors, [self.id, *numbers], floats, _counter)

    def notify(self, seen: Seen) -> None:
        for listener in self.listeners:
            listener(seen)

    def receive(self, given: EncodedCall) -> None:
        self.notify(decode_call(given))

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


def send_to_receiver(receiver: GraphReceiver, given: EncodedCall) -> None:
    """Delivers a call to a receiver, from inside a compiled graph or outside."""
    if torch.compiler.is_compiling():
        torch.ops.clearhead.observe(given.tensors, [receiver.id, *given.numbers], given.floats, _counter)
    else:
        receiver.receive(given)
