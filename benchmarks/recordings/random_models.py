"""Random weights and tokens, drawn the same at any commit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY = 53
NOT_DRAWN = ("embed_positions", "inv_freq")  # computed from the sizes


@torch.no_grad()
def draw_weights(model: nn.Module, seed: int = 3) -> nn.Module:
    """The model in eval mode with large weights, norms and biases too: heads then differ, and no bias is zero."""
    chance = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if not any(part in name for part in NOT_DRAWN):
            scale = weight.ndim == 1 and name.endswith("weight")
            weight.copy_(0.3 * torch.randn(weight.shape, generator=chance) + (1.0 if scale else 0.0))
    return model.eval()


def draw_tokens(length: int, seed: int = 1) -> Tensor:
    """Two texts of so many tokens, without the special ones."""
    return torch.randint(3, VOCABULARY - 3, (2, length), generator=torch.Generator().manual_seed(seed))
