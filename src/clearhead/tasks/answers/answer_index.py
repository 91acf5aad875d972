"""The index of known questions and answers: vectors with their texts, searched exactly, changed atomically.

In a model folder it is two files with a number that grows with every change: `answers-3.jsonl` and
`answers-3.safetensors`. Those that checksums.json lists are in force; replacing that file is the moment of a change.
The files of the change before stay, for processes that are just reading them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from clearhead.errors import CheckpointError, ConfigError, import_extra
from clearhead.storage import (
    CHECKSUMS,
    check_format,
    commit_files,
    flush_to_disk,
    move_into_place,
    read_json,
    temporary_folder,
)

FORMAT = 1
NAME = re.compile(r"answers-(\d+)\.(jsonl|safetensors)")
PRODUCT_FROM_QUESTIONS = 16  # from which on one matrix product is faster than the library's search
SIMILARITIES_AT_ONCE = 2**24

Vectors = NDArray[np.float32]


class Entry(NamedTuple):
    """One vector of the index: of a known question, or, if there is no question, of the answer's own text."""

    id: int  # of the answer
    answer: str
    question: str | None
    added: bool = False  # after training

    @property
    def text(self) -> str:
        """What the vector is of."""
        return self.answer if self.question is None else self.question


@dataclass(frozen=True, eq=False)
class AnswerIndex:
    """Entries and their unit vectors; changes give a new index."""

    entries: tuple[Entry, ...]
    vectors: Vectors
    next_id: int
    reject: float | None = None  # share of answerable questions that may be refused; None: as in training

    @classmethod
    def empty(cls, width: int) -> AnswerIndex:
        return cls((), np.zeros((0, width), np.float32), 0)

    @cached_property
    def answers(self) -> dict[int, str]:
        """The text of every answer by its id, in the order of the entries."""
        return {entry.id: entry.answer for entry in self.entries}

    @cached_property
    def texts(self) -> frozenset[str]:
        return frozenset(self.answers.values())

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """The id of the answer that each vector belongs to."""
        return np.array([entry.id for entry in self.entries], dtype=np.int64)

    @cached_property
    def added(self) -> NDArray[np.bool_]:
        """Which vectors were added after training."""
        return np.array([entry.added for entry in self.entries], dtype=np.bool_)

    def extend(self, entries: Iterable[Entry], vectors: Vectors) -> AnswerIndex:
        """With further entries; their ids are given by `assign_ids`."""
        whole = (*self.entries, *entries)
        stacked = np.concatenate([self.vectors, vectors.astype(np.float32)])
        next_id = max([self.next_id, *(entry.id + 1 for entry in whole)])
        return replace(self, entries=whole, vectors=stacked, next_id=next_id)

    def assign_ids(self, answers: Sequence[str]) -> list[int]:
        """The id of each answer: that of the same text in the index, or a new one, never one that was used before."""
        ids = {text: number for number, text in self.answers.items()}
        fresh = [text for text in dict.fromkeys(answers) if text not in ids]
        ids |= {text: number for number, text in enumerate(fresh, self.next_id)}
        return [ids[text] for text in answers]

    def remove(self, ids: Sequence[int]) -> AnswerIndex:
        """Without these answers and all of their questions."""
        self.refuse_unknown(ids)
        rest = [row for row, entry in enumerate(self.entries) if entry.id not in ids]
        return replace(self, entries=tuple(self.entries[row] for row in rest), vectors=self.vectors[rest])

    def refuse_unknown(self, ids: Sequence[int]) -> None:
        if missing := [number for number in ids if number not in self.answers]:
            raise ConfigError(f"no answer has the id {missing[0]}; clearhead answers MODEL list shows all")

    def search(self, questions: Vectors, count: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Similarities and positions of the `count` nearest entries of each question, nearest first; exact."""
        count = min(count, len(self.entries))
        if count == 0 or not len(questions):
            return np.zeros((len(questions), 0)), np.zeros((len(questions), 0), np.int64)
        questions = np.ascontiguousarray(questions, dtype=np.float32)
        search = _search_one_by_one if len(questions) < PRODUCT_FROM_QUESTIONS else _search_by_product
        return search(self.vectors, questions, count)

    def save(self, folder: Path, generation: int = 1) -> list[str]:
        """Writes both files; returns their names."""
        names = [f"answers-{generation}.jsonl", f"answers-{generation}.safetensors"]
        _write_entries(folder / names[0], self)
        save_file({"vectors": self.vectors}, folder / names[1])
        (folder / names[1]).chmod((folder / names[0]).stat().st_mode)
        return names

    @classmethod
    def load(cls, folder: Path) -> AnswerIndex | None:
        """The index in force in a folder; None if it has none."""
        while (generation := find_generation(folder)) is not None:
            try:
                return cls._load(folder, generation)
            except CheckpointError:
                if find_generation(folder) == generation:  # else it was replaced twice meanwhile
                    raise
        return None

    @classmethod
    def _load(cls, folder: Path, generation: int) -> AnswerIndex:
        path = folder / f"answers-{generation}.jsonl"
        try:
            header, *lines = (json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line)
            check_format(path, header.get("format"), FORMAT)
            entries = tuple(Entry(**line) for line in lines)
            vectors = load_file(path.with_suffix(".safetensors"))["vectors"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{path} is no index of answers: {error}") from None
        if len(entries) != len(vectors):
            raise CheckpointError(f"{path} has {len(entries)} entries, but there are {len(vectors)} vectors")
        if not np.isfinite(vectors).all():
            raise CheckpointError(f"{path.with_suffix('.safetensors')} has vectors that are NaN or infinite")
        return cls(entries, vectors, int(header["next_id"]), header["reject"])


class IndexSource(NamedTuple):
    """The model folder that an index was read from, as it was then."""

    folder: Path
    identity: tuple[int, ...]  # of its checksums.json, which every change replaces; empty: there is none
    model: Mapping[str, str]  # checksums of its other files: the index of another model is of no use

    @classmethod
    def read(cls, folder: Path) -> IndexSource:
        identity = _file_identity(folder / CHECKSUMS)
        files = read_json(folder / CHECKSUMS).get("files", {}) if identity else {}
        return cls(folder, identity, {name: checksum for name, checksum in files.items() if not NAME.fullmatch(name)})

    def has_changed(self) -> bool:
        return _file_identity(self.folder / CHECKSUMS) != self.identity


def _file_identity(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:  # the folder was removed, for instance
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _write_entries(path: Path, index: AnswerIndex) -> None:
    path.write_text(_format_entries(index), encoding="utf-8")


def _format_entries(index: AnswerIndex) -> str:
    header = {"format": FORMAT, "next_id": index.next_id, "reject": index.reject}
    lines = [json.dumps(line, ensure_ascii=False) for line in (header, *(entry._asdict() for entry in index.entries))]
    return "\n".join(lines) + "\n"


def find_generation(folder: Path) -> int | None:
    """The number of the index in force: that checksums.json lists, or, before it is written, that exists."""
    listing = folder / CHECKSUMS
    names = read_json(listing).get("files", {}) if listing.exists() else [path.name for path in folder.iterdir()]
    numbers = [int(match[1]) for name in names if (match := NAME.fullmatch(name))]
    return max(numbers, default=None)


def open_index(folder: Path) -> AnswerIndex:
    """The index in force in a folder, which must have one."""
    index = AnswerIndex.load(folder)
    if index is None:
        raise CheckpointError(f"{folder} has no index of answers; train the model again")
    return index


def replace_index(folder: Path, index: AnswerIndex) -> None:
    """Puts an index in force: whatever happens on the way, the folder has the old one or the new one, whole."""
    old = find_generation(folder) or 0
    needs = index.vectors.nbytes + len(_format_entries(index).encode())
    try:
        with temporary_folder(folder / f"answers-{old + 1}.safetensors", needs=needs) as fresh:
            names = index.save(fresh, old + 1)
            for name in names:
                flush_to_disk(fresh / name)
                move_into_place(fresh / name, folder / name)
        commit_files(folder, added=names, removed=[f"answers-{old}.{kind}" for kind in ("jsonl", "safetensors")])
    finally:
        newest = find_generation(folder) or 0
        for path in folder.iterdir():  # only files in force, and those of the change before, stay
            if (match := NAME.fullmatch(path.name)) and int(match[1]) not in (newest, newest - 1):
                path.unlink()


def _search_one_by_one(
    vectors: Vectors, questions: Vectors, count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    usearch = import_extra("usearch.index", "searching answers", "train")
    nearest = usearch.search(vectors, questions, count, "ip", exact=True, threads=torch.get_num_threads())
    shape, keys = (len(questions), count), nearest.keys
    return 1.0 - np.reshape(nearest.distances, shape).astype(np.float64), np.reshape(keys, shape).astype(np.int64)


def _search_by_product(
    vectors: Vectors, questions: Vectors, count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The same from whole blocks of similarities."""
    scores, positions = [], []
    for block in torch.from_numpy(questions).split(max(1, SIMILARITIES_AT_ONCE // len(vectors))):
        best = (block @ torch.from_numpy(vectors).T).topk(count)
        scores.append(best.values)
        positions.append(best.indices)
    return torch.cat(scores).double().numpy(), torch.cat(positions).numpy()
