"""Scene: what a page needs to know of a record; the numbers themselves come from its panoramas."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import NoneType
from typing import Any

from clearhead.errors import RecordError
from clearhead.explore.axes import Axis
from clearhead.explore.heads import NONE, in_step, summaries
from clearhead.explore.panorama import OVERVIEW, Panorama
from clearhead.explore.words import words
from clearhead.lens.analysis.roles import HeadRoles
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import Forward, Sight, find_text

FORMAT = 1
LANGUAGES = ["en", "zh"]
LABEL = 24  # characters of the text that a view is called by
UNKNOWN = "…"  # what is written where the text ends


class Scene:
    """One view of a record: one of its calls, and one sample of that.

    `axes` replaces what the record says of its tokens: `{"tokens": Axis.image(picture, (14, 14), ["[CLS]"])}`; of a
    model with a second tower of 50 tokens, say, that tower's axis is "tokens#50".
    """

    def __init__(
        self,
        record: Record,
        view: int = 0,
        *,
        title: str | None = None,
        axes: Mapping[str, Axis] | None = None,
        roles: HeadRoles | None = None,
        live: bool = False,
        notes: Sequence[str] = (),
    ) -> None:
        self.record, self.live, self.roles = record, live, roles
        self.places = views(record)
        if not 0 <= view < len(self.places):
            known = "holds nothing that was seen" if not self.places else f"has views 0 to {len(self.places) - 1}"
            raise RecordError(f"the record {known}, not {view}")
        self.view = view
        call, self.sample = self.places[view]
        self.forward: Forward = record.calls[call]
        self.about = about(self.forward)
        self.title = title or self.about.get("model") or "attention"
        self.notes = [*self.about.get("notes", []), *notes]
        self.given = dict(axes or {})

    def beside(self, view: int) -> Scene:
        """Another view of the same record."""
        return Scene(self.record, view, title=self.title, axes=self.given, roles=self.roles, live=self.live)

    @cached_property
    def panoramas(self) -> dict[str, Panorama]:
        """By the name of the attention."""
        sights = {name: self.forward[name] for name in self.forward.names}
        widest = max(sights.values(), key=lambda sight: len(sight.entropy))
        return {name: Panorama(sight, _own_sample(sight, widest, self.sample)) for name, sight in sights.items()}

    def panorama(self, name: str) -> Panorama:
        if name not in self.panoramas:
            raise RecordError(f"nothing was seen of an attention called {name!r}")
        return self.panoramas[name]

    def to_dict(self, pixels: int = OVERVIEW) -> dict[str, Any]:
        """As JSON for the page, which gets maps of so many pixels."""
        attentions = [self._attention(name, pixels) for name in self.panoramas]
        return {
            "format": FORMAT,
            "title": self.title,
            "subtitle": self._subtitle(),
            "notes": self.notes,
            "live": self.live,
            "exact": all(one.exact for one in self.panoramas.values()),
            "axes": {name: axis.to_dict() for name, axis in self.axes.items()},
            "output": self._output(),
            "attentions": attentions,
            "norms": any(one.sight.norms is not None for one in self.panoramas.values()),
            "languages": LANGUAGES,
            "without": self.about.get("without"),
            "start": self._start(attentions),
            "views": [self.label(place) for place in range(len(self.places))],
            "view": self.view,
        }

    @cached_property
    def axes(self) -> dict[str, Axis]:
        """Every axis that an attention has, by its name."""
        found: dict[str, Axis] = {}
        for name, panorama in self.panoramas.items():
            for axis, needed in zip(self._sides(name), _ends(panorama), strict=True):
                if axis not in found or len(found[axis].tokens) < needed:
                    found[axis] = self._axis(axis, needed)
        both = (self._decoded, "written")
        if self.about.get("writes") and any(axis in found for axis in both):
            needed = max(len(found[axis].tokens) for axis in both if axis in found)
            found = {**{axis: self._axis(axis, needed) for axis in both if axis not in found}, **found}
        return found

    def _axis(self, name: str, needed: int) -> Axis:
        kind, _, _ = name.partition("#")
        if name in self.given:
            axis = self.given[name]
            return axis if len(axis.tokens) >= needed else Axis.numbers(needed)
        if kind == "written":
            writes = [text or UNKNOWN for text in self.about["writes"][:needed]]
            return Axis.text([*writes, *[UNKNOWN] * (needed - len(writes))], reads=self._decoded)
        owner = self._owner(kind)
        texts = self.forward.texts(kind, owner.sample, owner.sight.inputs)[:needed]
        texts += [None] * (needed - len(texts))
        if all(text is None for text in texts):
            return Axis.numbers(needed)
        return Axis.text([f"⟨{place}⟩" if text is None else text for place, text in enumerate(texts)])

    @cached_property
    def _decoded(self) -> str:
        """The axis of the tokens that a decoder reads; at each of their places it writes the next one."""
        return "target" if any(one.sight.cross for one in self.panoramas.values()) else "tokens"

    def _owner(self, kind: str) -> Panorama:
        """An attention over this kind of text, which knows how samples and inputs belong together."""
        owners = [one for name, one in self.panoramas.items() if kind in self._sides(name)]
        return owners[0] if owners else next(iter(self.panoramas.values()))

    def _sides(self, name: str) -> tuple[str, str]:
        """The axes of an attention's queries and keys. A tower of its own, of another length, has an own axis."""
        sight = self.panoramas[name].sight
        if sight.cross:
            return ("written" if self.about.get("writes") else "target", "source")
        kind = "source" if self._decoded == "target" and name.split(".")[0] == "encoder" else self._decoded
        ids, own = self.forward.ids.get(kind), f"{kind}#{sight.keys}"
        other = kind not in self.given and ids is not None and ids.shape[1] < sight.keys
        return (own, own) if other or own in self.given else (kind, kind)

    def _attention(self, name: str, pixels: int) -> dict[str, Any]:
        panorama, (queries, keys) = self.panoramas[name], self._sides(name)
        part, layer, kind = _parts(name, panorama.sight.cross)
        delimiters = self.axes[keys].delimiters() if self.axes[keys].kind == "text" else None
        effects = self.about.get("effects")
        heads = summaries(panorama.sight, panorama.sample, delimiters, roles=self.roles, effects=effects)
        return {
            "name": name,
            "part": part,
            "layer": layer,
            "kind": kind,
            "queries": queries,
            "keys": keys,
            "counts": list(panorama.counts),
            "blocks": list(panorama.overview(pixels)),
            "first": list(panorama.first),
            "heads": [{**head, "exact": panorama.exact} for head in heads],
        }

    def _output(self) -> dict[str, Any] | None:
        if not self.about.get("text") and not self.about.get("next"):
            return None  # an encoder: it reads, and that is all
        writes = self._decoded == "target" and "written" in self.axes
        return {
            "text": self.about.get("text", ""),
            "axis": "written" if writes else "tokens",
            "shift": 0 if writes else 1,
            "next": self.about.get("next"),
            "loss": self.about.get("loss"),
            "given": bool(self.about.get("given", False)),
        }

    def _start(self, attentions: list[dict[str, Any]]) -> dict[str, Any]:
        """What is shown first: the head that aligns best, or else the last cross-attention, or the first attention.

        It looks sharply, at ever other tokens, and in step with the other heads; of equals the one in a later layer.
        """
        crossing = [one for one in attentions if one["kind"] == "cross"]
        seen = [self.panoramas[one["name"]] for one in crossing]
        steps = in_step([one.sight for one in seen], [one.sample for one in seen])
        scored = [
            (round((head["score"] or 0.0) * step, 2), one["layer"], one, head)
            for one, own in zip(crossing, steps, strict=True)
            for head, step in zip(one["heads"], own, strict=True)
            if head["role"] == "alignment"
        ]
        if scored:
            *_, one, head = max(scored, key=lambda some: some[:2])
            return {"name": one["name"], "head": head["number"]}
        one = (crossing or attentions)[-1 if crossing else 0]
        named = [head for head in one["heads"] if head["role"] != NONE] or one["heads"]
        return {"name": one["name"], "head": named[0]["number"] if named else 0}

    def _subtitle(self) -> str:
        layers: dict[str, set[int]] = {}
        for name, panorama in self.panoramas.items():
            part, layer, _ = _parts(name, panorama.sight.cross)
            layers.setdefault(part, set()).add(layer)
        heads = max((len(one.sight.heads) for one in self.panoramas.values()), default=0)
        counts = "+".join(str(len(some)) for some in layers.values())
        return f"{counts} layer{'s' * (counts != '1')} × {heads} head{'s' * (heads != 1)}"

    def label(self, place: int) -> str:
        """What a view is called, in a list of all of them."""
        call, sample = self.places[place]
        known = about(self.record.calls[call])
        others = [one.about.get("input") for one in self.record.calls]
        text = known.get("text") if others.count(known.get("input")) > 1 else known.get("input")  # of parts their own
        number = f"{call + 1}" if len({one for one, _ in self.places}) > 1 else ""
        several = len([one for one, _ in self.places if one == call]) > 1
        name = f"{number}.{sample + 1}" if number and several else number or f"{sample + 1}"
        return f"{name}: {text[:LABEL]}" if text else name


