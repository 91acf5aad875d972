"""Hard negatives: wrong answers that are nearly as similar to a question as the right one."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

MARGIN = 0.95  # of the right answer's similarity: what is more similar than that may be right, too
SPARE = 16  # candidates that may turn out to be right
BLOCK = 1024  # questions at once


def mine_negatives(
    questions: Float[Tensor, "questions width"],
    answers: Float[Tensor, "answers width"],
    numbers: Int[Tensor, " questions"],
    count: int,
) -> Int[Tensor, "questions count"]:
    """For each question the `count` most similar wrong answers, from unit vectors; `numbers` are the right ones.

    Answers within MARGIN of the right one's similarity are passed over as long as there are others. A question
    without a right answer (a negative number) gets the most similar answers.
    """
    found = []
    wanted = min(count + SPARE, len(answers))
    for begin in range(0, len(questions), BLOCK):
        own = numbers[begin : begin + BLOCK]
        scores = questions[begin : begin + BLOCK] @ answers.T
        right = scores.gather(1, own.clamp(min=0)[:, None])
        best = scores.topk(wanted)
        wrong = best.indices != own[:, None]
        limit = torch.where(own[:, None] >= 0, MARGIN * right, torch.inf)
        # First what is wrong for sure, most similar first; then what may be right; the right answer last.
        rank = torch.arange(wanted, device=scores.device) + wanted * (best.values > limit) + 2 * wanted * ~wrong
        found.append(best.indices.gather(1, rank.argsort(-1)[:, :count]))
    return torch.cat(found)
