"""What a record's attentions and tokens are called in figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from clearhead.errors import ConfigError, RecordError
from clearhead.explore.axes import Axis
from clearhead.explore.heads import DELIMITERS
from clearhead.explore.words import words
from clearhead.lens import Forward, Record, Sight

Texts = Sequence[str | None] | None
Sides = Mapping[str, Sequence[str | None]] | None  # {"source": …, "target": …, perhaps "written": …}, or {"tokens": …}


def kind_and_layer(name: str) -> tuple[str, int | None]:
    """The kind of an attention and the number of its layer, where its name has one.

    >>> kind_and_layer("decoder.3.cross"), kind_and_layer("encoder.0.self#2"), kind_and_layer("mixer")
    (('decoder cross', 3), ('encoder self #2', 0), ('mixer', None))
    """
    found = re.fullmatch(r"(.*?)\.?(\d+)\.?([^#]*)(#\d+)?", name)
    if not found:
        return name, None
    parts = (part.replace(".", " ") for part in (found[1], found[3], found[4] or ""))
    return " ".join(part for part in parts if part) or "attention", int(found[2])


def by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    """The names of each kind, in their order: {"encoder self": ["encoder.0.self", …], …}."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(kind_and_layer(name)[0], []).append(name)
    return kinds


def delimiters(texts: Texts) -> list[bool] | None:
    """Which of them are punctuation, or the end of something."""
    return None if texts is None else Axis.text([text or "" for text in texts]).delimiters()


def punctuation(texts: Texts) -> list[bool]:
    """Which of them are punctuation, and nothing else."""
    shown = [word.shown for word in words([text or "" for text in texts or ()])]
    return [bool(one) and set(one) <= DELIMITERS for one in shown]


def forward_of(source: Record | Forward) -> Forward:
    """The only call of a record."""
    if isinstance(source, Record) and len(source.calls) != 1:
        raise RecordError(f"the record holds {len(source.calls)} calls; give one of them, as record.calls[0]")
    forward = source.calls[0] if isinstance(source, Record) else source
    if not forward.names:
        raise RecordError("nothing was seen in this call")
    return forward


def key_texts(sight: Sight, sample: int, given: Sides = None) -> Texts:
    """The texts of the keys, as they were given or as the record knows them; None if nobody knows."""
    if given is not None:
        return _given(given, source=sight.cross or _in_encoder(sight))
    return _known([sight.text(sample, key) for key in range(sight.keys)])


def query_texts(sight: Sight, sample: int, given: Sides = None, *, when: str | None = None) -> Texts:
    """The texts of the queries that were measured.

    A decoder's are named by the token that is being "written" there, or by the one that has been "read"; with None,
    those that look into another text by what is written, and others by what is read.
    """
    places, texts = sight.queries.tolist(), written(sight, given, when=when)
    if texts is None and given is not None:
        texts = _given(given, source=_in_encoder(sight))
    if texts is not None:
        return [texts[place] if place < len(texts) else None for place in places]
    if given is not None or sight.forward is None:
        return None
    if not sight.cross:
        return _known([sight.text(sample, place) for place in places])
    kind = sight.forward.kind_of(sight.name, False)
    return _known([sight.forward.text(kind, sample, place, sight.inputs) for place in places])


def written(sight: Sight, given: Sides = None, *, when: str | None = None) -> Texts:
    """What a decoder writes at each place, if its rows are to be named by that, and somebody knows it."""
    check_when(when)
    if (when or ("written" if sight.cross else "read")) == "read" or _in_encoder(sight):
        return None
    if given is not None:
        return given.get("written")
    return sight.forward.about.get("writes") or None if sight.forward is not None else None


def check_when(when: str | None) -> None:
    if when not in (None, "written", "read"):
        raise ConfigError(f"rows are tokens that are 'written' or 'read', not {when!r}")


def _in_encoder(sight: Sight) -> bool:
    return not sight.cross and "encoder" in sight.name.split(".")


def _given(given: Mapping[str, Sequence[str | None]], *, source: bool) -> Texts:
    return given.get("source" if source else "target", given.get("tokens"))


def _known(texts: list[str | None]) -> Texts:
    return texts if any(text is not None for text in texts) else None
