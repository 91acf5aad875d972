"""N-grams of words, or of characters where text has no spaces: TF-IDF features, and BM25."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from clearhead.errors import CheckpointError, DataError
from clearhead.storage import check_format, read_json
from clearhead.text.chinese import is_mostly_chinese

FORMAT, FILE = 1, "ngrams.json"
WORD, SPACES = re.compile(r"\b\w\w+\b"), re.compile(r"\s\s+")  # as scikit-learn has them
QUERIES_AT_ONCE = 64
SATURATION = 1.5  # BM25's k1: how much repetitions of an n-gram in a document count
LENGTH_SHARE = 0.75  # BM25's b: how much a document loses by being long


class SparseRows(NamedTuple):
    """A matrix as its values that are not 0, row by row (CSR).

    PyTorch's own CSR tensors warn that they are a beta version, and are slower in float32.

    >>> matrix = SparseRows(torch.tensor([0, 2, 2]), torch.tensor([0, 2]), torch.tensor([3.0, 4.0]), 3)
    >>> (matrix @ torch.tensor([[1.0], [5.0], [2.0]])).tolist()
    [[11.0], [0.0]]
    """

    starts: Int[Tensor, " rows_and_1"]  # of each row in `values`, and the end
    columns: Int[Tensor, " values"]
    values: Float[Tensor, " values"]
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.starts) - 1, self.width

    @property
    def rows(self) -> Int[Tensor, " values"]:
        return torch.repeat_interleave(self.starts.diff())

    @property
    def T(self) -> SparseRows:
        columns, order = self.columns.sort(stable=True)
        starts = torch.searchsorted(columns, torch.arange(self.width + 1))
        return SparseRows(starts, self.rows[order], self.values[order], self.shape[0])

    def __matmul__(self, dense: Float[Tensor, "width columns"]) -> Float[Tensor, "rows columns"]:
        weights = self.values.to(dense.dtype)
        return F.embedding_bag(
            self.columns, dense, self.starts, mode="sum", per_sample_weights=weights, include_last_offset=True
        )

    def double(self) -> SparseRows:
        return self._replace(values=self.values.double())

    def dense(self) -> Float[Tensor, "rows width"]:
        return self.values.new_zeros(self.shape).index_put((self.rows, self.columns), self.values)


class NgramFeatures:
    """TF-IDF of words and their pairs, or of 1–3 characters, that occurred in the texts it was fitted to.

    A text is a row of unit length, or of zeros if nothing of it is known. Each n-gram has (1 + ln(count)) ·
    (1 + ln((1 + texts) / (1 + texts with it))), as in scikit-learn's TfidfVectorizer with `sublinear_tf=True`.

    >>> features = NgramFeatures.fit(["good film", "bad film"])
    >>> list(features.counts)
    ['bad', 'bad film', 'film', 'good', 'good film']
    >>> features.transform(["a good, good thing"]).dense().tolist()
    [[0.0, 0.0, 0.0, 1.0, 0.0]]
    """

    def __init__(self, characters: bool, texts: int, counts: Mapping[str, int]) -> None:
        self.characters, self.texts = characters, texts
        self.counts = dict(counts)  # in how many texts each n-gram is
        self._numbers = {ngram: number for number, ngram in enumerate(self.counts)}
        self._idf = 1 + torch.tensor([(1 + texts) / (1 + n) for n in counts.values()], dtype=torch.float64).log()

    @classmethod
    def fit(
        cls, texts: Sequence[str], *, characters: bool | None = None, rarest: int = 1, most: int | None = 30_000
    ) -> NgramFeatures:
        """Of n-grams in at least `rarest` texts the `most` that are in most texts; the first in order among equals.

        Texts are split into characters if they are mostly Chinese, Japanese or Korean, unless `characters` says it.
        """
        characters = is_mostly_chinese(texts) if characters is None else characters
        counts = Counter[str]()
        for text in texts:
            counts.update(set(split_ngrams(text, 2 + characters, characters)))
        frequent = sorted(((-count, ngram) for ngram, count in counts.items() if count >= rarest))[:most]
        if not frequent:
            kind = "characters" if characters else "words of two letters or more"
            raise DataError(f"no n-gram of {kind} is in {rarest} of {len(texts)} texts; give more texts")
        return cls(characters, len(texts), dict(sorted((ngram, -count) for count, ngram in frequent)))

    def transform(self, texts: Sequence[str]) -> SparseRows:
        """(texts, n-grams) in float32; any number of threads may call it."""
        counts = count_ngrams(texts, self._numbers, 2 + self.characters, self.characters)
        values = (1 + counts.values.log()) * self._idf[counts.columns]
        squares = torch.zeros(len(texts), dtype=torch.float64).index_add_(0, counts.rows, values**2)
        return counts._replace(values=(values / squares.sqrt()[counts.rows]).float())

    def save(self, folder: Path) -> None:
        """Writes ngrams.json, in ASCII: n-grams may hold lone surrogates, which UTF-8 cannot encode."""
        content = {"format": FORMAT, "characters": self.characters, "texts": self.texts, "ngrams": self.counts}
        (folder / FILE).write_text(json.dumps(content) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> NgramFeatures:
        content = read_json(path := folder / FILE)
        check_format(path, content.get("format"), FORMAT)
        characters, texts, counts = (content.get(key) for key in ("characters", "texts", "ngrams"))
        if type(characters) is not bool or type(texts) is not int or not isinstance(counts, dict) or not counts:
            raise CheckpointError(f"{path} lacks characters (true or false), texts (a number) or ngrams with counts")
        if wrong := [pair for pair in counts.items() if type(pair[1]) is not int or not 0 < pair[1] <= texts]:
            raise CheckpointError(f"{path} says that {wrong[0][0]!r:.40} is in {wrong[0][1]!r:.40} of {texts} texts")
        return cls(characters, texts, counts)


@dataclass(frozen=True, eq=False)
class Bm25:
    """BM25 in Lucene's variant over words, or over 1–2 characters where text has no spaces.

    Documents change by another `fit`: 10,000 short ones take less than a second.

    >>> scores = Bm25.fit(["lost my card", "card fees", "exchange rates"]).scores(["the card is lost"])
    >>> scores.argsort(descending=True).tolist()
    [[0, 1, 2]]
    """

    characters: bool
    numbers: Mapping[str, int]  # of n-grams
    weights: SparseRows  # (documents, n-grams)

    @classmethod
    def fit(cls, texts: Sequence[str], *, characters: bool | None = None) -> Bm25:
        characters = is_mostly_chinese(texts) if characters is None else characters
        words = (ngram for text in texts for ngram in split_ngrams(text, 1 + characters, characters))
        numbers = {ngram: number for number, ngram in enumerate(dict.fromkeys(words))}
        counts = count_ngrams(texts, numbers, 1 + characters, characters)
        frequencies = torch.bincount(counts.columns, minlength=counts.width).double()
        rarity = (1 + (len(texts) - frequencies + 0.5) / (frequencies + 0.5)).log()
        lengths = torch.zeros(len(texts), dtype=torch.float64).index_add_(0, counts.rows, counts.values)
        saturation = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * (lengths / lengths.mean())[counts.rows])
        weights = rarity[counts.columns] * counts.values / (counts.values + saturation)
        return cls(characters, numbers, counts._replace(values=weights.float()))

    def scores(self, queries: Sequence[str]) -> Float[Tensor, "queries documents"]:
        """0 where a document has none of the query's n-grams; any number of threads may call it."""
        blocks = [torch.zeros(0, self.weights.shape[0])]
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            block = queries[start : start + QUERIES_AT_ONCE]
            counts = count_ngrams(block, self.numbers, 1 + self.characters, self.characters)
            blocks.append((self.weights @ counts.dense().float().T.contiguous()).T)
        return torch.cat(blocks)


