"""Greedy search: every step takes the most probable token."""

from __future__ import annotations

from typing import Unpack

from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decode.hypotheses import Hypothesis
from clearhead.decode.rules import PrefixedRuleOptions, Rules
from clearhead.decode.token_loop import collect_hypotheses, decode_steps
from clearhead.decode.writer import Writer


def greedy(writer: Writer, **options: Unpack[PrefixedRuleOptions]) -> list[Hypothesis]:
    """For each row, the hypothesis that takes the most probable token at every step.

    `Rules` explains the options: `start`, `end`, `max_length`, `prefix`, `no_repeat_ngram`, `forbidden`. `score` is
    the mean log-probability of a token.

    >>> import torch
    >>> from clearhead import EncoderDecoder, ModelConfig
    >>> model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=11))
    >>> writer = Writer.translating(model, torch.tensor([[3, 4, 5]]), [3])
    >>> greedy(writer, start=1, end=2, max_length=5, prefix=[[7, 8]])[0].tokens[:2]
    [7, 8]
    """
    rules = Rules(writer, **options)
    return collect_hypotheses(writer, decode_steps(writer, rules, choose_likeliest), rules.end)


def choose_likeliest(logits: Float[Tensor, "rows vocabulary"], rows: list[int], length: int) -> Int[Tensor, " rows"]:
    """The token with the largest logit of each row."""
    return logits.argmax(-1)
