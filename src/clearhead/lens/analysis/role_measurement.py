"""head_roles(): measures on a model the score of every head in each role."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.analysis.roles import (
    MIN_VISIBLE,
    NEAR,
    PASSAGE,
    HeadRoles,
    counts_queries,
    draw_repeated_tokens,
    make_repeat_probes,
)
from clearhead.lens.attention_names import find_attentions, to_python_number, unwrap_model
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.capture.watch_settings import Probe
from clearhead.lens.measures.definition import check_counts
from clearhead.lens.measures.selections import is_whole
from clearhead.lens.record.attention_views import Forward, Sight

UNKNOWN = "Induction and duplicates were not measured: that needs a text of 10 tokens, and a vocabulary to draw from."
UNREAD = "Delimiters were not measured: that needs the tokens of every forward pass, as inputs."
INPUT_NAMES = {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}  # token ids, and masks
RUN = "run=, a function that calls the model"
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
) -> HeadRoles:
    """Every head of a model with its score in each role, and the role that it gets; `ROLES` has the formulas.

    `inputs` are token ids (batch, tokens), of an encoder-decoder (source, target), or what a Hugging Face tokenizer
    gives with return_tensors="pt". `run(*inputs)` is how the model is called on them, if not in the usual way; with
    `run` alone, roles that need tokens are left out. Padding, which is `pad` tokens or those that an attention_mask
    hides, is removed (with `run`: its queries do not count). Queries that see fewer than 5 keys do not count either;
    for `local`, those that see fewer than 4 times as many as `near` spans. `rows=1/16` takes every 16th.

    Induction and duplicates are measured on random tokens that are repeated, drawn with `seed` from the `vocabulary`: a
    count or a list of token ids, for an encoder-decoder perhaps a pair of them. By default it is the model's own.

    Attention over another text has no neighbours: only `first`, `delimiter` and `broad` are measured.
    """
    if inputs is None and run is None:
        raise LensError(f"head_roles needs inputs (token ids), or {RUN}")
    delimiters = _check_options(delimiters, run, near, pad, seed)
    text_inputs = _read_inputs(inputs, pad, check=run is None)
    texts = text_inputs.texts
    if run is None:
        _check_text_count(model, texts)
    call_model = partial(_run_model, model) if run is None else run
    batches = text_inputs.without_padding() if run is None else [text_inputs]
    tally = _Tally(near, delimiters)
    neighbours: dict[str, Probe] = {str(step): partial(torch.add, step) for step in range(-near, near + 1)}
    with watch(model, layers=layers, rows=rows, pixels=0, top=0, probes=neighbours) as record:
        for batch in batches:
            call_model(*batch.texts)
    if len(batches) != len(record.calls):
        batches = [TokenInputs()] * len(record.calls)
    for call, batch in zip(record.calls, batches, strict=True):
        if call.interrupted is None:
            tally.count_text(call, batch)
    drawn = _draw_repeats(texts, _find_vocabularies(model, vocabulary, len(texts)), {*delimiters, pad}, seed)
    if drawn:
        size = drawn[0].shape[1] // 2
        with watch(model, layers=layers, pixels=0, top=0, probes=make_repeat_probes(size)) as record:
            call_model(*drawn)
        for call in record.calls:
            tally.count_repeats(call, size)
    notes = [] if drawn else [UNKNOWN]
    if delimiters and not any("delimiter" in roles for roles in tally.sums.values()):
        notes.append(UNREAD)
    return HeadRoles(tally.scores(), notes)


class TokenInputs(NamedTuple):
    """Token ids of each text, (batch, tokens), and which are no padding; without masks, none is padding."""

    texts: tuple[Tensor, ...] = ()
    real: tuple[Tensor, ...] = ()

    def without_padding(self) -> list[TokenInputs]:
        """The texts without padding, batched by length."""
        if not self.real:
            return [self] if self.texts else []
        groups: dict[tuple[int, ...], list[int]] = {}
        for sample in range(len(self.texts[0])):
            groups.setdefault(tuple(int(mask[sample].sum()) for mask in self.real), []).append(sample)
        both = list(zip(self.texts, self.real, strict=True))
        batches = [
            TokenInputs(tuple(torch.stack([text[n][mask[n]] for n in samples]) for text, mask in both))
            for sizes, samples in groups.items()
            if min(sizes)
        ]
        if not batches:
            raise LensError("there are no tokens in inputs besides padding")
        return batches


def _read_inputs(inputs: Any, pad: int | None, check: bool) -> TokenInputs:
    """Texts and masks of what head_roles was given; LensError for what are no token ids, if `check`."""
    masks: tuple[Any, ...] = ()
    if isinstance(inputs, Mapping):
        texts, masks = _read_dict(inputs)
    else:
        texts = () if inputs is None else inputs if isinstance(inputs, tuple) else (inputs,)
    if check or masks:
        _check_texts(texts)
    if pad is None and not any(mask is not None for mask in masks):
        return TokenInputs(texts)
    real = tuple(torch.ones_like(text, dtype=torch.bool) if pad is None else text != pad for text in texts)
    for text, real_tokens, mask in zip(texts, real, masks, strict=False):
        if mask is not None:
            if not isinstance(mask, Tensor) or mask.shape != text.shape:
                got = tuple(mask.shape) if isinstance(mask, Tensor) else repr(mask)[:60]
                raise LensError(f"a mask of padding must be shaped as its token ids, {tuple(text.shape)}, got {got}")
            real_tokens &= mask.to(text.device).bool()
    return TokenInputs(texts, () if all(bool(tokens.all()) for tokens in real) else real)


def _read_dict(inputs: Mapping[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The texts of a dict of model inputs, and the mask of each or None."""
    if "input_ids" not in inputs:
        raise LensError(f"a dict of inputs needs input_ids, got {', '.join(inputs) or 'nothing'}; else pass {RUN}")
    for name, value in inputs.items():
        plain = name == "token_type_ids" and isinstance(value, Tensor) and not value.any()  # what the model assumes
        if name not in (*INPUT_NAMES, *INPUT_NAMES.values()) and not plain:
            raise LensError(
                f"head_roles reads {', '.join([*INPUT_NAMES, *INPUT_NAMES.values()])} of a dict of inputs, "
                f"not {name!r}; leave it out, or pass {RUN} with it"
            )
    names = [name for name in INPUT_NAMES if name in inputs]
    return tuple(inputs[name] for name in names), tuple(inputs.get(INPUT_NAMES[name]) for name in names)


