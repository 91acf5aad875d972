"""Sentence: a text with its words and entities; the form of a row of tagging data.

A raw text is split into words by this rule, in this order; a combining mark, an invisible character or a joined emoji
belongs to the character before it:

1. White space and control characters separate words, and belong to none.
2. A character of a script without spaces (Chinese, Japanese, Thai, …) is a word.
3. Letters and digits in a row are a word. Between two of them `-`, `.`, `_`, `&`, `@`, `’` and `'` belong to it, and
   `,` and `:` between digits: AL-AIN, AT&T, O'Brien, 1,000. A `#` or `@` right before belongs to it: #tag.
4. But an apostrophe with one or two letters at the end of a word is a word: Germany 's.
5. Single letters with a full stop after each, two or more, are a word: U.S.
6. Every other character is a word: all other punctuation, symbols, emoji.

In `characters` every character is a word, as in Chinese files with one character a line.
"""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from clearhead.errors import DataError
from clearhead.tasks.tagging.schemes import Span, count_repairs, read_tags, write_tags
from clearhead.text import Row

Places = tuple[tuple[int, int], ...]  # characters from and to
LONGEST_WORD = 100  # characters; longer words are cut, so that each fits into a model's window
PUNCTUATION = {**{mark: mark for mark in "-._&@#,:'"}, "’": "'", "‐": "-", "‑": "-", "\u200d": "z"}
# Hiragana, Katakana, Bopomofo and Han; then Thai, Lao, Khmer, Myanmar. As text/hf_tokenizers.py has them.
UNSPACED = re.compile(
    "[\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3041-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Sentence:
    """A text, the character spans of its words, and its entities as spans of words, if they are known.

    `characters` has the entities as they were given where they were given by characters: their borders may lie inside
    of words. Neighbouring sentences with the same `document` belong together; None: the sentence stands alone.
    """

    text: str
    words: Places
    entities: tuple[Span, ...] = ()
    scheme: str = "iob2"  # of the file
    repairs: int = 0  # tags that were out of sequence
    characters: tuple[Span, ...] | None = None
    document: str | None = None

    def __str__(self) -> str:
        return self.text

    @classmethod
    def from_text(cls, text: str, *, characters: bool) -> Sentence:
        return cls(text, tuple(find_words(text, characters=characters)))

    @classmethod
    def from_row(cls, row: Row, *, characters: bool = False) -> Sentence:
        """The sentence of a row, whose tags are read by the scheme of its file."""
        text, written = row.values
        try:
            marked = json.loads(written)
        except ValueError:
            raise DataError(f"{row.where}: entities are not JSON: {written!r:.60}") from None
        if isinstance(marked, list):
            marked = {"entities": marked}
        document = f"{row.file}:{marked['document']}" if "document" in marked else None
        if "entities" in marked:
            words = tuple(find_words(text, characters=characters))
            exact = parse_entities(marked["entities"], text, row.where)
            return cls(text, words, _cover_words(exact, words), characters=exact, document=document)
        scheme, tags = str(marked["scheme"]), marked["tags"]
        words = tuple((begin, end) for begin, end in marked["words"])
        return cls(text, words, tuple(read_tags(tags)), scheme, count_repairs(tags, scheme), document=document)

    def tags(self, scheme: str) -> list[str]:
        return write_tags(self.entities, len(self.words), scheme)

    def locate(self, span: Span) -> Span:
        """An entity of words by its characters."""
        return Span(self.words[span.begin][0], self.words[span.end - 1][1], span.label)

    def exact_entities(self) -> list[Span]:
        return [self.locate(span) for span in self.entities] if self.characters is None else list(self.characters)

    @property
    def misplaced(self) -> int:
        """How many entities have a border inside of a word, so that no model can find them."""
        return 0 if self.characters is None else len(set(self.characters) - set(map(self.locate, self.entities)))

    def word_texts(self) -> list[str]:
        return [self.text[begin:end] for begin, end in self.words]


@lru_cache(maxsize=20_000)
def read_sentence(row: Row, characters: bool) -> Sentence:
    """As `Sentence.from_row`, once for each row: one evaluation needs it several times, and training many."""
    return Sentence.from_row(row, characters=characters)


def group_documents(sentences: Iterable[Sentence], context: int) -> list[list[Sentence]]:
    """The sentences that are read together: neighbours of the same document; without `context` each one alone."""
    groups = list[list[Sentence]]()
    for sentence in sentences:
        if context and groups and sentence.document is not None and groups[-1][-1].document == sentence.document:
            groups[-1].append(sentence)
        else:
            groups.append([sentence])
    return groups


def parse_entities(values: Sequence[Any], text: str, where: str) -> tuple[Span, ...]:
    """The entities {"start", "end", "label"} of a text, in their order; no two may overlap."""
    spans = tuple(sorted(_parse_entity(value, text, where) for value in values))
    for span, other in pairwise(spans):
        if other.begin < span.end:
            raise DataError(
                f"{where}: two entities overlap, {span.label} from {span.begin} to {span.end} and "
                f"{other.label} from {other.begin} to {other.end}; keep one of them"
            )
    return spans


def _parse_entity(value: Any, text: str, where: str) -> Span:
    fits = isinstance(value, dict) and all(type(value.get(key)) is int for key in ("start", "end"))
    if not fits or not isinstance(value.get("label"), str) or not value["label"].strip():
        raise DataError(
            f'{where}: an entity must be {{"start": 0, "end": 2, "label": "ORG"}}, with start and end in characters; '
            f"got {value!r:.80}"
        )
    begin, end = value["start"], value["end"]
    if not 0 <= begin < end <= len(text):
        raise DataError(f"{where}: an entity from {begin} to {end} is not inside the text of {len(text)} characters")
    return Span(begin, end, value["label"].strip())


def _cover_words(spans: tuple[Span, ...], words: Places) -> tuple[Span, ...]:
    """The words that each entity touches; of several entities in one word the first has it."""
    covered, next_word = list[Span](), 0
    begins, ends = [begin for begin, _ in words], [end for _, end in words]
    for begin, end, label in spans:
        first = max(next_word, bisect_right(ends, begin))
        next_word = max(next_word, bisect_left(begins, end))
        if first < next_word:
            covered.append(Span(first, next_word, label))
    return tuple(covered)


def mark_entities(text: str, entities: list[Span]) -> str:
    """The text with its entities, given by characters, in brackets.

    >>> mark_entities("EU rejects German call", [Span(0, 2, "ORG"), Span(11, 17, "MISC")])
    '[EU](ORG) rejects [German](MISC) call'
    """
    parts, done = list[str](), 0
    for begin, end, label in sorted(entities):
        parts += [text[done:begin], f"[{text[begin:end]}]({label})"]
        done = end
    return "".join([*parts, text[done:]])


class _Kinds(dict[int, str]):
    """A cached map from character to its kind: L letter, N digit, C character of a script without spaces, s space,
    m mark, f invisible, z joiner, P all others; some punctuation stands for itself."""

    def __missing__(self, code: int) -> str:
        mark = chr(code)
        category = unicodedata.category(mark)
        if mark in PUNCTUATION:
            kind = PUNCTUATION[mark]
        elif mark.isspace() or category in ("Cc", "Cs"):
            kind = "s"
        elif category[0] == "M":
            kind = "m"
        elif category == "Cf":
            kind = "f"
        elif UNSPACED.match(mark):
            kind = "C"
        else:
            kind = {"L": "L", "N": "N"}.get(category[0], "P")
        self[code] = kind
        return kind


KINDS = _Kinds()
LETTER, RUN = "L[mfz]*", "(?:[LN][mfz]*)+"
ENDING = f"'{LETTER}(?:{LETTER})?(?![LN'])"  # 's, 't, 'll
WORDS = re.compile(
    "|".join(
        [
            f"(?<=[LNmfz]){ENDING}",
            f"(?:{LETTER}\\.){{2,}}(?![LN])",
            f"[@#]?{RUN}(?:(?:[-._&@]|(?<=N)[,:](?=N)|(?!{ENDING})'){RUN})*",
            "[^sfmzLN](?:[mf]|z[^sfmzLNC]?)*",  # also C: a script without spaces
            "m[mfz]*",  # a mark without a letter before it
        ]
    )
)
CHARACTERS = re.compile("[^sfmz](?:[mf]|z[^sfmzLNC]?)*|m[mfz]*")


def find_words(text: str, *, characters: bool = False) -> list[tuple[int, int]]:
    """Where each word of a text begins and ends.

    >>> text = "Germany's U.S. envoy（王小明）paid $1,000."
    >>> [text[begin:end] for begin, end in find_words(text)]
    ['Germany', "'s", 'U.S.', 'envoy', '（', '王', '小', '明', '）', 'paid', '$', '1,000', '.']
    """
    spans: list[tuple[int, int]] = []
    for match in (CHARACTERS if characters else WORDS).finditer(text.translate(KINDS)):
        begin, end = match.span()
        spans += [(cut, min(cut + LONGEST_WORD, end)) for cut in range(begin, end, LONGEST_WORD)]
    return spans


def join_words(words: Sequence[str], *, characters: bool = False) -> tuple[str, list[tuple[int, int]]]:
    """A text that these words may have come from, and where each of them is in it.

    A space stands between them, but not between two that are written wide, as in Chinese; in `characters` nowhere.

    >>> join_words(["Li", "说", "：", "ok", "!"])
    ('Li 说： ok !', [(0, 2), (3, 4), (4, 5), (6, 8), (9, 10)])
    """
    spans: list[tuple[int, int]] = []
    text = ""
    for number, word in enumerate(words):
        if number and not characters and not (_is_wide(words[number - 1][-1]) and _is_wide(word[0])):
            text += " "
        spans.append((len(text), len(text) + len(word)))
        text += word
    return text, spans


def _is_wide(mark: str) -> bool:
    return unicodedata.east_asian_width(mark) in ("W", "F")
