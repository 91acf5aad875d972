"""Probe for induction: random tokens that are repeated once, and what every head does on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.capture.watch_settings import Probe

PASSAGE = 64  # random tokens, at most, which are then repeated
SAMPLES = 4  # such texts
MIN_VISIBLE = 5  # keys that a query must see to count: with fewer, each gets much weight by chance alone


def draw_repeated_tokens(
    numbers: Sequence[int], size: int = PASSAGE, *, chance: torch.Generator, samples: int = SAMPLES
) -> Int[Tensor, "samples tokens"]:
    """Rows of `size` distinct tokens drawn from `numbers`, each followed by the same tokens again.

    >>> draw_repeated_tokens([7, 8, 9], 3, chance=torch.Generator().manual_seed(0), samples=1)
    tensor([[9, 7, 8, 9, 7, 8]])
    """
    ids = torch.tensor(numbers)
    rows = [ids[torch.randperm(len(ids), generator=chance)[:size]] for _ in range(samples)]
    return torch.stack(rows).repeat(1, 2)


def make_repeat_probes(size: int) -> dict[str, Probe]:
    """Which key each query of the second copy is asked about: the same token before, and the token after that one."""

    def earlier(positions: Tensor, step: int) -> Tensor:
        return torch.where(positions >= size, positions - size + step, -1)

    return {"duplicate": partial(earlier, step=0), "induction": partial(earlier, step=1)}


@torch.no_grad()
def score_repeated_tokens(model: nn.Module, tokens: Int[Tensor, "samples tokens"]) -> dict[str, dict[str, list[float]]]:
    """The scores `previous`, `induction` and `duplicate` of every self-attention head, by the attention's name.

    `tokens` come from `draw_repeated_tokens`. `previous` is the mean weight on the token before, over all queries that
    see five keys or more; `induction` the mean weight of a token of the second copy on the one after its first
    occurrence, `duplicate` on its first occurrence (see `ROLES`).
    """
    size = tokens.shape[1] // 2
    if tokens.shape[1] < 2 * MIN_VISIBLE or not torch.equal(tokens[:, :size], tokens[:, size:]):
        raise LensError(f"tokens must be a block of at least {MIN_VISIBLE} that comes twice; got {tuple(tokens.shape)}")
    probes: dict[str, Probe] = {**make_repeat_probes(size), "previous": partial(torch.add, -1)}
    with watch(model, pixels=0, top=0, probes=probes) as record:
        model(tokens)
    scores: dict[str, dict[str, list[float]]] = {}
    for sight in (record[name] for name in record.names):
        if not sight.cross:
            first = {"previous": MIN_VISIBLE - 1, "induction": size, "duplicate": size}
            means = {role: sight.probes[role][..., start:].double().mean((0, 2)) for role, start in first.items()}
            scores[sight.name] = {role: mean.tolist() for role, mean in means.items()}
    return scores
