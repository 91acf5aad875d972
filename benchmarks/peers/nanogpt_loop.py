"""A plain character-model training loop in the manner of nanoGPT, as a peer: compiled model, random windows, AdamW.

Everything that makes such a loop fast is there: `torch.compile` of the whole model, PyTorch's fused attention, bfloat16
autocast, fused AdamW, and windows copied from pinned memory while the GPU still computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Size(NamedTuple):
    """The model and its batches: 10.7 million weights by default."""

    layers: int = 6
    heads: int = 6
    width: int = 384
    context: int = 256
    rows: int = 64
    dropout: float = 0.2
    vocabulary: int = 65


class SelfAttention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.dropout = size.heads, size.dropout
        self.project = nn.Linear(size.width, 3 * size.width, bias=False)
        self.merge = nn.Linear(size.width, size.width, bias=False)
        self.drop = nn.Dropout(size.dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.project(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.drop(self.merge(mixed.transpose(1, 2).reshape(batch, tokens, width)))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(size.width, bias=False)
        self.attention = SelfAttention(size)
        self.before_network = nn.LayerNorm(size.width, bias=False)
        self.network = nn.Sequential(
            nn.Linear(size.width, 4 * size.width, bias=False),
            nn.GELU(),
            nn.Linear(4 * size.width, size.width, bias=False),
            nn.Dropout(size.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.network(self.before_network(x))


class CharacterModel(nn.Module):
    """GPT-2's architecture without biases: learned positions, norms first, tied word vectors."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.drop = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                last = name.endswith(("merge.weight", "network.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * size.layers) if last else 1))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.words(tokens) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make_step(data: Tensor, size: Size, device: torch.device, *, compiled: bool) -> Callable[[], Tensor]:
    """A function that makes one training step on random windows of `data` and returns its loss as a tensor."""
    model = CharacterModel(size).to(device).train()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    run = torch.compile(model) if compiled else model
    gpu = device.type == "cuda"

    def draw() -> tuple[Tensor, Tensor]:
        begins = torch.randint(len(data) - size.context, (size.rows,)).tolist()
        tokens = torch.stack([data[begin : begin + size.context] for begin in begins])
        labels = torch.stack([data[begin + 1 : begin + 1 + size.context] for begin in begins])
        if gpu:
            return tuple(one.pin_memory().to(device, non_blocking=True) for one in (tokens, labels))  # type: ignore[return-value]
        return tokens, labels

    waiting = [draw()]

    def step() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            loss: Tensor = run(*waiting.pop())
        waiting.append(draw())  # while the GPU computes
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
