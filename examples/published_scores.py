"""Numbers that papers compute from attention weights, from a record instead: in O(n) memory, for every model family.

Copy what you need; `docs/lens.md` says what each number means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.errors import RecordError
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import Forward, Sight, find_text

HeadsByName = Mapping[str, Iterable[int]]


def lookback_ratios(record: Record | Forward, prompt_length: int) -> dict[str, Float[Tensor, "batch heads generated"]]:
    """Lookback Lens (Chuang et al. 2024): how much of what each head reads is the prompt, for each generated token.

    A / (A + B), where A is the mean weight on the prompt, B that on the tokens generated so far, the query included.
    A query is the token that was read, from which the next is predicted. See `Sight.lookback` for what it needs.
    Low ratios in the right heads are a sign of a hallucination.
    """
    ratios = {}
    for name, sight in _iterate_causal_attentions(record):
        ratios[name] = sight.lookback(prompt_length)[:, :, sight.queries >= prompt_length]
    return ratios


def instruction_focus(
    record: Record | Forward,
    instruction: str,
    data: str | None = None,
    *,
    heads: HeadsByName | None = None,
    query: int | None = None,
) -> Float[Tensor, " batch"]:
    """Attention Tracker (Hung et al. 2024): the weight of the last token on the instruction, as a mean over heads.

    `instruction` and `data` are names of spans of the record. With `data` the weight of each head is divided by its
    weight on both, as in the paper's code. `heads` are those that follow instructions, by attention; None is all.
    `query` is a position, by default the last one that was measured. A prompt injection draws the weight away: the
    focus falls.
    """
    weights = []
    for name, sight in _iterate_causal_attentions(record):
        if heads is not None and name not in heads:
            continue
        row = -1 if query is None else sight.row_of(query)
        focus = sight.mass[instruction][:, :, row]
        if data is not None:
            focus = focus / (focus + sight.mass[data][:, :, row] + 1e-8)
        weights.append(focus if heads is None else focus[:, [sight.place_of(head) for head in heads[name]]])
    if not weights or not sum(part.shape[1] for part in weights):
        raise RecordError(f"none of the heads of {list(heads or {})} was recorded; there are {', '.join(record.names)}")
    return torch.cat(weights, 1).mean(1)


def laplacian_eigenvalues(
    record: Record | Forward, largest: int | None = None
) -> dict[str, Float[Tensor, "batch heads eigenvalues"]]:
    """LapEigvals (Binkowski et al. 2025): eigenvalues of the Laplacian D − A of causal attention, for each head.

    D is diagonal: what a key receives, as a mean over the queries that can see it. D − A is triangular, so its
    eigenvalues are its diagonal: `received_mean − itself`, in the order of the tokens, or the `largest` ones in
    falling order, which is what the paper's probe of hallucinations reads. Needs watch(…, itself=True) and all queries.
    """
    scores = {}
    for name, sight in _iterate_causal_attentions(record):
        if sight.queries.tolist() != list(range(sight.keys)):
            raise RecordError(f"{name!r} was measured for some of its queries only; eigenvalues need all")
        values = sight.received_mean - sight.itself
        scores[name] = values if largest is None else values.topk(min(largest, values.shape[-1])).values
    return scores


def eviction_scores(record: Record | Forward) -> dict[str, Float[Tensor, "batch kv_heads keys"]]:
    """How much a key-value cache would lose with each key: kvpress's ObservedAttention, related to H2O (Zhang 2023).

    The weight that a key receives, divided by the number of queries at its position and after it, as a mean over the
    heads that share the key. Keys with the smallest scores are evicted first. Only measured queries count: with
    watch(…, queries=slice(-64, None)) the last 64.
    """
    means = {}
    for name, sight in _iterate_causal_attentions(record):
        key_heads = [head // sight.sharing for head in sight.heads]
        shared = [
            [index for index, used in enumerate(key_heads) if used == key_head] for key_head in sorted(set(key_heads))
        ]
        received = sight.received
        assert received is not None, "a watch measures it"
        later = (sight.queries[:, None] >= torch.arange(sight.keys)).sum(0)
        scores = received / later.clamp(min=1)
        means[name] = torch.stack([scores[:, places].mean(1) for places in shared], 1)
    return means


def retrieval_scores(record: Record | Forward, needle: slice) -> dict[str, Float[Tensor, "batch heads"]]:
    """Retrieval heads (Wu et al. 2024): the share of the needle's tokens that each head copies while it is repeated.

    `needle` are positions in the text. A head copies a token of it if, for a query after the needle whose next token is
    this one, the key with the largest weight is this token in the needle. Only measured queries count: those
    of the answer. The last token that was read has no next one. Wu et al. call heads from 0.1 on retrieval heads.
    """
    scores = {}
    for name, sight in _iterate_causal_attentions(record):
        tokens = _get_tokens(sight)
        places = range(*needle.indices(tokens.shape[1]))
        if not places or places.step != 1:
            raise RecordError(f"needle must be a slice of the {tokens.shape[1]} tokens, got {needle}")
        rows = (sight.queries >= places.stop) & (sight.queries < tokens.shape[1] - 1)
        following = tokens[:, None, sight.queries[rows] + 1]
        peaks = sight.peak_key[:, :, rows].masked_fill(following == -1, -1)  # −1: the token is not known
        copied = torch.stack(
            [((peaks == position) & (following == tokens[:, None, None, position])).any(-1) for position in places]
        )
        scores[name] = copied.to(sight.peak.dtype).mean(0)
    return scores


def _get_tokens(sight: Sight) -> Int[Tensor, "batch tokens"]:
    """The token ids of the text that an attention reads, one row per sample of the record."""
    kind = None if sight.forward is None else sight.forward.kind_of(sight.name, sight.cross)
    if sight.forward is None or kind is None or sight.forward.ids[kind].shape[1] != sight.keys:
        raise RecordError(f"the token ids that {sight.name!r} read are not known")
    ids = sight.forward.ids[kind]
    return torch.stack([ids[find_text(sample, sight.inputs, len(ids))] for sample in range(len(sight.entropy))])


def _iterate_causal_attentions(record: Record | Forward) -> Iterable[tuple[str, Sight]]:
    """The self-attentions of decoders."""
    names = [name for name in record.names if "encoder" not in name.split(".") and not record[name].cross]
    if not names:
        raise RecordError(f"no self-attention of a decoder was recorded; there are {', '.join(record.names) or 'none'}")
    return ((name, record[name]) for name in names)
