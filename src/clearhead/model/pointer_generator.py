"""PointerGenerator: an encoder-decoder whose next token is generated from the vocabulary or copied from the source."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead.attention import Mask, attention_weights
from clearhead.attention.hidden_keys import HiddenKeys, hide_keys
from clearhead.attention.masks import as_mask
from clearhead.errors import ConfigError
from clearhead.model.config import ModelConfig
from clearhead.model.layers import at_least_float
from clearhead.model.transformer import EncoderDecoder

LEAST_COPIED = 1e-20  # probability of copying a token that is not in the source: its logarithm stays finite
RECENT = 2  # tokens of the target that are compared with those before a place of the source
GAIN = 10.0  # the few numbers that weigh matches learn at ten times the rate: they must become large
NOTHING, BEFORE = -1, -2  # stand before the source and before the target: they equal no token, nor each other


class PointerGenerator(EncoderDecoder):
    """Encoder-decoder that mixes generating a token with copying one of the source (See, Liu and Manning 2017).

    The next token's probability is `g · softmax(logits) + (1 − g) · copied`. `copied` sums one more attention, from
    the decoder's hidden state to the encoded source, over the places where the source has this token. Its scores are
    larger, by a learned number, where the source continues the last token or the last two tokens. The gate `g` depends
    on the hidden state and on the weight on such places. Source and target have one vocabulary.

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
        self.copy_matches = nn.Parameter(torch.tensor([0.1, 0.2]))  # added to scores, times GAIN
        self.gate_matches = nn.Parameter(torch.zeros(RECENT))  # taken from the gate's logit, times GAIN
        self.hidden_keys: tuple[HiddenKeys, ...] | None = None  # of the source, which are not copied; see `hide`
        for layer in (self.copy_query, self.copy_gate):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy: `hide` applies to the model that it was given, not to copies of it."""
        return {**self.__dict__, "hidden_keys": None}

    def copying(
        self,
        hidden: Float[Tensor, "batch target width"],
        context: Float[Tensor, "batch source width"],
        source: Int[Tensor, "batch source"],
        recent: Int[Tensor, "batch target recent"],
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "batch target source"], Float[Tensor, "batch target"]]:
        """For each token of the target the weight of each place of the source, and the gate's logit for generating.

        `recent` has the last tokens read, the newest first.
        """
        if (hidden_keys := self.hidden_keys) is not None:
            mask = hide_keys(mask, hidden_keys, source.shape[1], source.shape[1])
        matches = find_continuations(source, recent)
        bonus = sum(GAIN * self.copy_matches[number] * match for number, match in enumerate(matches))
        queries, keys = at_least_float(self.copy_query(hidden))[:, None], at_least_float(context)[:, None]
        bias = torch.as_tensor(bonus)[:, None].to(queries.dtype)
        with torch.autocast(hidden.device.type, enabled=False):  # half precision would blur which place is copied
            weights = attention_weights(queries, keys, mask, bias=bias)[:, 0]
        gate = at_least_float(self.copy_gate(hidden))[..., 0]
        for number, match in enumerate(matches):
            gate = gate - GAIN * self.gate_matches[number] * (weights * match).sum(-1)
        return weights, gate

    def mix_scores(
        self,
        hidden: Float[Tensor, "batch target width"],
        context: Float[Tensor, "batch source width"],
        source: Int[Tensor, "batch source"],
        recent: Int[Tensor, "batch target recent"],
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Log-probabilities of the next token: generated or copied."""
        weights, gate = self.copying(hidden, context, source, recent, mask)
        generating = gate.sigmoid()[..., None]
        generated = at_least_float(self.logits(hidden)).softmax(-1)
        places = source[:, None].expand(-1, weights.shape[1], -1)
        mixed = (generating * generated).scatter_add(-1, places, (1 - generating) * weights)
        return mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()

    def token_scores(
        self, source: Int[Tensor, "batch source"], target: Int[Tensor, "batch target"], source_mask: Mask | None = None
    ) -> Float[Tensor, "batch target vocabulary"]:
        keys = None if source_mask is None else as_mask(source_mask).of_keys()
        context = self.encode(source, source_mask)
        hidden = self.decode(target, context, context_mask=keys)
        return self.mix_scores(hidden, context, source, list_recent(target), keys)


def list_recent(target: Int[Tensor, "batch target"]) -> Int[Tensor, "batch target recent"]:
    """Each token of the target with the one before it: what the decoder has read last, the newest first.

    >>> list_recent(torch.tensor([[1, 5, 6]])).tolist()
    [[[1, -2], [5, 1], [6, 5]]]
    """
    return torch.stack([target, _shift(target, 1, BEFORE)], dim=-1)


def find_continuations(
    source: Int[Tensor, "batch source"], recent: Int[Tensor, "batch target recent"]
) -> list[Bool[Tensor, "batch target source"]]:
    """Where the source continues what was written: the places after the last token, and after the last two tokens.

    >>> after_one, after_two = find_continuations(torch.tensor([[7, 5, 6, 5, 8]]), torch.tensor([[[5, 7]]]))
    >>> after_one[0, 0].int().tolist(), after_two[0, 0].int().tolist()
    ([0, 0, 1, 0, 1], [0, 0, 1, 0, 0])
    """
    after_one = _shift(source, 1, NOTHING)[:, None] == recent[..., :1]
    after_two = after_one & (_shift(source, 2, NOTHING)[:, None] == recent[..., 1:2])
    return [after_one, after_two]


def pointer_loss(
    model: PointerGenerator,
    hidden: Float[Tensor, "batch target width"],
    context: Float[Tensor, "batch source width"],
    source: Int[Tensor, "batch source"],
    target: Int[Tensor, "batch target"],
    mask: Mask | None,
    labels: Int[Tensor, "batch target"],
    smoothing: float,
) -> Float[Tensor, ""]:
    """The negative log-probability of the right tokens, summed over all places whose label is not negative.

    With `smoothing` ε it has a weight of 1 − ε, and the mean over the vocabulary of the negative log-probability of
    generating a token a weight of ε. Builds no probabilities over the vocabulary: of the mixture only those of the
    right tokens are needed.
    """
    logits = at_least_float(model.logits(hidden))
    normaliser = logits.logsumexp(-1)
    right = labels.clamp(min=0)
    generated = logits.gather(-1, right[..., None])[..., 0] - normaliser
    weights, gate = model.copying(hidden, context, source, list_recent(target), mask)
    copied = (weights * (source[:, None] == right[..., None])).sum(-1)
    mixed = torch.logaddexp(F.logsigmoid(gate) + generated, F.logsigmoid(-gate) + (copied + LEAST_COPIED).log())
    losses = -mixed if not smoothing else -(1 - smoothing) * mixed - smoothing * (logits.mean(-1) - normaliser)
    return losses.masked_fill(labels < 0, 0.0).sum()


def _shift(tokens: Tensor, places: int, value: int) -> Tensor:
    """The tokens moved to the right by `places`, with `value` before them."""
    return F.pad(tokens, (places, 0), value=value)[:, : tokens.shape[1]]
