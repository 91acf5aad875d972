"""Heads built by hand, whose roles are known: one-hot tokens and places, and maps that pick what is to be compared."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clearhead import Mask, MultiHeadAttention

WORDS, PLACES = 67, 151  # kinds of tokens, and the longest text
SHARP = 40.0  # so that what is looked for gets all of the weight
COMMA = 3

TOKEN, PLACE, BEFORE, ONE = (
    slice(0, WORDS),
    slice(WORDS, WORDS + PLACES),
    slice(WORDS + PLACES, 2 * WORDS + PLACES),
    slice(2 * WORDS + PLACES, 2 * WORDS + PLACES + 1),
)  # where a vector says which token it is, where it stands, which token came before it, and 1
WIDTH = 2 * WORDS + PLACES + 1
DIM = WORDS + PLACES  # of a head: enough for tokens and places side by side


def head(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The maps of q, k, v and out of one head, (DIM, WIDTH) and for out (WIDTH, DIM)."""
    q, k, v, out = torch.zeros(DIM, WIDTH), torch.zeros(DIM, WIDTH), torch.zeros(DIM, WIDTH), torch.zeros(WIDTH, DIM)
    tokens, places = slice(0, WORDS), slice(WORDS, DIM)
    steps = {"previous": [-1], "itself": [0], "next": [1], "local": [-2, -1, 0, 1, 2]}
    if name in steps:
        k[places, PLACE] = torch.eye(PLACES)
        for step in steps[name]:  # from place i to place i + step
            q[places, PLACE] += SHARP * torch.eye(PLACES).roll(step, 0) * _within(step)
    elif name == "first":
        q[0, ONE], k[0, PLACE.start] = SHARP, 1
    elif name == "delimiter":
        q[0, ONE], k[0, COMMA] = SHARP, 1
    elif name in ("duplicate", "induction"):
        q[tokens, TOKEN] = SHARP * torch.eye(WORDS)
        k[tokens, TOKEN if name == "duplicate" else BEFORE] = torch.eye(WORDS)
        if name == "duplicate":  # the same token, but not at the same place
            q[places, PLACE], k[places, PLACE] = -2 * SHARP * torch.eye(PLACES), torch.eye(PLACES)
    if name == "previous":  # what induction will look for
        v[tokens, TOKEN], out[BEFORE, tokens] = torch.eye(WORDS), torch.eye(WORDS)
    return q, k, v, out


def _within(step: int) -> Tensor:
    """Neither the first nor the last place has a neighbour at the other end."""
    places = torch.arange(PLACES) - step
    return ((places >= 0) & (places < PLACES)).float().view(-1, 1)


class Built(nn.Module):
    """One-hot vectors in, layers of such heads with their residuals."""

    def __init__(self, *layers: list[str], causal: bool = True) -> None:
        super().__init__()
        self.causal = causal
        self.layers = nn.ModuleList(_attention(names) for names in layers)

    def forward(self, tokens: Tensor, mask: Mask | None = None) -> Tensor:
        x = torch.zeros(*tokens.shape, WIDTH)
        x[..., TOKEN] = nn.functional.one_hot(tokens, WORDS).float()
        x[..., PLACE] = torch.eye(PLACES)[: tokens.shape[1]]
        x[..., ONE] = 1.0
        own = Mask.causal() if self.causal else None
        seen = own if mask is None else mask if own is None else own & mask
        for layer in self.layers:
            x = x + layer(x, mask=seen)
        return x


def _attention(names: list[str]) -> MultiHeadAttention:
    attention = MultiHeadAttention(WIDTH, len(names), head_dim=DIM, bias=False).requires_grad_(False)
    for number, name in enumerate(names):
        q, k, v, out = head(name)
        rows = slice(number * DIM, (number + 1) * DIM)
        of_q, of_k, of_v, of_out = attention.projections()
        of_q[rows], of_k[rows], of_v[rows], of_out[:, rows] = q * DIM**0.5, k, v, out
    return attention
