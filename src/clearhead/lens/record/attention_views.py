"""Sight and Forward: the measures of one attention, and of one forward pass, on the CPU in document positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention.call import Call
from clearhead.errors import RecordError
from clearhead.formatting import format_count
from clearhead.lens.attention_names import suggest_attention, to_python_number, to_python_numbers
from clearhead.lens.measures.definition import Measures, check_counts
from clearhead.lens.measures.selections import FAR
from clearhead.lens.record.call_metadata import CallMetadata
from clearhead.lens.record.exact_windows import HeadWindows, Positions
from clearhead.lens.record.kept_inputs import KeptInputs


class Forward:
    """One forward pass, or a generation that grew step by step: `forward[name]` has the measures of one attention.

    `ids` are the token numbers of the input: of "source" and "target", or of "tokens"; −1 where they are not known.
    `labels` are their texts.
    """

    def __init__(
        self,
        sights: Mapping[str, Any] | None = None,
        ids: Mapping[str, Int[Tensor, "batch tokens"]] | None = None,
    ) -> None:
        self.sights = dict(sights or {})  # a Sight each; while it is recorded, a GrowingAttention
        self.labels: dict[str, dict[int, str]] = {}
        self.about = CallMetadata()
        self.growing: Any = None  # the GrowingCall, while it is recorded
        self._ids = dict(ids or {})

    @property
    def names(self) -> list[str]:
        return list(self.sights)

    @property
    def ids(self) -> dict[str, Int[Tensor, "batch tokens"]]:
        return self._ids if self.growing is None else {**self.growing.join_ids(), **self._ids}

    def end_recording(self, sights: Mapping[str, Sight]) -> None:
        """Keeps the token ids so far, and these attentions."""
        self.sights, self._ids, self.growing = dict(sights), self.ids, None

    @property
    def interrupted(self) -> str | None:
        """The exception that ended this pass, or a step of this generation, which `record.statistics()` leaves out."""
        return self.about.interrupted

    def __getitem__(self, name: str) -> Sight:
        check_seen_name(name, self.names)
        sight = self.sights[name]
        return sight if isinstance(sight, Sight) else sight.sight(self)

    def number_positions(self, kind: str, count: int) -> None:
        """Gives each position an id, 0 to count − 1, where vectors went in (patches, frames): they can be labelled."""
        self._ids[kind] = torch.arange(count)[None]

    def kind_of(self, name: str, cross: bool) -> str | None:
        """Which token ids the keys of an attention are: "source", "target", "tokens", or None."""
        side = "source" if "encoder" in name.split(".") else "target"
        return next((kind for kind in (("source",) if cross else (side, "tokens")) if kind in self.ids), None)

    def texts(self, kind: str | None, sample: int, inputs: Sequence[int] = ()) -> list[str | None]:
        """The labels of all tokens of a text, None where unknown; several samples may share one source text."""
        ids = None if kind is None else self.ids.get(kind)
        text = 0 if ids is None else find_text(sample, inputs, len(ids))
        if kind is None or ids is None or text >= len(ids):
            return []
        surfaces = (self.about.surfaces or {}).get(kind, [])  # the tokens as the input has them
        labels = self.labels.get(kind, {})
        return [*surfaces] if len(surfaces) == ids.shape[1] else [labels.get(number) for number in ids[text].tolist()]

    def __contains__(self, name: object) -> bool:
        return name in self.sights

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.sights)

    def __repr__(self) -> str:
        ended = f"; interrupted by {self.interrupted}" if self.interrupted else ""
        return f"Forward({', '.join(self.names)}{ended})"


def find_text(sample: int, inputs: Sequence[int], texts: int) -> int:
    """The index of the text to which a sample belongs, from the inputs of all samples.

    >>> [find_text(sample, (0, 0, 0, 5, 5), texts=2) for sample in range(5)]  # five beams of each: see `Sight.inputs`
    [0, 0, 0, 1, 1]
    """
    samples = len(inputs)
    if samples == texts or not texts:
        return sample
    if max(inputs, default=0) < texts:
        return inputs[sample]
    first_rows = sorted(set(inputs))
    if len(first_rows) == texts:  # Hugging Face's beams begin in the first row of each text
        return first_rows.index(inputs[sample])
    return sample // (samples // texts) if samples % texts == 0 else sample


class WeightedKey(NamedTuple):
    """A key of a query: its position, its weight, and its text if that is known."""

    key: int
    weight: float
    text: str | None


@dataclass(frozen=True, repr=False)
class Sight(Measures):
    """All measures of one attention in one forward pass, or in a generation that grew step by step.

    Keys are document positions, also those in `peak_key` and `top_keys`. The map's rows are `blocks[0]` of the
    measured queries each, its columns `blocks[1]` positions. Where the keys are those of another text, a distance is
    that between the places in both; keys without a position do not count in it. A sample that was done before the
    others sees nothing from then on. Beams are samples: those of the last step, and those completed before it.

    `inputs` are rows of the first forward pass of the decoder. Hugging Face's generate() repeats its inputs
    before that, for `num_beams` or `num_return_sequences`: with n of them, sample b belongs to your text
    `inputs[b] // n`. Our own beams branch later, and `inputs[b]` is that text itself.
    """

    received: Float[Tensor, "batch heads keys"]
    visible: Int[Tensor, "batch #heads queries"] = field(kw_only=True)  # how many keys each query could see
    seen_by: Int[Tensor, "batch #heads keys"] = field(kw_only=True)  # how many measured queries could see each key
    name: str = ""
    cross: bool = False  # whether the keys are those of another text
    heads: tuple[int, ...] = ()  # the numbers of the heads that were measured
    queries: Int[Tensor, " queries"] = field(kw_only=True)  # the positions of the queries that were measured
    blocks: tuple[int, int] = (0, 0)
    inputs: tuple[int, ...] = ()  # which input each sample belongs to: several, where beams are
    probes: dict[str, Float[Tensor, "batch heads queries"]] = field(default_factory=dict)
    norms: Float[Tensor, "batch heads keys"] | None = None  # ‖v W_O‖ of each key
    kept: KeptInputs | None = None
    tokens: int | None = None  # the first keys are tokens; later ones, summaries of tokens, have no position. None: all
    forward: Forward | None = None
    spans: dict[str, range] = field(default_factory=dict)  # the keys of each span; 2³⁰ is the end of one without end
    sharing: int = 1  # how many heads share a key head: head n reads key head n // sharing

    @property
    def keys(self) -> int:
        """The number of keys."""
        return self.received.shape[2]

    @property
    def itself(self) -> Float[Tensor, "batch heads queries"]:
        """The weight of each query on the key at its own position; needs watch(…, itself=True)."""
        if "itself" not in self.probes:
            raise RecordError(
                f"{self.name!r} has no weights of queries on themselves; watch(…, itself=True) records them"
            )
        return self.probes["itself"]

    @property
    def received_mean(self) -> Float[Tensor, "batch heads keys"]:
        """`received` as a mean over those of the measured queries that can see the key; 0 where none can."""
        return self.received / self.seen_by.clamp(min=1)

    def lookback(self, prompt_length: int) -> Float[Tensor, "batch heads queries"]:
        """For each query, its mean weight on the prompt over that plus its mean weight on what was generated.

        Means are over the keys that a query can see; before anything was generated it is 1, for a query that sees
        nothing 0. The record needs the spans slice(0, prompt_length) and slice(prompt_length, None), under any names,
        or a map that was not pooled. A head that reads the prompt has values near 1 (Chuang et al. 2024).
        """
        check_counts(RecordError, prompt_length=prompt_length)
        prompt, generated = (_sum_keys(self, *edges) for edges in ((0, prompt_length), (prompt_length, FAR)))
        visible = self.visible.to(prompt.dtype)
        after = (self.queries - prompt_length + 1).clamp(min=0).to(prompt.dtype).minimum(visible)
        prompt, generated = prompt / (visible - after).clamp(min=1), generated / after.clamp(min=1)
        return prompt / (prompt + generated).clamp(min=torch.finfo(prompt.dtype).tiny)

    def top(self, batch: int, head: int, query: int) -> list[WeightedKey]:
        """The keys with the largest weights for the query at this position."""
        _check_sample(self, batch)
        cell, texts = (batch, self.place_of(head), self.row_of(query)), self.texts(batch)
        pairs = zip(self.top_keys[cell].tolist(), self.top_weights[cell].tolist(), strict=True)
        return [WeightedKey(key, weight, texts[key]) for key, weight in pairs if key >= 0]

    def text(self, batch: int, key: int) -> str | None:
        """The token text at a key's position; None unless `Record.label` was called."""
        return self.texts(batch)[key]

    def texts(self, batch: int) -> list[str | None]:
        """The token text of every key; None where there is none, or unless `Record.label` was called."""
        kind = None if self.forward is None else self.forward.kind_of(self.name, self.cross)
        texts: list[str | None] = []
        tokens = self.keys if self.tokens is None else self.tokens  # else the keys are parts of a picture
        if self.forward is not None and kind is not None and self.forward.ids[kind].shape[1] == tokens:
            texts = self.forward.texts(kind, batch, self.inputs)
        return texts + [None] * (self.keys - len(texts))

    def weights(
        self,
        batch: int,
        head: int | Sequence[int] | Int[Tensor, " heads"] | None = None,
        queries: Positions = None,
        keys: Positions = None,
    ) -> Float[Tensor, "*heads queries keys"]:
        """The exact weights of a window, from the kept q and k; queries and keys are document positions.

        It takes time and memory for the window alone. Positions are a number, a slice or a list; negative ones count
        from the end. One position instead of a slice keeps its axis. A list of heads, or None for all that were
        watched, gives (heads, queries, keys).
        """
        wanted = to_python_numbers(head)
        if wanted is not None and not isinstance(wanted, (list, tuple, range)):
            return self.windows(batch, wanted).weights(queries, keys)
        heads = self.heads if wanted is None else wanted
        if not heads:
            raise RecordError(f"choose one or more of the heads {list(self.heads)} of {self.name!r}, or None for all")
        return torch.stack([self.windows(batch, number).weights(queries, keys) for number in heads])

    def windows(self, batch: int, head: int) -> HeadWindows:
        """Windows of one head in one sample, exact or summed in blocks; prepared once for many of them."""
        _check_sample(self, batch)
        return HeadWindows(self._require_kept(), batch, self.place_of(head))

    def attention(self) -> Call:
        """The kept inputs as one Call over the watched heads; v is not kept, k takes its place."""
        return self._require_kept().call()

    def place_of(self, head: int) -> int:
        """The index of a head in the tensors."""
        head = to_python_number(head)
        if isinstance(head, bool) or not isinstance(head, int) or head not in self.heads:
            raise RecordError(f"{self.name!r} was watched for heads {list(self.heads)}, not {head!r}")
        return self.heads.index(head)

    def row_of(self, query: int) -> int:
        """The index in the tensors of the query at this position."""
        query = to_python_number(query)
        if isinstance(query, bool) or not isinstance(query, int):
            raise RecordError(f"a query of {self.name!r} is chosen by its position, got {query!r}")
        rows = (self.queries == query).nonzero()
        if not len(rows):
            apart = (self.queries - query).abs()
            near = f"; the nearest is {self.queries[apart.argmin()]}" if len(apart) else ""
            raise RecordError(f"no query at position {query} was measured by {self.name!r}{near}")
        return int(rows[0])

    def _require_kept(self) -> KeptInputs:
        if self.kept is None:
            raise RecordError(f"the q and k of {self.name!r} were not kept; watch(…, keep='qk') keeps them")
        return self.kept

    def __repr__(self) -> str:
        batch, heads, queries = self.entropy.shape
        sizes = (
            format_count(batch, "sample"),
            format_count(heads, "head"),
            format_count(queries, "query", "queries"),
            format_count(self.keys, "key"),
        )
        return f"Sight({self.name!r}: {' × '.join(sizes)}{', q and k kept' if self.kept is not None else ''})"


