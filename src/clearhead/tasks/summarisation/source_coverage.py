"""Source coverage: how much of each sentence of a text the summary attended to, from cross-attention."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import ShapeError

END = re.compile(r"[。！？!?…]+[”’」』）)\"']*|[.;；]+[”’」』）)\"']*(?=\s|$)")  # of a sentence
TURN = re.compile(r"\s(?=#\w+#\s?:)")  # before the name of the next speaker of a dialogue
BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class SentenceCoverage(NamedTuple):
    """One sentence of a text: its tokens, the share of them that was attended to, its share of the attention."""

    text: str
    tokens: slice
    attended: float
    attention: float


class SourceCoverage(NamedTuple):
    """What a summary covers of its text.

    A token is attended to if its attention, from all tokens of the summary together, is at least the mean over the
    text: what it would get if attention were spread evenly.
    """

    attended: float  # the share of the text's tokens
    sentences: list[SentenceCoverage]


def measure_coverage(received: Float[Tensor, " tokens"], pieces: Sequence[str]) -> SourceCoverage:
    """The coverage of a text from the attention that each of its tokens received.

    `pieces` are its tokens as a Tokenizer shows them, without the end token. No attention at all covers nothing.

    >>> pieces = ["▁It", "▁rains", ".", "▁We", "▁go", "."]
    >>> coverage = measure_coverage(torch.tensor([3.0, 1.0, 0.0, 4.0, 0.0, 0.0]), pieces)
    >>> round(coverage.attended, 2), [(sentence.text, sentence.attention) for sentence in coverage.sentences]
    (0.33, [('It rains.', 0.5), ('We go.', 0.5)])
    """
    if len(received) != len(pieces):
        raise ShapeError(f"{len(received)} numbers for {len(pieces)} tokens; give one for each")
    total = received.sum()
    attended = (received >= received.mean()) & (received > 0) if len(received) else received > 0
    share = received / total.clamp(min=torch.finfo(received.dtype).tiny)
    sentences = [
        SentenceCoverage(
            "".join(_decode_pieces(pieces[span])).strip(),
            span,
            float(attended[span].float().mean()),
            float(share[span].sum()),
        )
        for span in split_sentences(pieces)
    ]
    return SourceCoverage(float(attended.float().mean()) if len(received) else 0.0, sentences)


def split_sentences(pieces: Sequence[str]) -> list[slice]:
    """The tokens of each sentence, or of each turn's sentences in a dialogue; together they are all tokens.

    >>> split_sentences(["▁It", "▁rains", ".", "▁We", "▁go"])
    [slice(0, 3, None), slice(3, 5, None)]
    """
    ends, written = list[int](), ""
    for text in _decode_pieces(pieces):
        written += text
        ends.append(len(written))
    cuts = {mark.end() for mark in END.finditer(written)} | {mark.start() for mark in TURN.finditer(written)}
    spans, first = list[slice](), 0
    for cut in sorted({*cuts, len(written)} - {0}):
        last = next((number for number, end in enumerate(ends, 1) if end >= cut), len(pieces))
        if last > first:
            spans.append(slice(first, last))
            first = last
    return spans


def _decode_pieces(pieces: Sequence[str]) -> Iterator[str]:
    """The text of each piece; a character that is spelled in bytes belongs to the last of them."""
    decoder = getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        if BYTE.fullmatch(piece):
            yield decoder.decode(bytes([int(piece[3:5], 16)]))
        else:
            broken = decoder.decode(b"", final=True)
            decoder.reset()
            yield broken + piece.replace("▁", " ")
