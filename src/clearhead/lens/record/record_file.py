"""A record as one safetensors file: tensors and a JSON header. No pickle; every field is validated on reading.

The header is the value of `clearhead.record` in the file's metadata. Tensors are called "0", "1", …; wherever the
header has a tensor, it has its number. A mask or bias that layers share is there once. `checksums` are the CRC-32 of
all tensors, and `header_checksum`, the last field, is that of the header before it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearhead.attention.biases import Bias, Relative, clipped_distance
from clearhead.attention.masks import LARGEST, Mask, State
from clearhead.errors import ClearheadError, RecordError
from clearhead.lens.measures.definition import Measures
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import Forward, Sight
from clearhead.lens.record.kept_inputs import KeptInputs, Step
from clearhead.lens.record.running_statistics import RunningStatistics
from clearhead.storage import atomic_file, check_format

Store = Callable[[Tensor], int]  # puts a tensor into the file and returns its number
Fetch = Callable[[Any], Tensor]  # the inverse

FORMAT = 1
HEADER = "clearhead.record"  # its name in the metadata
LONGEST = 80_000_000  # bytes of a header: safetensors reads no more than 100 MB
MEASURES = [one.name for one in fields(Measures) if one.default is MISSING]
AXES = {"received": "batch heads keys", "map": "batch heads rows columns"} | dict.fromkeys(
    ("top_keys", "top_weights"), "batch heads queries top"
)
OPTIONAL = {  # measures that may be missing; in files of earlier versions they are
    "visible": "batch any queries",
    "norms": "batch heads keys",
    "max_score": "batch heads",
    "span_mass": "batch heads queries spans",
    "seen_by": "batch some keys",
}
WHOLE = ("peak_key", "top_keys", "visible", "seen_by")
CHECKSUM = ', "header_checksum": '  # begins the last field of a header
SUMS = ("counts", "shifts", "sums", "squares")  # tensors of running statistics
STATE_TENSORS = ("lengths", "ids", "query_ids", "tensor", "slopes", "table")  # fields of masks and biases
DENSE = 2**30  # cells of a mask without a state that may be written out


def write_record(record: Record, path: Path) -> None:
    """Writes the file atomically. An older record is replaced, any other file is refused."""
    if not path.name:
        raise RecordError(f"'{path}' is a folder: a record is saved as a file, such as 'run.record'")
    _refuse_other_file(path)
    tensors: dict[str, Tensor] = {}
    known: dict[int, tuple[int, Tensor]] = {}  # by identity: masks are shared by layers

    def store(tensor: Tensor) -> int:
        if id(tensor) not in known:
            known[id(tensor)] = (len(known), tensor)
            own = tensor.detach().cpu().contiguous()
            tensors[str(known[id(tensor)][0])] = own.clone() if own.data_ptr() == tensor.data_ptr() else own
        return known[id(tensor)][0]

    header = {
        "format": FORMAT,
        "names": record.known,
        "settings": record.settings,
        "expected_bytes": record.expected_bytes,
        "calls": [_call_to_json(call, store) for call in record.calls],
        "running": {name: _running_to_json(running, store) for name, running in record.running.items()},
    }
    header["checksums"] = [compute_checksum(tensors[str(number)]) for number in range(len(tensors))]
    try:
        text = _append_checksum(json.dumps(header))  # ASCII: tokens may hold lone surrogates, which UTF-8 cannot encode
    except (TypeError, ValueError) as error:
        raise RecordError(f"the metadata of a call cannot be written as JSON: {error}") from error
    if len(text) + 90 * len(tensors) > LONGEST:
        raise RecordError(f"{len(record.calls)} calls are too many for one file; save them in parts, and merge those")
    try:
        with atomic_file(path, needs=sum(tensor.nbytes for tensor in tensors.values())) as fresh:
            save_file(tensors, fresh, metadata={HEADER: text})
    except (OSError, SafetensorError) as error:
        raise RecordError(f"{path} cannot be written: {error}") from error


def _refuse_other_file(path: Path) -> None:
    """Raises RecordError if `path` exists and is neither a record nor empty."""
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if f'{{"__metadata__":{{"{HEADER}"'.encode() not in file.read(100):
                raise RecordError(f"{path} exists and is no record; name another file, or remove it first")


def read_record(path: Path) -> Record:
    """Reads a record, or raises RecordError with the reason."""
    try:
        with safe_open(path, "pt") as file:
            header = _read_header(file.metadata())
            names, checksums = set(file.keys()), header.get("checksums")

            def fetch(number: Any) -> Tensor:
                if isinstance(number, bool) or not isinstance(number, int) or str(number) not in names:
                    raise RecordError(f"it has no tensor {number!r:.60}")
                tensor: Tensor = file.get_tensor(str(number))
                if checksums is not None and compute_checksum(tensor) != checksums[number]:
                    raise RecordError(f"its tensor {number} is damaged: the checksum differs")
                return tensor

            return _build_record(header, fetch)
    except (ClearheadError, SafetensorError) as error:
        raise RecordError(f"{path} cannot be read as a record: {error}") from error
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error
        raise RecordError(f"{path} cannot be read: {reason}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError) as error:
        # Whatever a manipulated file causes, the caller gets this one error.
        raise RecordError(f"{path} cannot be read as a record: {type(error).__name__}: {error!s:.200}") from error


def _read_header(metadata: dict[str, str] | None) -> dict[str, Any]:
    if not metadata or HEADER not in metadata:
        raise RecordError("it is a safetensors file, but Record.save did not write it")
    _check_header(metadata[HEADER])
    try:
        header = json.loads(metadata[HEADER])
    except (ValueError, RecursionError) as error:
        raise RecordError(f"its header is not readable JSON ({error!s:.80})") from error
    if not isinstance(header, dict):
        raise RecordError(f"its header must be a JSON object, got a {type(header).__name__}")
    check_format("its header", header.get("format"), FORMAT)
    return header


def compute_checksum(tensor: Shaped[Tensor, "..."]) -> int:
    """The CRC-32 of a tensor's bytes.

    >>> compute_checksum(torch.tensor([1.0, 2.0])), compute_checksum(torch.tensor([1.0, -2.0]))
    (775923062, 3280414294)
    """
    flat = tensor.contiguous().flatten()
    return zlib.crc32(flat.view(torch.uint8).numpy().data) if flat.numel() else 0


def _append_checksum(text: str) -> str:
    """A JSON object, as text, with its CRC-32 as last field."""
    return f"{text[:-1]}{CHECKSUM}{zlib.crc32(text.encode())}}}"


def _check_header(text: str) -> None:
    """Raises RecordError if the checksum of a header differs; older files have none."""
    before, mark, number = text.rpartition(CHECKSUM)
    if mark and number != f"{zlib.crc32(f'{before}}}'.encode())}}}":
        raise RecordError("its header is damaged: the checksum differs")


def _running_to_json(running: RunningStatistics, store: Store) -> dict[str, Any]:
    return {"heads": list(running.heads)} | {name: store(getattr(running, name)) for name in SUMS}


def _build_running(given: Any, fetch: Fetch) -> RunningStatistics:
    running, count = RunningStatistics(), len(read_field(given, "heads", list))
    running.heads = list(_read_numbers(given, "heads", count))
    for name in SUMS:
        tensor, empty = fetch(given.get(name)), getattr(running, name)
        if tensor.dtype != empty.dtype or tensor.shape != (*empty.shape[:-1], count):
            raise RecordError(f"{name} of the statistics is {tensor.dtype} of shape {tuple(tensor.shape)}")
        setattr(running, name, tensor)
    return running


def _call_to_json(call: Forward, store: Store) -> dict[str, Any]:
    return {
        "ids": {kind: store(numbers) for kind, numbers in call.ids.items()},
        "labels": {kind: list(texts.items()) for kind, texts in call.labels.items()},
        "about": call.about,
        "sights": [_sight_to_json(call[name], name, store) for name in call.names],
    }


def _sight_to_json(sight: Sight, name: str, store: Store) -> dict[str, Any]:
    tensors = {name: getattr(sight, name) for name in [*MEASURES, "queries", *OPTIONAL]}
    return {
        "name": name,
        "cross": sight.cross,
        "heads": list(sight.heads),
        "blocks": list(sight.blocks),
        "tokens": sight.tokens,
        "inputs": list(sight.inputs),
        "sharing": sight.sharing,
        "spans": [[name, span.start, span.stop] for name, span in sight.spans.items()],
        "tensors": {name: store(tensor) for name, tensor in tensors.items() if tensor is not None},
        "probes": {name: store(tensor) for name, tensor in sight.probes.items()},
        "kept": None if sight.kept is None else _kept_to_json(sight.kept, store),
    }


def _kept_to_json(kept: KeptInputs, store: Store) -> dict[str, Any]:
    return {
        "q": store(kept.q),
        "k": store(kept.k),
        "scale": kept.scale if isinstance(kept.scale, float) else None,
        "scales": store(kept.scale) if isinstance(kept.scale, Tensor) else None,
        "softcap": kept.softcap,
        "sinks": None if kept.sinks is None else store(kept.sinks),
        "lengths": store(kept.lengths),
        "whole_rows": kept.logsumexp is not None,
        "parts": [
            {
                "first_query": part.first_query,
                "first_key": part.first_key,
                "queries": part.queries,
                "keys": part.keys,
                "mask": None if part.mask is None else _state_to_json(_mask_state(part.mask, part), store),
                "bias": None if part.bias is None else _state_to_json(_bias_state(part.bias, part), store),
            }
            for part in kept.parts
        ],
    }


def _mask_state(mask: Mask, step: Step) -> State:
    """The state of a mask; one of an unknown class is written as dense booleans."""
    state = mask.state()
    if state is None:
        if (mask.batch or 1) * (mask.heads or 1) * step.queries * step.keys > DENSE:
            raise RecordError(f"{mask!r} is too large to be written out; record it with keep='none'")
        state = Mask.visible(mask.dense(step.queries, step.keys).cpu()).state()
    assert state is not None
    return state


def _bias_state(bias: Bias, step: Step) -> State:
    """The state of a bias; bucket functions of an unknown kind are tabulated, one row per distance."""
    state = bias.state()
    if state is None and isinstance(bias, Relative):
        furthest = step.queries + step.keys + abs(bias.offset or 0)
        table = bias.parameter[bias.buckets(torch.arange(-furthest, furthest + 1))]
        state = Relative(table, clipped_distance(furthest), bias.offset).state()
    return {"kind": "dense", "tensor": bias.dense(step.queries, step.keys)} if state is None else state


def _state_to_json(state: State, store: Store) -> dict[str, Any]:
    """A state with tensors replaced by their numbers in the file."""
    found = {}
    for name, value in state.items():
        found[name] = store(value) if isinstance(value, Tensor) else value
        if isinstance(value, list):
            found[name] = [_state_to_json(one, store) for one in value]
    return found


def _state_from_json(given: Any, fetch: Fetch) -> State:
    """The inverse of `_state_to_json`; Mask.from_state and Bias.from_state check the rest."""
    found = dict(given)
    for name, value in found.items():
        if name in STATE_TENSORS and value is not None:
            found[name] = fetch(value)
        elif name == "masks":
            found[name] = [_state_from_json(one, fetch) for one in value]
    return found


def _build_record(header: dict[str, Any], fetch: Fetch) -> Record:
    names = read_field(header, "names", list)
    if not all(isinstance(name, str) for name in names):
        raise RecordError("some names of attentions in it are not strings")
    record = Record(names, [_build_call(given, fetch) for given in read_field(header, "calls", list)])
    record.settings = read_field(header, "settings", dict)
    for name, one in (read_field(header, "running", dict) if "running" in header else {}).items():
        record.running[name] = _build_running(one, fetch)
    record.expected_bytes = read_integer(header, "expected_bytes")
    return record


def _build_call(given: Any, fetch: Fetch) -> Forward:
    ids = {}
    for kind, number in read_field(given, "ids", dict).items():
        ids[kind] = numbers = fetch(number)
        if numbers.dtype != torch.int64 or numbers.ndim != 2:
            raise RecordError(
                f"the tokens of {kind!r:.40} must be int64 with 2 axes, got {numbers.dtype} with {numbers.ndim}"
            )
    call = Forward(ids=ids)
    for kind, texts in read_field(given, "labels", dict).items():
        if not isinstance(texts, list) or not all(_is_label(pair) for pair in texts):
            raise RecordError(f"the texts of {kind!r:.40} are not pairs of a number and a text")
        call.labels[kind] = dict(texts)
    call.about = read_field(given, "about", dict)
    for one in read_field(given, "sights", list):
        sight = _build_sight(one, call, fetch)
        if sight.name in call.sights:
            raise RecordError(f"it contains {sight.name!r:.60} twice")
        call.sights[sight.name] = sight
    return call


def _is_label(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and isinstance(pair[1], str)


def _build_sight(given: Any, call: Forward, fetch: Fetch) -> Sight:
    name, sizes = read_field(given, "name", str), {"1": 1}
    references = read_field(given, "tensors", dict)
    tensors: dict[str, Tensor | None] = {}
    for measure in MEASURES:
        axes = AXES.get(measure, "batch heads queries")
        tensors[measure] = _check_tensor(fetch(references.get(measure)), axes, sizes, measure, measure in WHOLE)
    tensors["queries"] = _check_tensor(fetch(references.get("queries")), "queries", sizes, "queries", True)
    for other, axes in OPTIONAL.items():
        tensors[other] = None
        if other in references:
            tensors[other] = _check_tensor(fetch(references[other]), axes, sizes, other, other in WHOLE)
    spans = _read_spans(given.get("spans", []), sizes.get("spans", 0))
    probes = {
        key: _check_tensor(fetch(number), "batch heads queries", sizes, "a probe", False)
        for key, number in read_field(given, "probes", dict).items()
    }
    heads, inputs = _read_numbers(given, "heads", sizes["heads"]), _read_numbers(given, "inputs", sizes["batch"])
    blocks = _read_numbers(given, "blocks", 2)
    kept = None if given.get("kept") is None else _build_kept(given["kept"], sizes, tensors["logsumexp"], fetch)
    return Sight(
        **tensors,  # type: ignore[arg-type]
        name=name,
        cross=read_field(given, "cross", bool),
        heads=heads,
        blocks=(blocks[0], blocks[1]),
        inputs=inputs,
        sharing=max(1, read_integer({"sharing": 1} | given, "sharing")),
        spans=spans,
        span_names=tuple(spans),
        probes=probes,
        kept=kept,
        tokens=_read_token_count(given, sizes.get("keys", 0)),
        forward=call,
    )


def _read_token_count(given: dict[str, Any], keys: int) -> int | None:
    """How many keys are tokens, if not all are; older files do not say."""
    if given.get("tokens") is None:
        return None
    tokens = read_integer(given, "tokens")
    if not 0 <= tokens <= keys:
        raise RecordError(f"tokens is {tokens}, of {keys} keys")
    return tokens


def _read_spans(given: Any, count: int) -> dict[str, range]:
    """The names and keys of spans; there must be `count` different ones."""
    fits = isinstance(given, list) and all(isinstance(one, list) and len(one) == 3 for one in given)
    if not fits or not all(isinstance(name, str) and type(a) is type(b) is int for name, a, b in given):
        raise RecordError(f"spans must be names with two numbers each, got {given!r:.60}")
    found = {name: range(first, end) for name, first, end in given}
    if len(found) != len(given) or len(found) != count:
        raise RecordError(f"there are {len(found)} spans with different names, and sums of {count}")
    return found


def read_field(given: Any, name: str, kind: type[Any]) -> Any:
    """A value of a JSON object, checked for its type."""
    if not isinstance(given, dict) or not isinstance(given.get(name), kind):
        got = given.get(name) if isinstance(given, dict) else given
        raise RecordError(f"{name} must be a {kind.__name__}, got {got!r:.60}")
    return given[name]


def read_integer(given: Any, name: str) -> int:
    """An integer of a JSON object, within limits."""
    number = read_field(given, name, int)
    if isinstance(number, bool) or abs(number) > LARGEST:
        raise RecordError(f"{name} is {number!r:.60}, which is invalid")
    return int(number)


def _check_tensor(tensor: Tensor, axes: str, sizes: dict[str, int], name: str, whole_numbers: bool) -> Tensor:
    """The tensor, if its dtype and shape agree with those read before."""
    wanted = (torch.int32, torch.int64) if whole_numbers else (torch.float32, torch.float64)
    names = axes.split()
    fits = tensor.dtype in wanted and tensor.ndim == len(names)
    for axis, size in zip(names, tensor.shape, strict=False):
        fits = fits and (axis == "any" or sizes.setdefault(axis, size) == size)
    if not fits:
        raise RecordError(
            f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, which does not match the record's other tensors"
        )
    return tensor


def _read_numbers(given: dict[str, Any], name: str, count: int) -> tuple[int, ...]:
    values = read_field(given, name, list)
    if len(values) != count or not all(type(value) is int and 0 <= value < 2**40 for value in values):
        raise RecordError(f"{name} must be {count} numbers, got {values!r:.60}")
    return tuple(values)


def _build_kept(given: Any, sizes: dict[str, int], logsumexp: Tensor | None, fetch: Fetch) -> KeptInputs:
    q, k, lengths = (fetch(read_field(given, name, int)) for name in ("q", "k", "lengths"))
    batch, heads = sizes["batch"], sizes["heads"]
    fits = q.ndim == k.ndim == 4 and q.is_floating_point() and q.dtype == k.dtype and q.shape[3] == k.shape[3]
    fits = fits and q.shape[:2] == (batch, heads) and k.shape[0] == batch and k.shape[2] <= sizes["keys"]
    if not fits or not k.shape[1] or heads % k.shape[1] or lengths.dtype != torch.int64 or lengths.shape != (batch,):
        raise RecordError(f"q {tuple(q.shape)} and k {tuple(k.shape)} do not match the record's other tensors")
    parts = tuple(_build_step(one, q, k, fetch) for one in read_field(given, "parts", list))
    ends = [part.first_query + part.queries for part in parts]
    if sum(part.queries for part in parts) != q.shape[2] or ends[:-1] != [part.first_query for part in parts[1:]]:
        raise RecordError("the parts of q are not contiguous")
    whole_rows = read_field(given, "whole_rows", bool)
    if whole_rows and (logsumexp is None or logsumexp.shape[2] != q.shape[2]):
        raise RecordError("logsumexp must have one value for each query of q")
    scale, softcap = _read_scale(given, heads, fetch), given.get("softcap")
    sinks = None if given.get("sinks") is None else fetch(given["sinks"])
    if (sinks is not None and (sinks.shape != (heads,) or not sinks.is_floating_point())) or not (
        softcap is None or (isinstance(softcap, (float, int)) and softcap > 0)
    ):
        raise RecordError("its sinks or its softcap are invalid")
    softcap = None if softcap is None else float(softcap)
    return KeptInputs(q, k, scale, softcap, sinks, parts, lengths, logsumexp if whole_rows else None)


def _read_scale(given: Any, heads: int, fetch: Fetch) -> float | Tensor:
    if given.get("scales") is None:
        return float(read_field(given, "scale", float))
    scales = fetch(given["scales"])
    if scales.shape not in ((heads, 1, 1), (1, 1, 1)) or not scales.is_floating_point():
        raise RecordError(f"scales of shape {tuple(scales.shape)} are invalid")
    return scales


def _build_step(given: Any, q: Tensor, k: Tensor, fetch: Fetch) -> Step:
    numbers = [read_integer(given, name) for name in ("first_query", "first_key", "queries", "keys")]
    first_query, first_key, queries, keys = numbers
    if min(numbers) < 0 or queries > q.shape[2] or first_key + keys > k.shape[2]:
        raise RecordError(f"a part of {queries} queries and {keys} keys lies outside of q and k")
    states = [None if given.get(name) is None else _state_from_json(given[name], fetch) for name in ("mask", "bias")]
    mask = None if states[0] is None else Mask.from_state(states[0])
    bias = None if states[1] is None else Bias.from_state(states[1])
    for one in (mask, bias):
        if one is not None:
            one.check(q.shape[0], q.shape[1], queries, keys)
    return Step(first_query, first_key, queries, keys, mask, bias)
