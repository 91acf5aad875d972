"""Word alignment: how well each head's attention says which source word a target word comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import Mask
from clearhead.attention.multihead import MultiHeadAttention, Seen
from clearhead.errors import ConfigError, ShapeError
from clearhead.model import EncoderDecoder
from clearhead.model.inference_view import inference_view

if TYPE_CHECKING:
    from clearhead.text import Tokenizer

Links = set[tuple[int, int]]  # (source word, target word), counted from 0

BYTES = range(3, 259)  # numbers of a Tokenizer that stand for one byte each


class AlignedPair(NamedTuple):
    """A sentence and its translation in words, with the links that people drew; `possible` includes `sure`."""

    source: list[str]
    target: list[str]
    sure: Links
    possible: Links


def cross_attentions(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    start: int,
    when: str = "written",
    batch: int = 32,
) -> list[Float[Tensor, "layers heads _target _source"]]:
    """What every head of every decoder layer gives to each source token, for each target token of each pair.

    For a token that is being `"written"`, when the decoder has read what comes before it, or `"read"`: one step
    later, when it reads the token itself, which aligns better in most models (Chen et al. 2020). `batch` pairs are
    computed at a time.
    """
    if when not in ("written", "read"):
        raise ConfigError(f"when= must be 'written' or 'read', got {when!r}")
    attentions: list[Tensor] = []
    rows = list(zip(sources, targets, strict=True))
    for pairs in (rows[first : first + batch] for first in range(0, len(rows), batch)):
        read = [[start, *target] for _, target in pairs]
        weights = _collect_weights(model, [source for source, _ in pairs], read)
        for row, (source, target) in zip(weights, pairs, strict=True):
            begin = 1 if when == "read" else 0
            attentions.append(row[:, :, begin : begin + len(target), : len(source)].clone())
    return attentions


def _collect_weights(
    model: EncoderDecoder, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> Tensor:
    """All cross-attention of a padded batch: (batch, layers, heads, target, source)."""
    device = model.vocabulary.words.weight.device
    (source, lengths), (target, _) = (_pad(rows, device) for rows in (sources, targets))
    view, layers = inference_view(model), list[Seen]()
    for name, part in view.decoder.named_modules():
        if isinstance(part, MultiHeadAttention) and name.endswith("cross_attention"):
            part.observer = layers.append
    with torch.inference_mode():
        view(source, target, Mask.padding(lengths))
        return torch.stack([seen.weights().cpu() for seen in layers], dim=1)


def _pad(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    lengths = [len(row) for row in rows]
    padded = [[*row, *[0] * (max(lengths) - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long, device=device), torch.tensor(lengths, device=device)


def share_tokens(
    tokenizer: Tokenizer, words: Sequence[str], separator: str = " "
) -> tuple[list[int], Float[Tensor, "words tokens"]]:
    """The tokens of some words written one after the other, and which share of each token lies in which word.

    The shares are `(words, tokens)`. Where a token spans several words they are parted by their bytes.
    """
    spelled = [_encode_letters(tokenizer.normal(word)) for word in words]
    text = separator.join(words)
    numbers = tokenizer.encode(text)
    if _encode_letters(tokenizer.normal(text)) != b"".join(spelled):  # neighbours change each other: then word by word
        numbers = [number for word in words for number in tokenizer.encode(word)]
    pieces = tokenizer.pieces(numbers)
    sizes = [
        1 if number in BYTES else len(_encode_letters(piece)) for number, piece in zip(numbers, pieces, strict=True)
    ]
    begins, ends = _compute_spans(sizes)
    first, last = _compute_spans([len(word) for word in spelled])
    begins = begins.clamp(max=max(len(b"".join(spelled)) - 1, 0))
    ends = torch.maximum(ends, begins + 1)  # a space mark alone goes with what follows it
    overlap = (torch.minimum(ends, last[:, None]) - torch.maximum(begins, first[:, None])).clamp(min=0).float()
    return numbers, overlap / overlap.sum(0).clamp(min=1)


def _encode_letters(text: str) -> bytes:
    return re.sub(r"[\s▁]", "", text).encode()


def _compute_spans(sizes: list[int]) -> tuple[Tensor, Tensor]:
    ends = torch.tensor(sizes, dtype=torch.long).cumsum(0)
    return ends - torch.tensor(sizes, dtype=torch.long), ends


def merge_words(
    weights: Float[Tensor, "*heads target source"],
    target_shares: Float[Tensor, "target_words target_tokens"],
    source_shares: Float[Tensor, "source_words source_tokens"],
) -> Float[Tensor, "*heads target_words source_words"]:
    """Attention between words: summed over the tokens of a source word, averaged over those of a target word.

    Tokens past those that have shares, such as the end, belong to no word.
    """
    weights = weights[..., : target_shares.shape[1], : source_shares.shape[1]]
    mean = target_shares / target_shares.sum(1, keepdim=True).clamp(min=1e-9)
    return mean.to(weights.dtype) @ weights @ source_shares.to(weights.dtype).T


def word_attentions(
    model: EncoderDecoder,
    tokenizers: tuple[Tokenizer, Tokenizer],
    pairs: Sequence[AlignedPair],
    *,
    separators: tuple[str, str] = (" ", " "),
    when: str = "written",
    batch: int = 32,
) -> list[Float[Tensor, "layers heads _target_words _source_words"]]:
    """The attention between the words of each pair; `separators` stand between words: nothing in Chinese, say."""
    source, target = tokenizers
    sources = [share_tokens(source, pair.source, separators[0]) for pair in pairs]
    targets = [share_tokens(target, pair.target, separators[1]) for pair in pairs]
    weights = cross_attentions(
        model,
        [[*tokens, source.end] for tokens, _ in sources],
        [[*tokens, target.end] for tokens, _ in targets],
        start=target.start,
        when=when,
        batch=batch,
    )
    shares = zip(weights, targets, sources, strict=True)
    return [merge_words(of_pair, target, source) for of_pair, (_, target), (_, source) in shares]


def alignment_links(weights: Float[Tensor, "target_words source_words"], *, threshold: float = 0.0) -> Links:
    """Links (source, target): each target word's largest weight, if it is more than `threshold`; of equals the first.

    >>> sorted(alignment_links(torch.tensor([[0.9, 0.1], [0.6, 0.4]])))
    [(0, 0), (0, 1)]
    """
    if not weights.numel():
        return set()
    values = weights.double().cpu().numpy()
    best = values.argmax(1).tolist()
    return {(source, target) for target, source in enumerate(best) if values[target, source] > threshold}


def alignment_error_rate(predicted: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links]) -> float:
    """AER of a corpus: `1 − (|A∩S| + |A∩P|) / (|A| + |S|)`, the less the better; P includes S (Och and Ney 2003).

    >>> alignment_error_rate([{(0, 0), (1, 1), (2, 2)}], sure=[{(0, 0), (3, 3)}], possible=[{(1, 1)}])
    0.4
    """
    if not len(predicted) == len(sure) == len(possible):
        raise ShapeError(f"{len(predicted)} predictions for {len(sure)} sure and {len(possible)} possible alignments")
    right = wanted = 0
    for links, certain, allowed in zip(predicted, sure, possible, strict=True):
        right += len(links & certain) + len(links & (allowed | certain))
        wanted += len(links) + len(certain)
    return 1 - right / wanted if wanted else 0.0


def score_heads(
    attentions: Sequence[Float[Tensor, "layers heads _target_words _source_words"]],
    pairs: Sequence[AlignedPair],
    *,
    threshold: float = 0.0,
) -> Float[Tensor, "layers heads"]:
    """The error rate of every head of every layer, from the `word_attentions` of these pairs.

    A whole layer is scored by its mean over heads: `weights.mean(1, keepdim=True)` of each.
    """
    layers, heads = attentions[0].shape[:2]
    sure, possible = [pair.sure for pair in pairs], [pair.possible for pair in pairs]
    rates = torch.zeros(layers, heads)
    for layer in range(layers):
        for head in range(heads):
            links = [alignment_links(weights[layer, head], threshold=threshold) for weights in attentions]
            rates[layer, head] = alignment_error_rate(links, sure, possible)
    return rates