def _check_texts(texts: tuple[Any, ...]) -> None:
    for text in texts:
        if not isinstance(text, Tensor) or text.dtype not in (torch.int32, torch.int64) or text.ndim != 2:
            got = f"{text.dtype} of shape {tuple(text.shape)}" if isinstance(text, Tensor) else repr(text)[:60]
            raise LensError(
                "inputs must be token ids shaped (batch, tokens), for an encoder-decoder a tuple (source, target), or "
                f"what a tokenizer gives with return_tensors='pt'; got {got}. For other inputs pass {RUN}"
            )
        if not text.numel():
            raise LensError(f"there are no tokens in inputs of shape {tuple(text.shape)}")


def _check_text_count(model: nn.Module, texts: tuple[Tensor, ...]) -> None:
    """Raises LensError if the model reads no tokens, or another number of texts."""
    model = unwrap_model(model)
    if not isinstance(model, nn.Module):  # which `watch` refuses
        return
    names = inspect.signature(model.forward).parameters
    both = {"source", "target"} <= names.keys() or (
        "decoder_input_ids" in names and getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    )
    if both and len(texts) != 2:
        raise LensError(
            f"{type(model).__name__} reads a source and a target; give both as inputs=(source, target), or as "
            "input_ids and decoder_input_ids of a dict"
        )
    if not both and len(texts) != 1 and {"input_ids", "tokens"} & names.keys():  # a wrapper's forward may not say
        raise LensError(f"{type(model).__name__} reads one text, got {len(texts)}")
    if hasattr(model, "config") and "pixel_values" in names and "input_ids" not in names:
        raise LensError(f"{type(model).__name__} reads no token ids; pass {RUN}")


