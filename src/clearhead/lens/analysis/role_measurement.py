"""head_roles(): measures on a model the score of every head in each role."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.analysis.repeated_tokens import MIN_VISIBLE, PASSAGE, draw_repeated_tokens, make_repeat_probes
from clearhead.lens.analysis.role_inputs import RUN, TextInputs, check_text_count, read_inputs
from clearhead.lens.analysis.roles import NEAR, HeadRoles, counts_queries
from clearhead.lens.attention_names import find_attentions, to_python_number, to_python_numbers
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.capture.watch_settings import Probe
from clearhead.lens.measures.definition import check_counts
from clearhead.lens.record.attention_views import Forward, Sight

UNKNOWN = "Induction and duplicates were not measured: that needs a text of 10 tokens, and a vocabulary to draw from."
UNREAD = "Delimiters were not measured: that needs the tokens of every forward pass, as inputs."
Numbers = int | Sequence[int]


@torch.no_grad()
def head_roles(
    model: nn.Module,
    inputs: Tensor | tuple[Tensor, ...] | Mapping[str, Any] | None = None,
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

    `inputs` are token ids (batch, tokens), of an encoder-decoder (source, target), or what a Hugging Face tokenizer
    gives with return_tensors="pt". `run(*inputs)` is how the model is called on them, if not in the usual way; with
    `run` alone, roles that need tokens are left out. Padding, which is `pad` tokens or those that an attention_mask
    hides, is removed (with `run`: its queries do not count). Queries that see fewer than 5 keys do not count either;
    for `local`, those that see fewer than 4 times as many as `near` spans. `rows=1/16` takes every 16th.

    Induction and duplicates are measured on random tokens that are repeated, drawn with `seed` from the `vocabulary`
    (how many numbers there are, or which; of an encoder-decoder perhaps a pair): the model's own, where it says so.

    Attention over another text has no neighbours: only `first`, `delimiter` and `broad` are measured. How well
    heads of a translator align words is measured by `clearhead.tasks.alignment.score_heads`.
    """
    if inputs is None and run is None:
        raise LensError(f"head_roles needs inputs (token ids), or {RUN}")
    delimiters = _check_options(delimiters, run, near, pad, seed)
    given = read_inputs(inputs, pad, check=run is None)
    texts = given.texts
    if run is None:
        check_text_count(model, texts)
    called = partial(_run_model, model) if run is None else run
    runs = given.without_padding() if run is None else [given]
    tally = _Tally(near, delimiters)
    with watch(model, layers=layers, rows=rows, pixels=0, top=0, probes=_make_neighbour_probes(near)) as record:
        for some in runs:
            called(*some.texts)
    known = runs if len(runs) == len(record.calls) else [TextInputs()] * len(record.calls)
    for call, some in zip(record.calls, known, strict=True):
        if call.interrupted is None:
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

    def __init__(self, near: int, delimiters: frozenset[int]) -> None:
        self.near, self.delimiters = near, delimiters
        self.sums: dict[str, dict[str, list[Tensor]]] = {}
        self.heads: dict[str, tuple[int, ...]] = {}

    def count_text(self, call: Forward, inputs: TextInputs) -> None:
        for sight in (call[name] for name in call.names):
            of_keys, real_queries = (
                _find_tokens(sight, inputs.texts, "keys"),
                _find_tokens(sight, inputs.real, "queries"),
            )
            visible, keys, place = sight.visible, sight.keys, sight.queries
            assert visible is not None, "a sight that was just taken has all measures"
            real = (sight.logsumexp != -torch.inf) & counts_queries("first", visible)  # NaN counts: it must show
            if real_queries is not None:
                real &= real_queries[:, place][:, None]
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


def _check_options(delimiters: Any, run: Any, near: int, pad: Any, seed: int) -> frozenset[int]:
    """The delimiters as a set of token ids; LensError for options that are no such numbers."""
    check_counts(LensError, least=1, near=near)
    check_counts(LensError, seed=seed)
    if run is not None and not callable(run):
        raise LensError(f"run must be a function that calls the model, got {run!r:.60}")
    ids = (
        [to_python_number(one) for one in to_python_numbers(delimiters)]
        if isinstance(delimiters, (Collection, Tensor))
        else None
    )
    if ids is None or any(isinstance(one, bool) or not isinstance(one, int) for one in ids):
        raise LensError(f"delimiters must be a list of token ids, such as [13], got {delimiters!r:.60}")
    if pad is not None and (isinstance(pad, bool) or not isinstance(pad, int)):
        raise LensError(f"pad must be a token id, such as tokenizer.pad_token_id, got {pad!r:.60}")
    return frozenset(ids)


def _find_tokens(sight: Sight, texts: tuple[Tensor, ...], side: str) -> Tensor | None:
    """What the texts have at the queries or at the keys: token ids, or whether they are real; None where unknown."""
    if not texts:
        return None
    source = (sight.cross and side == "keys") or (not sight.cross and "encoder" in sight.name.split("."))
    tokens = texts[0 if source else -1].cpu()
    needed = sight.keys if side == "keys" else max(sight.queries.tolist(), default=-1) + 1
    return tokens[:, :needed] if len(tokens) == len(sight.entropy) and tokens.shape[1] >= needed else None


def _make_neighbour_probes(near: int) -> dict[str, Probe]:
    return {str(step): partial(torch.add, step) for step in range(-near, near + 1)}


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
    if any(isinstance(one, (str, bool)) or not isinstance(one, (int, Sequence)) for one in several):
        raise LensError(f"a vocabulary is a number of token ids, or a list of them, got {vocabulary!r:.60}")
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
