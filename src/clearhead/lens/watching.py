"""watch(model): sees what every head of a model looks at, while the model runs as it always does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from fractions import Fraction

from torch import nn

from clearhead.errors import LensError
from clearhead.lens.collecting import Collector, Settings
from clearhead.lens.growing import Detail, Probe
from clearhead.lens.names import attentions, check_heads, check_name
from clearhead.lens.own import listening as ours_listening
from clearhead.lens.record import Record


@contextmanager
def watch(
    model: nn.Module,
    *,
    layers: str | int | Sequence[str | int] | None = None,
    heads: int | Sequence[int] | None = None,
    pixels: int = 256,
    top: int = 8,
    rows: float | None = None,
    keep: str = "none",
    probes: Mapping[str, Probe] | None = None,
    norms: bool = False,
) -> Iterator[Record]:
    """A Record that fills while the model runs inside; of our models, and of Hugging Face's.

    The model computes exactly what it would unwatched, with the same kernels.
    """
    counts, listen = _route(model)
    chosen = _layers(layers, list(counts))
    numbers = (heads,) if isinstance(heads, int) else None if heads is None else tuple(heads)
    for name in chosen if numbers is not None else ():
        check_heads(name, numbers or (), counts[name])
    detail = Detail(pixels, top, _every(rows), keep, probes, norms)
    record = Record(chosen)
    collector = Collector(Settings(tuple(chosen), numbers, detail), record, chosen, model)
    with collector, listen(collector):
        yield record
    if not record.calls:
        raise LensError("nothing was seen: the model did not run while it was watched")


def _route(model: nn.Module) -> tuple[dict[str, int], Callable[[Collector], AbstractContextManager[None]]]:
    """How many heads each attention has, and how to listen to them.

    clearhead.lens.huggingface offers the same two: `head_counts(model)`, which refuses a model that cannot be watched,
    and `listening(model, collector)`.
    """
    ours = attentions(model)
    if ours:
        return {name: one.heads for name, one in ours.items()}, lambda collector: ours_listening(model, ours, collector)
    if hasattr(model, "config") and hasattr(model, "set_attn_implementation"):
        from clearhead.lens import huggingface

        return huggingface.head_counts(model), lambda collector: huggingface.listening(model, collector)
    raise LensError(
        f"a {type(model).__name__} cannot be watched: it holds no MultiHeadAttention of clearhead, and it is no model "
        "of Hugging Face's transformers with an attention interface; measure(q, k, mask) works on the tensors of any"
    )


def _layers(layers: str | int | Sequence[str | int] | None, names: list[str]) -> list[str]:
    """The names that were asked for, by name, pattern or number of the layer."""
    if layers is None:
        return names
    wanted = [layers] if isinstance(layers, (str, int)) else list(layers)
    chosen = set()
    for one in wanted:
        if isinstance(one, int):
            found = {name for name in names if re.search(rf"(^|\.){one}(\.|$)", name)}
        else:
            found = {name for name in names if fnmatchcase(name, one)}
        if not found:
            check_name(str(one), names)
        chosen |= found
    return [name for name in names if name in chosen]


def _every(rows: float | None) -> int:
    """1/16 is every 16th."""
    if rows is None:
        return 1
    part = Fraction(rows).limit_denominator(1_000_000) if rows > 0 else Fraction(0)
    if part.numerator != 1 or float(part) != float(rows):
        raise LensError(f"rows must be 1/n, such as 1/16 for one query in sixteen, got {rows!r}")
    return part.denominator