def views(record: Record) -> list[tuple[int, int]]:
    """Every call with each of its samples."""
    found = []
    for number, call in enumerate(record.calls):
        samples = max((call[name].entropy.shape[0] for name in call.names), default=0)
        found += [(number, sample) for sample in range(samples)]
    return found


def _own_sample(sight: Sight, widest: Sight, sample: int) -> int:
    """Of an attention with fewer samples, since beams share what it saw, the one that belongs to a beam."""
    own, all_of_them = len(sight.entropy), len(widest.entropy)
    if own == all_of_them:
        return sample
    text = find_text(sample, widest.inputs, own) if sample < len(widest.inputs) else own
    return text if text < own else sample * own // all_of_them


def about(forward: Forward) -> dict[str, Any]:
    """What else is known of a call: the model's name, what it wrote, with which probabilities.

    A record may come from anywhere: what is not of the kind that it should be is left out.
    """
    known = forward.about
    found: dict[str, Any] = {
        name: known[name] for name in ("model", "input", "text") if isinstance(known.get(name), str)
    }
    for name in ("notes", "writes"):
        if _is_list(known.get(name), str):
            found[name] = known[name]
    if _is_number(known.get("loss")):
        found["loss"] = known["loss"]
    found["given"] = known.get("given") is True
    if isinstance(known.get("next"), list):
        found["next"] = probable(known["next"])
    if isinstance(effects := known.get("effects"), dict):
        found["effects"] = {name: some for name, some in effects.items() if _is_list(some, float)}
    if isinstance(without := known.get("without"), dict):
        found["without"] = {
            name: {head: one for head, told in some.items() if (one := _without(told)) is not None}
            for name, some in without.items()
            if isinstance(some, dict)
        }
    return found


