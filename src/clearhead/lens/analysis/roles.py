"""Head roles: formulas and thresholds, head_roles() which measures them on a model, and the table of all heads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.analysis.repeated_tokens import MIN_VISIBLE, PASSAGE, draw_repeated_tokens, make_repeat_probes
from clearhead.lens.attention_names import check_name, find_attentions
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.capture.watch_settings import Probe
from clearhead.lens.record.attention_views import Forward, Sight

NEAR = 2  # tokens on either side that are local
LOCAL_FACTOR = 4  # times as many keys as are near, for `local`
UNKNOWN = "Induction and duplicates were not measured: that needs a text of 10 tokens, and a vocabulary to draw from."
UNREAD = "Delimiters were not measured: that needs the tokens of every forward pass, as inputs."
Numbers = int | Sequence[int]
CAVEAT = "Where a head looks is not why the model answers: switch it off (ablate) to see what it does."
NONE = "none of these"


class Role(NamedTuple):
    """A role: its score lies between 0 and 1, and a head has the role from `threshold` on."""

    formula: str
    paper: str
    threshold: float
    rank: int  # of several roles a head gets the one with the lowest rank


# w(i, j) is the weight that query i gives to key j, t(i) its token; the mean is over all queries that count.
ROLES = {
    "induction": Role("mean of w(i, j+1), t(j) = t(i), j < i, on repeated random tokens", "Olsson et al. 2022", 0.4, 0),
    "duplicate": Role("mean of w(i, j), t(j) = t(i), j < i, on repeated random tokens", "Wang et al. 2022", 0.4, 0),
    "previous": Role("mean of w(i, i−1)", "Clark et al. 2019, Voita et al. 2019", 0.4, 1),
    "itself": Role("mean of w(i, i)", "Kovaleva et al. 2019", 0.4, 1),
    "next": Role("mean of w(i, i+1)", "Clark et al. 2019, Voita et al. 2019", 0.4, 1),
    "first": Role("mean of w(i, first visible key)", "Vig and Belinkov 2019, Xiao et al. 2023", 0.4, 2),
    "delimiter": Role("Σ of w(i, j) over delimiters j / Σ of all w(i, j)", "Clark et al. 2019", 0.5, 3),
    "local": Role("mean of Σ w(i, j) over |i−j| ≤ near; i sees ≥ 4·(2·near+1) keys", "Sukhbaatar et al. 2019", 0.6, 4),
    "broad": Role("mean of −Σ w ln w / ln(number of visible keys)", "Clark et al. 2019", 0.9, 5),
}


def counts_queries(role: str, visible: Int[Tensor, "..."], near: int = NEAR) -> Bool[Tensor, "..."]:
    """Which queries count for a role, from the number of keys that each sees.

    With fewer than 5 keys each gets much weight by chance alone. `local` needs 4 times as many as are near: a head that
    spreads its weight evenly then scores at most 1/4, well below the threshold.
    """
    return visible >= (LOCAL_FACTOR * (2 * near + 1) if role == "local" else MIN_VISIBLE)


class HeadRole(NamedTuple):
    """One head: its role and score, and its scores in all measured roles."""

    name: str
    head: int
    role: str
    score: float
    scores: dict[str, float]


class HeadRoles:
    """The heads of a model, each with its role; print it for a table. `roles["decoder.0.self", 1]` is one head.

    >>> roles = HeadRoles([("decoder.0.self", 1, {"previous": 0.93, "local": 0.95, "broad": 0.1})])
    >>> roles["decoder.0.self", 1].role, [one.head for one in roles.of("previous")]
    ('previous', [1])
    """

    def __init__(
        self,
        scores: Iterable[tuple[str, int, Mapping[str, float]]],
        thresholds: Mapping[str, float] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        for role in thresholds or {}:
            check_role(role)
        self.thresholds = {role: one.threshold for role, one in ROLES.items()} | dict(thresholds or {})
        self.notes = tuple(notes)
        self.heads = [self._called(name, head, dict(found)) for name, head, found in scores]

    def _called(self, name: str, head: int, scores: dict[str, float]) -> HeadRole:
        """The lowest-ranked role whose threshold is reached; within a rank, the one with the largest score."""
        reached = [role for role, score in scores.items() if score >= self.thresholds[role]]
        if not reached:
            return HeadRole(name, head, NONE, max(scores.values(), default=0.0), scores)
        role = min(reached, key=lambda one: (ROLES[one].rank, -scores[one]))
        return HeadRole(name, head, role, scores[role], scores)

    def of(self, role: str) -> list[HeadRole]:
        """The heads that play this role, best first."""
        if role != NONE:
            check_role(role)
        return sorted((one for one in self.heads if one.role == role), key=lambda one: -one.score)

    def best(self, role: str) -> HeadRole:
        """The head with the largest score in this role, with that score, whether it is called so or not.

        `roles[name, head]` has the role that it gets.
        """
        check_role(role)
        scored = [one for one in self.heads if role in one.scores]
        if not scored:
            raise LensError("; ".join([f"the role {role!r} was measured of no head", *self.notes]))
        found = max(scored, key=lambda one: one.scores[role])
        return found._replace(role=role, score=found.scores[role])

    def table(self) -> str:
        """One line per head: its role, and its score in every role, in hundredths; · for what was not measured."""
        measured = [role for role in ROLES if any(role in one.scores for one in self.heads)]
        wide = max([len("attention"), *(len(one.name) for one in self.heads)])
        lines = [f"{'attention':{wide}} head  {'role':13} score   {'  '.join(measured)}"]
        for name, head, role, score, scores in self.heads:
            cells = (f"{100 * scores[one]:z.0f}" if one in scores else "·" for one in measured)
            others = "  ".join(f"{cell:>{len(one)}}" for cell, one in zip(cells, measured, strict=True))
            shown = f"{100 * score:5.0f}" if role != NONE else "    –"
            lines.append(f"{name:{wide}} {head:4}  {role:13} {shown}   {others}")
        return "\n".join(lines)

    def legend(self) -> str:
        """How each role is measured, and who found it."""
        return "\n".join(
            f"{role:10} {one.formula}, from {self.thresholds[role]:.2f} on ({one.paper})" for role, one in ROLES.items()
        )

    def __getitem__(self, place: tuple[str, int]) -> HeadRole:
        name, head = place
        check_name(name, dict.fromkeys(one.name for one in self.heads))
        found = [one for one in self.heads if one.name == name]
        if head not in [one.head for one in found]:
            raise LensError(f"{name!r}: heads {', '.join(str(one.head) for one in found)} were measured, not {head!r}")
        return next(one for one in found if one.head == head)

    def __iter__(self) -> Iterator[HeadRole]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def __str__(self) -> str:
        return "\n".join([self.table(), "", *self.notes, CAVEAT])

    def __repr__(self) -> str:
        counts = {role: len(self.of(role)) for role in [*ROLES, NONE]}
        summary = ", ".join(f"{count} {role}" for role, count in counts.items() if count)
        return f"HeadRoles({len(self)} heads: {summary})"


def check_role(role: str) -> None:
    if role not in ROLES:
        raise LensError(f"no role is called {role!r}; there are {', '.join(ROLES)}")


@torch.no_grad()
def head_roles(
    model: nn.Module,
    inputs: Tensor | tuple[Tensor, ...] | None = None,
    *,
    run: Callable[..., Any] | None = None,
    delimiters: Collection[int] = (),
    pad: int | None = None,
    vocabulary: Numbers | tuple[Numbers, Numbers] | None = None,
    layers: str | int | Sequence[str | int] | None = None,
    rows: float | None = None,
    near: int = NEAR,
    seed: int = 0,
    thresholds: Mapping[str, float] | None = None,
) -> HeadRoles:
    """Every head of a model with its score in each role, and the role that it gets; `ROLES` has the formulas.

    `inputs` are token numbers (batch, tokens), of an encoder-decoder (source, target). `run(*inputs)` is how the model
    is called on them, if not in the usual way; with `run` alone, roles that need tokens are left out. What holds `pad`
    tokens is read without them (by `run`: their queries do not count). Queries that see fewer than 5 keys do not count
    either; for `local`, those that see fewer than 4 times as many as `near` spans. `rows=1/16` takes every 16th.

    Induction and duplicates are measured on random tokens that are repeated, drawn with `seed` from the `vocabulary`
    (how many numbers there are, or which; of an encoder-decoder perhaps a pair): the model's own, where it says so.

    Attention over another text has no neighbours: only `first`, `delimiter` and `broad` are measured. How well
    heads of a translator align words is measured by `clearhead.tasks.alignment.score_heads`.
    """
    texts = () if inputs is None else inputs if isinstance(inputs, tuple) else (inputs,)
    if not texts and run is None:
        raise LensError("head_roles needs inputs (token ids), or run=, a function that calls the model")
    if run is None:
        _check_texts(texts)
    called = partial(_run_model, model) if run is None else run
    runs = [texts] if run is not None or pad is None else _remove_pads(texts, pad)
    tally = _Tally(near, frozenset(delimiters), pad)
    with watch(model, layers=layers, rows=rows, pixels=0, top=0, probes=_make_neighbour_probes(near)) as record:
        for some in runs:
            called(*some)
    known = runs if len(runs) == len(record.calls) else [()] * len(record.calls)
    for call, some in zip(record.calls, known, strict=True):
        tally.count_text(call, some)
    drawn = _draw_repeats(texts, _find_vocabularies(model, vocabulary, len(texts)), {*delimiters, pad}, seed)
    if drawn:
        size = drawn[0].shape[1] // 2
        with watch(model, layers=layers, pixels=0, top=0, probes=make_repeat_probes(size)) as record:
            called(*drawn)
        for call in record.calls:
            tally.count_repeats(call, size)
    notes = [] if drawn else [UNKNOWN]
    if delimiters and not any("delimiter" in found for found in tally.sums.values()):
        notes.append(UNREAD)
    return HeadRoles(tally.scores(), thresholds, notes)


class _Tally:
    """Weighted sums and counts per head and role, from which scores are means."""

    def __init__(self, near: int, delimiters: frozenset[int], pad: int | None) -> None:
        self.near, self.delimiters, self.pad = near, delimiters, pad
        self.sums: dict[str, dict[str, list[Tensor]]] = {}
        self.heads: dict[str, tuple[int, ...]] = {}

    def count_text(self, call: Forward, texts: tuple[Tensor, ...]) -> None:
        for sight in (call[name] for name in call.names):
            of_queries, of_keys = (_find_tokens(sight, texts, side) for side in ("queries", "keys"))
            visible, keys, place = sight.visible, sight.keys, sight.queries
            assert visible is not None, "a sight that was just taken has all measures"
            real = (sight.logsumexp != -torch.inf) & counts_queries("first", visible)  # NaN counts: it must show
            if of_queries is not None and self.pad is not None:
                real &= (of_queries[:, place] != self.pad)[:, None]
            self.add(sight, "first", sight.first, real)
            self.add(sight, "broad", sight.entropy / visible.clamp(min=2).double().log(), real)
            if of_keys is not None and self.delimiters and sight.received is not None:
                chosen = torch.isin(of_keys, torch.tensor(sorted(self.delimiters)))[:, None]
                self.add(sight, "delimiter", sight.received * chosen, sight.received)
            if sight.cross:
                continue
            for role, step in (("previous", -1), ("itself", 0), ("next", 1)):
                inside = (place + step >= 0) & (place + step < keys)
                self.add(sight, role, sight.probes[str(step)], real & inside)
            local = torch.stack([sight.probes[str(step)] for step in range(-self.near, self.near + 1)]).sum(0)
            self.add(sight, "local", local, real & counts_queries("local", visible, self.near))

    def count_repeats(self, call: Forward, size: int) -> None:
        for sight in (call[name] for name in call.names):
            if not sight.cross:
                again = (sight.queries >= size).expand(sight.logsumexp.shape)
                for role in ("induction", "duplicate"):
                    self.add(sight, role, sight.probes[role], again)

    def add(self, sight: Sight, role: str, values: Tensor, counts: Tensor) -> None:
        """Values of all heads, (batch, heads, …), and how much each counts."""
        found = self.sums.setdefault(sight.name, {}).setdefault(role, [])
        self.heads[sight.name] = sight.heads
        if counts.dtype == torch.bool:
            values = values * counts
        found.append(torch.stack([values.double().sum((0, 2)), counts.expand(values.shape).double().sum((0, 2))]))

    def scores(self) -> Iterator[tuple[str, int, dict[str, float]]]:
        for name, roles in self.sums.items():
            total = {role: torch.stack(found).sum(0) for role, found in roles.items()}
            for place, head in enumerate(self.heads[name]):
                yield (
                    name,
                    head,
                    {
                        role: float(value[place] / count[place])
                        for role, (value, count) in total.items()
                        if count[place] > 0
                    },
                )


def _check_texts(texts: tuple[Any, ...]) -> None:
    for text in texts:
        if not isinstance(text, Tensor) or text.dtype not in (torch.int32, torch.int64) or text.ndim != 2:
            got = f"{text.dtype} of shape {tuple(text.shape)}" if isinstance(text, Tensor) else repr(text)[:60]
            raise LensError(
                "inputs must be token ids shaped (batch, tokens), for an encoder-decoder a tuple (source, target); "
                f"got {got}. For other inputs pass run=, a function that calls the model"
            )
        if not text.numel():
            raise LensError(f"there are no tokens in inputs of shape {tuple(text.shape)}")


def _find_tokens(sight: Sight, texts: tuple[Tensor, ...], side: str) -> Tensor | None:
    """The token ids of the queries or of the keys; None where unknown."""
    if not texts:
        return None
    source = (sight.cross and side == "keys") or (not sight.cross and "encoder" in sight.name.split("."))
    tokens = texts[0 if source else -1].cpu()
    needed = sight.keys if side == "keys" else max(sight.queries.tolist(), default=-1) + 1
    return tokens[:, :needed] if len(tokens) == len(sight.entropy) and tokens.shape[1] >= needed else None


def _make_neighbour_probes(near: int) -> dict[str, Probe]:
    if near < 1:
        raise LensError(f"near must be at least 1, got {near}")
    return {str(step): partial(torch.add, step) for step in range(-near, near + 1)}


def _remove_pads(texts: tuple[Tensor, ...], pad: int) -> list[tuple[Tensor, ...]]:
    """The texts without pads, batched by length."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for sample in range(len(texts[0])):
        groups.setdefault(tuple(int((text[sample] != pad).sum()) for text in texts), []).append(sample)
    return [
        tuple(torch.stack([text[one][text[one] != pad] for one in samples]) for text in texts)
        for sizes, samples in groups.items()
        if min(sizes)
    ]