def split_ngrams(text: str, longest: int, characters: bool) -> list[str]:
    """All n-grams of up to `longest` words of two letters or more, or characters, in lower case.

    >>> split_ngrams("I saw Kim's film", 2, characters=False)
    ['saw', 'kim', 'film', 'saw kim', 'kim film']
    """
    parts: Sequence[str] = SPACES.sub(" ", text.lower()) if characters else WORD.findall(text.lower())
    join = ("" if characters else " ").join
    ngrams = list(parts)
    for length in range(2, longest + 1):
        ngrams += map(join, zip(*(parts[start:] for start in range(length)), strict=False))
    return ngrams


def count_ngrams(texts: Iterable[str], numbers: Mapping[str, int], longest: int, characters: bool) -> SparseRows:
    """How often each n-gram that has a number is in each text, in float64."""
    columns, ends = list[int](), [0]
    for text in texts:
        found = map(numbers.get, split_ngrams(text, longest, characters))
        columns += [number for number in found if number is not None]
        ends.append(len(columns))
    rows, width = len(ends) - 1, max(1, len(numbers))
    cells = np.repeat(np.arange(rows), np.diff(ends)) * width + np.array(columns, dtype=np.int64)
    filled, counts = torch.unique(torch.from_numpy(cells), return_counts=True)
    starts = torch.searchsorted(filled, torch.arange(rows + 1) * width)
    return SparseRows(starts, filled % width, counts.double(), width)
