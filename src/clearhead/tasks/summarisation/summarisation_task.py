"""Summarisation: a text to a shorter text that says what matters in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from clearhead.errors import DataError
from clearhead.model import EncoderDecoder, ModelConfig
from clearhead.tasks.alignment import cross_attentions
from clearhead.tasks.base import Baseline, Scores
from clearhead.tasks.segmentation import join_texts
from clearhead.tasks.sequence_to_sequence import Decode, GeneratedText, PairData, SearchOptions, TextToText
from clearhead.tasks.sequence_to_sequence.text_to_text import TextToTextRecipe
from clearhead.tasks.settings import TaskRecipe, option
from clearhead.tasks.summarisation.lead_baseline import describe_lead, have_lines, take_lead
from clearhead.tasks.summarisation.rouge import rouge_scores
from clearhead.tasks.summarisation.source_coverage import SourceCoverage, measure_coverage
from clearhead.tasks.trace import Trace

if TYPE_CHECKING:
    from clearhead.text import Row


LONGEST_TEXT = 16_384  # tokens; attention takes time by the square of their number
SHOWN = 40  # characters of a text in an error


class SummaryData(PairData):
    """`[data]` of summaries: texts are long, and their summaries may be much shorter."""

    longest: int = Field(1024, ge=1)  # tokens of a text; longer rows are dropped from training, and the report says so
    ratio: float = Field(0.0, ge=0)  # how many times longer a text of more than 10 tokens may be; 0: any


class SummaryDecode(Decode):
    """`[decode]` of summaries."""

    no_repeat_ngram: int = Field(3, ge=0)  # no three consecutive tokens are written twice; 0: any may be
    longest: int | None = Field(None, ge=1)  # tokens of a summary; None: as many as the longest in training


class SummaryRecipe(TextToTextRecipe):
    data: SummaryData
    decode: SummaryDecode = SummaryDecode()


class SummaryOptions(SearchOptions):
    coverage: bool = option(False, "Add to --json what the summary attended to in the text.", only=["predict"])

    @property
    def json_only(self) -> str:
        return "coverage" if self.coverage else ""


@dataclass(frozen=True)
class Summary(GeneratedText):
    """A summary, and what it covers of its text if that was asked for."""

    coverage: SourceCoverage | None = None

    def to_json(self) -> dict[str, Any]:
        more = {} if self.coverage is None else {"coverage": self.coverage.to_json()}
        return {**super().to_json(), **more}


class Summarisation(TextToText):
    """One summary of each text: texts are neither split nor cut.

    One of more than LONGEST_TEXT tokens is refused, unless the model has an `encoder_window`.
    """

    name = "summarisation"
    output_name = "summary"
    columns = ("text", "summary")
    recipe = SummaryRecipe
    options = SummaryOptions
    decode_section = SummaryDecode
    metrics = ("rouge1", "rouge2", "rougeL")
    metric = "rouge1"
    baseline_learns = False
    decode: SummaryDecode
    longest_text = 0  # tokens of the longest text in training; 0: not known

    # Data

    @classmethod
    def read(
        cls,
        source: str | Path | Mapping[str, str | Path],
        columns: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Iterator[Row]:
        """The rows of a file. In a JSONL a text may be a list of sentences, a summary a list of references."""
        from clearhead.text import Row, read

        for row in read(source, cls.columns, columns, lists=True):
            text, summary = row.values
            joined = text if isinstance(text, str) else join_texts(text)
            yield Row((joined, summary), row.file, row.line)

    @classmethod
    def target_of(cls, row: Row) -> str:
        return cls.references_of(row)[0]

    @classmethod
    def references_of(cls, row: Row) -> Sequence[str]:
        """All summaries of a row's text; the model learns to write the first."""
        summaries = row.values[1]
        return [summaries] if isinstance(summaries, str) else list(summaries) or [""]

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "longest_text": self.longest_text}

    def adapt(self, rows: Sequence[Row]) -> None:
        texts = self.source.encode_all([row.values[0] for row in rows])
        self.longest_text = max((len(text) for text in texts if len(text) <= self.longest_used), default=0)
        if self.decode.longest is None:
            summaries = self.target.encode_all([self.target_of(row) for row in rows])
            longest = max((len(summary) for summary in summaries if len(summary) <= self.longest_used), default=1)
            self.decode = self.decode.model_copy(update={"longest": max(longest, 1)})

    def configure(self, recipe: TaskRecipe) -> None:
        found = self.decode.longest
        super().configure(recipe)
        self.longest_used = recipe.data.longest
        if self.decode.longest is None:
            self.decode = self.decode.model_copy(update={"longest": found})

    # Answers

    def split(self, given: str) -> list[list[int]]:
        parts, most = super().split(given), max(LONGEST_TEXT, self.longest_text)
        near = self.config.window is not None or self.config.encoder_window is not None
        if parts and len(parts[0]) > most and not near:
            raise DataError(
                f"the text {given[:SHOWN]!r}… has {len(parts[0]):,} tokens, each of which would see all others; "
                f"at most {most:,} are read at once: shorten it, or train with model.encoder_window"
            )
        return parts

    def output_limit(self, part: list[int]) -> int:
        return 1 + (super().output_limit(part) if self.decode.longest is None else self.decode.longest)

    def predict(self, model: EncoderDecoder, inputs: Sequence[str], options: SearchOptions) -> list[GeneratedText]:
        """A summary of each text: empty in, empty out."""
        written = super().predict(model, inputs, options)
        if not (isinstance(options, SummaryOptions) and options.coverage):
            return written
        found = self.measure_coverages(model, inputs, [one.text for one in written])
        return [
            Summary(one.text, one.notes, one.score, one.alternatives, coverage)
            for one, coverage in zip(written, found, strict=True)
        ]

    def measure_coverages(
        self, model: EncoderDecoder, texts: Sequence[str], summaries: Sequence[str]
    ) -> list[SourceCoverage]:
        """What each summary covers of its text: the mean attention over all heads of all layers."""
        found = []
        for text, summary in zip(texts, summaries, strict=True):
            source, target = self.source.encode(text), self.target.encode(summary)
            [(aligned, offsets)] = self.source.encode_with_offsets([text])
            pieces, received = self.source.pieces(source), torch.zeros(len(source))
            if source and target:
                read, written = [*source, self.source.end], [*target, self.target.end]
                weights = cross_attentions(model, [read], [written], start=self.target.start)[0]
                received = weights.float().mean((0, 1)).sum(0)[:-1].cpu()
            found.append(measure_coverage(received, pieces, text, offsets if aligned == source else None))
        return found

    def input_notes(self, given: str, text: str) -> list[str]:
        tokens = len(self.source.encode(given))
        if not 0 < self.longest_text < tokens:
            return []
        return [f"the text has {tokens:,} tokens, more than any in training ({self.longest_text:,}); nothing was cut"]

    def quick_options(self) -> SummaryOptions:
        return SummaryOptions(beams=1)

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> Scores:
        """ROUGE-1, ROUGE-2 and ROUGE-L."""
        return rouge_scores([one.text for one in predictions], [self.references_of(row) for row in rows])

    def baseline(self, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
        """The beginning of each text as its summary."""
        texts = [row.values[0] for row in rows]
        by_lines = have_lines(texts)
        leads = [take_lead(text, by_lines=by_lines) for text in texts]
        return Baseline(describe_lead(by_lines), rouge_scores(leads, [self.references_of(row) for row in rows]))

    # Attention

    def traces(self, model: EncoderDecoder, given: str, *, answer: str | None, options: SearchOptions) -> list[Trace]:
        """A text with its summary, in one trace; its tokens are shown as the text has them, not normalised."""
        from clearhead.text.surface_forms import surface_forms

        numbers, surfaces = surface_forms(self.source, given)
        shown = {"source": [*surfaces, *self.source.pieces([self.source.end])]}
        whole = [*numbers, self.source.end]
        return [
            trace._replace(surfaces=shown) if trace.reads["source"] == whole else trace
            for trace in super().traces(model, given, answer=answer, options=options)
        ]

    # Model folder

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Summarisation:
        values = dict(settings)
        longest = values.pop("longest_text", 0)
        task = super().load(folder, config, values)
        task.longest_text = int(longest)
        return task
