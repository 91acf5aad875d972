"""Streaming: the tokens of one row, each yielded as soon as it is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Unpack

from clearhead.decode.greedy_search import choose_likeliest
from clearhead.decode.rules import RuleOptions, Rules
from clearhead.decode.sampling import Generators, SamplingOptions, make_sampler
from clearhead.decode.token_loop import Step, TokenChooser, decode_steps
from clearhead.decode.writer import Writer
from clearhead.errors import DecodeError


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
    return _yield_tokens(decode_steps(writer, rules, choose), rules.end)


def _yield_tokens(steps: Iterator[Step], end: int) -> Iterator[int]:
    for step in steps:
        if step.tokens != [end]:
            yield step.tokens[0]
