"""Encoder, Decoder, EncoderDecoder: tokens or vectors in, hidden states out, and scores over the vocabulary."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention import KeyValueCache, Mask, MultiHeadAttention
from clearhead.attention.masks import as_mask
from clearhead.errors import DtypeError, ShapeError
from clearhead.model.config import ModelConfig
from clearhead.model.layers import ACTIVATIONS, FeedForward, Stack, norm


class Words(nn.Module):
    """Word embeddings: tokens to vectors."""

    def __init__(self, config: ModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, config.width)
        self.factor = math.sqrt(config.width) if config.scale_embeddings else 1.0

    def forward(self, tokens: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens width"]:
        self._check(tokens)
        vectors: Tensor = self.words(tokens)
        return vectors if self.factor == 1.0 else vectors * self.factor

    def _check(self, tokens: Tensor) -> None:
        if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int32, torch.int64) or tokens.ndim != 2:
            got = f"{tokens.dtype} of shape {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else repr(tokens)
            raise DtypeError(
                f"tokens must be whole numbers (int32 or int64) shaped (batch, tokens), got {got}; "
                "vectors go in as vectors="
            )
        # Only on a CPU: on a GPU the check would wait for the device, where the lookup itself raises an error.
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling() and tokens.numel():
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high >= self.words.num_embeddings:
                raise ShapeError(
                    f"tokens run from {low} to {high}, the vocabulary from 0 to {self.words.num_embeddings - 1}; "
                    "is this the tokenizer that the model was built for?"
                )


class Vocabulary(Words):
    """Word embeddings and output projection, with one matrix for both if they are tied."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.vocabulary)
        self.output = None if config.tie_embeddings else nn.Linear(config.width, config.vocabulary, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary)) if config.logits_bias else None
        self.transform = nn.Linear(config.width, config.width) if config.logits_transform else None
        self.transform_norm = norm(config) if config.logits_transform else None
        self.activation = ACTIVATIONS[config.activation]

    def logits(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        if self.transform is not None and self.transform_norm is not None:
            hidden = self.transform_norm(self.activation(self.transform(hidden)))
        return self.scores(hidden)

    def scores(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        return nn.functional.linear(hidden, self.output_weight, self.bias)

    @property
    def output_weight(self) -> Float[Tensor, "vocabulary width"]:
        return self.words.weight if self.output is None else self.output.weight


class _Model(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Vocabulary(config)

    def logits(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        """Scores over the vocabulary, before the softmax."""
        return self.vocabulary.logits(hidden)

    @property
    def checkpointing(self) -> bool:
        """Whether layers are recomputed in the backward pass: about a third more time, far less memory."""
        return any(stack.checkpointing for stack in self.modules() if isinstance(stack, Stack))

    @checkpointing.setter
    def checkpointing(self, on: bool) -> None:
        for stack in self.modules():
            if isinstance(stack, Stack):
                stack.checkpointing = on

    def _embed_source(self, tokens: Tensor | None, vectors: Tensor | None, words: Words | None = None) -> Tensor:
        """The inputs of an encoder: one of patches would know no positions of tokens."""
        if tokens is not None and self.config.patches is not None:
            raise ShapeError("this encoder takes pictures, not tokens; pass a PatchEmbedding's output as vectors=")
        return self._embed(tokens, vectors, words)

    def _embed(self, tokens: Tensor | None, vectors: Tensor | None, words: Words | None = None) -> Tensor:
        if (tokens is None) == (vectors is None):
            raise ShapeError("pass either tokens or vectors=, not both and not neither")
        if tokens is not None:
            embedded: Tensor = (self.vocabulary if words is None else words)(tokens)
            return embedded
        assert vectors is not None
        if vectors.ndim != 3 or vectors.shape[2] != self.config.width:
            raise ShapeError(
                f"vectors must be (batch, tokens, {self.config.width}), got {tuple(vectors.shape)}; "
                "project them to the model's width first"
            )
        return vectors


class Encoder(_Model):
    """Encoder-only Transformer: every token attends to all others, unless `mask` hides them.

    >>> model = Encoder(ModelConfig.named("tiny", vocabulary=11))
    >>> hidden = model(torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7]]), mask=Mask.padding([3, 4]))
    >>> hidden.shape, model.logits(hidden).shape
    (torch.Size([2, 4, 128]), torch.Size([2, 4, 11]))
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.encoder = Stack(config, layers=config.layers, causal=False, cross=False)
        initialise(self)

    def forward(
        self,
        tokens: Int[Tensor, "batch tokens"] | None = None,
        *,
        vectors: Float[Tensor, "batch tokens width"] | None = None,
        segments: Int[Tensor, "batch tokens"] | None = None,
        positions: Int[Tensor, "*batch tokens"] | None = None,
        mask: Mask | None = None,
        places: Int[Tensor, "batch chosen"] | None = None,
    ) -> Float[Tensor, "batch _ width"]:
        """Hidden states of all tokens, or only of those at `places`, which saves most of the last layer."""
        x = self._embed_source(tokens, vectors)
        hidden: Tensor = self.encoder(x, segments=segments, positions=positions, mask=mask, places=places)
        return hidden


class Decoder(_Model):
    """Decoder-only Transformer: causal by itself; `mask` hides more.

    With a `cache` only the new tokens are passed at each step. With `cross_attention=True` in its config it
    also attends to a `context`.

    >>> model = Decoder(ModelConfig.named("tiny", vocabulary=11)).eval()
    >>> cache = KeyValueCache()
    >>> _ = model(torch.tensor([[1, 2, 3]]), cache=cache)
    >>> model(torch.tensor([[4]]), cache=cache).shape, cache.length
    (torch.Size([1, 1, 128]), 4)
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.decoder = Stack(config, layers=config.layers, causal=True, cross=config.cross_attention)
        initialise(self)

    def forward(
        self,
        tokens: Int[Tensor, "batch tokens"] | None = None,
        *,
        vectors: Float[Tensor, "batch tokens width"] | None = None,
        segments: Int[Tensor, "batch tokens"] | None = None,
        positions: Int[Tensor, "*batch tokens"] | None = None,
        mask: Mask | None = None,
        context: Float[Tensor, "contexts context_tokens context_width"] | None = None,
        context_mask: Mask | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        hidden: Tensor = self.decoder(
            self._embed(tokens, vectors),
            segments=segments,
            positions=positions,
            mask=mask,
            context=context,
            context_mask=context_mask,
            cache=cache,
        )
        return hidden


class EncoderDecoder(_Model):
    """Encoder-decoder Transformer: the decoder attends to the encoded source by cross-attention.

    >>> model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=11))
    >>> source, target = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])
    >>> model(source, target).shape
    torch.Size([1, 2, 128])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        layers = config.layers if config.decoder_layers is None else config.decoder_layers
        other = config.source_vocabulary
        self.source_vocabulary = None if other is None else Words(config, other)
        self.encoder = Stack(config, layers=config.layers, causal=False, cross=False)
        self.decoder = Stack(config, layers=layers, causal=True, cross=True)
        initialise(self)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
        *,
        context_mask: Mask | None = None,
    ) -> Float[Tensor, "batch target width"]:
        """Hidden states of the target; `source_mask` also hides source tokens from the decoder."""
        if context_mask is None and source_mask is not None:
            context_mask = as_mask(source_mask).of_keys()
        context = self.encode(source, mask=source_mask)
        return self.decode(target, context, mask=target_mask, context_mask=context_mask)

    def encode(
        self,
        source: Int[Tensor, "batch source"] | None = None,
        mask: Mask | None = None,
        *,
        vectors: Float[Tensor, "batch source width"] | None = None,
        segments: Int[Tensor, "batch source"] | None = None,
        positions: Int[Tensor, "*batch source"] | None = None,
    ) -> Float[Tensor, "batch source width"]:
        x = self._embed_source(source, vectors, self.source_vocabulary)
        hidden: Tensor = self.encoder(x, segments=segments, positions=positions, mask=mask)
        return hidden

    def decode(
        self,
        target: Int[Tensor, "batch target"] | None,
        context: Float[Tensor, "contexts source width"],
        mask: Mask | None = None,
        context_mask: Mask | None = None,
        *,
        vectors: Float[Tensor, "batch target width"] | None = None,
        positions: Int[Tensor, "*batch target"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch target width"]:
        """Hidden states of the target. With a cache whose beams share a context there are fewer contexts than rows."""
        hidden: Tensor = self.decoder(
            self._embed(target, vectors),
            positions=positions,
            mask=mask,
            context=context,
            context_mask=context_mask,
            cache=cache,
        )
        return hidden

    def token_scores(
        self, source: Int[Tensor, "batch source"], target: Int[Tensor, "batch target"], source_mask: Mask | None = None
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Scores of the next token after each token of the target, before the softmax, in one forward pass."""
        return self.logits(self(source, target, source_mask))


def initialise(model: _Model) -> None:
    """Random weights to start from.

    - Projections: Xavier-uniform, q, k and v each by its own size, as in the 2017 code; biases zero, norms one.
    - With norms first, what is added to the residual is divided by √(2 · layers), so that its variance does not
      grow with depth (GPT-2).
    - Words, learned positions, segments: normal with deviation 1/√width if embeddings are scaled by √width
      (they enter with variance one), else 0.02.

    On the meta device there is nothing to fill, and arithmetic would load PyTorch's symbolic shapes: half a second.
    """
    if model.vocabulary.words.weight.is_meta:
        return
    config = model.config
    deviation = config.width**-0.5 if config.scale_embeddings else 0.02
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=deviation)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.reset_parameters()
    for stack in [module for module in model.modules() if config.norm_first and isinstance(module, Stack)]:
        for module in stack.modules():
            if isinstance(module, (MultiHeadAttention, FeedForward)):
                last = module.to_out if isinstance(module, MultiHeadAttention) else module.down
                last.weight.data /= math.sqrt(2 * len(stack.layers))
