"""Transformer layers: attention and feed-forward with residual and norm, and the stack of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clearhead.attention import KeyValueCache, Mask, MultiHeadAttention
from clearhead.attention.dropout import Dropout
from clearhead.attention.masks import as_mask
from clearhead.attention.positions import Alibi, AxialRotary, Learned, Relative, Rotary, Sinusoidal, Turns
from clearhead.errors import ShapeError
from clearhead.model.config import ModelConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
}

# Kinds of positions that a stack computes, and those that an attention applies.
IN_STACK, ON_SCORES = ("sinusoidal", "learned", "rotary", "axial"), ("rotary", "axial", "alibi", "relative")


class FeedForward(nn.Module):
    """Feed-forward network, applied at every position; swiglu and geglu multiply with a gate (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gated = config.activation in ("swiglu", "geglu")
        self.activation = ACTIVATIONS[config.activation]
        self.up = nn.Linear(config.width, config.feedforward * (2 if self.gated else 1), bias=config.bias)
        self.down = nn.Linear(config.feedforward, config.width, bias=config.bias)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        x = self.up(x)
        if self.gated:
            gate, x = x.chunk(2, dim=-1)
            x = self.activation(gate) * x
        else:
            x = self.activation(x)
        out: Tensor = self.down(self.dropout(x))
        return out


class Layer(nn.Module):
    """One Transformer layer: self-attention, cross-attention if there is a context, feed-forward."""

    def __init__(self, config: ModelConfig, *, causal: bool, cross: bool) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.self_attention = _attention(config, None, _make_positions(config, causal, ON_SCORES))
        self.self_norm = norm(config)
        if cross:
            self.cross_attention = _attention(config, config.width, None)
            self.cross_norm = norm(config)
        self.feedforward = FeedForward(config)
        self.feedforward_norm = norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        mask: Mask | None,
        context: Float[Tensor, "contexts context_tokens context_width"] | None,
        context_mask: Mask | None,
        cache: KeyValueCache | None,
        turns: Turns | None,
        places: Int[Tensor, "batch chosen"] | None = None,
    ) -> Float[Tensor, "batch _ width"]:
        """The hidden states of all tokens, or only of those at `places`: what follows self-attention is not computed
        for the others."""
        x = self._add_residual(self.self_norm, x, lambda y: self.self_attention(y, mask=mask, cache=cache, turns=turns))
        if places is not None:
            x = x.gather(1, places[:, :, None].expand(-1, -1, x.shape[2]))
        if context is not None:
            x = self._add_residual(
                self.cross_norm, x, lambda y: self.cross_attention(y, context=context, mask=context_mask, cache=cache)
            )
        return self._add_residual(self.feedforward_norm, x, self.feedforward)

    def _add_residual(self, norm: nn.Module, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x + part(norm(x)) (pre-norm), or norm(x + part(x)) (post-norm, 2017)."""
        out: Tensor = x + self.dropout(part(norm(x))) if self.norm_first else norm(x + self.dropout(part(x)))
        return out


class Stack(nn.Module):
    """A stack of layers from vectors to hidden states, with positions and a final norm.

    Set `checkpointing = True` to recompute each layer in the backward pass instead of keeping its inside.
    """

    def __init__(self, config: ModelConfig, *, layers: int, causal: bool, cross: bool) -> None:
        super().__init__()
        self.config, self.causal, self.cross, self.checkpointing = config, causal, cross, False
        self.positions: Sinusoidal | Learned | Rotary | None = _make_positions(config, causal, IN_STACK)
        self.segments = nn.Embedding(config.segments, config.width) if config.segments else None
        self.embedding_norm = norm(config) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config, causal=causal, cross=cross) for _ in range(layers))
        final = config.norm_first if config.final_norm is None else config.final_norm
        self.final_norm = norm(config) if final else None

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        *,
        segments: Int[Tensor, "#batch tokens"] | None = None,
        positions: Int[Tensor, "*_ tokens"] | None = None,
        mask: Mask | None = None,
        context: Float[Tensor, "contexts context_tokens context_width"] | None = None,
        context_mask: Mask | None = None,
        cache: KeyValueCache | None = None,
        places: Int[Tensor, "batch chosen"] | None = None,
    ) -> Float[Tensor, "batch _ width"]:
        self._check_context(context)
        x, turns = self._add_positions(x, segments, positions, 0 if cache is None else cache.length)
        mask = self._self_mask(mask)
        if context_mask is not None:  # lengths of the context say nothing about the queries
            context_mask = as_mask(context_mask).hiding_queries(False)
        for number, layer in enumerate(self.layers, start=1):
            computed = places if number == len(self.layers) else None
            if self.checkpointing and torch.is_grad_enabled() and cache is None:
                x = checkpoint(layer, x, mask, context, context_mask, None, turns, computed, use_reentrant=False)
            else:
                x = layer(x, mask, context, context_mask, cache, turns, computed)
        return x if self.final_norm is None else self.final_norm(x)

    def _add_positions(
        self, x: Tensor, segments: Tensor | None, positions: Tensor | None, start: int
    ) -> tuple[Tensor, Turns | None]:
        """Adds positions and segments to the vectors; also returns the rotations of rotary positions."""
        end = start + x.shape[1]
        if isinstance(self.positions, Learned) and positions is None:
            self.positions.check(end - 1)
        if positions is None:
            positions = torch.arange(start, end, device=x.device)
        elif self.positions is None:
            kind = "learned patch positions" if self.config.patches else f"positions={self.config.positions!r}"
            raise ShapeError(f"positions= has no effect in a model with {kind}; omit it")
        turns = self.positions(positions, x.dtype) if isinstance(self.positions, Rotary) else None
        if isinstance(self.positions, Sinusoidal):
            x = x + self.positions(positions, x.dtype)
        elif isinstance(self.positions, Learned):
            x = x + self.positions(positions)
        if self.segments is not None:
            if segments is None:
                segments = torch.zeros(1, 1, dtype=torch.long, device=x.device)
            x = x + self.segments(segments)
        elif segments is not None:
            raise ShapeError("this model has no segment embeddings; build it with ModelConfig(segments=2)")
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return self.dropout(x), turns

    def _self_mask(self, mask: Mask | None) -> Mask | None:
        """The mask of self-attention: causal or windowed by configuration, combined with the caller's."""
        reach, configured = self.config.window, None
        if self.causal:
            configured = Mask.causal() if reach is None else Mask.window(reach - 1)
        elif reach is not None:
            configured = Mask.window(reach - 1, reach - 1)
        elif self.config.encoder_window is not None:
            configured = Mask.window(self.config.encoder_window, self.config.encoder_window)
        if mask is None:
            return configured
        mask = as_mask(mask).hiding_queries(True)
        return mask if configured is None else configured & mask

    def _check_context(self, context: Tensor | None) -> None:
        if context is None and self.cross:
            raise ShapeError("this decoder has cross-attention; pass the encoder's output as context=")
        if context is not None and not self.cross:
            raise ShapeError("this model takes no context; build it with ModelConfig(cross_attention=True)")


def at_least_float(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """In float32 if it is in half precision, which is too coarse for sums of many numbers."""
    return x if x.dtype == torch.float64 else x.float()


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with Xavier-uniform weights and biases of zero."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def norm(config: ModelConfig) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=config.norm_epsilon)
    return nn.LayerNorm(config.width, eps=config.norm_epsilon)


def _attention(
    config: ModelConfig, context_width: int | None, positions: Rotary | Alibi | Relative | None
) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        value_head_dim=config.value_head_dim,
        context_width=context_width,
        bias=config.bias if config.attention_bias is None else config.attention_bias,
        dropout=config.dropout if config.attention_dropout is None else config.attention_dropout,
        positions=positions,
        temperature=config.temperature,
    )


def _make_positions(config: ModelConfig, causal: bool, kinds: Sequence[str]) -> Any:
    """The positions of a stack, if they are of one of these kinds; an encoder of patches knows only a grid's."""
    kind = config.positions
    if config.patches is not None and not causal:
        kind = "axial" if config.patches.positions == "rotary" else "none"
    head_dim = config.head_dim or config.width // config.heads
    match kind if kind in kinds else "none":
        case "axial":
            assert config.patches is not None
            return AxialRotary(head_dim, config.patches.columns)
        case "sinusoidal":
            return Sinusoidal(config.width)
        case "learned":
            return Learned(config.max_length, config.width)
        case "rotary":
            return Rotary(head_dim, config.rotary_base, config.rotary_scaling)
        case "alibi":
            return Alibi(config.heads)
        case "relative":
            return Relative(config.heads, both_ways=not causal)
    return None
