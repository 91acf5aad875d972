"""Output heads: encoders with scores for labels, of a whole text or of each token."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.errors import ConfigError, ShapeError
from clearhead.model.config import ModelConfig
from clearhead.model.layers import linear
from clearhead.model.transformer import Encoder

NGRAM_ROWS = 2**18  # scores of runs of tokens, for each label
GAIN = 30.0  # rows of their own learn at thirty times the rate: each is met in few examples
FACTOR, PRIME = 1_000_003, 2_147_483_647


def mean_pool(
    hidden: Float[Tensor, "batch tokens width"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, "batch width"]:
    """The mean of the first `lengths` hidden states of each sample; zeros where there are none.

    >>> mean_pool(torch.tensor([[[2.0], [4.0], [100.0]], [[7.0], [8.0], [9.0]]]), torch.tensor([2, 0]))
    tensor([[3.],
            [0.]])
    """
    real = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
    total = hidden.masked_fill(~real[..., None], 0.0).sum(1)
    return total / lengths.clamp(min=1)[:, None].to(total.dtype)


class _LabelledEncoder(Encoder):
    """Base class of encoders with scores for labels."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        kind = type(self).__name__
        if config.labels is None:
            raise ConfigError(f"a {kind} needs to know how many labels there are: set labels in its ModelConfig")
        _refuse_logits(config, kind)
        self.dropout = nn.Dropout(config.dropout)
        self.to_labels = linear(config.width, config.labels.count)

    def label_scores(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch labels"]:
        """Scores of the labels for each hidden state, before the softmax."""
        scores: Tensor = self.to_labels(self.dropout(hidden))
        return scores


def _refuse_logits(config: ModelConfig, kind: str) -> None:
    if not config.tie_embeddings or config.logits_bias or config.logits_transform:
        raise ConfigError(
            f"a {kind} has no logits over the vocabulary: leave tie_embeddings, logits_bias and logits_transform "
            "at their defaults"
        )


class NgramScores(nn.Module):
    """A linear model beside the encoder: each run of up to `longest` tokens has a score for every label.

    Runs are hashed into 2¹⁸ rows, whose mean is scaled by the root of their number, much as TF-IDF vectors of unit
    length are. All scores are 0 at first. With few examples this alone comes close to the best that can be learned.
    """

    def __init__(self, longest: int, labels: int) -> None:
        super().__init__()
        self.longest = longest
        self.rows = nn.Embedding(NGRAM_ROWS, labels)
        nn.init.zeros_(self.rows.weight)

    def forward(self, tokens: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"]) -> Float[Tensor, "batch l"]:
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        hashed, total, count = torch.zeros_like(tokens), 0.0, lengths.new_zeros(len(lengths))
        for size in range(1, min(self.longest, tokens.shape[1]) + 1):
            before = tokens.shape[1] - size + 1  # runs of this size
            # A polynomial hash: the run that begins at each place, with one more token at its end.
            hashed = (hashed[:, :before] * FACTOR + tokens[:, size - 1 :] + 1) % PRIME
            inside = real[:, size - 1 :]
            total = total + (self.rows(hashed % NGRAM_ROWS) * inside[..., None]).sum(1)
            count = count + inside.sum(1)
        scores: Tensor = GAIN * total / count.clamp(min=1).sqrt()[:, None]
        return scores


class Classifier(_LabelledEncoder):
    """An encoder with one score for each label, from the mean of its hidden states.

    With `pooling="first"` it scores the first hidden state, after a layer with tanh, as BERT does. With `ngrams` it
    adds scores of the tokens themselves.

    >>> from clearhead.attention import Mask
    >>> model = Classifier(ModelConfig.named("tiny", vocabulary=11, labels={"count": 3})).eval()
    >>> tokens, lengths = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7]]), torch.tensor([3, 4])
    >>> model.label_scores(model(tokens, mask=Mask.padding(lengths)), lengths).shape
    torch.Size([2, 3])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        labels = config.labels
        assert labels is not None, "the base class refuses that"
        self.pooler = linear(config.width, config.width) if labels.pooling == "first" else None
        self.ngrams = NgramScores(labels.ngrams, labels.count) if labels.ngrams else None
        if self.ngrams is not None:  # random scores of hidden states would only disturb at first
            nn.init.zeros_(self.to_labels.weight)

    def label_scores(  # type: ignore[override]  # scores of a text need its length
        self,
        hidden: Float[Tensor, "batch places width"],
        lengths: Int[Tensor, " batch"],
        tokens: Int[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "batch labels"]:
        """Scores of the labels, before the softmax; only the first `lengths` tokens of each sample count.

        A model with `ngrams` needs the `tokens`, too.
        """
        scores = super().label_scores(self.pool(hidden, lengths))
        if self.ngrams is None:
            return scores
        if tokens is None:
            raise ShapeError("this model also scores n-grams of tokens; pass tokens= as well")
        both: Tensor = scores + self.ngrams(tokens, lengths)
        return both

    def pool(
        self, hidden: Float[Tensor, "batch places width"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch width"]:
        """The vector of each text, which the scores are of."""
        return mean_pool(hidden, lengths) if self.pooler is None else self.pooler(hidden[:, 0]).tanh()

    @torch.no_grad()
    def divide_scores(self, temperature: float) -> None:
        """Changes the weights so that all scores of labels are divided by `temperature`, also in an exported model."""
        weights = [self.to_labels.weight, self.to_labels.bias]
        for weight in weights if self.ngrams is None else [*weights, self.ngrams.rows.weight]:
            weight /= temperature


class TokenClassifier(_LabelledEncoder):
    """An encoder with one score for each label, for every token."""


class PooledEncoder(Encoder):
    """An encoder that gives one vector for a whole text; with `labels` in its config it scores labels, too.

    >>> from clearhead.attention import Mask
    >>> model = PooledEncoder(ModelConfig.named("tiny", vocabulary=11, labels={"count": 3})).eval()
    >>> tokens, lengths = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7]]), torch.tensor([3, 4])
    >>> vectors = model.pool(model(tokens, mask=Mask.padding(lengths)), lengths)
    >>> vectors.shape, model.label_scores(vectors).shape
    (torch.Size([2, 128]), torch.Size([2, 3]))
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        _refuse_logits(config, "PooledEncoder")
        self.dropout = nn.Dropout(config.dropout)
        self.to_labels = None if config.labels is None else linear(config.width, config.labels.count)

    def pool(
        self, hidden: Float[Tensor, "batch tokens width"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch width"]:
        """The vector of each text: the mean of its hidden states."""
        return mean_pool(hidden, lengths)

    def label_scores(self, vectors: Float[Tensor, "batch width"]) -> Float[Tensor, "batch labels"]:
        """Scores of the labels for pooled vectors, before the softmax."""
        if self.to_labels is None:
            raise ConfigError("this PooledEncoder has no labels: set labels in its ModelConfig")
        scores: Tensor = self.to_labels(self.dropout(vectors))
        return scores
