"""Splits a raw text into the words to be tagged, as character spans.

The rule, in this order; a combining mark, an invisible character or a joined emoji belongs to the character before it:

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

import re
import unicodedata
from collections.abc import Sequence

LONGEST_WORD = 100  # characters; longer words are cut, so that each fits into a model's window
PUNCTUATION = {**{mark: mark for mark in "-._&@#,:'"}, "’": "'", "‐": "-", "‑": "-", "\u200d": "z"}
# Hiragana, Katakana, Bopomofo and Han; then Thai, Lao, Khmer, Myanmar. As text/hf_tokenizers.py has them.
UNSPACED = re.compile(
    "[\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3041-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)


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
