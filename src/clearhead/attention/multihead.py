"""MultiHeadAttention: project, attend, merge."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from clearhead.attention.backends.choice import attend, attention_weights
from clearhead.attention.biases import Bias
from clearhead.attention.cache import KeyValueCache
from clearhead.attention.call import Scale
from clearhead.attention.hidden_keys import HiddenKeys, hide_keys
from clearhead.attention.masks import Mask, as_mask
from clearhead.attention.positions import Alibi, Relative, Rotary, Turns
from clearhead.attention.sdpa_logsumexp import observe_own_sdpa
from clearhead.errors import ConfigError, ShapeError


class Seen(NamedTuple):
    """What an observer receives for one attention call: its inputs, enough to compute any statistic of it."""

    q: Float[Tensor, "batch heads queries d"]
    k: Float[Tensor, "batch kv_heads keys d"]
    v: Float[Tensor, "batch kv_heads keys d_v"]
    mask: Mask | None
    scale: Scale
    bias: Bias | None
    softcap: float | None = None
    sinks: Float[Tensor, " heads"] | None = None
    logsumexp: Float[Tensor, "batch heads queries"] | None = None
    cache: KeyValueCache | None = None  # that the keys come from, if any
    cross: bool = False  # whether the keys are a context's; beams that share it are then queries of one sample

    def weights(self) -> Float[Tensor, "batch heads queries keys"]:
        """All weights, by the definition: O(queries × keys) memory, for short sequences."""
        return attention_weights(
            self.q, self.k, self.mask, scale=self.scale, bias=self.bias, softcap=self.softcap, sinks=self.sinks
        )


class MultiHeadAttention(nn.Module):
    """Several attention heads side by side, each with its own projection of the features.

    Fewer `kv_heads` than `heads` share keys and values (grouped heads; one is multi-query). Values may be
    narrower or wider than keys (`value_head_dim`). `positions` is a Rotary, Alibi or Relative.
    `temperature="learned"` gives each head a strength of its own. With `context_width` keys and values come
    from a context of that width, and only from there.

    >>> attention = MultiHeadAttention(width=12, heads=3)
    >>> x = torch.randn(2, 5, 12)
    >>> attention(x, mask=Mask.causal()).shape
    torch.Size([2, 5, 12])
    >>> attention(x, context=torch.randn(2, 7, 12)).shape
    torch.Size([2, 5, 12])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        context_width: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        positions: Rotary | Alibi | Relative | None = None,
        temperature: str = "fixed",
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        _check_sizes(width, heads, kv_heads, head_dim)
        if temperature not in ("fixed", "learned"):
            raise ConfigError(f"temperature is 'fixed' or 'learned', not {temperature!r}")
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and less than 1, got {dropout}")
        self.width, self.heads, self.kv_heads, self.dropout = width, heads, kv_heads, dropout
        self.head_dim = width // heads if head_dim is None else head_dim
        self.value_head_dim = self.head_dim if value_head_dim is None else value_head_dim
        self.context_width = context_width
        self.positions = positions
        if not isinstance(positions, (Rotary, Alibi, Relative, type(None))):
            raise ConfigError(f"positions must be a Rotary, Alibi or Relative, got {positions!r}")
        if isinstance(positions, (Alibi, Relative)) and positions.bias().heads != heads:
            raise ConfigError(
                f"positions are for {positions.bias().heads} heads, but the attention has {heads}; make both equal"
            )
        if isinstance(positions, Rotary) and positions.head_dim != self.head_dim:
            raise ConfigError(f"rotary positions need head_dim {positions.head_dim}, the attention has {self.head_dim}")
        q, kv = heads * self.head_dim, kv_heads * (self.head_dim + self.value_head_dim)
        if context_width is None:
            self.to_qkv = nn.Linear(width, q + kv, bias=bias)
        else:
            self.to_q = nn.Linear(width, q, bias=bias)
            self.to_kv = nn.Linear(context_width, kv, bias=bias)
        self.to_out = nn.Linear(heads * self.value_head_dim, width, bias=bias)
        self.strength = nn.Parameter(torch.ones(heads)) if temperature == "learned" else None
        self.observer: Callable[[Seen], None] | None = None
        self.ablated_heads: Bool[Tensor, "heads 1 1"] | None = None  # their output is set to zero; see `ablate`
        self.hidden_keys: tuple[HiddenKeys, ...] | None = None  # that no query sees; see `hide`
        self.reset_parameters()

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy: `ablate` and `hide` apply to the model that they were given, not to copies of it."""
        return {**self.__dict__, "ablated_heads": None, "hidden_keys": None}

    def reset_parameters(self) -> None:
        """Xavier-uniform for each of q, k, v and out by its own sizes; biases zero; strengths one."""
        for part in self.projections():
            nn.init.xavier_uniform_(part)
        for name, parameter in self.named_parameters(recurse=True):
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
        if self.strength is not None:
            nn.init.ones_(self.strength)

    def projections(self, kind: str = "weight") -> tuple[Float[Tensor, "..."], ...]:
        """The weights (or the parameters of another `kind`: biases) of q, k, v and out, as views of what is stored."""
        keys = self.kv_heads * self.head_dim
        sizes = [self.heads * self.head_dim, keys, self.kv_heads * self.value_head_dim]
        out = getattr(self.to_out, kind)
        if self.context_width is None:
            return (*getattr(self.to_qkv, kind).split(sizes), out)
        return (getattr(self.to_q, kind), *getattr(self.to_kv, kind).split(sizes[1:]), out)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        context: Float[Tensor, "contexts context_tokens context_width"] | None = None,
        mask: Mask | None = None,
        cache: KeyValueCache | None = None,
        *,
        turns: Turns | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """Self-attention over `x`, or attention of `x` over `context`.

        With a `cache`, keys and values of earlier steps are included; those of a context are projected once, and
        several beams in a row may share one sample of the context.
        `turns` are a Rotary's angles, for a model that computes them once for all layers.
        """
        if self.context_width is not None and context is None:
            raise ShapeError(f"this attention needs a context of width {self.context_width}; pass it as context=")
        self._check(x, context)
        if context is None:
            if cache is not None and mask is not None:  # before the cache grows: an error leaves it as it was
                as_mask(mask).check(len(x), self.heads, x.shape[1], cache.length_of(self) + x.shape[1])
            q, k, v = self._project_self(x, cache, turns)
        else:
            q, k, v = self._project_cross(x, context, cache)
        scale: float | Tensor = 1 / math.sqrt(self.head_dim)
        if self.strength is not None:
            scale = self.strength * scale
        bias = self.positions.bias() if isinstance(self.positions, (Alibi, Relative)) else None
        dropout = self.dropout if self.training else 0.0
        # read once: another thread may reset them
        observer, ablated, hidden = self.observer, self.ablated_heads, self.hidden_keys
        if hidden is not None:
            end = k.shape[2] if cache is None or context is not None else cache.first_length_of(self)
            mask = hide_keys(mask, hidden, k.shape[2], end)
        if observer is None:
            merged = attend(q, k, v, mask, scale=scale, bias=bias, dropout=dropout)
        else:
            with observe_own_sdpa(q) as fused:
                merged = attend(q, k, v, mask, scale=scale, bias=bias, dropout=dropout)
            logsumexp = None if fused is None else fused.logsumexp(q, keys=k.shape[2], scale=scale)
            seen = Seen(q, k, v, mask, scale, bias, logsumexp=logsumexp, cache=cache, cross=context is not None)
            observer(seen)
        if ablated is not None:
            merged = merged.masked_fill(ablated, 0.0)
        out: Tensor = self.to_out(rearrange(merged, "b h t d -> b t (h d)"))
        return out.view(x.shape)  # beams that shared a context are samples again

    def _check(self, x: Tensor, context: Tensor | None) -> None:
        for name, tensor, width in (("x", x, self.width), ("context", context, self.context_width or self.width)):
            if tensor is not None and (tensor.ndim != 3 or tensor.shape[2] != width):
                raise ShapeError(f"{name} must be (batch, tokens, {width}), got {tuple(tensor.shape)}")

    def _project_self(
        self, x: Tensor, cache: KeyValueCache | None, turns: Turns | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self._split(self.to_qkv(x), self.heads)
        if isinstance(self.positions, Rotary):
            if turns is None:
                start = 0 if cache is None else cache.length_of(self)
                turns = self.positions(torch.arange(start, start + x.shape[1], device=x.device), x.dtype)
            q, k = self.positions.turn(q, turns), self.positions.turn(k, turns)
        if cache is not None:
            k, v = cache.grow(self, k, v)
        return q, k, v

    def _project_cross(self, x: Tensor, context: Tensor, cache: KeyValueCache | None) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(self.positions, Rotary):
            raise ConfigError(
                "rotary positions cannot be used in cross-attention: q and k have positions in different sequences; "
                "build this attention with positions=None"
            )
        rows, stored = self.heads * self.head_dim, self.context_width is None
        q = _select_rows(self.to_qkv, x, slice(0, rows)) if stored else self.to_q(x)

        def keys_and_values() -> tuple[Tensor, Tensor]:
            kv = _select_rows(self.to_qkv, context, slice(rows, None)) if stored else self.to_kv(context)
            return self._split(kv, 0)[1:]

        k, v = keys_and_values() if cache is None else cache.once(self, keys_and_values)
        beams = 1 if cache is None else cache.beams
        if beams > 1:  # as queries of one sample
            q = q.view(-1, beams * x.shape[1], rows)
        return rearrange(q, "b t (h d) -> b h t d", h=self.heads), k, v

    def _split(self, projected: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Features into heads. Not rearrange: this is the hot path of every step."""
        batch, tokens, _ = projected.shape
        sizes = [heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.value_head_dim]
        q, k, v = projected.split(sizes, dim=-1)
        return (
            q.view(batch, tokens, heads, self.head_dim).transpose(1, 2),
            k.view(batch, tokens, self.kv_heads, self.head_dim).transpose(1, 2),
            v.view(batch, tokens, self.kv_heads, self.value_head_dim).transpose(1, 2),
        )

    @classmethod
    def from_torch(cls, other: nn.MultiheadAttention) -> MultiHeadAttention:
        """The same attention with the same weights; what has no counterpart is refused by name."""
        if not isinstance(other, nn.MultiheadAttention):
            raise ConfigError(f"from_torch converts an nn.MultiheadAttention, got {type(other).__name__}")
        if other.bias_k is not None or other.add_zero_attn:
            raise ConfigError(
                "nn.MultiheadAttention with add_bias_kv or add_zero_attn has no counterpart in MultiHeadAttention"
            )
        if other.kdim != other.vdim:
            raise ConfigError(
                f"kdim is {other.kdim} and vdim is {other.vdim}: MultiHeadAttention needs the same width for both"
            )
        context = None if other._qkv_same_embed_dim else other.kdim
        biased = other.in_proj_bias is not None
        new = cls(other.embed_dim, other.num_heads, context_width=context, bias=biased, dropout=other.dropout)
        new.to(device=other.out_proj.weight.device, dtype=other.out_proj.weight.dtype).train(other.training)
        with torch.no_grad():
            _copy_torch(new, other, back=False)
        return new

    def to_torch(self) -> nn.MultiheadAttention:
        """An nn.MultiheadAttention (batch first) with the same weights, where it can express the same."""
        lacks = {
            "grouped heads": self.kv_heads != self.heads,
            "heads whose widths do not add up to the model's": self.heads * self.head_dim != self.width,
            "values of another width than keys": self.value_head_dim != self.head_dim,
            "positions": self.positions is not None,
            "a learned temperature": self.strength is not None,
        }
        if reasons := [name for name, true in lacks.items() if true]:
            raise ConfigError(f"nn.MultiheadAttention has no {', no '.join(reasons)}")
        new = nn.MultiheadAttention(
            self.width,
            self.heads,
            dropout=self.dropout,
            bias=self.to_out.bias is not None,
            kdim=self.context_width,
            vdim=self.context_width,
            batch_first=True,
            device=self.to_out.weight.device,
            dtype=self.to_out.weight.dtype,
        ).train(self.training)
        with torch.no_grad():
            _copy_torch(self, new, back=True)
        return new


