"""Attention between words: what each head of a translator gives to each word of the source."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.multihead import MultiHeadAttention, Seen
from clearhead.model import EncoderDecoder
from clearhead.model.inference_view import inference_view
from clearhead.text import Tokenizer

BYTES = range(3, 259)  # numbers of a Tokenizer that stand for one byte each


def cross_attentions(
    model: EncoderDecoder, source: Sequence[int], target: Sequence[int], *, start: int
) -> Float[Tensor, "layers heads target source"]:
    """What every head of every decoder layer gives to each source token when the decoder has read a target token."""
    device = model.vocabulary.words.weight.device
    view, layers = inference_view(model), list[Seen]()
    for name, part in view.decoder.named_modules():
        if isinstance(part, MultiHeadAttention) and name.endswith("cross_attention"):
            part.observer = layers.append
    with torch.inference_mode():
        view(torch.tensor([source], device=device), torch.tensor([[start, *target]], device=device))
        return torch.stack([seen.weights()[0, :, 1:].cpu() for seen in layers])


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
