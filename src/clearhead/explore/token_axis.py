"""Axis: what the rows or columns of a map are: tokens of a text, patches, or frames; how tokens are displayed."""

from __future__ import annotations

import base64
import math
import ntpath
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from clearhead.errors import RecordError
from clearhead.explore.scene_json import AxisExtras, AxisJson
from clearhead.lens.record.attention_views import Forward
from clearhead.lens.record.call_metadata import TokenChance
from clearhead.lens.record.token_labels import SPACE, byte_alphabet, decode_byte_characters
from clearhead.tasks.media import PictureInput, SoundInput, media_from_json

PICTURE_PIXELS = 448  # a side of pictures in a page
SPECTROGRAM_PIXELS = 2048
MAX_SPIKES = 20_000  # of CTC that a page draws
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# The names of special tokens in common vocabularies. Other text in brackets stays text: </script>, <iostream>, [0].
ANGLE_NAMES = (
    r"/?s|cls|sep|pad|unk|mask|bos|eos|sos|eot|eod|start|end|blank|[|｜][^<>\s]{1,40}[|｜]|\d+|2[a-z]{2,3}"
    r"|(?:mask|unused|extra_id|special|reserved\w*)_?\d+|(?:start|end)_of_\w{1,30}|fim_\w{1,30}"
)
SQUARE_NAMES = r"CLS|SEP|PAD|UNK|MASK|BOS|EOS|/?INST|unused_?\d+"
SPECIAL = re.compile(rf"<(?:{ANGLE_NAMES})>|\[(?:{SQUARE_NAMES})\]", re.IGNORECASE)
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
DELIMITERS = frozenset(".,;:!?。，、；：！？…")
BLANKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
_Piece = tuple[str | bytes, bool]  # a text, or bytes that may be part of a character; whether it opens a word


@dataclass(frozen=True)
class Axis:
    """The tokens of an axis, by document position; made by `text`, `image`, `audio` or `media`."""

    tokens: Sequence[str]
    kind: str = "text"
    extra: AxisExtras = field(default_factory=AxisExtras)

    @classmethod
    def text(cls, tokens: Sequence[str], *, reads: str | None = None) -> Axis:
        """The tokens of a text; `reads` names the axis that a decoder reads while it writes these tokens."""
        return cls(tokens, "text", {} if reads is None else {"reads": reads})

    @classmethod
    def numbers(cls, count: int) -> Axis:
        """Positions, where the tokens are not known."""
        return cls([str(position) for position in range(count)], "text", {"unknown": True})

    @classmethod
    def image(
        cls, picture: Shaped[Tensor, "height width *channels"], grid: tuple[int, int], before: Sequence[str] = ()
    ) -> Axis:
        """The patches of a picture, row by row, after the tokens `before`, such as [CLS].

        The picture has bytes from 0 to 255 or floats from 0 to 1, one channel or three.
        """
        rows, columns = grid
        patches = [f"{row},{column}" for row in range(rows) for column in range(columns)]
        return cls([*before, *patches], "image", {"grid": [rows, columns], "picture": encode_png_url(picture)})

    @classmethod
    def audio(cls, spectrogram: Float[Tensor, "bands frames"], frames: int, seconds: float | None = None) -> Axis:
        """The frames of a sound; the spectrogram, low bands first, may have more frames than the model has tokens."""
        extra: AxisExtras = {"grid": [1, frames], "picture": encode_png_url(_scale_loudness(spectrogram.flip(0)))}
        if seconds is None:
            return cls([str(frame) for frame in range(frames)], "audio", extra)
        each = seconds / frames
        tokens = [f"{frame * each:.2f} s" for frame in range(frames)]
        return cls(tokens, "audio", {**extra, "seconds": seconds, "step": each})

    @classmethod
    def media(cls, media: PictureInput | SoundInput, count: int) -> Axis:
        """The patches or moments of an input that a task has read: `count` tokens of the encoder."""
        return _picture_axis(media, count) if isinstance(media, PictureInput) else _sound_axis(media, count)

    @cached_property
    def displayed(self) -> DisplayedTokens:
        if self.kind == "text" and "unknown" not in self.extra:
            return display_tokens(self.tokens)
        plain = [False] * len(self.tokens)
        return DisplayedTokens(list(self.tokens), plain, plain)

    def to_json(self) -> AxisJson:
        shown, glued, special = self.displayed
        tokens = list(self.tokens)
        return {"kind": self.kind, "tokens": tokens, "shown": shown, "glued": glued, "special": special, **self.extra}

    def find_delimiters(self) -> list[bool]:
        """Which tokens are punctuation or special tokens, the first one excepted."""
        shown, _, special = self.displayed
        marks = [is_punctuation(text) or end for text, end in zip(shown, special, strict=True)]
        return [False, *marks[1:]] if marks else []