def _sum_keys(sight: Sight, start: int, stop: int) -> Float[Tensor, "batch heads queries"]:
    """The weight of each measured query on the keys from `start` to `stop`."""
    edges = (start, min(stop, sight.keys))
    if start >= sight.keys or start == stop:
        return torch.zeros_like(sight.entropy)
    for name, span in sight.spans.items():
        if (span.start, min(span.stop, sight.keys)) == edges:
            return sight.mass[name]
    if sight.blocks == (1, 1):
        return sight.map[..., start:stop].sum(-1)
    end = "None" if stop == FAR else stop
    raise RecordError(
        f"{sight.name!r} has no sums of weights over these keys; record them with "
        f"watch(…, spans={{'a name': slice({start}, {end})}})"
    )


def _check_sample(sight: Sight, batch: int) -> None:
    count = sight.entropy.shape[0]
    if isinstance(batch, bool) or not isinstance(batch, int) or not 0 <= batch < count:
        samples = format_count(count, "sample")
        raise RecordError(f"{sight.name!r} has {samples}, numbered from 0; there is no {batch!r}")


def check_seen_name(name: Any, names: Sequence[str]) -> None:
    """Raises RecordError for an unrecorded attention name, with the nearest match."""
    if isinstance(name, tuple) and len(name) == 2:
        wanted, head = name
        attention = repr(wanted) if wanted in names else "its name"
        hint = "" if wanted in names else f"; {suggest_attention(wanted, names)}"
        raise RecordError(
            f"a record is indexed by the name of an attention alone, got {name!r}: take sight = record[{attention}], "
            f"and of head {head!r} such as sight.entropy[:, sight.place_of({head!r})]{hint}"
        )
    if name not in names:
        raise RecordError(f"no attention called {name!r} was recorded; {suggest_attention(name, names)}")