class _Tally:
    """Weighted sums and counts per head and role, from which scores are means."""

    def __init__(self, near: int, delimiters: frozenset[int]) -> None:
        self.near, self.delimiters = near, delimiters
        self.sums: dict[str, dict[str, list[Tensor]]] = {}
        self.heads: dict[str, tuple[int, ...]] = {}

    def count_text(self, call: Forward, inputs: TokenInputs) -> None:
        for sight in (call[name] for name in call.names):
            of_keys = _find_tokens(sight, inputs.texts, "keys")
            real_queries = _find_tokens(sight, inputs.real, "queries")
            visible, keys, positions = sight.visible, sight.keys, sight.queries
            real = (sight.logsumexp != -torch.inf) & counts_queries("first", visible)  # NaN counts: it must show
            if real_queries is not None:
                real &= real_queries[:, positions][:, None]
            self.add(sight, "first", sight.first, real)
            self.add(sight, "broad", sight.entropy / visible.clamp(min=2).double().log(), real)
            if of_keys is not None and self.delimiters:
                is_delimiter = torch.isin(of_keys, torch.tensor(sorted(self.delimiters)))[:, None]
                self.add(sight, "delimiter", sight.received * is_delimiter, sight.received)
            if sight.cross:
                continue
            for role, step in (("previous", -1), ("itself", 0), ("next", 1)):
                inside = (positions + step >= 0) & (positions + step < keys)
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
        sums = self.sums.setdefault(sight.name, {}).setdefault(role, [])
        self.heads[sight.name] = sight.heads
        if counts.dtype == torch.bool:
            values = values * counts
        sums.append(torch.stack([values.double().sum((0, 2)), counts.expand(values.shape).double().sum((0, 2))]))

    def scores(self) -> Iterator[tuple[str, int, dict[str, float]]]:
        for name, roles in self.sums.items():
            totals = {role: torch.stack(sums).sum(0) for role, sums in roles.items()}
            for n, head in enumerate(self.heads[name]):
                means = {role: float(total[0, n] / total[1, n]) for role, total in totals.items() if total[1, n] > 0}
                yield name, head, means


def _check_options(delimiters: Any, run: Any, near: int, pad: Any, seed: int) -> frozenset[int]:
    """The delimiters as a set of token ids; LensError for options that are no such numbers."""
    check_counts(LensError, least=1, near=near)
    check_counts(LensError, seed=seed)
    if run is not None and not callable(run):
        raise LensError(f"run must be a function that calls the model, got {run!r:.60}")
    ids: list[Any] = [to_python_number(token) for token in delimiters] if isinstance(delimiters, Collection) else [None]
    if not all(map(is_whole, ids)):
        raise LensError(f"delimiters must be a list of token ids, such as [13], got {delimiters!r:.60}")
    if pad is not None and not is_whole(pad):
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


def _run_model(model: nn.Module, *texts: Tensor) -> None:
    """One forward pass over token numbers, of a model of ours or of Hugging Face's."""
    device = next(model.parameters()).device
    if find_attentions(model):
        model(*(text.to(device) for text in texts))
        return
    arguments: dict[str, Any] = {
        name: text.to(device) for name, text in zip(("input_ids", "decoder_input_ids"), texts, strict=False)
    }
    accepted = inspect.signature(model.forward).parameters
    # All scores over a vocabulary, of a long text, would take more memory than all the rest.
    arguments |= {name: value for name, value in (("logits_to_keep", 1), ("use_cache", False)) if name in accepted}
    model(**arguments)


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
    known_types = all(isinstance(ids, (int, Sequence)) and not isinstance(ids, (str, bool)) for ids in several)
    if not known_types or len(several) != count:
        raise LensError(
            f"a vocabulary is a number of token ids or a list of them, and a tuple has one for each of the {count} "
            f"texts, got {vocabulary!r:.60}"
        )
    return [range(numbers) if isinstance(numbers, int) else list(numbers) for numbers in several]


def _draw_repeats(
    texts: tuple[Tensor, ...], vocabularies: list[Sequence[int]] | None, without: Collection[int | None], seed: int
) -> tuple[Tensor, ...]:
    """Random distinct tokens followed by the same tokens again, no longer than the shortest text."""
    if vocabularies is None or not texts:
        return ()
    drawable = [[token for token in vocabulary if token not in without] for vocabulary in vocabularies]
    size = min([PASSAGE, *map(len, drawable), *(text.shape[1] // 2 for text in texts)])
    if size < MIN_VISIBLE:
        return ()
    chance = torch.Generator().manual_seed(seed)
    return tuple(draw_repeated_tokens(tokens, size, chance=chance) for tokens in drawable)
