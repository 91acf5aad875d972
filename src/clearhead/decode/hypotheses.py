"""Hypothesis: one decoded sequence and its score; and the n best of them."""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple


class Hypothesis(NamedTuple):
    """A decoded sequence, and how probable the model finds it.

    `tokens` are without the start and the end. `score` is `log_probability / length**length_penalty`, where the
    length counts the end too. `finished` is False for a sequence that was cut off at `max_length`.
    """

    tokens: list[int]
    score: float
    log_probability: float
    finished: bool

    @classmethod
    def of(cls, written: list[int], log_probability: float, end: int, length_penalty: float = 1.0) -> Hypothesis:
        """From all decoded tokens, with the end token if there is one.

        >>> Hypothesis.of([7, 8, 2], -6.0, end=2)
        Hypothesis(tokens=[7, 8], score=-2.0, log_probability=-6.0, finished=True)
        """
        finished = written[-1] == end
        score = log_probability / len(written) ** length_penalty
        return cls(written[:-1] if finished else written, score, log_probability, finished)


class BestHypotheses:
    """The best hypotheses of one input so far, best first; of equal ones the earlier comes first."""

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
