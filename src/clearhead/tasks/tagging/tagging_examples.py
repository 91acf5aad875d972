"""Examples of tagging: windows of words as tokens, with the number of each word's tag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clearhead.tasks.base import Examples
from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.tagging.sentence_windows import Window, plan_windows
from clearhead.tasks.tagging.word_case import word_case
from clearhead.text.batches import Batch, Ragged

if TYPE_CHECKING:
    from clearhead.text import Row, Tokenizer

CACHED = 100_000  # words whose pieces are kept
BLANKS = ("\ufffd", "?")  # what a word is read as that has no pieces, because normalisation removes it


class EncodedWord(NamedTuple):
    pieces: list[int]
    case: int


class WordEncoder:
    """Splits each word into subword pieces by itself, so that no piece spans two words; results are cached.

    A word of more than `longest` pieces is read by its first ones. With `unknown` a word with characters that the
    vocabulary has not is read as one unknown piece, instead of being spelled in bytes that were never trained.
    `bigrams` are the pairs of neighbouring words that have a number.
    """

    def __init__(self, tokenizer: Tokenizer, *, longest: int, unknown: bool, bigrams: Sequence[str] = ()) -> None:
        self.tokenizer, self.longest, self.unknown = tokenizer, longest, unknown
        self._bigrams = {bigram: number for number, bigram in enumerate(bigrams, start=1)}
        self._known: dict[str, EncodedWord] = {}
        own = tokenizer.settings["kind"] != "huggingface"
        self._bytes = range(3, 259) if own and unknown else range(0)
        blanks = [tokenizer.encode(blank) for blank in BLANKS]
        self._blank = next((pieces for pieces in blanks if pieces), [tokenizer.end])

    @property
    def unknown_piece(self) -> int:
        """The piece that stands for what the vocabulary has not: an unknown token, or a mask, where there is one.

        Otherwise it is padding, which has a vector that nothing else uses.
        """
        named = self.tokenizer.settings.get("tokens", {}).get("unk_token")
        number = None if named is None else self.tokenizer.engine.token_to_id(named)
        if number is not None:
            return int(number)
        return self.tokenizer.pad if self.tokenizer.mask is None else self.tokenizer.mask

    def encode(self, words: Sequence[str]) -> list[EncodedWord]:
        """The pieces of each word, one at least, and its case."""
        if len(self._known) > CACHED:
            self._known = {}
        known = self._known  # other threads may replace it meanwhile
        fresh = [word for word in dict.fromkeys(words) if word not in known]
        for word, pieces in zip(fresh, self.tokenizer.encode_all(fresh), strict=True):
            if any(piece in self._bytes for piece in pieces):
                pieces = [self.unknown_piece]
            known[word] = EncodedWord((pieces or self._blank)[: self.longest], word_case(word))
        return [known[word] for word in words]

    def number_bigrams(self, words: Sequence[str]) -> list[int]:
        """The number of each word's pair with the next one in a sentence; 0 if it has none."""
        return [self._bigrams.get(bigram, 0) for bigram in list_bigrams(words)] if self._bigrams else [0] * len(words)


def list_bigrams(words: Sequence[str]) -> list[str]:
    """Each word of a sentence with the next one, a line feed between.

    >>> list_bigrams(["我", "爱", "你"])
    ['我\\n爱', '爱\\n你', '你\\n']
    """
    return [f"{one}\n{other}" for one, other in zip(words, [*words[1:], ""], strict=False)]


class WindowTokens(NamedTuple):
    """One window as the model reads it: with start and end, and where the first pieces of the scored words are."""

    tokens: list[int]
    cases: list[int]
    bigrams: list[int]
    words: list[int]
    window: Window


def make_windows(
    words: Sequence[EncodedWord], bigrams: Sequence[int], *, size: int, ends: tuple[int, int]
) -> list[WindowTokens]:
    """The windows of a sentence, of at most `size` pieces beside the tokens at both `ends`."""
    made = []
    for window in plan_windows([len(word.pieces) for word in words], size):
        tokens, cases, pairs, places = [ends[0]], [0], [0], list[int]()
        for place in range(window.begin, window.end):
            if window.first <= place < window.last:
                places.append(len(tokens))
            tokens += words[place].pieces
            cases += [words[place].case] * len(words[place].pieces)
            pairs += [bigrams[place]] * len(words[place].pieces)
        made.append(WindowTokens([*tokens, ends[1]], [*cases, 0], [*pairs, 0], places, window))
    return made


class TaggedWords(NamedTuple):
    """A batch: tokens, the first piece of each word to be scored, and the number of its tag (−100 in the padding)."""

    tokens: Tensor
    lengths: Tensor
    cases: Tensor
    bigrams: Tensor
    words: Tensor
    word_lengths: Tensor
    tags: Tensor


class TaggedExamples(Examples[TaggedWords]):
    """Windows of sentences with the tags of their words."""

    def __init__(self, windows: Sequence[WindowTokens], tags: Sequence[Sequence[int]], pad: int) -> None:
        self.tokens, self.words = Ragged([one.tokens for one in windows]), Ragged([one.words for one in windows])
        self.cases, self.bigrams = Ragged([one.cases for one in windows]), Ragged([one.bigrams for one in windows])
        self.tags, self.pad = Ragged(tags), pad
        self.lengths = self.tokens.lengths.numpy()[:, None]
        self.counts = np.array([len(one) for one in tags], dtype=np.int64)
        self.rows: Sequence[Row] = ()
        self.origins: Sequence[int] = ()  # the row that each window is of

    def of(self, rows: Sequence[Row], origins: Iterable[int]) -> TaggedExamples:
        """With the rows that they were made of, and which row each window is of."""
        self.rows, self.origins = rows, list(origins)
        return self

    def where(self, example: int) -> str:
        return self.rows[self.origins[example]].where

    def to(self, device: torch.device) -> TaggedExamples:
        for part in (self.tokens, self.cases, self.bigrams, self.words, self.tags):
            part.to(device)
        return self

    def collate(self, batch: Batch) -> TaggedWords:
        rows = torch.from_numpy(batch.examples).to(self.tokens.flat.device, non_blocking=True)
        size = batch.sizes[0]
        words = max(1, size - 2)  # one size for each size of tokens: a shape of batches more is a graph more
        return TaggedWords(
            *self.tokens.pad(rows, size, self.pad),
            self.cases.pad(rows, size, 0)[0],
            self.bigrams.pad(rows, size, 0)[0],
            *self.words.pad(rows, words, 0),
            self.tags.pad(rows, words, UNCOUNTED)[0],
        )

    def fingerprint(self) -> str:
        return " ".join(part.fingerprint() for part in (self.tokens, self.words, self.tags))
