"""Hypothesis: one way of writing what was asked for."""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple


class Hypothesis(NamedTuple):
    """What was written, and how likely the model finds it.

    `tokens` are without the start and the end. `score` is `log_probability / length**length_penalty`, where the
    length counts the end too. What was cut off at its longest length is not `finished`.
    """

    tokens: list[int]
    score: float
    log_probability: float
    finished: bool

    @classmethod
    def of(cls, written: list[int], log_probability: float, end: int, length_penalty: float = 1.0) -> Hypothesis:
        """From all that was written, with the end if it came.

        >>> Hypothesis.of([7, 8, 2], -6.0, end=2)
        Hypothesis(tokens=[7, 8], score=-2.0, log_probability=-6.0, finished=True)
        """
        finished = written[-1] == end
        score = log_probability / len(written) ** length_penalty
        return cls(written[:-1] if finished else written, score, log_probability, finished)


class Kept:
    """The best hypotheses of one input so far, best first; of equal ones the earlier."""

    def __init__(self, most: int) -> None:
        self.most, self.best = most, list[Hypothesis]()

    def add(self, one: Hypothesis) -> None:
        insort(self.best, one, key=lambda kept: -kept.score)
        del self.best[self.most :]

    @property
    def full(self) -> bool:
        return len(self.best) == self.most

    @property
    def worst(self) -> float:
        return self.best[-1].score
