"""Summarisation: a text to a shorter text that says what matters in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import Field

from clearhead.errors import DataError
from clearhead.tasks.answerer import Baseline, Scores
from clearhead.tasks.metrics import rouge_scores
from clearhead.tasks.processor import Columns, Files
from clearhead.tasks.segmentation import SEAMS, join_texts
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText, ScoringGenerator
from clearhead.tasks.sequence_to_sequence.search import LimitedDecode, SearchOptions
from clearhead.tasks.sequence_to_sequence.text_to_text import (
    PairData,
    PairObjective,
    PairProcessor,
    PairRecipe,
    PairSettings,
    TextGeneration,
    TextTracer,
)
from clearhead.tasks.task import Task
from clearhead.tasks.trace import Trace
from clearhead.text import Row, read
from clearhead.text.pieces import surface_forms

MAX_SOURCE_TOKENS = 16_384  # tokens; attention takes time by the square of their number
LEAD_LINES = 3  # lines that the baseline takes from a dialogue


class SummaryData(PairData):
    """`[data]` of summaries: texts are long, and their summaries may be much shorter."""

    longest: int = Field(1024, ge=1)  # tokens of a text; longer rows are dropped from training, and the report says so
    ratio: float = Field(0.0, ge=0)  # how many times longer a text of more than 10 tokens may be; 0: any


class SummaryDecode(LimitedDecode):
    """`[decode]` of summaries."""

    no_repeat_ngram: int = Field(3, ge=0)  # no three consecutive tokens are written twice; 0: any may be


class SummaryRecipe(PairRecipe):
    data: SummaryData
    decode: SummaryDecode = SummaryDecode()


class SummarySettings(PairSettings, SummaryDecode):
    """The settings that a model folder keeps."""

    longest_text: int = 0  # tokens of the longest text in training; 0: not known


class SummaryProcessor(PairProcessor[SummaryRecipe]):
    columns = ("text", "summary")
    metric = "rouge1"
    stored_kind = SummarySettings
    stored: SummarySettings

    @classmethod
    def read(cls, source: Files, columns: Columns = None, documents: str | None = None) -> Iterator[Row]:
        """The rows of a file. In a JSONL a text may be a list of sentences, a summary a list of references."""
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
        self.store(longest_text=max((len(text) for text in texts if len(text) <= most), default=0))
        summaries = self.target.encode_all([self.target_of(row) for row in rows])
        self.store(**recipe.decode.limit_to(summaries, most))


class SummaryGeneration(TextGeneration[SummaryProcessor]):
    """One summary of each text: texts are neither split nor cut.

    One of more than MAX_SOURCE_TOKENS tokens is refused, unless the model has an `encoder_window`.
    """

    output_name = "summary"

    def split(self, text: str) -> list[list[int]]:
        parts, most = super().split(text), max(MAX_SOURCE_TOKENS, self.processor.stored.longest_text)
        config = self.processor.config
        near = config.window is not None or config.encoder_window is not None
        if parts and len(parts[0]) > most and not near:
            raise DataError(
                f"the text {text[:40]!r}… has {len(parts[0]):,} tokens, each of which would see all others; "
                f"at most {most:,} are read at once: shorten it, or train with model.encoder_window"
            )
        return parts

    def output_limit(self, part: list[int]) -> int:
        longest = self.processor.stored.longest
        return 1 + (super().output_limit(part) if longest is None else longest)

    def input_notes(self, text: str, answer: str) -> list[str]:
        tokens, longest = len(self.processor.source.encode(text)), self.processor.stored.longest_text
        if not 0 < longest < tokens:
            return []
        return [f"the text has {tokens:,} tokens, more than any in training ({longest:,}); nothing was cut"]


class SummaryAnswerer(ScoringGenerator[SummaryProcessor, str]):
    generation = SummaryGeneration

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> Scores:
        references = [self.processor.references_of(row) for row in rows]
        return rouge_scores([prediction.text for prediction in predictions], references)


class SummaryTracer(TextTracer[SummaryAnswerer]):
    def traces(self, text: str, *, answer: str | None, options: SearchOptions) -> list[Trace]:
        """A text with its summary, in one trace; its tokens are shown as the text has them, not normalised."""
        tokenizer = self.answerer.processor.source
        numbers, surfaces = surface_forms(tokenizer, text)
        shown = {"source": [*surfaces, *tokenizer.pieces([tokenizer.end])]}
        whole = [*numbers, tokenizer.end]
        return [
            trace._replace(surfaces=shown) if trace.reads["source"] == whole else trace
            for trace in super().traces(text, answer=answer, options=options)
        ]


def score_lead(processor: SummaryProcessor, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
    """The beginning of each text as its summary: its first sentence, or the first lines of a dialogue."""
    texts = [row.values[0] for row in rows]
    lines = [[line.strip() for line in text.splitlines() if line.strip()] for text in texts]
    if 2 * sum(len(of_text) >= LEAD_LINES for of_text in lines) > len(texts):  # as most dialogues have
        name = f"lead-{LEAD_LINES} (the first {LEAD_LINES} lines)"
        leads = [join_texts(of_text[:LEAD_LINES]) for of_text in lines]
    else:
        name = "lead-1 (the first sentence)"
        sentences = [[piece.strip() for piece in SEAMS[0].split(text) if piece.strip()] for text in texts]
        leads = [join_texts(of_text[:1]) for of_text in sentences]
    return Baseline(name, rouge_scores(leads, [processor.references_of(row) for row in rows]))


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