def _select_rows(linear: nn.Module, x: Tensor, rows: slice) -> Tensor:
    """Some rows of a projection, as a projection; all are computed by a module that is no linear layer itself."""
    if not isinstance(linear, nn.Linear):  # such as an adapter around one, which shows the weight of that as its own
        whole: Tensor = linear(x)
        return whole[..., rows]
    adapted = getattr(linear, "effective_weight", None)  # with what an adapter (model/lora.py) adds to it
    weight: Tensor = linear.weight if adapted is None else adapted()
    bias: Tensor | None = linear.bias
    return F.linear(x, weight[rows], None if bias is None else bias[rows])


def _copy_torch(ours: MultiHeadAttention, theirs: nn.MultiheadAttention, *, back: bool) -> None:
    """Copies weights from theirs to ours, or back."""
    separate = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
    weights = theirs.in_proj_weight.chunk(3) if theirs._qkv_same_embed_dim else separate
    pairs = list(zip(ours.projections(), [*weights, theirs.out_proj.weight], strict=True))
    if theirs.in_proj_bias is not None:
        biases = [*theirs.in_proj_bias.chunk(3), theirs.out_proj.bias]
        pairs += zip(ours.projections("bias"), biases, strict=True)
    for mine, other in pairs:
        (other if back else mine).copy_(mine if back else other)


def _check_sizes(width: int, heads: int, kv_heads: int, head_dim: int | None) -> None:
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise ConfigError(
            f"{heads} query heads cannot share {kv_heads} key heads evenly; make heads a multiple of kv_heads"
        )
    if head_dim is None and width % heads:
        raise ConfigError(
            f"a width of {width} does not split into {heads} heads; choose heads that divide it, or give head_dim"
        )
