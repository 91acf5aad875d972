"""Names in figures: kinds and layers of a record's attentions, and the texts of their queries and keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from clearhead.errors import ConfigError, RecordError
from clearhead.explore.token_axis import Axis
from clearhead.explore.token_display import DELIMITERS, display_tokens
from clearhead.lens import Forward, Record, Sight

Texts = Sequence[str | None] | None
Sides = Mapping[str, Sequence[str | None]] | None  # {"source": …, "target": …, perhaps "written": …}, or {"tokens": …}


def split_name(name: str) -> tuple[str, int | None]:
    """The kind of an attention and its layer, None if its name has no number.

    >>> split_name("decoder.3.cross"), split_name("encoder.0.self#2"), split_name("mixer")
    (('decoder cross', 3), ('encoder self #2', 0), ('mixer', None))
    """
    found = re.fullmatch(r"(.*?)\.?(\d+)\.?([^#]*)(#\d+)?", name)
    if not found:
        return name, None
    parts = (part.replace(".", " ") for part in (found[1], found[3], found[4] or ""))
    return " ".join(part for part in parts if part) or "attention", int(found[2])


def group_by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    """Attention names by kind, in their order: {"encoder self": ["encoder.0.self", …], …}."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(split_name(name)[0], []).append(name)
    return kinds


def find_delimiters(texts: Texts) -> list[bool] | None:
    """Which tokens are punctuation or special tokens; None if the texts are not known."""
    return None if texts is None else Axis.text([text or "" for text in texts]).find_delimiters()


def find_punctuation(texts: Texts) -> list[bool]:
    """Which tokens are punctuation only."""
    shown = [word.shown for word in display_tokens([text or "" for text in texts or ()])]
    return [bool(one) and set(one) <= DELIMITERS for one in shown]


def get_call(source: Record | Forward) -> Forward:
    """The only call of a record; RecordError if it has several or none."""
    if isinstance(source, Record) and len(source.calls) != 1:
        raise RecordError(f"the record has {len(source.calls)} calls; pass one of them, such as record.calls[0]")
    forward = source.calls[0] if isinstance(source, Record) else source
    if not forward.names:
        raise RecordError("the call contains no attention")
    return forward


def get_key_texts(sight: Sight, sample: int, given: Sides = None) -> Texts:
    """The texts of the keys, as given or as recorded; None if they are not known."""
    if given is not None:
        return _pick_given(given, source=sight.cross or _in_encoder(sight))
    return _texts_or_none([sight.text(sample, key) for key in range(sight.keys)])


def get_query_texts(sight: Sight, sample: int, given: Sides = None, *, when: str | None = None) -> Texts:
    """The texts of the measured queries.

    A decoder's rows are named by the token "written" there or the one "read" before; by default, cross-attention by the
    token written and self-attention by the token read.
    """
    places, texts = sight.queries.tolist(), get_written_texts(sight, given, when=when)
    if texts is None and given is not None:
        texts = _pick_given(given, source=_in_encoder(sight))
    if texts is not None:
        return [texts[place] if place < len(texts) else None for place in places]
    if given is not None or sight.forward is None:
        return None
    if not sight.cross:
        return _texts_or_none([sight.text(sample, place) for place in places])
    kind = sight.forward.kind_of(sight.name, False)
    return _texts_or_none([sight.forward.text(kind, sample, place, sight.inputs) for place in places])


def get_written_texts(sight: Sight, given: Sides = None, *, when: str | None = None) -> Texts:
    """The tokens that a decoder writes, if its rows are named by them and they are known; else None."""
    check_row_naming(when)
    if (when or ("written" if sight.cross else "read")) == "read" or _in_encoder(sight):
        return None
    if given is not None:
        return given.get("written")
    return sight.forward.about.writes or None if sight.forward is not None else None


def check_row_naming(when: str | None) -> None:
    if when not in (None, "written", "read"):
        raise ConfigError(f"when= must be 'written' (rows are output tokens) or 'read' (input tokens), got {when!r}")


def _in_encoder(sight: Sight) -> bool:
    return not sight.cross and "encoder" in sight.name.split(".")


def _pick_given(given: Mapping[str, Sequence[str | None]], *, source: bool) -> Texts:
    return given.get("source" if source else "target", given.get("tokens"))


def _texts_or_none(texts: list[str | None]) -> Texts:
    return texts if any(text is not None for text in texts) else None
