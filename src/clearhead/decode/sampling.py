"""Sampling: tokens drawn at random by their probability, after temperature, top-k, top-p and min-p; streaming."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decode.greedy_search import (
    TokenChooser,
    choose_likeliest,
    collect_hypotheses,
    decode_steps,
)
from clearhead.decode.rules import PrefixedRuleOptions, RuleOptions, Rules
from clearhead.decode.writer import Hypothesis, Writer
from clearhead.errors import DecodeError

Generators = torch.Generator | Sequence[torch.Generator]


class SamplingOptions(NamedTuple):
    """The options of `distribution`: temperature, and which improbable tokens are cut off."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def check(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise DecodeError(
                f"temperature must be greater than 0, got {self.temperature}; for the likeliest token use greedy"
            )
        if self.top_k is not None and self.top_k < 1:
            raise DecodeError(f"top_k must keep at least 1 token, got {self.top_k}; None keeps all")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise DecodeError(f"top_p must be greater than 0 and at most 1, got {self.top_p}; None keeps all")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise DecodeError(f"min_p must be from 0 to 1, got {self.min_p}; None keeps all")


def sample(
    writer: Writer,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: Generators | None = None,
    **options: Unpack[PrefixedRuleOptions],
) -> list[Hypothesis]:
    """For each row, one hypothesis whose tokens are drawn from `distribution`; `Rules` explains the other options.

    Each row draws random numbers of its own. With one `generator` for all rows they depend on its seed and the row's
    number; with one for each row, on that one alone. They never depend on other rows, the device or `max_length`. So a
    row comes out the same in any batch, but for the rounding of the model's scores.

    `log_probability` and `score` (its mean) are the model's own, at temperature 1 and with nothing cut.
    """
    rules = Rules(writer, **options)
    choose = make_sampler(writer, rules, generator, SamplingOptions(temperature, top_k, top_p, min_p))
    return collect_hypotheses(writer, decode_steps(writer, rules, choose), rules.end)


def stream(
    writer: Writer,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: Generators | None = None,
    prefix: Sequence[int] = (),
    **options: Unpack[RuleOptions],
) -> Iterator[int]:
    """Yields the tokens of a writer's only row as they are decoded, without the end token.

    At temperature 0 they are those of `greedy`, else those that `sample` draws with the same generator. The
    next token is computed when it is asked for: stop iterating, and the model stops. `Rules` explains the other
    options.
    """
    if writer.inputs != 1:
        raise DecodeError(
            f"stream() decodes one row, got a writer with {writer.inputs}; use greedy or sample for several"
        )
    rules = Rules(writer, prefix=[prefix], **options)
    choose: TokenChooser = choose_likeliest
    if temperature != 0:
        choose = make_sampler(writer, rules, generator, SamplingOptions(temperature, top_k, top_p, min_p))
    steps = decode_steps(writer, rules, choose)
    return (step.tokens[0] for step in steps if step.tokens != [rules.end])


def distribution(
    logits: Float[Tensor, "*rows vocabulary"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Float[Tensor, "*rows vocabulary"]:
    """The probabilities that `sample` draws from: `softmax(logits / temperature)`, cut off and normalised again.

    One after the other: `top_k` keeps the k likeliest tokens; `top_p` the fewest likeliest ones that together
    have that much probability; `min_p` those that have at least that share of the likeliest one's.

    >>> logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    >>> distribution(logits, top_k=2), distribution(logits, top_p=0.8), distribution(logits, min_p=0.25)[2:]
    (tensor([0.6250, 0.3750, 0.0000, 0.0000]), tensor([0.6250, 0.3750, 0.0000, 0.0000]), tensor([0.1579, 0.0000]))
    """
    SamplingOptions(temperature, top_k, top_p, min_p).check()
    scores = logits / temperature
    if top_k is not None and top_k < scores.shape[-1]:
        least = scores.topk(top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    probabilities = scores.softmax(-1)
    if top_p is not None and top_p < 1:
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        needed = ordered.cumsum(-1) - ordered < top_p  # what comes before it is not enough yet
        likely = torch.zeros_like(needed).scatter(-1, order, needed)
        probabilities = probabilities.masked_fill(~likely, 0.0)
    if min_p is not None:
        least = min_p * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True)


def make_sampler(writer: Writer, rules: Rules, generator: Generators | None, options: SamplingOptions) -> TokenChooser:
    """A function that draws the next token of each row."""
    options.check()
    longest = max(rules.limits, default=0)
    generators = _row_generators(generator, writer)
    drawn = [torch.rand(longest, generator=of_row, dtype=torch.float64) for of_row in generators]
    chances = torch.stack(drawn).to(writer.device)

    return lambda logits, rows, length: draw_tokens(logits, chances[rows, length], options)


def draw_tokens(
    logits: Float[Tensor, "rows vocabulary"], chances: Float[Tensor, " rows"], options: SamplingOptions
) -> Int[Tensor, " rows"]:
    """The token of each row that a random number in [0, 1) chooses from `distribution`."""
    sums = distribution(logits.double(), **options._asdict()).cumsum(-1)
    total = sums[:, -1:]
    below = total.nextafter(torch.zeros_like(total))  # else rounding might reach past the last token
    return torch.searchsorted(sums, torch.minimum(chances[:, None] * total, below), right=True)[:, 0]


def _row_generators(generator: Generators | None, writer: Writer) -> list[torch.Generator]:
    if generator is None or isinstance(generator, torch.Generator):
        device = "cpu" if generator is None else generator.device
        seeds = torch.randint(2**63 - 1, (writer.inputs,), generator=generator, device=device)
        return [torch.Generator().manual_seed(seed) for seed in seeds.tolist()]
    if len(generator) != writer.inputs:
        raise DecodeError(f"{len(generator)} generators for {writer.inputs} rows; give one, or one for each row")
    return list(generator)
