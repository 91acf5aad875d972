"""watch(model): a context manager that records the attention of a running model, and the checks of its options."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from clearhead.errors import LensError
from clearhead.formatting import format_count
from clearhead.lens import huggingface
from clearhead.lens.attention_names import Heads, Layers, find_attentions, select_heads, select_layers
from clearhead.lens.capture.attachments import clean_copies
from clearhead.lens.capture.collector import Collector
from clearhead.lens.capture.own_models import observe_own_model
from clearhead.lens.capture.watch_settings import (
    AttentionShape,
    MeasureDetail,
    Probe,
    WatchSettings,
    estimate_bytes,
    read_itemsize,
    stay_at_query,
)
from clearhead.lens.measures.definition import MAX_TOP, check_counts
from clearhead.lens.measures.selections import Queries, check_queries, check_spans
from clearhead.lens.record.attention_record import Record

Attach = Callable[[Collector], AbstractContextManager[None]]


@contextmanager
def watch(
    model: nn.Module,
    *,
    layers: Layers = None,
    heads: Heads = None,
    pixels: int = 256,
    top: int = 8,
    rows: float | None = None,
    queries: Queries | int | None = None,
    spans: Mapping[str, slice] | None = None,
    itself: bool = False,
    keep: str = "none",
    probes: Mapping[str, Probe] | None = None,
    norms: bool = False,
    own_thread: bool = False,
) -> Iterator[Record]:
    """A Record that fills while the model runs: one of ours, or one of Hugging Face's.

    The model computes what it would unwatched, bit by bit and with the same kernels.

    - `layers`: names, patterns such as "decoder.*.cross", or numbers; `heads`: numbers. None is all.
    - `rows=1/16` measures one query in sixteen: a sixteenth of the work. Of fewer than sixteen it is the last.
    - `queries=slice(-64, None)` measures only these, a slice or positions in the document, at the cost of these.
      Negative ones count from the last query of each forward pass: decoding steps are among the last 64.
    - `spans={"passage": slice(120, 480)}` records the weight of each query on these keys, as `sight.mass["passage"]`.
      Negative edges count from the last key of the first pass; a span without end grows with the cache.
    - `itself=True` records the weight of each query on the key at its own position, as `sight.itself`.
    - `keep="qk"` keeps q and k, for exact windows of the weights; `expected_bytes` estimates its memory; a
      warning is given if that is more than a quarter of the free memory.
    - `keep="statistics"` keeps only `record.statistics()`, in constant memory over any number of calls: for loops.
    - `probes`: functions from query positions to one key position each (−1: none), whose weights are recorded.
    - `norms=True` measures ‖v W_O‖ of every key, for norm-weighted attention.

    Copies of the model, also by pickle and `torch.save`, are not watched, and hold nothing of the watch.
    A generation with a cache is one call that grows, beams included; a cache that is cropped begins a new one. A call
    whose pass raised has `interrupted`, the exception, and is left out of statistics.
    Watches can be nested. A watch also records what other threads run on the model meanwhile, each pass as a call of
    its own, except for threads that watch the model themselves. With `own_thread=True` it records only passes of the
    thread that it was entered in, as `Predictor.look` does.

    >>> import torch
    >>> from clearhead import Decoder, ModelConfig
    >>> model = Decoder(ModelConfig.named("tiny", vocabulary=11))
    >>> with watch(model, layers="decoder.1.*") as record:
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> record["decoder.1.self"].map.shape
    torch.Size([1, 4, 3, 3])
    """
    (shapes, attach), selections = find_target(model), _check_selections(rows, queries, spans)
    detail = MeasureDetail(pixels, top, _rows_to_step(rows), keep, probes, norms, **selections)
    settings = _check_settings(shapes, layers, heads, detail, itself)._replace(own_thread=own_thread)
    record = Record(settings.layers)
    record.settings = {"heads": settings.heads and list(settings.heads), "pixels": pixels, "top": top, "rows": rows}
    record.settings |= {"keep": keep, "probes": list(settings.detail.probes or {}), "norms": norms}
    record.settings |= _selections_to_json(settings.detail)
    collector = Collector(settings, record, model)
    with collector, attach(collector), clean_copies(model.modules()):
        yield record
    _warn_of_interruptions(collector)
    if not collector.ran:
        raise LensError(
            f"none of the {len(settings.layers)} watched attentions ran"
            f"{' in this thread' if own_thread else ''}. Was another model called, or a copy; were other layers used; "
            "was a CUDA graph replayed?"
        )


def _warn_of_interruptions(collector: Collector) -> None:
    """Says which calls are incomplete because their forward pass raised, and the watch went on."""
    if not collector.interruptions:
        return
    passes = format_count(collector.interruptions.total(), "forward pass", "forward passes")
    calls = [f"record.calls[{n}]" for n, call in enumerate(collector.record.calls) if call.interrupted is not None]
    where = f": {', '.join(calls[:6])}{', …' if len(calls) > 6 else ''}" if calls else ""
    warnings.warn(
        f"{passes} ended in an exception ({'; '.join(list(collector.interruptions)[:3])}); record.statistics() leaves "
        f"out what was recorded until then{where}",
        stacklevel=4,
    )


def expected_bytes(
    model: nn.Module,
    tokens: int,
    *,
    batch: int = 1,
    layers: Layers = None,
    heads: Heads = None,
    pixels: int = 256,
    top: int = 8,
    rows: float | None = None,
    queries: Queries | int | None = None,
    spans: Mapping[str, slice] | None = None,
    keep: str = "none",
) -> int:
    """The bytes that a record of one pass over this number of tokens will take, before anything runs.

    Encoder and decoder are taken to read the same number of tokens. Kept masks and biases that follow no rule are
    squares of numbers, and come on top.
    """
    shapes, _ = find_target(model)
    detail = MeasureDetail(pixels, top, _rows_to_step(rows), keep, **_check_selections(rows, queries, spans))
    settings = _check_settings(shapes, layers, heads, detail)
    check_counts(LensError, tokens=tokens, batch=batch)
    total = 0
    for name in settings.layers:
        shape = shapes[name]
        watched = shape.heads if settings.heads is None else len(settings.heads)
        shape = shape._replace(heads=watched, kv_heads=min(shape.kv_heads, watched))
        total += estimate_bytes(settings.detail, shape, batch, tokens, tokens)
    return total


def find_target(model: nn.Module) -> tuple[dict[str, AttentionShape], Attach]:
    """The attentions of a model by name, and how a collector attaches to them; LensError if there are none.

    Our models are observed directly, Hugging Face's through their attention interface.
    """
    ours = find_attentions(model) if isinstance(model, nn.Module) else {}
    if ours:
        itemsize = read_itemsize(model)
        shapes = {
            name: AttentionShape(attention.heads, attention.kv_heads, attention.head_dim, itemsize)
            for name, attention in ours.items()
        }
        return shapes, lambda collector: observe_own_model(model, ours, collector)
    shapes = huggingface.read_shapes(model) if isinstance(model, nn.Module) else {}
    if shapes:
        return shapes, lambda collector: huggingface.observe_model(model, collector)
    if not isinstance(model, nn.Module) and isinstance(getattr(model, "model", None), nn.Module):
        raise LensError(f"a {type(model).__name__} is no model itself: watch its .model")
    raise LensError(
        f"a {type(model).__name__} cannot be watched: it contains no clearhead MultiHeadAttention, and it is not a "
        "Hugging Face transformers model; convert nn.MultiheadAttention with MultiHeadAttention.from_torch, or call "
        "measure(q, k, mask) on your own tensors"
    )


def _check_settings(
    shapes: Mapping[str, AttentionShape], layers: Layers, heads: Heads, detail: MeasureDetail, itself: bool = False
) -> WatchSettings:
    names = select_layers(layers, list(shapes))
    numbers = None if heads is None else select_heads(heads, {name: shapes[name].heads for name in names})
    check_counts(LensError, pixels=detail.pixels)
    check_counts(LensError, most=MAX_TOP, top=detail.top)
    if detail.keep not in ("none", "qk", "statistics"):
        raise LensError(f"keep must be 'none', 'qk' or 'statistics', got {detail.keep!r}")
    if detail.keep == "statistics":
        details = {"spans": detail.spans, "probes": detail.probes, "norms": detail.norms, "itself": itself}
        if dropped := [f"{name}=" for name, value in details.items() if value]:
            raise LensError(f"keep='statistics' would drop what {', '.join(dropped)} records; watch without keep=")
        detail = detail._replace(pixels=0, top=0)  # which would be dropped
    probes = {} if detail.probes is None else detail.probes
    if not isinstance(probes, Mapping) or not all(callable(probe) for probe in probes.values()):
        raise LensError(
            f"probes must be a dict from names to functions, such as {{'before': lambda i: i - 1}}, got {probes!r}"
        )
    if itself:
        detail = detail._replace(probes={**probes, "itself": stay_at_query})
    return WatchSettings(tuple(names), numbers, detail)


def _check_selections(
    rows: float | None, queries: Queries | int | None, spans: Mapping[str, slice] | None
) -> dict[str, Any]:
    """The fields `queries` and `spans` of MeasureDetail."""
    if rows is not None and queries is not None:
        every = _rows_to_step(rows)
        instead = f"queries=slice({every - 1}, None, {every})"
        raise LensError(f"rows={rows:g} and queries= exclude each other: {instead} is one in {every}")
    return {
        "queries": None if queries is None else check_queries(queries, LensError),
        "spans": None if spans is None else check_spans(spans, LensError),
    }


def _selections_to_json(detail: MeasureDetail) -> dict[str, Any]:
    queries: Any = detail.queries
    if isinstance(queries, slice):
        queries = {"start": queries.start, "stop": queries.stop, "step": queries.step}
    spans = {name: [span.start, span.stop] for name, span in (detail.spans or {}).items()}
    return {"queries": queries, "spans": spans}


def _rows_to_step(rows: float | None) -> int:
    """The step of measured queries: 16 for rows=1/16."""
    if rows is None:
        return 1
    every = round(1 / rows) if isinstance(rows, (int, float)) and 0 < rows <= 1 else 0
    if not every or 1 / every != rows:
        raise LensError(f"rows must be 1/n, such as 1/16 for one query in sixteen, got {rows!r}")
    return every