def read_media(forward: Forward) -> PictureInput | SoundInput | None:
    """The picture or sound that the model has read; None if there is none, or it cannot be drawn."""
    try:
        media = None if forward.about.media is None else media_from_json(forward.about.media)
    except RecordError:
        return None
    if media is None or isinstance(media, PictureInput):
        return media if media is None or media.pixels.size else None
    times = (media.seconds, media.frame_seconds, media.position_seconds)
    if not media.spectrogram.size or not np.isfinite(media.spectrogram).all() or min(times) <= 0:
        return None
    spikes = [
        (position, text, min(max(chance, 0.0), 1.0))
        for position, text, chance in media.spikes[:MAX_SPIKES]
        if position >= 0 and math.isfinite(chance)
    ]
    return media._replace(spikes=spikes)


def get_file_name(path: str) -> str:
    """The last part of a path, of whichever system."""
    return ntpath.basename(path.rstrip("/\\")) or path


def _picture_axis(media: PictureInput, count: int) -> Axis:
    patches = [f"r{row} c{column}" for row in range(media.rows) for column in range(media.columns)]
    if len(patches) > count:
        return Axis.numbers(count)
    before = [f"⟨{number}⟩" for number in range(count - len(patches))]
    pixels = _shrink(torch.from_numpy(media.pixels.copy()).float().movedim(2, 0), PICTURE_PIXELS)
    extra: AxisExtras = {
        "grid": [media.rows, media.columns],
        "picture": encode_png_url(pixels.movedim(0, 2).round().byte()),
        "file": get_file_name(media.name),
    }
    return Axis([*before, *patches], "image", extra)


def _sound_axis(media: SoundInput, count: int) -> Axis:
    spectrogram = _shrink(torch.from_numpy(media.spectrogram.copy()).T[None], SPECTROGRAM_PIXELS)[0]
    extra: AxisExtras = {
        "grid": [1, count],
        "picture": encode_png_url(_scale_loudness(spectrogram.flip(0))),
        "file": get_file_name(media.name),
        "seconds": round(len(media.spectrogram) * media.frame_seconds, 6),
        "step": media.position_seconds,
        "start": round(media.start, 6),
        "spikes": [[position, text, round(chance, 4)] for position, text, chance in media.spikes if position < count],
    }
    return Axis([media.name_position(position) for position in range(count)], "audio", extra)


