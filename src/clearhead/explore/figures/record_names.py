"""Names in figures: kinds and layers of a record's attentions, and the texts of their queries and keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from clearhead.errors import ConfigError, RecordError
from clearhead.explore.token_axis import display_token_lists, find_delimiters, is_punctuation
from clearhead.lens import Forward, Record, Sight

Texts = Sequence[str | None] | None


def split_name(name: str) -> tuple[str, int | None]:
    """The kind of an attention and its layer, None if its name has no number.

    >>> split_name("decoder.3.cross"), split_name("encoder.0.self#2"), split_name("mixer")
    (('decoder cross', 3), ('encoder self #2', 0), ('mixer', None))
    """
    match = re.fullmatch(r"(.*?)\.?(\d+)\.?([^#]*)(#\d+)?", name)
    if not match:
        return name, None
    parts = (part.replace(".", " ") for part in (match[1], match[3], match[4] or ""))
    return " ".join(part for part in parts if part) or "attention", int(match[2])


def group_by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    """Attention names by kind, in their order: {"encoder self": ["encoder.0.self", …], …}."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(split_name(name)[0], []).append(name)
    return kinds


def find_delimiter_texts(texts: Texts) -> list[bool] | None:
    """Which tokens are punctuation or special tokens; None if the texts are not known."""
    if texts is None:
        return None
    shown, _, special = display_token_lists([text or "" for text in texts])
    return find_delimiters(shown, special)


def find_punctuation(texts: Texts) -> list[bool]:
    """Which tokens are punctuation only."""
    shown, _, _ = display_token_lists([text or "" for text in texts or ()])
    return list(map(is_punctuation, shown))


def get_call(source: Record | Forward) -> Forward:
    """The only call of a record; RecordError if it has several or none."""
    if isinstance(source, Record) and len(source.calls) != 1:
        raise RecordError(f"the record has {len(source.calls)} calls; pass one of them, such as record.calls[0]")
    forward = source.calls[0] if isinstance(source, Record) else source
    if not forward.names:
        raise RecordError("the call contains no attention")
    return forward


def get_key_texts(sight: Sight, sample: int) -> Texts:
    """The texts of the keys; None if they are not known."""
    return _texts_or_none(sight.texts(sample))


def get_query_texts(sight: Sight, sample: int, when: str | None = None) -> Texts:
    """The texts of the measured queries.

    A decoder's rows are named by the token "written" there or the one "read" before; by default, cross-attention by the
    token written and self-attention by the token read.
    """
    positions, written = sight.queries.tolist(), get_written_texts(sight, when)
    if written is not None:
        return [written[position] if position < len(written) else None for position in positions]
    if sight.forward is None:
        return None
    if not sight.cross:
        return _texts_or_none([sight.text(sample, position) for position in positions])
    kind = sight.forward.kind_of(sight.name, False)
    return _texts_or_none([sight.forward.text(kind, sample, position, sight.inputs) for position in positions])


def get_written_texts(sight: Sight, when: str | None = None) -> Texts:
    """The tokens that a decoder writes, if its rows are named by them and they are known; else None."""
    check_row_naming(when)
    in_encoder = not sight.cross and "encoder" in sight.name.split(".")
    if sight.forward is None or in_encoder or (when or ("written" if sight.cross else "read")) == "read":
        return None
    return sight.forward.about.writes or None


def check_row_naming(when: str | None) -> None:
    if when not in (None, "written", "read"):
        raise ConfigError(f"when= must be 'written' (rows are output tokens) or 'read' (input tokens), got {when!r}")


def _texts_or_none(texts: list[str | None]) -> Texts:
    return texts if any(text is not None for text in texts) else None
