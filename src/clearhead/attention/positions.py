"""Positions of tokens: added to the vectors (sinusoidal, learned), to the scores (ALiBi, relative), or rotary.

Each takes positions as whole numbers, `(tokens,)` or `(batch, tokens)`, so that padding, caches and packed
documents need no special case.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention.biases import Bias, Buckets, alibi_slopes, t5_buckets
from clearhead.errors import ConfigError, ShapeError
from clearhead.formatting import suggest_name

Turns = tuple[Float[Tensor, "... tokens pairs"], Float[Tensor, "... tokens pairs"]]  # cosines and sines


class Sinusoidal(nn.Module):
    """The 2017 Transformer's encoding, sines and cosines interleaved; any position, no table, nothing learned.

    PE(p, 2i) = sin(p / 10000^(2i/width)), PE(p, 2i+1) = cos(of the same).

    >>> Sinusoidal(4)(torch.tensor([0, 1])).round(decimals=4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 1.0000]])
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 2:
            raise ConfigError(f"sines and cosines are interleaved: width must be even, got {width}")
        self.width = width

    def forward(
        self, positions: Int[Tensor, "*batch tokens"], dtype: torch.dtype | None = None
    ) -> Float[Tensor, "*batch tokens width"]:
        angles = _angles(positions, _speeds(self.width, 10000.0, positions.device))
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(dtype or torch.get_default_dtype())


class Learned(nn.Embedding):
    """Learned absolute positions: one vector per position, for at most `length` positions."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__(length, width)
        self.length = length

    def check(self, last: int) -> None:
        """Refuse what the table does not hold, before the lookup fails with an index."""
        if last >= self.length:
            raise ShapeError(
                f"position {last} lies beyond the {self.length} learned positions; shorten the input, or build "
                "the model with a larger max_length"
            )


class Rotary(nn.Module):
    """Rotary positions (Su 2021): q and k turned by angles that grow with their position.

    The first half of each head's features turns with the second (as in Llama). `scaling` stretches the range:
    `{"type": "linear", "factor": 4}` divides positions (Chen 2023), `{"type": "llama3", …}` is Llama 3.1's rule, with
    the same keys as in its checkpoints.

    >>> rotary = Rotary(2)
    >>> rotary.turn(torch.tensor([[[[1.0, 0.0]]]]), rotary(torch.tensor([1]))).round(decimals=4)
    tensor([[[[0.5403, 0.8415]]]])
    """

    def __init__(self, head_dim: int, base: float = 10000.0, scaling: dict[str, float | str] | None = None) -> None:
        super().__init__()
        if head_dim % 2:
            raise ConfigError(f"features are rotated in pairs: head_dim must be even, got {head_dim}")
        self.head_dim, self.base = head_dim, base
        self.scaling: dict[str, float | str] = {"type": "none", **(scaling or {})}
        _check_scaling(self.scaling)

    def speeds(self, device: torch.device) -> Float[Tensor, " pairs"]:
        """The angle by which each pair of features is rotated from one position to the next."""
        kind, factor = self.scaling["type"], float(self.scaling.get("factor", 1.0))
        speeds = _speeds(self.head_dim, self.base, device)
        if kind == "linear":
            return speeds / factor
        return _llama3(speeds, factor, self.scaling) if kind == "llama3" else speeds

    def forward(self, positions: Int[Tensor, "*batch tokens"], dtype: torch.dtype | None = None) -> Turns:
        """Cosines and sines for these positions: computed once, used by every layer."""
        angles = self.angles(positions)
        angles = angles[:, None] if angles.ndim == 3 else angles
        dtype = dtype or torch.get_default_dtype()
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def angles(self, positions: Int[Tensor, "*batch tokens"]) -> Float[Tensor, "*batch tokens pairs"]:
        return _angles(positions, self.speeds(positions.device))

    @staticmethod
    def turn(x: Float[Tensor, "batch heads tokens d"], turns: Turns) -> Float[Tensor, "batch heads tokens d"]:
        cos, sin = turns[0].to(x.dtype), turns[1].to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class AxialRotary(Rotary):
    """Rotary positions of patches in a grid: half of the pairs of features rotate by the row, half by the column.

    Patches are counted row by row, `columns` in each. The base is 100 (Heo 2024): grids are short.

    >>> cos, sin = AxialRotary(4, columns=3)(torch.tensor([5]))  # row 1, column 2
    >>> sin.round(decimals=4)
    tensor([[0.8415, 0.9093]])
    """

    def __init__(self, head_dim: int, columns: int, base: float = 100.0) -> None:
        if head_dim % 4:
            raise ConfigError(
                f"pairs of features are shared by rows and columns: head_dim must be divisible by 4, got {head_dim}"
            )
        super().__init__(head_dim, base)
        self.columns = columns

    def speeds(self, device: torch.device) -> Float[Tensor, " pairs"]:
        """The angle from one row to the next for the first half of the pairs, one column to the next for the second."""
        return _speeds(self.head_dim // 2, self.base, device).repeat(2)

    def angles(self, positions: Int[Tensor, "*batch tokens"]) -> Float[Tensor, "*batch tokens pairs"]:
        rows, columns = positions // self.columns, positions % self.columns
        by_row, by_column = self.speeds(positions.device).chunk(2)
        return torch.cat([_angles(rows, by_row), _angles(columns, by_column)], dim=-1)


class Alibi(nn.Module):
    """Attention with linear biases, as a part of a model, with the paper's slopes."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes = nn.Parameter(alibi_slopes(heads), requires_grad=False)

    def bias(self) -> Bias:
        return Bias.alibi(self.slopes)


class Relative(nn.Module):
    """A learned number for each head and bucket of distance, as in T5."""

    def __init__(self, heads: int, buckets: int = 32, furthest: int = 128, *, both_ways: bool = True) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(buckets, heads))
        self.bucket: Buckets = t5_buckets(buckets, furthest, both_ways=both_ways)

    def bias(self) -> Bias:
        return Bias.relative(self.table, self.bucket)


SCALINGS: dict[str, tuple[str, ...]] = {
    "none": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def _check_scaling(scaling: dict[str, float | str]) -> None:
    kind, keys = str(scaling["type"]), set(scaling) - {"type"}
    if kind not in SCALINGS:
        raise ConfigError(f"unknown rotary scaling {kind!r}; {suggest_name(kind, SCALINGS)}")
    if keys != set(SCALINGS[kind]):
        wanted, got = (", ".join(sorted(names)) or "nothing" for names in (SCALINGS[kind], keys))
        raise ConfigError(f"rotary scaling {kind!r} needs {wanted}, got {got}")
    if any(not 0 < float(scaling[name]) < math.inf for name in keys):
        raise ConfigError(f"rotary scaling needs positive, finite numbers, got {scaling}")


def _speeds(width: int, base: float, device: torch.device) -> Tensor:
    # float64, where there is such a thing: at position 100,000 a float32 angle is off by 0.004
    exact = torch.float32 if device.type == "mps" else torch.float64
    return base ** -(torch.arange(0, width, 2, device=device, dtype=exact) / width)


def _angles(positions: Tensor, speeds: Tensor) -> Tensor:
    return positions[..., None].to(speeds.dtype) * speeds


def _llama3(speed: Tensor, factor: float, scaling: dict[str, float | str]) -> Tensor:
    """Slow turns are slowed further, fast ones left alone, those in between blended (Llama 3.1)."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_position_embeddings"]) * speed / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return speed * (blend + (1 - blend) / factor)
