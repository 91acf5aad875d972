"""Results as JSON that shows a difference: numbers exactly, tensors and large files by digest and a few values."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

SMALL_FILE = 20_000  # bytes of a JSON file up to which all of it is recorded
LEFT_OUT_FILES = {
    "checksums.json": "of files with dates and durations; what they hold is recorded itself",
    "speed.jsonl": "durations",
    "loss.png": "drawn from metrics.jsonl",
    "heads.png": "drawn from heads.jsonl",
    "roles.png": "drawn from heads.jsonl",
}
LEFT_OUT_KEYS = {
    ("state.json", "seconds"): "a duration",
    ("config.json", "clearhead"): "the version of the package",
    (".record", "header_checksum"): "of a header with paths; what it holds is recorded itself",
}
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")


def digest(content: bytes) -> str:
    return f"sha256 {hashlib.sha256(content).hexdigest()[:16]}"


def describe_tensor(tensor: Tensor) -> str:
    """Type, shape, sum of what is finite, the first values and a digest of all bytes, as one text.

    The sum shows how large a difference is: one in its last digits comes from another order of additions.
    """
    plain = tensor.detach().cpu().contiguous()
    raw = plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    first = " ".join(f"{value:.6g}" for value in plain.flatten()[:3].tolist())
    kind = str(plain.dtype).removeprefix("torch.")
    numbers = plain.double()
    total = float(numbers.where(numbers.isfinite(), 0.0).sum())
    return f"{kind} {tuple(plain.shape)}, sum {total!r}, first {first}, {digest(raw)}"


def to_plain(value: Any) -> Any:
    """A value as JSON: tensors and arrays are described, what is no JSON becomes its text."""
    if isinstance(value, Tensor):
        return describe_tensor(value)
    if isinstance(value, np.ndarray):
        return describe_tensor(torch.from_numpy(value)) if value.dtype.kind in "fiub" else _describe_texts(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(inside) for key, inside in value.items()}
    if hasattr(value, "_asdict"):
        return to_plain(value._asdict())
    if isinstance(value, (list, tuple, range)):
        return [to_plain(inside) for inside in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _describe_texts(column: np.ndarray) -> str:
    """A column of texts, some of which may be missing."""
    texts = json.dumps(column.tolist(), ensure_ascii=False)
    return f"{len(column)} texts, {texts[:60]} …, {digest(texts.encode('utf-8', 'surrogatepass'))}"


def describe_file(path: Path, folder: Path) -> Any:
    """What a file holds. `folder` is that of the recording, whose path is left out of texts."""
    if path.suffix in (".safetensors", ".record"):
        return describe_safetensors(path, folder)
    if path.suffix in (".json", ".jsonl", ".toml", ".txt", ".md", ".tsv"):
        text = DATE.sub("DATE", path.read_text(encoding="utf-8").replace(str(folder), "FOLDER"))
        if path.suffix == ".toml":
            return to_plain(tomllib.loads(text))
        if path.suffix == ".json":
            return _describe_json(_leave_out(to_plain(json.loads(text)), path.name), len(text))
        return [to_plain(json.loads(line)) if path.suffix == ".jsonl" else line for line in text.splitlines()]
    return f"{path.stat().st_size} bytes, {digest(path.read_bytes())}"


def describe_folder(where: Path, folder: Path) -> dict[str, Any]:
    """What all files below a folder hold, by their names; `None` for those that are left out."""
    files = sorted(path for path in where.rglob("*") if path.is_file())
    return {
        path.relative_to(where).as_posix(): None if path.name in LEFT_OUT_FILES else describe_file(path, folder)
        for path in files
    }


def describe_safetensors(path: Path, folder: Path) -> dict[str, Any]:
    """The tensors of a file by name, and its metadata; the header of a record is the JSON in there."""
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata() or {})
        tensors = {name: describe_tensor(file.get_tensor(name)) for name in sorted(file.keys())}
    texts = {name: text.replace(str(folder), "FOLDER") for name, text in metadata.items()}
    read = {name: json.loads(text) if text.startswith("{") else text for name, text in texts.items()}
    return {"metadata": _leave_out(to_plain(read), path.suffix), "tensors": tensors}


def _leave_out(value: Any, file: str) -> Any:
    """JSON without the keys that this file has and that differ from run to run."""
    if isinstance(value, list):
        return [_leave_out(inside, file) for inside in value]
    if isinstance(value, dict):
        return {key: _leave_out(inside, file) for key, inside in value.items() if (file, key) not in LEFT_OUT_KEYS}
    return value


def _describe_json(value: Any, size: int, depth: int = 0) -> Any:
    """The JSON of a small file; of a large one, such as a tokenizer's, a digest of each part."""
    if size <= SMALL_FILE:
        return value
    if isinstance(value, dict) and depth < 2:
        return {key: _describe_json(inside, size, depth + 1) for key, inside in value.items()}
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= 200:
        return value
    return f"{len(value)} entries, {text[:60]} …, {digest(text.encode())}"
