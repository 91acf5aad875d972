"""Text segmentation: where to split a long text, how to join the parts again, whether tokens loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from clearhead.text.chinese import HAN, KANA

CHINESE = re.compile(f"[{HAN}{KANA}]")
WIDE_MARK = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")
WIDE = dict(zip(",!?:;()", "，！？：；（）", strict=True))
# Where a text may be cut, best first: after sentences, after clauses, at spaces, anywhere.
SEAMS = [
    re.compile(r"(?<=[。！？!?…])(?=[^。！？!?…”’」』）)\"'])|(?<=[。！？!?…][”’」』）)\"'])|(?<=[.;；])(?=\s)"),
    re.compile(r"(?<=[，、：,:])(?=\D)"),
    re.compile(r"(?<=\s)(?=\S)"),
    re.compile(r""),
]
ALONE = 16  # a sentence of at least this share of a part stands alone


def split_text(text: str, encode: Callable[[str], list[int]], limit: int, seams: int = 0) -> list[list[int]]:
    """The tokens of a text in pieces of at most `limit`, split at sentence ends where possible.

    Sentences stand alone, as they mostly do in training data; only the shortest, such as "Mr.", go with what follows.

    >>> parts = split_text("Yes. It is so. Really, it is.", lambda text: list(text.encode()), 13)
    >>> [bytes(part).decode() for part in parts]
    ['Yes.', 'It is so.', 'Really,', 'it is.']
    """
    enough = limit // ALONE if seams == 0 else limit
    whole: list[list[int]] = []
    gathered, tokens = "", list[int]()
    for piece in SEAMS[seams].split(text):
        longer = encode(gathered + piece)
        if len(longer) <= limit and len(tokens) < enough:
            gathered, tokens = gathered + piece, longer
            continue
        if tokens:
            whole.append(tokens)
        gathered = piece.lstrip()
        tokens = encode(gathered)
        if len(tokens) > limit:
            # One character may be several bytes: those are cut as numbers.
            last = seams + 1 == len(SEAMS)
            whole += chunk_tokens(tokens, limit) if last else split_text(gathered, encode, limit, seams + 1)
            gathered, tokens = "", []
    return [*whole, tokens] if tokens else whole


def count_sentences(text: str) -> int:
    """The number of sentences, counted by end marks; an ellipsis ends none.

    >>> count_sentences("你好！我叫汤姆。你呢？"), count_sentences("嗯……我想……好。"), count_sentences("")
    (3, 1, 1)
    """
    return sum(not piece.endswith("…") for piece in SEAMS[0].split(text))


def join_texts(texts: Sequence[str]) -> str:
    """Joins texts with a space between, unless both neighbours are in a script without spaces.

    >>> join_texts(["One.", "Two."]), join_texts(["一。", "二。"])
    ('One. Two.', '一。二。')
    """
    out = ""
    for text in filter(None, texts):
        dense = out and (CHINESE.match(text) or text[0] in "“「『（") and WIDE_MARK.match(out[-1])
        out += text if not out or dense else f" {text}"
    return out


def restore_full_width(text: str) -> str:
    """Chinese text with full-width punctuation, which NFKC had made half-width; numbers such as 12:30 stay.

    >>> restore_full_width("你好,世界!(真的)12:30")
    '你好，世界！（真的）12:30'
    """
    return re.sub(
        r"(?<=[\u3000-\u9fff\uff00-\uffef”’])[,!?:;()]|[(](?=[\u3400-\u9fff])", lambda mark: WIDE[mark[0]], text
    )


def has_loop(tokens: Sequence[int], longest: int = 8, times: int = 4) -> bool:
    """Whether some sequence of tokens is repeated `times` times in a row.

    >>> has_loop([5, 1, 2, 1, 2, 1, 2, 1, 2]), has_loop([1, 2, 3, 4, 1, 2, 3, 4])
    (True, False)
    """
    for size in range(1, min(longest, len(tokens) // times) + 1):
        same = 0
        for position in range(size, len(tokens)):
            same = same + 1 if tokens[position] == tokens[position - size] else 0
            if same >= size * (times - 1):
                return True
    return False


def cut_repeats(
    tokens: Sequence[int], allowed: AbstractSet[int] = frozenset(), longest: int = 8, times: int = 3
) -> list[int]:
    """The tokens with repetitions of a sequence cut to `times` in a row, except sequences of `allowed` tokens.

    >>> cut_repeats([5, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 6]), cut_repeats([7, 7, 7, 7, 7], allowed={7})
    ([5, 1, 2, 1, 2, 1, 2, 6], [7, 7, 7, 7, 7])
    """
    out: list[int] = []
    for token in tokens:
        out.append(token)
        for size in range(1, min(longest, len(out) // (times + 1)) + 1):
            unit = out[-size:]
            if out[-size * (times + 1) :] == unit * (times + 1) and not allowed >= set(unit):
                del out[-size:]
                break
    return out


def chunk_tokens(tokens: list[int], size: int) -> list[list[int]]:
    """The tokens in pieces of this size; the last may be shorter."""
    return [tokens[begin : begin + size] for begin in range(0, len(tokens), size)]
