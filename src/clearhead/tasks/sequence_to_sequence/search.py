"""Search: the decoding method of one request (greedy, beam or sampling), from a recipe's `[decode]` and the options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field

from clearhead.decode import Hypothesis, Writer, beam, greedy, sample, stream
from clearhead.errors import ConfigError
from clearhead.tasks.settings import Options, Section, option

PREDICT = ("predict",)


class Decode(Section):
    """`[decode]` of a recipe: the finished model's defaults for decoding."""

    learned = False

    beam: int = Field(5, ge=1)
    length_penalty: float = 1.0
    no_repeat_ngram: int = Field(0, ge=0)  # 3: no three consecutive tokens are written twice; 0: any may be


class LimitedDecode(Decode):
    """`[decode]` of tasks whose answers are as long as those in training at most."""

    longest: int | None = Field(None, ge=1)  # tokens of an answer; None: as many as the longest in training

    def limit_to(self, tokens: Sequence[Sequence[int]], longest: int) -> dict[str, Any]:
        """All settings, with `longest` from the answers of training, of at most `longest` tokens each."""
        most = max((len(answer) for answer in tokens if 0 < len(answer) <= longest), default=1)
        return {**self.model_dump(), "longest": most if self.longest is None else self.longest}


class SearchOptions(Options):
    """Options of decoding; None: as the recipe's `[decode]` says."""

    beams: int | None = option(None, "How many beams the search keeps (default: the model's).", flag="--beam", ge=1)
    length_penalty: float | None = option(None, "Above 1 favours long answers, below 1 short (default: the model's).")
    best: int = option(1, "How many answers to give for each input.", only=PREDICT, ge=1)
    longest: int | None = option(None, "Maximum tokens per answer or part, end token included.", ge=1)
    prefix: str = option("", "What every answer begins with.", only=PREDICT)
    temperature: float = option(0.0, "Sampling temperature; 0: no sampling.", only=PREDICT, ge=0)
    top_k: int | None = option(None, "Sample from the k most probable tokens.", only=PREDICT, ge=1)
    top_p: float | None = option(
        None, "Sample from the top tokens with this total probability.", only=PREDICT, gt=0, le=1
    )
    min_p: float | None = option(
        None, "Sample from tokens with at least this share of the top probability.", only=PREDICT, ge=0, le=1
    )
    seed: int = option(0, "Random seed for sampling.", only=PREDICT, ge=0)

    @property
    def ranked(self) -> bool:
        return self.best > 1


class PartNumber(NamedTuple):
    """The place of an input in the whole request, and of a part in that input; with the seed, it decides sampling."""

    input_number: int
    part: int = 0


class Search(NamedTuple):
    """The settings of decoding, with defaults filled in."""

    beams: int
    best: int
    batch: int
    length_penalty: float
    longest: int | None = None
    no_repeat_ngram: int = 0
    sampling_options: dict[str, Any] | None = None  # temperature, top_k, top_p, min_p of sampling; None: the likeliest
    seed: int = 0

    @classmethod
    def of(cls, options: SearchOptions, decode: Decode) -> Search:
        sampling_options = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        beams = options.beams or (1 if options.temperature else decode.beam)
        if options.temperature:
            if beams > 1 or options.best > 1:
                raise ConfigError(
                    "temperature samples a single answer and excludes beams and best; omit one or the other"
                )
        elif named := [name for name in ("top_k", "top_p", "min_p") if sampling_options[name] is not None]:
            raise ConfigError(
                f"{', '.join(named)}: no effect without sampling (temperature 0); set a temperature, such as 1"
            )
        if options.best > beams:
            raise ConfigError(f"best={options.best} is not possible with {beams} beams; choose at most {beams}")
        penalty = decode.length_penalty if options.length_penalty is None else options.length_penalty
        drawing = sampling_options if options.temperature else None
        repeats = decode.no_repeat_ngram
        return cls(beams, options.best, options.batch, penalty, options.longest, repeats, drawing, options.seed)

    def limit(self, natural: int) -> int:
        """The most tokens of an answer, its end included, where the length of the input suggests `natural`."""
        return natural if self.longest is None else self.longest

    def run(self, writer: Writer, numbers: Sequence[PartNumber], **rules: Any) -> list[list[Hypothesis]]:
        """The best hypotheses of each row of a writer. What row n draws depends on the seed and numbers[n] alone."""
        rules["no_repeat_ngram"] = self.no_repeat_ngram
        if self.sampling_options is not None:
            drawn = sample(writer, generator=self._make_generators(numbers), **self.sampling_options, **rules)
            return [[hypothesis] for hypothesis in drawn]
        if self.beams == 1:
            return [[hypothesis] for hypothesis in greedy(writer, **rules)]
        return beam(writer, beams=self.beams, best=self.best, length_penalty=self.length_penalty, **rules)

    def stream(self, writer: Writer, number: PartNumber, **rules: Any) -> Iterator[int]:
        """The tokens of a writer's only row as they are made: greedy, or those that `run` draws for this number."""
        if self.beams > 1:
            raise ConfigError("beam search has its answer only at the end and cannot stream it; use 1 beam, or sample")
        rules["no_repeat_ngram"] = self.no_repeat_ngram
        if self.sampling_options is None:
            return stream(writer, **rules)
        return stream(writer, generator=self._make_generators([number]), **self.sampling_options, **rules)

    def _make_generators(self, numbers: Sequence[PartNumber]) -> list[torch.Generator]:
        sequences = [np.random.SeedSequence([self.seed, number.input_number, number.part]) for number in numbers]
        seeds = [int(sequence.generate_state(1, np.uint64)[0] >> 1) for sequence in sequences]
        return [torch.Generator().manual_seed(seed) for seed in seeds]