def _shrink(pictures: Float[Tensor, "channels height width"], most: int) -> Float[Tensor, "channels _ _"]:
    """Means over blocks, so that at most `most` pixels are left a side: a page must open at once."""
    blocks = [max(1, -(-size // most)) for size in pictures.shape[1:]]
    return functional.avg_pool2d(pictures[None], blocks, ceil_mode=True)[0] if max(blocks) > 1 else pictures


def _scale_loudness(spectrogram: Float[Tensor, "bands frames"]) -> Float[Tensor, "bands frames"]:
    """From 0 for the most silent fifth to 1 for the loudest thousandth, so that single values do not darken it."""
    steps = spectrogram.flatten()[:: max(1, spectrogram.numel() // 100_000)].sort().values
    low, high = float(steps[int(0.2 * len(steps))]), float(steps[min(int(0.999 * len(steps)), len(steps) - 1)])
    return ((spectrogram - low) / max(high - low, 1e-12)).clamp(0, 1)


def encode_png_url(picture: Shaped[Tensor, "height width *channels"]) -> str:
    """A picture as a PNG in a data: URL."""
    pixels = picture.detach().cpu()
    if pixels.is_floating_point():
        pixels = (pixels.clamp(0, 1) * 255).round()
    raw = pixels.numpy().astype(np.uint8)
    if raw.ndim not in (2, 3) or (raw.ndim == 3 and raw.shape[2] not in (1, 3)):
        raise RecordError(f"a picture is (height, width) or (height, width, 3), got {tuple(picture.shape)}")
    raw = raw[:, :, 0] if raw.ndim == 3 and raw.shape[2] == 1 else raw
    height, width = raw.shape[:2]
    colour = 2 if raw.ndim == 3 else 0
    filters = np.zeros((height, 1), np.uint8)  # of PNG: each line begins with one, 0 is none
    lines = np.concatenate([filters, raw.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = [_png_chunk(b"IHDR", header), _png_chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)), _png_chunk(b"IEND")]
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode("ascii")


def _png_chunk(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


class DisplayedTokens(NamedTuple):
    """Tokens as they are displayed; lists, because a text may have very many."""

    shown: list[str]
    glued: list[bool]  # whether a token continues the word of the token before
    special: list[bool]  # start, end or padding


def display_tokens(tokens: Sequence[str]) -> DisplayedTokens:
    """Displays tokens without their marks for spaces; bytes become the character that they encode together.

    >>> display_tokens(["▁lower", "est", "<0xE5>", "<0xA5>", "<0xB9>", "▁", "</s>"]).shown
    ['lower', 'est', '她₁', '她₂', '她₃', '␣', '⟨/s⟩']
    >>> display_tokens(["▁lower", "est"])
    DisplayedTokens(shown=['lower', 'est'], glued=[False, True], special=[False, False])
    """
    different = list(dict.fromkeys(tokens))
    marks = {token for token in different if _is_special(token)}
    parse = _choose_parser([token for token in different if token not in marks])
    pieces = {token: (f"⟨{token[1:-1]}⟩", True) if token in marks else parse(token) for token in different}
    if any(isinstance(content, bytes) for content, _ in pieces.values()):
        shown = [_show_blanks(text) for text in _join_bytes([pieces[token][0] for token in tokens])]
    else:
        visible = {token: _show_blanks(str(content)) for token, (content, _) in pieces.items()}
        shown = [visible[token] for token in tokens]
    special = [token in marks for token in tokens]
    opens = [pieces[token][1] for token in tokens]
    glued = [not (new or before) for new, before in zip(opens, [True, *special[:-1]], strict=True)] if tokens else []
    return DisplayedTokens(shown, glued, special)


def is_punctuation(text: str) -> bool:
    return text[:1] in DELIMITERS and set(text) <= DELIMITERS


def display_next_tokens(rows: Sequence[Sequence[TokenChance] | None]) -> list[list[TokenChance] | None]:
    """Candidates for the next token with their probabilities, displayed; None for rows that are not known."""

    def display(row: Sequence[TokenChance]) -> list[TokenChance]:
        return [(display_tokens([token]).shown[0], chance) for token, chance in row if math.isfinite(chance)]

    return [None if row is None else display(row) for row in rows]


def _show_blanks(text: str) -> str:
    return text if text.strip() else (text or " ").translate(BLANKS)


def _join_bytes(contents: Sequence[str | bytes]) -> list[str]:
    """The texts of tokens; neighbouring bytes are decoded together."""
    texts: list[str] = []
    for raw, run in groupby(contents, lambda content: isinstance(content, bytes)):
        pieces: list[Any] = list(run)
        texts += _decode_bytes(pieces) if raw else pieces
    return texts


def _is_special(token: str) -> bool:
    likely = token[-1:] in (">", "]")  # regular expressions are slow for very many tokens
    return likely and SPECIAL.fullmatch(token) is not None and BYTE.fullmatch(token) is None


def _choose_parser(tokens: Sequence[str]) -> Callable[[str], _Piece]:
    """The parser for the tokenizer's marks: SentencePiece, WordPiece, byte-level BPE, or plain words."""
    if any(token.startswith(SPACE) or BYTE.search(token) for token in tokens):
        return _parse_sentencepiece
    if any(token.startswith("##") for token in tokens):
        return lambda token: (token.removeprefix("##"), not token.startswith("##"))
    marks = {mark for token in tokens for mark in token}
    if any("\u0100" <= mark <= "\u0143" for mark in marks) and marks <= byte_alphabet().keys():
        return lambda token: _parse_sentencepiece(decode_byte_characters(token, byte_alphabet()))
    return lambda token: (token, True)


def _parse_sentencepiece(token: str) -> _Piece:
    text, opens = token.removeprefix(SPACE).replace(SPACE, " "), token.startswith((SPACE, "\n"))
    if "<0x" not in token or BYTE.search(token) is None:
        return text, opens
    parts = BYTE.split(text)  # text, byte, text, byte, …
    pairs = zip(parts[::2], ["", *parts[1::2]], strict=True)
    return b"".join(bytes.fromhex(byte) + part.encode("utf-8", "surrogatepass") for part, byte in pairs), opens


def _decode_bytes(pieces: Sequence[bytes]) -> list[str]:
    """The text of each piece; a character that several pieces share is shown by each with a number."""
    whole, owners = b"".join(pieces), [number for number, piece in enumerate(pieces) for _ in piece]
    shown, start = [""] * len(pieces), 0
    while start < len(whole):
        size = next((size for size in range(1, 5) if _is_character(whole[start : start + size])), 0)
        mark = whole[start : start + size].decode() if size else f"⟨{whole[start]:02X}⟩"
        size = size or 1
        sharers = list(dict.fromkeys(owners[start : start + size]))
        for number, owner in enumerate(sharers, 1):
            shown[owner] += mark if len(sharers) == 1 else f"{mark}{number}".translate(SUBSCRIPTS)
        start += size
    return shown


def _is_character(raw: bytes) -> bool:
    try:
        return len(raw.decode()) == 1
    except UnicodeDecodeError:
        return False
