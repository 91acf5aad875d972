"""Pre-training of an encoder-decoder: it restores texts with masked spans and shuffled sentences.

The noise is that of BART (Lewis et al. 2020), with spans of whole words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from clearhead.errors import CheckpointError, ConfigError
from clearhead.model import EncoderDecoder, ModelConfig
from clearhead.tasks.answerer import AnyAnswerer, Evaluation
from clearhead.tasks.language_model.language_processor import DocumentProcessor
from clearhead.tasks.pretraining.denoising_examples import DenoisingExamples
from clearhead.tasks.pretraining.document_windows import EMPTY, make_text_windows
from clearhead.tasks.pretraining.loss_scores import measure_loss
from clearhead.tasks.pretraining.mask_filling import encode_masked
from clearhead.tasks.pretraining.masked_task import SAMPLES, read_saved
from clearhead.tasks.pretraining.pretraining_settings import Masking, PretrainingRecipe
from clearhead.tasks.processor import Examples
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText, GeneratingAnswerer
from clearhead.tasks.sequence_to_sequence.pairs import Pairs, TextToTextObjective, TextToTextProcessor, pair_loss
from clearhead.tasks.sequence_to_sequence.search import Decode, SearchOptions
from clearhead.tasks.sequence_to_sequence.text_generation import TextGeneration, TextTracer
from clearhead.tasks.settings import validate
from clearhead.tasks.task import Task
from clearhead.text.report import Report

if TYPE_CHECKING:
    from typing import Self

    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Row, Tokenizer


class DenoisingProcessor(DocumentProcessor[PretrainingRecipe, Pairs], TextToTextProcessor[PretrainingRecipe]):
    """`objective = "denoise"`: one tokenizer for the noisy text and the restored one."""

    default_shape = "tiny"

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: ModelConfig,
        longest: int,
        masking: Masking,
        documents: str = "file",
        decode: Decode | None = None,
    ) -> None:
        super().__init__(tokenizer, tokenizer, config, decode or Decode())
        self.longest, self.masking, self.documents = longest, masking, documents

    @property
    def settings(self) -> dict[str, Any]:
        own = {"longest": self.longest, "documents": self.documents, "masking": self.masking.model_dump()}
        return {"objective": "denoise", **own, "decode": self.decode.model_dump()}

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: PretrainingRecipe, start: Pretrained | None = None) -> Self:
        texts = (row.values[0] for row in rows)
        tokenizer = recipe.text.train_tokenizer(texts, mask=True) if start is None else start.tokenizer
        config = cls.make_config(recipe, start, vocabulary=tokenizer.size)
        return cls(tokenizer, config, recipe.data.longest, recipe.masking, recipe.data.documents)

    def configure(self, recipe: PretrainingRecipe) -> None:
        self.decode = Decode(**recipe.decode.model_dump(include=set(Decode.model_fields)))

    def examples(
        self, rows: Iterable[Row], report: Report, recipe: PretrainingRecipe | None = None
    ) -> DenoisingExamples:
        windows, used = make_text_windows(rows, self.source, self.longest, report)
        return DenoisingExamples(windows, used, self.source, self.masking, 0 if recipe is None else recipe.seed)

    def row_problem(self, row: Row) -> str | None:
        return None if self.source.normal(row.values[0]).strip() else EMPTY

    @property
    def mask(self) -> int:
        """The token that stands for a masked span: padding where the tokenizer has no mask token."""
        return self.source.pad if self.source.mask is None else self.source.mask

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Self:
        tokenizer, masking = read_saved(folder, config, settings)
        try:
            decode = validate(Decode, settings.get("decode", {}))
        except ConfigError as error:
            raise CheckpointError(f"the settings of {folder} are invalid: decode.{error}") from None
        return cls(tokenizer, config, settings["longest"], masking, settings["documents"], decode)


class DenoisingGeneration(TextGeneration[DenoisingProcessor]):
    output_name = "restored text"

    def split(self, given: str) -> list[list[int]]:
        """The tokens of a text with its masks, in windows of at most `longest`."""
        size, tokens = self.processor.longest, encode_masked(self.processor.source, given, self.processor.mask)
        return [tokens[begin : begin + size] for begin in range(0, len(tokens), size)]

    def output_limit(self, part: list[int]) -> int:
        return 2 * len(part) + 20  # a mask may stand for several words


class DenoisingAnswerer(GeneratingAnswerer[DenoisingProcessor, str]):
    generation = DenoisingGeneration

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> NoReturn:
        raise ConfigError("a denoising model is scored by its loss, not by predictions; call evaluate")

    def evaluate(self, rows: Sequence[Row], options: SearchOptions) -> Evaluation:
        """Loss and perplexity of the original texts, given the same noise at every call; the first texts restored."""
        examples, scores = measure_loss(self.processor, self.model, pair_loss, rows)
        return Evaluation(scores, examples.rows, self.restore_texts(examples))

    @torch.no_grad()
    def restore_texts(self, examples: Examples[Pairs]) -> list[GeneratedText]:
        """What the model writes for the noisy sources of the first rows."""
        assert isinstance(examples, DenoisingExamples)
        firsts = [examples.origins.index(row) for row in range(min(SAMPLES, len(examples.rows)))]
        request = self.begin(SearchOptions(beams=1))
        written = request.write([_source_tokens(examples, place) for place in firsts])
        return [GeneratedText(request.decode_text(part.hypotheses[0])) for part in written]


def _source_tokens(examples: DenoisingExamples, place: int) -> list[int]:
    """The noisy source of an example, without its end."""
    begin, length = int(examples.source.starts[place]), int(examples.source.lengths[place])
    tokens: list[int] = examples.source.flat[begin : begin + length - 1].tolist()
    return tokens


class DenoisingObjective(TextToTextObjective[DenoisingProcessor, PretrainingRecipe]):
    def refresh(self, model: EncoderDecoder, examples: Examples[Pairs], epoch: int) -> None:
        assert isinstance(examples, DenoisingExamples)
        examples.draw(epoch)

    def evaluate(self, answerer: AnyAnswerer, rows: Sequence[Row]) -> Evaluation:
        """A few texts are restored, and nothing is scored: the trainer computes the loss itself."""
        assert isinstance(answerer, DenoisingAnswerer)
        examples = self.processor.examples(rows[:SAMPLES], Report())
        return Evaluation({}, examples.rows, answerer.restore_texts(examples))


class DenoisingTracer(TextTracer[DenoisingAnswerer]):
    def whole_parts(self, given: str) -> list[list[int]]:
        """All tokens of a text with its masks, for an answer that somebody gives."""
        processor = self.answerer.processor
        tokens = encode_masked(processor.source, given, processor.mask)
        return [tokens] if tokens else []


DENOISING = Task(
    name="pretraining",
    recipe=PretrainingRecipe,
    processor=DenoisingProcessor,
    objective=DenoisingObjective,
    answerer=DenoisingAnswerer,
    tracer=DenoisingTracer,
    metrics=(),
)
