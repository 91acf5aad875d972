"""PointerGenerator: an encoder-decoder whose next token is generated from the vocabulary or copied from the source."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention import Mask, attention_weights
from clearhead.attention.masks import as_mask
from clearhead.errors import ConfigError
from clearhead.model.config import ModelConfig
from clearhead.model.transformer import EncoderDecoder

SMALLEST = 1e-9  # probability of copying a token that is not in the source: its logarithm stays finite


class PointerGenerator(EncoderDecoder):
    """Encoder-decoder that mixes generating a token with copying one of the source (See, Liu and Manning 2017).

    The next token's probability is `g · softmax(logits) + (1 − g) · copied`. `copied` sums one more attention, from
    the decoder's hidden state to the encoded source, over the places where the source has this token; the gate `g` is
    computed from the hidden state, too. Source and target have one vocabulary.

    >>> model = PointerGenerator(ModelConfig.named("tiny", vocabulary=11, copying=True)).eval()
    >>> source, target = torch.tensor([[3, 4, 3]]), torch.tensor([[1, 5]])
    >>> scores = model.token_scores(source, target)
    >>> scores.shape, torch.allclose(scores.exp().sum(-1), torch.tensor(1.0))
    (torch.Size([1, 2, 11]), True)
    """

    def __init__(self, config: ModelConfig) -> None:
        if config.source_vocabulary is not None:
            raise ConfigError("copying needs one vocabulary for source and target: set text.shared = true")
        super().__init__(config)
        self.copy_query = nn.Linear(config.width, config.width)
        self.copy_gate = nn.Linear(config.width, 1)
        for layer in (self.copy_query, self.copy_gate):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def copy_weights(
        self,
        hidden: Float[Tensor, "batch target width"],
        context: Float[Tensor, "batch source width"],
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch target source"]:
        """The weight of each place of the source for copying, for each token of the target; `mask` hides padding."""
        queries = self.copy_query(hidden)[:, None]
        return attention_weights(_at_least_float(queries), _at_least_float(context[:, None]), mask)[:, 0]

    def mix_scores(
        self,
        hidden: Float[Tensor, "batch target width"],
        context: Float[Tensor, "batch source width"],
        source: Int[Tensor, "batch source"],
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Log-probabilities of the next token: generated or copied."""
        weights = self.copy_weights(hidden, context, mask)
        gate = _at_least_float(self.copy_gate(hidden)).sigmoid()
        generated = _at_least_float(self.logits(hidden)).softmax(-1)
        places = source[:, None].expand(-1, weights.shape[1], -1)
        mixed = (gate * generated).scatter_add(-1, places, (1 - gate) * weights)
        return mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()

    def token_scores(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        source_mask: Mask | None = None,
    ) -> Float[Tensor, "batch target vocabulary"]:
        keys = None if source_mask is None else as_mask(source_mask).of_keys()
        context = self.encode(source, source_mask)
        hidden = self.decode(target, context, context_mask=keys)
        return self.mix_scores(hidden, context, source, keys)


def pointer_loss(
    model: PointerGenerator,
    hidden: Float[Tensor, "batch target width"],
    context: Float[Tensor, "batch source width"],
    source: Int[Tensor, "batch source"],
    mask: Mask | None,
    labels: Int[Tensor, "batch target"],
    smoothing: float,
) -> Float[Tensor, ""]:
    """The negative log-probability of the right tokens, summed over all places whose label is not negative.

    With `smoothing` ε it has a weight of 1 − ε, and the mean over the vocabulary of the negative log-probability of
    generating a token a weight of ε. Builds no probabilities over the vocabulary: of the mixture only those of the
    right tokens are needed.
    """
    logits = _at_least_float(model.logits(hidden))
    normaliser = logits.logsumexp(-1)
    right = labels.clamp(min=0)
    generated = logits.gather(-1, right[..., None])[..., 0] - normaliser
    weights = model.copy_weights(hidden, context, mask)
    copied = (weights * (source[:, None] == right[..., None])).sum(-1)
    gate = _at_least_float(model.copy_gate(hidden))[..., 0]
    mixed = torch.logaddexp(F.logsigmoid(gate) + generated, F.logsigmoid(-gate) + (copied + SMALLEST).log())
    losses = -mixed if not smoothing else -(1 - smoothing) * mixed - smoothing * (logits.mean(-1) - normaliser)
    return losses.masked_fill(labels < 0, 0.0).sum()


def _at_least_float(x: Tensor) -> Tensor:
    """In float32 if it is in half precision: probabilities of many tokens are added."""
    return x if x.dtype == torch.float64 else x.float()
