"""Summarisation: a text to a shorter text that says what matters in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from clearhead.errors import DataError
from clearhead.model import ModelConfig
from clearhead.tasks.alignment import cross_attentions
from clearhead.tasks.answerer import Baseline, Scores
from clearhead.tasks.processor import Columns, Files
from clearhead.tasks.segmentation import join_texts
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText, GeneratingAnswerer
from clearhead.tasks.sequence_to_sequence.pair_objective import PairObjective
from clearhead.tasks.sequence_to_sequence.pair_processor import PairData, PairProcessor, PairRecipe
from clearhead.tasks.sequence_to_sequence.search import Decode, SearchOptions
from clearhead.tasks.sequence_to_sequence.text_generation import TextGeneration, TextTracer
from clearhead.tasks.settings import option
from clearhead.tasks.summarisation.lead_baseline import describe_lead, have_lines, take_lead
from clearhead.tasks.summarisation.rouge import rouge_scores
from clearhead.tasks.summarisation.source_coverage import SourceCoverage, measure_coverage
from clearhead.tasks.task import Task
from clearhead.tasks.trace import Trace

if TYPE_CHECKING:
    from typing import Self

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


class SummaryRecipe(PairRecipe):
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


class SummaryProcessor(PairProcessor[SummaryRecipe]):
    columns = ("text", "summary")
    metric = "rouge1"
    decode_section = SummaryDecode
    decode: SummaryDecode
    longest_text = 0  # tokens of the longest text in training; 0: not known

    @classmethod
    def read(cls, source: Files, columns: Columns = None, documents: str | None = None) -> Iterator[Row]:
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

    def adapt(self, rows: Sequence[Row], recipe: SummaryRecipe) -> None:
        most = recipe.data.longest
        texts = self.source.encode_all([row.values[0] for row in rows])
        self.longest_text = max((len(text) for text in texts if len(text) <= most), default=0)
        if self.decode.longest is None:
            summaries = self.target.encode_all([self.target_of(row) for row in rows])
            longest = max((len(summary) for summary in summaries if len(summary) <= most), default=1)
            self.decode = self.decode.model_copy(update={"longest": max(longest, 1)})

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "longest_text": self.longest_text}

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Self:
        values = dict(settings)
        longest = values.pop("longest_text", 0)
        processor = super().load(folder, config, values)
        processor.longest_text = int(longest)
        return processor


class SummaryGeneration(TextGeneration[SummaryProcessor]):
    """One summary of each text: texts are neither split nor cut.

    One of more than LONGEST_TEXT tokens is refused, unless the model has an `encoder_window`.
    """

    output_name = "summary"

    def split(self, given: str) -> list[list[int]]:
        parts, most = super().split(given), max(LONGEST_TEXT, self.processor.longest_text)
        config = self.processor.config
        near = config.window is not None or config.encoder_window is not None
        if parts and len(parts[0]) > most and not near:
            raise DataError(
                f"the text {given[:SHOWN]!r}… has {len(parts[0]):,} tokens, each of which would see all others; "
                f"at most {most:,} are read at once: shorten it, or train with model.encoder_window"
            )
        return parts

    def output_limit(self, part: list[int]) -> int:
        longest = self.processor.decode.longest
        return 1 + (super().output_limit(part) if longest is None else longest)

    def input_notes(self, given: str, text: str) -> list[str]:
        tokens, longest = len(self.processor.source.encode(given)), self.processor.longest_text
        if not 0 < longest < tokens:
            return []
        return [f"the text has {tokens:,} tokens, more than any in training ({longest:,}); nothing was cut"]


class SummaryAnswerer(GeneratingAnswerer[SummaryProcessor, str]):
    options = SummaryOptions
    generation = SummaryGeneration

    def predict(
        self, inputs: Sequence[str], options: SearchOptions, *, inputs_before: int = 0
    ) -> Sequence[GeneratedText]:
        """A summary of each text: empty in, empty out."""
        written = super().predict(inputs, options, inputs_before=inputs_before)
        if not (isinstance(options, SummaryOptions) and options.coverage):
            return written
        coverages = self.measure_coverages(inputs, [summary.text for summary in written])
        return [
            Summary(summary.text, summary.notes, summary.score, summary.alternatives, coverage)
            for summary, coverage in zip(written, coverages, strict=True)
        ]

    def measure_coverages(self, texts: Sequence[str], summaries: Sequence[str]) -> list[SourceCoverage]:
        """What each summary covers of its text: the mean attention over all heads of all layers."""
        own, other, coverages = self.processor.source, self.processor.target, []
        for text, summary in zip(texts, summaries, strict=True):
            source, target = own.encode(text), other.encode(summary)
            [(aligned, offsets)] = own.encode_with_offsets([text])
            pieces, received = own.pieces(source), torch.zeros(len(source))
            if source and target:
                read, written = [*source, own.end], [*target, other.end]
                weights = cross_attentions(self.model, [read], [written], start=other.start)[0]
                received = weights.float().mean((0, 1)).sum(0)[:-1].cpu()
            coverages.append(measure_coverage(received, pieces, text, offsets if aligned == source else None))
        return coverages

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> Scores:
        """ROUGE-1, ROUGE-2 and ROUGE-L."""
        references = [self.processor.references_of(row) for row in rows]
        return rouge_scores([prediction.text for prediction in predictions], references)


class SummaryTracer(TextTracer[SummaryAnswerer]):
    def traces(self, given: str, *, answer: str | None, options: SearchOptions) -> list[Trace]:
        """A text with its summary, in one trace; its tokens are shown as the text has them, not normalised."""
        from clearhead.text.pieces import surface_forms

        tokenizer = self.answerer.processor.source
        numbers, surfaces = surface_forms(tokenizer, given)
        shown = {"source": [*surfaces, *tokenizer.pieces([tokenizer.end])]}
        whole = [*numbers, tokenizer.end]
        return [
            trace._replace(surfaces=shown) if trace.reads["source"] == whole else trace
            for trace in super().traces(given, answer=answer, options=options)
        ]


def score_lead(processor: SummaryProcessor, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
    """The beginning of each text as its summary."""
    texts = [row.values[0] for row in rows]
    by_lines = have_lines(texts)
    leads = [take_lead(text, by_lines=by_lines) for text in texts]
    return Baseline(describe_lead(by_lines), rouge_scores(leads, [processor.references_of(row) for row in rows]))


TASK = Task(
    name="summarisation",
    recipe=SummaryRecipe,
    processor=SummaryProcessor,
    objective=PairObjective,
    answerer=SummaryAnswerer,
    tracer=SummaryTracer,
    metrics=("rouge1", "rouge2", "rougeL"),
    baseline=score_lead,
    baseline_learns=False,
)
