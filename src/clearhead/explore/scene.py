"""Scene: what a page shows of one view of a record, without the weights; `scene_json.py` lists its keys."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cached_property

from clearhead.errors import RecordError
from clearhead.explore.attention_map import OVERVIEW, AttentionMap
from clearhead.explore.head_summaries import choose_opening_head, round_for_json, summarise_heads
from clearhead.explore.scene_json import AttentionJson, ChangeJson, HeadJson, OutputJson, SceneJson, StartJson
from clearhead.explore.tensor_encoding import encode_runs
from clearhead.explore.token_axis import Axis, display_next_tokens, get_file_name, read_media
from clearhead.formatting import suggest_name
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import Forward, Sight, find_text
from clearhead.lens.record.call_metadata import AnswerChange
from clearhead.tasks.media import PictureInput, SoundInput

FORMAT = 1
LABEL = 24  # characters of the text in the label of a view
UNKNOWN = "…"  # shown for a token that is written but not known


class Scene:
    """One view of a record: one of its calls, and one sample of that.

    `axes` replaces the record's tokens: `{"tokens": Axis.image(picture, (14, 14), ["[CLS]"])}`. If a model has a
    second encoder over, say, 50 tokens, the axis of that is called "tokens#50". `takes` is the kind of input, "text",
    "picture" or "sound", of a model that is loaded.
    """

    def __init__(
        self,
        record: Record,
        view: int = 0,
        *,
        title: str | None = None,
        axes: Mapping[str, Axis] | None = None,
        takes: str | None = None,
    ) -> None:
        self.record, self.takes = record, takes
        self.views = list_views(record)
        if not 0 <= view < len(self.views):
            contents = f"has views 0 to {len(self.views) - 1}" if self.views else "contains no attention"
            raise RecordError(f"the record {contents}, so there is no view {view}")
        self.view = view
        self.call, self.sample = self.views[view]
        self.forward: Forward = record.calls[self.call]
        self.about = self.forward.about  # what is known of the call besides its attention
        self.title = title or self.about.model or "attention"
        self.user_axes = dict(axes or {})

    @cached_property
    def media(self) -> PictureInput | SoundInput | None:
        """The picture or sound that the model has read."""
        return read_media(self.forward)

    @cached_property
    def maps(self) -> dict[str, AttentionMap]:
        """By the name of the attention."""
        sights = {name: self.forward[name] for name in self.forward.names}
        widest = max(sights.values(), key=lambda sight: len(sight.entropy))
        return {name: AttentionMap(sight, _find_sample(sight, widest, self.sample)) for name, sight in sights.items()}

    def find_map(self, name: str) -> AttentionMap:
        if name not in self.maps:
            raise RecordError(f"the record has no attention {name!r:.60}; {suggest_name(name, list(self.maps)[:6])}")
        return self.maps[name]

    def to_json(self, pixels: int = OVERVIEW) -> SceneJson:
        """The scene for the page, with maps of at most `pixels` a side."""
        return {
            "format": FORMAT,
            "title": self.title,
            "notes": list(self.about.notes or []),
            "live": self.takes is not None,
            "takes": self.takes or "text",
            "exact": all(attention.exact for attention in self.maps.values()),
            "axes": {name: axis.to_json() for name, axis in self.axes.items()},
            "output": self._output_json(),
            "attentions": [self._attention_json(name, pixels) for name in self.maps],
            "without": _changes_to_json(self.about.without),
            "start": self.start,
            "views": [self.describe_view(view) for view in range(len(self.views))],
            "view": self.view,
        }

    @cached_property
    def axes(self) -> dict[str, Axis]:
        """The axes of all attentions, by name."""
        axes: dict[str, Axis] = {}
        for name, attention in self.maps.items():
            for axis, needed in zip(self._name_axes(name), attention.ends, strict=True):
                if axis not in axes or len(axes[axis].tokens) < needed:
                    axes[axis] = self._make_axis(axis, needed)
        both = (self._decoder_axis, "written")
        if self.about.writes and any(axis in axes for axis in both):
            needed = max(len(axes[axis].tokens) for axis in both if axis in axes)
            axes = {**{axis: self._make_axis(axis, needed) for axis in both if axis not in axes}, **axes}
        return axes

    def _make_axis(self, name: str, needed: int) -> Axis:
        kind, _, _ = name.partition("#")
        if name in self.user_axes:
            axis = self.user_axes[name]
            return axis if len(axis.tokens) >= needed else Axis.numbers(needed)
        if name == self._media_axis and self.media is not None:
            return Axis.media(self.media, needed)
        if kind == "written":
            writes = [text or UNKNOWN for text in (self.about.writes or [])[:needed]]
            return Axis.text([*writes, *[UNKNOWN] * (needed - len(writes))], reads=self._decoder_axis)
        owners = [attention for owner, attention in self.maps.items() if kind in self._name_axes(owner)]
        owner = owners[0] if owners else next(iter(self.maps.values()))  # knows which text each sample belongs to
        texts = self.forward.texts(kind, owner.sample, owner.sight.inputs)[:needed]
        texts += [None] * (needed - len(texts))
        if all(text is None for text in texts):
            return Axis.numbers(needed)
        return Axis.text([f"⟨{position}⟩" if text is None else text for position, text in enumerate(texts)])

    @cached_property
    def _decoder_axis(self) -> str:
        """The axis of the tokens that a decoder reads; at each place it writes the next one."""
        return "target" if any(attention.sight.cross for attention in self.maps.values()) else "tokens"

    @cached_property
    def _media_axis(self) -> str:
        """The axis of the patches of a picture or the moments of a sound: the input of the encoder."""
        return "source" if self._decoder_axis == "target" else "tokens"

    def _name_axes(self, name: str) -> tuple[str, str]:
        """The axes of an attention's queries and keys. An encoder of another length has an axis of its own."""
        sight = self.maps[name].sight
        if sight.cross:
            return ("written" if self.about.writes else "target", "source")
        kind = "source" if self._decoder_axis == "target" and name.split(".")[0] == "encoder" else self._decoder_axis
        ids, numbered = self.forward.ids.get(kind), f"{kind}#{sight.keys}"
        longer = kind not in self.user_axes and ids is not None and ids.shape[1] < sight.keys
        return (numbered, numbered) if longer or numbered in self.user_axes else (kind, kind)

    @cached_property
    def heads(self) -> dict[str, list[HeadJson]]:
        """Summaries of the heads of each attention, by its name; without the effects, which are measured later."""
        delimiters = {name: axis.find_delimiters() for name, axis in self.axes.items() if axis.kind == "text"}
        return {
            name: summarise_heads(attention.sight, attention.sample, delimiters.get(self._name_axes(name)[1]))
            for name, attention in self.maps.items()
        }

    @cached_property
    def start(self) -> StartJson:
        """The head that is shown first."""
        name, head = choose_opening_head(self.maps, self.heads, pictured=self.media is not None)
        return {"name": name, "head": head}

    def _attention_json(self, name: str, pixels: int) -> AttentionJson:
        attention, (queries, keys) = self.maps[name], self._name_axes(name)
        kind, layer = split_name(name)
        heads: list[HeadJson] = [{**head, "exact": attention.exact} for head in self.heads[name]]
        if (effects := (self.about.effects or {}).get(name)) is not None:
            heads = [{**head, "effect": round_for_json(effects[head["number"]])} for head in heads]
        return {
            "name": name,
            "part": kind.split()[0],
            "layer": layer or 0,
            "kind": "cross" if attention.sight.cross else "self",
            "queries": queries,
            "keys": keys,
            "counts": list(attention.counts),
            "blocks": list(attention.overview_blocks(pixels)),
            "pixel": list(attention.blocks) if attention.sight.blocks[0] else None,
            "estimated": attention.step > 1,
            "first": list(attention.first),
            "visible": encode_runs(attention.count_visible_keys()),
            "seen_by": encode_runs(attention.count_seeing_queries()),
            "heads": heads,
        }

    def _output_json(self) -> OutputJson | None:
        about, tokens = self.about, None if self.about.next is None else display_next_tokens(self.about.next)
        if not about.text and not tokens:
            return None  # an encoder writes nothing
        writes = self._decoder_axis == "target" and "written" in self.axes
        answers = not about.writes and not tokens  # an encoder: labels, no tokens
        chances = None if about.chances is None else [finite_or_none(chance, 6) for chance in about.chances]
        parts = about.parts or []
        return {
            "text": about.text or "",
            "parts": parts if all(score is None or math.isfinite(score) for *_, score in parts) else [],
            "axis": "" if answers else "written" if writes else "tokens",
            "shift": 0 if writes else 1,
            "next": tokens,
            "chances": chances,
            "ranks": about.ranks,
            "prompt": about.prompt or 0,
            "loss": finite_or_none(about.loss),
            "given": bool(about.given),
        }

    def describe_view(self, view: int) -> str:
        """The label of a view in the list of all views: its number, and the beginning of its text."""
        call, sample = self.views[view]
        about = self.record.calls[call].about
        inputs = [forward.about.input for forward in self.record.calls]
        parts = inputs.count(about.input) > 1  # of one text: their answers differ, their input does not
        text = about.text if parts else about.input
        if about.media is not None and not parts:
            text = get_file_name(text or "")
        calls = [number for number, _ in self.views]
        number = f"{call + 1}" if len(set(calls)) > 1 else ""
        several = calls.count(call) > 1
        name = f"{number}.{sample + 1}" if number and several else number or f"{sample + 1}"
        return f"{name}: {text[:LABEL]}" if text else name


