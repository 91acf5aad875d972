"""stream: tokens as they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clearhead.decode.following import likeliest
from clearhead.decode.rules import Rules
from clearhead.decode.sampling import Cuts, Generators, drawn
from clearhead.decode.steps import Choice, Step, steps
from clearhead.decode.writer import Writer
from clearhead.errors import DecodeError


def stream(
    writer: Writer,
    *,
    end: int,
    max_length: int,
    start: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: Generators | None = None,
    prefix: Sequence[int] = (),
    no_repeat_ngram: int = 0,
    forbidden: Sequence[int] = (),
) -> Iterator[int]:
    """The tokens of a writer's only row as they are made, without the end.

    At temperature 0 they are those of `greedy`, else those that `sample` draws with the same generator. The
    next token is worked out when it is asked for; who stops asking stops the model.
    """
    if writer.inputs != 1:
        raise DecodeError(f"a stream is of one row, this writer has {writer.inputs}; use greedy or sample for more")
    rules = Rules(
        writer,
        start=start,
        end=end,
        max_length=max_length,
        prefix=[prefix],
        no_repeat_ngram=no_repeat_ngram,
        forbidden=forbidden,
    )
    choose: Choice = likeliest
    if temperature != 0:
        choose = drawn(writer, rules, generator, Cuts(temperature, top_k, top_p, min_p))
    return _tokens(steps(writer, rules, start, choose), end)


def _tokens(made: Iterator[Step], end: int) -> Iterator[int]:
    for step in made:
        if step.tokens != [end]:
            yield step.tokens[0]