def _run_model(model: nn.Module, *texts: Tensor) -> None:
    """One forward pass over token numbers, of a model of ours or of Hugging Face's."""
    device = next(model.parameters()).device
    if find_attentions(model):
        model(*(text.to(device) for text in texts))
        return
    given: dict[str, Any] = {
        name: text.to(device) for name, text in zip(("input_ids", "decoder_input_ids"), texts, strict=False)
    }
    known = inspect.signature(model.forward).parameters
    # All scores over a vocabulary, of a long text, would take more memory than all the rest.
    given |= {name: value for name, value in (("logits_to_keep", 1), ("use_cache", False)) if name in known}
    model(**given)


def _find_vocabularies(
    model: nn.Module, vocabulary: Numbers | tuple[Numbers, ...] | None, count: int
) -> list[Sequence[int]] | None:
    """The token ids to draw from for each text, or None if unknown."""
    config = getattr(model, "config", None)
    if vocabulary is None:
        target = getattr(config, "vocabulary", getattr(config, "vocab_size", None))
        if not isinstance(target, int):
            return None
        vocabulary = target if count < 2 else (getattr(config, "source_vocabulary", None) or target, target)
    several = vocabulary if isinstance(vocabulary, tuple) else (vocabulary,) * count
    if len(several) != count:
        raise LensError(
            f"{len(several)} vocabularies for {count} texts; give a tuple of {count}, or one number or list for all"
        )
    return [range(one) if isinstance(one, int) else list(one) for one in several]


def _draw_repeats(
    texts: tuple[Tensor, ...], vocabularies: list[Sequence[int]] | None, without: Collection[int | None], seed: int
) -> tuple[Tensor, ...]:
    """Random distinct tokens followed by the same tokens again, no longer than the shortest text."""
    if vocabularies is None or not texts:
        return ()
    numbers = [[one for one in some if one not in without] for some in vocabularies]
    size = min([PASSAGE, *(len(some) for some in numbers), *(text.shape[1] // 2 for text in texts)])
    if size < MIN_VISIBLE:
        return ()
    chance = torch.Generator().manual_seed(seed)
    return tuple(draw_repeated_tokens(some, size, chance=chance) for some in numbers)
