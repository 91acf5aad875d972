"""Vectors of texts: each text of any length becomes the mean of its hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention import Mask
from clearhead.model import PooledEncoder
from clearhead.tasks.finite_scores import check_finite
from clearhead.tasks.text_windows import cut_text, text_windows
from clearhead.text.batches import Ragged, token_batches

if TYPE_CHECKING:
    from clearhead.text import Tokenizer

TOKENS = 4096  # of a batch in prediction, pads included


def pool_tokens(
    model: PooledEncoder, tokens: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, "batch width"]:
    """The vector of each text of a padded batch."""
    return model.pool(model(tokens, mask=Mask.padding(lengths, queries=True)), lengths)


@torch.no_grad()
def encode_texts(
    model: PooledEncoder, tokenizer: Tokenizer, texts: Sequence[str], batch: int = 64, *, limit: int
) -> Float[Tensor, "texts width"]:
    """The vectors of texts in float32, on the model's device; of each text what `cut_text` leaves.

    A text of more than `limit` tokens, start and end included, is read in windows, and their vectors are averaged.
    """
    parts, owners = list[list[int]](), list[int]()
    for place, tokens in enumerate(tokenizer.encode_all([cut_text(text)[0] for text in texts])):
        windows = text_windows([tokens], limit, tokenizer.start, tokenizer.end)
        parts += windows
        owners += [place] * len(windows)
    weight = model.vocabulary.words.weight
    total = torch.zeros(len(texts), model.config.width, device=weight.device)
    counts = torch.zeros(len(texts), 1, device=weight.device)
    for places in token_batches(list(map(len, parts)), TOKENS, batch):
        ragged = Ragged([parts[place] for place in places])
        tokens_, lengths = ragged.pad(torch.arange(len(places)), int(ragged.lengths.max()), tokenizer.pad)
        vectors = pool_tokens(model, tokens_.to(weight.device), lengths.to(weight.device)).float()
        where = torch.tensor([owners[place] for place in places], device=weight.device)
        size_of = lengths.to(weight.device)[:, None].float()
        total.index_add_(0, where, vectors * size_of)
        counts.index_add_(0, where, size_of)
    check_finite(total)
    return total / counts.clamp(min=1)
