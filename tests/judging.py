"""The yardstick: how far a fast path may be from the truth.

At most twice as far as plain code at the same precision, and a few roundings of the largest value, both
measured against float64 on the very same (already rounded) inputs.
"""

import torch
from torch import Tensor


def error(found: Tensor, truth: Tensor) -> float:
    """The largest difference; not a number where `found` has one."""
    return (found.double() - truth).abs().max().item() if truth.numel() else 0.0


def assert_within_yardstick(found: Tensor, plain: Tensor, truth: Tensor, rounding: float, what: str = "it") -> None:
    """`rounding` is what one rounding costs: eps times the largest value that was averaged, or gradient."""
    assert truth.dtype == torch.float64, "the truth is computed in float64"
    assert found.shape == truth.shape, f"{what} has shape {tuple(found.shape)}, not {tuple(truth.shape)}"
    found_error, plain_error = error(found, truth), error(plain, truth)
    limit = 2 * plain_error + 4 * rounding
    assert found_error <= limit, (
        f"{what} is off by {found_error:.2e}, plain code by {plain_error:.2e}: more than the limit of {limit:.2e}"
    )
