"""A record as one safetensors file: tensors and a JSON header. No pickle; every field is validated on reading.

The header is the value of `clearhead.record` in the file's metadata. Tensors are called "0", "1", …; wherever the
header has a tensor, it has its number. A mask or bias that layers share is there once. `checksums` are the CRC-32 of
all tensors, and `header_checksum`, the last field, is that of the header before it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearhead.errors import ClearheadError, RecordError
from clearhead.lens.measures.definition import Measures
from clearhead.lens.record import record_header
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import Forward, Sight
from clearhead.lens.record.call_metadata import CallMetadata
from clearhead.lens.record.record_tables import RunningStatistics
from clearhead.storage import atomic_file, check_format

FORMAT = 1
HEADER = "clearhead.record"  # its name in the metadata
MAX_HEADER_BYTES = 80_000_000  # safetensors reads no more than 100 MB
MEASURES = [field.name for field in fields(Measures) if field.default is MISSING]
TENSORS = (*MEASURES, "queries", "visible", "norms", "max_score", "span_mass", "seen_by")  # of a Sight
OPTIONAL = ("norms", "max_score", "span_mass")
ANNOTATION = re.compile(r"(Float|Int)\[Tensor, '(.*?)'\]")  # the type of a tensor: its kind of number, and its axes
FORMS = {field.name: form.groups() for field in fields(Sight) if (form := ANNOTATION.match(str(field.type)))}
CHECKSUM = ', "header_checksum": '  # begins the last field of a header
SUMS = ("counts", "shifts", "sums", "squares", "max_scores")  # tensors of running statistics


def write_record(record: Record, path: Path) -> None:
    """Writes the file atomically. An older record is replaced, any other file is refused."""
    if not path.name:
        raise RecordError(f"'{path}' is a folder: a record is saved as a file, such as 'run.record'")
    _refuse_other_file(path)
    tensors: dict[str, Tensor] = {}
    numbers: dict[int, tuple[int, Tensor]] = {}  # by identity: masks are shared by layers
    checksums: list[int] = []

    def encode(value: Any) -> Any:
        """The number of a tensor, which goes into the file; the header of anything else."""
        if not isinstance(value, Tensor):
            return record_header.describe_part(value)
        if id(value) not in numbers:
            numbers[id(value)] = (len(numbers), value)
            content = value.detach().cpu().contiguous()
            content = content.clone() if content.data_ptr() == value.data_ptr() else content
            tensors[str(numbers[id(value)][0])] = content
            checksums.append(compute_checksum(content))
        return numbers[id(value)][0]

    header = record_header.select_fields(
        record_header.RecordHeader,
        record,
        format=FORMAT,
        names=record.watched,
        calls=[_call_to_header(call) for call in record.calls],
        running={
            name: {"heads": running.heads, **{name: getattr(running, name) for name in SUMS}}
            for name, running in record.running.items()
        },
        checksums=checksums,  # the last field: `encode` fills it while the others are written
    )
    try:  # ASCII: tokens may hold lone surrogates, which UTF-8 cannot encode
        text = append_checksum(json.dumps(header, default=encode))
    except (TypeError, ValueError) as error:
        raise RecordError(f"the metadata of a call cannot be written as JSON: {error}") from error
    if len(text) + 90 * len(tensors) > MAX_HEADER_BYTES:
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
            names = set(file.keys())

            def fetch(number: Any) -> Tensor:
                if isinstance(number, bool) or not isinstance(number, int) or str(number) not in names:
                    raise RecordError(f"it has no tensor {number!r:.60}")
                tensor: Tensor = file.get_tensor(str(number))
                if compute_checksum(tensor) != header.checksums[number]:
                    raise RecordError(f"its tensor {number} is damaged: the checksum differs")
                return tensor

            record = Record(header.names, [_build_call(call, fetch) for call in header.calls])
            record.settings, record.expected_bytes = header.settings, header.expected_bytes
            record.running = {name: _build_running(running, fetch) for name, running in header.running.items()}
            return record
    except (ClearheadError, SafetensorError) as error:
        raise RecordError(f"{path} cannot be read as a record: {error}") from error
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error
        raise RecordError(f"{path} cannot be read: {reason}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError) as error:
        # Whatever a manipulated file causes, the caller gets this one error.
        raise RecordError(f"{path} cannot be read as a record: {type(error).__name__}: {error!s:.200}") from error


def _read_header(metadata: dict[str, str] | None) -> record_header.RecordHeader:
    if not metadata or HEADER not in metadata:
        raise RecordError("it is a safetensors file, but Record.save did not write it")
    before, _, checksum = metadata[HEADER].rpartition(CHECKSUM)
    if checksum != f"{zlib.crc32(f'{before}}}'.encode())}}}":
        raise RecordError("its header is damaged: the checksum differs")
    try:
        content = json.loads(f"{before}}}")
    except (ValueError, RecursionError) as error:
        raise RecordError(f"its header is not readable JSON ({error!s:.80})") from error
    if not isinstance(content, dict):
        raise RecordError(f"its header must be a JSON object, got a {type(content).__name__}")
    check_format("its header", content.get("format"), FORMAT)
    header: record_header.RecordHeader = record_header.read_as(record_header.RecordHeader, content, "its header")
    return header


def compute_checksum(tensor: Shaped[Tensor, "..."]) -> int:
    """The CRC-32 of a tensor's bytes.

    >>> compute_checksum(torch.tensor([1.0, 2.0])), compute_checksum(torch.tensor([1.0, -2.0]))
    (775923062, 3280414294)
    """
    flat = tensor.contiguous().flatten()
    return zlib.crc32(flat.view(torch.uint8).numpy().data) if flat.numel() else 0


def append_checksum(text: str) -> str:
    """A JSON object, as text, with its CRC-32 as last field.

    >>> append_checksum('{"format": 1}')
    '{"format": 1, "header_checksum": 3795107209}'
    """
    return f"{text[:-1]}{CHECKSUM}{zlib.crc32(text.encode())}}}"


def _call_to_header(call: Forward) -> dict[str, Any]:
    return record_header.select_fields(
        record_header.CallHeader,
        call,
        labels={kind: list(texts.items()) for kind, texts in call.labels.items()},
        about={name: value for name, value in asdict(call.about).items() if value is not None},
        sights=[_sight_to_header(call[name], name) for name in call.names],
    )


def _sight_to_header(sight: Sight, name: str) -> dict[str, Any]:
    tensors = {field: tensor for field in TENSORS if (tensor := getattr(sight, field)) is not None}
    spans = [(span_name, span.start, span.stop) for span_name, span in sight.spans.items()]
    return record_header.select_fields(record_header.SightHeader, sight, name=name, spans=spans, tensors=tensors)


def _build_running(header: dict[str, Any], fetch: record_header.Fetch) -> RunningStatistics:
    running = RunningStatistics()
    running.heads = record_header.read_as(list[int], header["heads"], "heads")
    _check_counts("heads", running.heads, len(running.heads))
    for name in SUMS:
        tensor, empty = fetch(header[name]), getattr(running, name)
        if tensor.dtype != empty.dtype or tensor.shape != (*empty.shape[:-1], len(running.heads)):
            raise RecordError(f"{name} of the statistics is {tensor.dtype} of shape {tuple(tensor.shape)}")
        setattr(running, name, tensor)
    return running


def _build_call(header: record_header.CallHeader, fetch: record_header.Fetch) -> Forward:
    ids = {kind: fetch(number) for kind, number in header.ids.items()}
    for kind, numbers in ids.items():
        if numbers.dtype != torch.int64 or numbers.ndim != 2:
            raise RecordError(
                f"the tokens of {kind!r:.40} must be int64 with 2 axes, got {numbers.dtype} with {numbers.ndim}"
            )
    call = Forward(ids=ids)
    call.labels = {kind: dict(texts) for kind, texts in header.labels.items()}
    call.about = record_header.read_as(CallMetadata, header.about, "about")
    for part in header.sights:
        sight = _build_sight(part, call, fetch)
        if sight.name in call.sights:
            raise RecordError(f"it contains {sight.name!r:.60} twice")
        call.sights[sight.name] = sight
    return call


def _build_sight(header: record_header.SightHeader, call: Forward, fetch: record_header.Fetch) -> Sight:
    sizes: dict[str, int] = {}
    if missing := [name for name in TENSORS if name not in (*header.tensors, *OPTIONAL)]:
        raise RecordError(f"{header.name!r:.60} has no {missing[0]}")
    tensors: dict[str, Tensor | None] = {
        name: _check_tensor(fetch(header.tensors[name]), FORMS[name], sizes, name) if name in header.tensors else None
        for name in TENSORS
    }
    probes = {
        name: _check_tensor(fetch(number), FORMS["entropy"], sizes, "a probe") for name, number in header.probes.items()
    }
    spans = {name: range(first, end) for name, first, end in header.spans}
    if len(spans) != len(header.spans) or len(spans) != sizes.get("spans", 0):
        raise RecordError(f"there are {len(spans)} spans with different names, and sums of {sizes.get('spans', 0)}")
    if header.tokens is not None and not 0 <= header.tokens <= sizes["keys"]:
        raise RecordError(f"tokens is {header.tokens}, of {sizes['keys']} keys")
    _check_counts("heads", header.heads, sizes["heads"])
    _check_counts("inputs", header.inputs, sizes["batch"])
    _check_counts("blocks", header.blocks, 2)
    kept = None if header.kept is None else record_header.build_kept(header.kept, sizes, tensors["logsumexp"], fetch)
    return Sight(
        **tensors,  # type: ignore[arg-type]
        name=header.name,
        cross=header.cross,
        heads=tuple(header.heads),
        blocks=header.blocks,
        inputs=tuple(header.inputs),
        sharing=max(1, header.sharing),
        spans=spans,
        span_names=tuple(spans),
        probes=probes,
        kept=kept,
        tokens=header.tokens,
        forward=call,
    )


def _check_counts(name: str, numbers: Sequence[int], count: int) -> None:
    """Raises RecordError unless there are `count` integers, none of them negative."""
    if len(numbers) != count or min(numbers, default=0) < 0:
        raise RecordError(f"{name} must be {count} numbers, got {numbers!r:.60}")


def _check_tensor(tensor: Tensor, form: tuple[str, ...], sizes: dict[str, int], name: str) -> Tensor:
    """The tensor, if its dtype and shape agree with those read before; `sizes` are those of the axes so far."""
    kind, *names = form[0], *form[1].split()
    fits = tensor.ndim == len(names)
    fits = fits and tensor.dtype in ((torch.int32, torch.int64) if kind == "Int" else (torch.float32, torch.float64))
    for axis, size in zip(names, tensor.shape, strict=False):
        fits = fits and (axis == "#heads" or sizes.setdefault(axis, size) == size)
    if not fits:
        raise RecordError(
            f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, which does not match the record's other tensors"
        )
    return tensor
