"""Word alignment: how well each head's attention says which source word a target word comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import Mask
from clearhead.attention.multihead import MultiHeadAttention, Seen
from clearhead.errors import ConfigError, DataError, ShapeError
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


def read_alignments(texts: str | Path, gold: str | Path) -> list[AlignedPair]:
    """Pairs from a file of lines `源 语 ||| the target` and one of lines `1-1 2-3 4p5`.

    There words count from 1; `i-j` links are sure, `ipj` ones only possible.
    """
    pairs, lines = _read_lines(texts), _read_lines(gold)
    if len(pairs) != len(lines):
        raise DataError(f"{texts} has {len(pairs)} lines, {gold} has {len(lines)}; each pair needs one line in both")
    found = []
    for number, (pair, links) in enumerate(zip(pairs, lines, strict=True), start=1):
        source, bar, target = pair.partition("|||")
        words = source.split(), target.split()
        if not bar or "|||" in target or not all(words):
            raise DataError(f"{texts}:{number}: wanted `source words ||| target words`, got {pair[:80]!r}")
        marked = [_parse_link(link, f"{gold}:{number}", words) for link in links.split()]
        possible = {link for link, _ in marked}
        found.append(AlignedPair(*words, {link for link, sure in marked if sure}, possible))
    return found


def _read_lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        said = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise DataError(f"{path} cannot be read: {said}") from None


def _parse_link(text: str, where: str, words: tuple[list[str], list[str]]) -> tuple[tuple[int, int], bool]:
    parts = re.fullmatch(r"(\d+)([-p])(\d+)", text)
    if not parts:
        raise DataError(f"{where}: {text!r} is no link; wanted `3-4` for a sure one or `3p4` for a possible one")
    ends = int(parts[1]), int(parts[3])
    for side, end, own in zip(("source", "target"), ends, words, strict=True):
        if not 1 <= end <= len(own):
            raise DataError(f"{where}: {text!r} links {side} word {end}, but there are words 1 to {len(own)}")
    return (ends[0] - 1, ends[1] - 1), parts[2] == "-"


def cross_attention(
    model: EncoderDecoder, source: Sequence[int], target: Sequence[int], *, start: int, when: str = "written"
) -> Float[Tensor, "layers heads target source"]:
    """What every head of every decoder layer gives to each source token, for each target token.

    For a token that is being `"written"`, when the decoder has read what comes before it, or `"read"`: one step
    later, when it reads the token itself, which aligns better in most models (Chen et al. 2020).
    """
    return cross_attentions(model, [source], [target], start=start, when=when)[0]


def cross_attentions(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    start: int,
    when: str = "written",
    batch: int = 32,
) -> list[Float[Tensor, "layers heads _target _source"]]:
    """`cross_attention` of many pairs, `batch` of them at a time."""
    if when not in ("written", "read"):
        raise ConfigError(f"when= must be 'written' or 'read', got {when!r}")
    if len(sources) != len(targets):
        raise ShapeError(f"{len(sources)} sources, but {len(targets)} targets")
    found: list[Tensor] = []
    for first in range(0, len(sources), batch):
        some = sources[first : first + batch]
        read = [[start, *target] for target in targets[first : first + batch]]
        weights = _collect_weights(model, some, read)
        for row, source, target in zip(weights, some, read, strict=True):
            rows = slice(1, len(target)) if when == "read" else slice(0, len(target) - 1)
            found.append(row[:, :, rows, : len(source)].clone())
    return found


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
    return [merge_words(one, t[1], s[1]) for one, s, t in zip(weights, sources, targets, strict=True)]


def alignment_links(
    weights: Float[Tensor, "target_words source_words"], *, threshold: float = 0.0, direction: str = "target"
) -> Links:
    """Links (source, target): each target word's largest weight, if it is more than `threshold`.

    With `direction="both"` only those that are also the largest of their source word; with `"either"` the largest
    of each source word too.

    >>> sorted(alignment_links(torch.tensor([[0.9, 0.1], [0.6, 0.4]])))
    [(0, 0), (0, 1)]
    >>> sorted(alignment_links(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), direction="both"))
    [(0, 0)]
    """
    if direction not in ("target", "both", "either"):
        raise ConfigError(f"direction must be 'target', 'both' or 'either', got {direction!r}")
    if not weights.numel():
        return set()
    of_targets, of_sources = ((weights == weights.amax(axis, keepdim=True)) for axis in (1, 0))
    of_targets, of_sources = _keep_first(of_targets, 1), _keep_first(of_sources, 0)
    chosen = {"target": of_targets, "both": of_targets & of_sources, "either": of_targets | of_sources}[direction]
    return {(source, target) for target, source in (chosen & (weights > threshold)).nonzero().tolist()}


def _keep_first(found: Tensor, axis: int) -> Tensor:
    """Of several equal ones the first."""
    return found & (found.cumsum(axis) == 1)


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
    direction: str = "target",
) -> Float[Tensor, "layers heads"]:
    """The error rate of every head of every layer, from the `word_attentions` of these pairs.

    A whole layer is scored by its mean: `score_heads([one.mean(1, keepdim=True) for one in attentions], pairs)`.
    """
    layers, heads = attentions[0].shape[:2]
    sure, possible = [pair.sure for pair in pairs], [pair.possible for pair in pairs]
    rates = torch.zeros(layers, heads)
    for layer in range(layers):
        for head in range(heads):
            links = [alignment_links(one[layer, head], threshold=threshold, direction=direction) for one in attentions]
            rates[layer, head] = alignment_error_rate(links, sure, possible)
    return rates