def list_views(record: Record) -> list[tuple[int, int]]:
    """Every call with each of its samples."""
    views = []
    for number, call in enumerate(record.calls):
        samples = max((call[name].entropy.shape[0] for name in call.names), default=0)
        views += [(number, sample) for sample in range(samples)]
    return views


def _find_sample(sight: Sight, widest: Sight, sample: int) -> int:
    """The sample of an attention that has fewer samples because beams share it, such as an encoder's."""
    samples, most = len(sight.entropy), len(widest.entropy)
    if samples == most:
        return sample
    text = find_text(sample, widest.inputs, samples) if sample < len(widest.inputs) else samples
    return text if text < samples else sample * samples // most


def _changes_to_json(
    without: Mapping[str, Mapping[str, AnswerChange]] | None,
) -> dict[str, dict[str, ChangeJson]] | None:
    """The answers without each head, with probabilities as they are shown."""
    if without is None:
        return None

    def to_json(change: AnswerChange) -> ChangeJson:
        loss = [finite_or_none(number) for number in change.loss]
        rows = [row and [(token, round(chance, 4)) for token, chance in row] for row in change.next]
        return {"text": change.text, "loss": loss, "next": rows, "sampled": change.sampled}

    return {name: {head: to_json(change) for head, change in heads.items()} for name, heads in without.items()}


def finite_or_none(number: float | None, digits: int | None = None) -> float | None:
    if number is None or not math.isfinite(number):
        return None
    return number if digits is None else round(number, digits)


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