def _without(told: Any) -> dict[str, Any] | None:
    """What a model does without a head, if it is that."""
    if not isinstance(told, dict) or not isinstance(told.get("text"), (str, NoneType)):
        return None
    loss, rows = (told[name] if isinstance(told.get(name), list) else [] for name in ("loss", "next"))
    short = [row and [[token, round(share, 4)] for token, share in row] for row in probable(rows)]
    return {"text": told.get("text"), "loss": [one if _is_number(one) else None for one in loss], "next": short}


def probable(rows: list[Any]) -> list[list[list[Any]] | None]:
    """Next tokens and their probabilities, as they are shown; None where they are not known."""
    found: list[list[list[Any]] | None] = []
    for row in rows:
        if isinstance(row, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in row):
            pairs = [(token, share) for token, share in row if isinstance(token, str) and _is_number(share)]
            found.append([[words([token])[0].shown, share] for token, share in pairs])
        else:
            found.append(None)
    return found


def _is_list(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _parts(name: str, cross: bool) -> tuple[str, int, str]:
    """The stack, the layer and the kind that a name speaks of."""
    pieces = name.split("#")[0].split(".")
    numbers = [int(piece) for piece in pieces if re.fullmatch(r"\d+", piece)]
    kind = "cross" if cross else "self"
    return pieces[0], numbers[0] if numbers else 0, kind


def _ends(panorama: Panorama) -> tuple[int, int]:
    """The position after the last query, and after the last key."""
    return panorama.first[0] + panorama.counts[0], panorama.counts[1]
