"""Examples of tagging: windows of words as tokens, with the number of each word's tag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clearhead.model import ModelConfig
from clearhead.tasks.losses import UNCOUNTED
from clearhead.tasks.processor import Examples
from clearhead.tasks.tagging.sentence_windows import Window, plan_windows
from clearhead.tasks.tagging.sentences import Sentence
from clearhead.text.batches import Batch, Ragged

if TYPE_CHECKING:
    from clearhead.text import Row, Tokenizer

CACHED = 100_000  # words whose pieces are kept
# Of a word, as an extra feature for tokenizers that lower-case their input.
CASES = ("other", "lower", "capitalised", "upper", "initial", "mixed", "digits", "with digits")
SHORTEST_WINDOW = 64  # pieces, even if all sentences of the training data are shorter
BLANKS = ("\ufffd", "?")  # what a word is read as that has no pieces, because normalisation removes it


def word_case(word: str) -> int:
    """The number of the case in CASES.

    >>> [CASES[word_case(word)] for word in ("the", "Rome", "EU", "J", "iPhone", "1996", "F16", "，")]
    ['lower', 'capitalised', 'upper', 'initial', 'mixed', 'digits', 'with digits', 'other']
    """
    if any(mark.isdigit() for mark in word):
        return CASES.index("with digits" if any(mark.isalpha() for mark in word) else "digits")
    letters = [mark for mark in word if mark.isupper() or mark.islower()]
    if not letters:
        return CASES.index("other")
    upper = [mark.isupper() for mark in letters]
    if not any(upper):
        return CASES.index("lower")
    if all(upper):
        return CASES.index("upper" if len(upper) > 1 else "initial")
    return CASES.index("capitalised" if upper[0] and not any(upper[1:]) else "mixed")


class EncodedWord(NamedTuple):
    pieces: list[int]
    case: int


class WordEncoder:
    """Splits each word into subword pieces by itself, so that no piece spans two words; results are cached.

    A word of more than `longest` pieces is read by its first ones. With `unknown` a word with characters that the
    vocabulary has not is read as one unknown piece, instead of being spelled in bytes that were never trained.
    """

    def __init__(self, tokenizer: Tokenizer, *, longest: int, unknown: bool) -> None:
        self.tokenizer, self.longest, self.unknown = tokenizer, longest, unknown
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

    def surfaces(self, words: Sequence[str]) -> list[list[str]]:
        """The pieces of each word with the characters of the word itself, also where they are read as unknown."""
        from clearhead.text.surface_forms import mark_word, surface_forms

        found = []
        for word, encoded in zip(words, self.encode(words), strict=True):
            numbers, own = surface_forms(self.tokenizer, word)
            whole = len(encoded.pieces) == 1 and numbers != encoded.pieces  # unknown, or left empty by normalisation
            found.append([mark_word(self.tokenizer, word)] if whole else own[: len(encoded.pieces)])
        return found

    def find_unknown(self, words: Sequence[str]) -> list[str]:
        """The different words that have a piece for what the vocabulary has not."""
        encoded = zip(words, self.encode(words), strict=True)
        return list(dict.fromkeys(word for word, one in encoded if self.unknown_piece in one.pieces))


def choose_window(longest: int, config: ModelConfig, tokenizer: Tokenizer, sentences: Sequence[Sentence]) -> int:
    """How many pieces are read together: as many as training sentences have, within the limits.

    Beyond that a model would meet positions that it has never seen.
    """
    if config.positions == "learned":
        longest = min(longest, config.max_length - 2)
    encoder = WordEncoder(tokenizer, longest=longest, unknown=False)
    texts = [sentence.word_texts() for sentence in sentences]
    encoded = iter(encoder.encode([word for words in texts for word in words]))
    longest_sentence = max(sum(len(word.pieces) for word in islice(encoded, len(words))) for words in texts)
    return min(longest, max(longest_sentence, SHORTEST_WINDOW))


class WindowTokens(NamedTuple):
    """One window as the model reads it: with start and end, and where the first pieces of the scored words are."""

    tokens: list[int]
    cases: list[int]
    words: list[int]
    window: Window


def make_windows(words: Sequence[EncodedWord], *, size: int, ends: tuple[int, int]) -> list[WindowTokens]:
    """The windows of a sentence, of at most `size` pieces beside the tokens at both `ends`."""
    made = []
    for window in plan_windows([len(word.pieces) for word in words], size):
        tokens, cases, places = [ends[0]], [0], list[int]()
        for place in range(window.begin, window.end):
            if window.first <= place < window.last:
                places.append(len(tokens))
            tokens += words[place].pieces
            cases += [words[place].case] * len(words[place].pieces)
        made.append(WindowTokens([*tokens, ends[1]], [*cases, 0], places, window))
    return made


class TaggedWords(NamedTuple):
    """A batch: tokens, the first piece of each word to be scored, and the number of its tag (−100 in the padding)."""

    tokens: Tensor
    lengths: Tensor
    cases: Tensor
    words: Tensor
    word_lengths: Tensor
    tags: Tensor


class TaggedExamples(Examples[TaggedWords]):
    """Windows of sentences with the tags of their words."""

    def __init__(self, windows: Sequence[WindowTokens], tags: Sequence[Sequence[int]], pad: int) -> None:
        self.tokens, self.words = Ragged([one.tokens for one in windows]), Ragged([one.words for one in windows])
        self.cases, self.tags, self.pad = Ragged([one.cases for one in windows]), Ragged(tags), pad
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
        for part in (self.tokens, self.cases, self.words, self.tags):
            part.to(device)
        return self

    def collate(self, batch: Batch) -> TaggedWords:
        rows = torch.from_numpy(batch.examples).to(self.tokens.flat.device, non_blocking=True)
        size = batch.sizes[0]
        words = max(1, size - 2)  # one size for each size of tokens: a shape of batches more is a graph more
        return TaggedWords(
            *self.tokens.pad(rows, size, self.pad),
            self.cases.pad(rows, size, 0)[0],
            *self.words.pad(rows, words, 0),
            self.tags.pad(rows, words, UNCOUNTED)[0],
        )

    def fingerprint(self) -> str:
        return " ".join(part.fingerprint() for part in (self.tokens, self.words, self.tags))
