"""Text segmentation: where to split a long text, how to join the parts again, whether tokens loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

HAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
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
    """The text's tokens in pieces of at most `limit`, cut at the best places there are.

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
            finer = split_text(gathered, encode, limit, seams + 1) if seams + 1 < len(SEAMS) else _chunks(tokens, limit)
            whole += finer
            gathered, tokens = "", []
    return [*whole, tokens] if tokens else whole


def sentence_count(text: str) -> int:
    """How many sentences there are, as far as their ends tell; dots of hesitation end none.

    >>> sentence_count("你好！我叫汤姆。你呢？"), sentence_count("嗯……我想……好。"), sentence_count("")
    (3, 1, 1)
    """
    return sum(not piece.endswith("…") for piece in SEAMS[0].split(text))


def join_texts(texts: Sequence[str]) -> str:
    """One text of several: with a space between, unless both neighbours are of a script without spaces.

    >>> join_texts(["One.", "Two."]), join_texts(["一。", "二。"])
    ('One. Two.', '一。二。')
    """
    out = ""
    for text in filter(None, texts):
        dense = out and (HAN.match(text) or text[0] in "“「『（") and re.search(r"[\u3000-\u9fff\uff00-\uffef]$", out)
        out += text if not out or dense else f" {text}"
    return out


def full_width(text: str) -> str:
    """Chinese with its own punctuation again, which NFKC makes half as wide; numbers such as 12:30 keep theirs.

    >>> full_width("你好,世界!(真的)12:30")
    '你好，世界！（真的）12:30'
    """
    return re.sub(
        r"(?<=[\u3000-\u9fff\uff00-\uffef”’])[,!?:;()]|[(](?=[\u3400-\u9fff])", lambda found: WIDE[found[0]], text
    )


def loops(tokens: Sequence[int], longest: int = 8, times: int = 4) -> bool:
    """Whether some run of tokens stands `times` times in a row.

    >>> loops([5, 1, 2, 1, 2, 1, 2, 1, 2]), loops([1, 2, 3, 4, 1, 2, 3, 4])
    (True, False)
    """
    for size in range(1, min(longest, len(tokens) // times) + 1):
        same = 0
        for place in range(size, len(tokens)):
            same = same + 1 if tokens[place] == tokens[place - size] else 0
            if same >= size * (times - 1):
                return True
    return False


def cut_repeats(
    tokens: Sequence[int], kept: AbstractSet[int] = frozenset(), longest: int = 8, times: int = 3
) -> list[int]:
    """The tokens with no run of them more than `times` times in a row, but for runs of those that are `kept`.

    >>> cut_repeats([5, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 6]), cut_repeats([7, 7, 7, 7, 7], kept={7})
    ([5, 1, 2, 1, 2, 1, 2, 6], [7, 7, 7, 7, 7])
    """
    out: list[int] = []
    for token in tokens:
        out.append(token)
        for size in range(1, min(longest, len(out) // (times + 1)) + 1):
            unit = out[-size:]
            if out[-size * (times + 1) :] == unit * (times + 1) and not kept >= set(unit):
                del out[-size:]
                break
    return out


def han_share(texts: Sequence[str]) -> float:
    """How much of these texts is Chinese or Japanese."""
    text = "".join(texts)
    return len(HAN.findall(text)) / max(1, len(text))


def _chunks(tokens: list[int], size: int) -> list[list[int]]:
    return [tokens[begin : begin + size] for begin in range(0, len(tokens), size)]
