"""greedy: the likeliest token every time."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from clearhead.decode.hypotheses import Hypothesis
from clearhead.decode.rules import Prefixes, Rules
from clearhead.decode.steps import gathered, steps
from clearhead.decode.writer import Writer


def greedy(
    writer: Writer,
    *,
    end: int,
    max_length: int | Sequence[int],
    start: int | None = None,
    prefix: Prefixes | None = None,
    no_repeat_ngram: int = 0,
    forbidden: Sequence[int] = (),
) -> list[Hypothesis]:
    """For each row, what comes of taking the likeliest token every time; `Rules` explains the options.

    `score` is the mean log-probability of a token.

    >>> import torch
    >>> from clearhead import EncoderDecoder, ModelConfig
    >>> model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=11))
    >>> writer = Writer.translating(model, torch.tensor([[3, 4, 5]]), [3])
    >>> greedy(writer, start=1, end=2, max_length=5, prefix=[[7, 8]])[0].tokens[:2]
    [7, 8]
    """
    rules = Rules(
        writer,
        start=start,
        end=end,
        max_length=max_length,
        prefix=prefix,
        no_repeat_ngram=no_repeat_ngram,
        forbidden=forbidden,
    )
    return gathered(writer, steps(writer, rules, start, likeliest), end)


def likeliest(logits: Tensor, rows: list[int], length: int) -> Tensor:
    return logits.argmax(-1)
