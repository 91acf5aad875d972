"""Words as pieces, in windows over long sentences and documents: each word is scored once, far from an edge."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple

from clearhead.model import ModelConfig
from clearhead.tasks.tagging.sentences import Sentence
from clearhead.text import Tokenizer
from clearhead.text.pieces import mark_word, surface_forms

CACHED_WORDS = 100_000  # whose pieces are remembered
# Of a word, as an extra feature for tokenizers that lower-case their input.
CASES = ("other", "lower", "capitalised", "upper", "initial", "mixed", "digits", "with digits")
SHORTEST_WINDOW = 64  # pieces, even if all sentences of the training data are shorter
BLANKS = ("\ufffd", "?")  # what a word is read as that has no pieces, because normalisation removes it


class Window(NamedTuple):
    """Words `begin` to `end` are read together; `first` to `last` of them are scored here."""

    begin: int
    end: int
    first: int
    last: int


def plan_windows(
    pieces: Sequence[int], size: int, *, borders: Sequence[int] = (0,), context: int = 0, apart: bool = False
) -> list[Window]:
    """Windows of at most `size` pieces over words with these numbers of pieces.

    One window where everything fits. Neighbours share a quarter, or twice the `context` if that is more, up to half,
    and each word is scored where it is farthest from an edge. `borders` are the words that sentences begin with: the
    line between two windows is one of these if one is near the middle of what they share. With `apart` windows end with
    a sentence and share nothing, except inside a sentence that is longer than a window. No word may have more than
    `size // 4` pieces, unless it fits by itself.

    >>> plan_windows([1] * 6, 8)
    [Window(begin=0, end=6, first=0, last=6)]
    >>> plan_windows([1] * 12, 8)
    [Window(begin=0, end=8, first=0, last=6), Window(begin=4, end=12, first=6, last=12)]
    >>> plan_windows([1] * 12, 8, borders=[0, 5, 7])
    [Window(begin=0, end=8, first=0, last=5), Window(begin=4, end=12, first=5, last=12)]
    >>> plan_windows([1] * 12, 8, borders=[0, 5, 7], apart=True)
    [Window(begin=0, end=7, first=0, last=7), Window(begin=7, end=12, first=7, last=12)]
    """
    ends = [0, *accumulate(pieces)]  # the pieces before each word
    words = len(pieces)
    if ends[-1] <= size:
        return [Window(0, words, 0, words)]
    shared, starts = min(max(size // 4, 2 * context), size // 2), {*borders}
    reach = list[tuple[int, int]]()
    begin, end = 0, 0
    while end < words:
        if reach and not (apart and end in starts):
            begin = max(begin + 1, _first_fitting(ends, end, shared))
        elif reach:
            begin = end
        end = _last_fitting(ends, begin, size)
        if apart:
            end = _sentence_end(borders, begin, end, words)
        elif end == words:
            begin = _first_fitting(ends, end, size)  # the last one has more on its left
        reach.append((begin, end))
    cuts = [0]
    for (_, end), (begin, _) in pairwise(reach):
        middle = (ends[begin] + ends[end]) / 2
        inside = borders[bisect_left(borders, begin) : bisect_right(borders, end)]
        near = [word for word in inside if 4 * abs(ends[word] - middle) <= ends[end] - ends[begin]]
        choices = near or range(begin, end + 1)
        cuts.append(max(cuts[-1], min(choices, key=lambda word: abs(ends[word] - middle))))
    cuts.append(words)
    return [Window(begin, end, cuts[number], cuts[number + 1]) for number, (begin, end) in enumerate(reach)]


def _sentence_end(borders: Sequence[int], begin: int, end: int, words: int) -> int:
    """The last end of a sentence after `begin` and up to `end`; `end` if there is none."""
    border = words if end == words else borders[bisect_right(borders, end) - 1]
    return border if border > begin else end


def _last_fitting(ends: Sequence[int], begin: int, size: int) -> int:
    """The largest end such that the words from `begin` have at most `size` pieces; one word at least."""
    return max(begin + 1, bisect_right(ends, ends[begin] + size) - 1)


def _first_fitting(ends: Sequence[int], end: int, size: int) -> int:
    """The smallest begin such that the words up to `end` have at most `size` pieces."""
    return min(end, bisect_left(ends, ends[end] - size))


def word_case(word: str) -> int:
    """The number of the case in CASES.

    >>> [CASES[word_case(word)] for word in ("the", "Rome", "EU", "J", "iPhone", "1996", "F16", "，")]
    ['lower', 'capitalised', 'upper', 'initial', 'mixed', 'digits', 'with digits', 'other']
    """
    if any(mark.isdigit() for mark in word):
        return CASES.index("with digits" if any(mark.isalpha() for mark in word) else "digits")
    upper = [mark.isupper() for mark in word if mark.isupper() or mark.islower()]
    if not upper:
        return CASES.index("other")
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
        self._cache: dict[str, EncodedWord] = {}
        foreign = tokenizer.settings["kind"] == "huggingface"
        self._bytes = range(3, 259) if unknown and not foreign else range(0)
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
        if len(self._cache) > CACHED_WORDS:
            self._cache = {}
        cache = self._cache  # other threads may replace it meanwhile
        fresh = [word for word in dict.fromkeys(words) if word not in cache]
        for word, pieces in zip(fresh, self.tokenizer.encode_all(fresh), strict=True):
            if any(piece in self._bytes for piece in pieces):
                pieces = [self.unknown_piece]
            cache[word] = EncodedWord((pieces or self._blank)[: self.longest], word_case(word))
        return [cache[word] for word in words]

    def surfaces(self, words: Sequence[str]) -> list[list[str]]:
        """The pieces of each word with the characters of the word itself, also where they are read as unknown."""
        surfaces = []
        for word, encoded in zip(words, self.encode(words), strict=True):
            numbers, pieces = surface_forms(self.tokenizer, word)
            whole = len(encoded.pieces) == 1 and numbers != encoded.pieces  # unknown, or left empty by normalisation
            surfaces.append([mark_word(self.tokenizer, word)] if whole else pieces[: len(encoded.pieces)])
        return surfaces

    def find_unknown(self, words: Sequence[str]) -> list[str]:
        """The different words that have a piece for what the vocabulary has not."""
        pairs = zip(words, self.encode(words), strict=True)
        return list(dict.fromkeys(word for word, encoded in pairs if self.unknown_piece in encoded.pieces))


def choose_window(
    longest: int, config: ModelConfig, tokenizer: Tokenizer, documents: Sequence[Sequence[Sentence]]
) -> int:
    """How many pieces are read together: as many as the longest document of training has, within the limits.

    Beyond that a model would meet positions that it has never seen.
    """
    if config.positions == "learned":
        longest = min(longest, config.max_length - 2)
    encoder = WordEncoder(tokenizer, longest=longest, unknown=False)
    texts = [[word for sentence in document for word in sentence.word_texts()] for document in documents]
    encoded = iter(encoder.encode([word for words in texts for word in words]))
    longest_document = max(sum(len(word.pieces) for word in islice(encoded, len(words))) for words in texts)
    return min(longest, max(longest_document, SHORTEST_WINDOW))


class WindowTokens(NamedTuple):
    """One window as the model reads it: with start and end, and where the first pieces of the scored words are."""

    tokens: list[int]
    cases: list[int]
    words: list[int]
    window: Window


def make_windows(
    words: Sequence[EncodedWord], *, size: int, ends: tuple[int, int], **options: Any
) -> list[WindowTokens]:
    """The windows of a text, of at most `size` pieces beside the tokens at both `ends`; `options` of `plan_windows`."""
    made = []
    for window in plan_windows([len(word.pieces) for word in words], size, **options):
        tokens, cases, firsts = [ends[0]], [0], list[int]()
        for number in range(window.begin, window.end):
            if window.first <= number < window.last:
                firsts.append(len(tokens))
            tokens += words[number].pieces
            cases += [words[number].case] * len(words[number].pieces)
        made.append(WindowTokens([*tokens, ends[1]], [*cases, 0], firsts, window))
    return made
