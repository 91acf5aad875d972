"""Pre-training of an encoder-decoder: it restores texts with masked spans and shuffled sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from clearhead.errors import CheckpointError, ConfigError
from clearhead.model import EncoderDecoder, ModelConfig
from clearhead.tasks.base import Evaluation, Examples, Scores
from clearhead.tasks.language_model.document_reading import DocumentReading
from clearhead.tasks.pretraining.denoising_examples import DenoisingExamples
from clearhead.tasks.pretraining.document_windows import EMPTY, make_text_windows
from clearhead.tasks.pretraining.loss_scores import measure_loss
from clearhead.tasks.pretraining.mask_filling import encode_masked
from clearhead.tasks.pretraining.masked_task import SAMPLES, read_saved
from clearhead.tasks.pretraining.pretraining_settings import Masking, PretrainingRecipe
from clearhead.tasks.sequence_to_sequence import Decode, GeneratedText, Pairs, Search, SearchOptions, TextToText
from clearhead.tasks.settings import TaskRecipe, validate
from clearhead.tasks.trace import Trace
from clearhead.text.report import Report

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Row, Tokenizer


class SampleOptions(SearchOptions):
    """Options of the evaluations during training: a few texts are restored; the trainer computes the loss itself."""


class DenoisingPretraining(DocumentReading, TextToText):
    """`objective = "denoise"`: noise of BART (Lewis et al. 2020), with spans of whole words."""

    name = "pretraining"
    objective: ClassVar[str] = "denoise"
    output_name = "restored text"
    recipe = PretrainingRecipe
    columns: tuple[str, ...] = ("text",)  # type: ignore[assignment]
    metrics = ()
    metric = "loss"
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
        return {"objective": self.objective, **own, "decode": self.decode.model_dump()}

    @property
    def mask(self) -> int:
        """The token that stands for a masked span: padding where the tokenizer has no mask token."""
        return self.source.pad if self.source.mask is None else self.source.mask

    # Data

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: TaskRecipe, start: Pretrained | None = None) -> DenoisingPretraining:
        assert isinstance(recipe, PretrainingRecipe)
        texts = (row.values[0] for row in rows)
        tokenizer = recipe.text.train_tokenizer(texts, mask=True) if start is None else start.tokenizer
        config = cls.make_config(recipe, start, vocabulary=tokenizer.size)
        return cls(tokenizer, config, recipe.data.longest, recipe.masking, recipe.data.documents)

    @classmethod
    def target_of(cls, row: Row) -> str:
        return str(row.values[0])

    def configure(self, recipe: TaskRecipe) -> None:
        assert isinstance(recipe, PretrainingRecipe)
        self.decode = Decode(**recipe.decode.model_dump(include=set(Decode.model_fields)))

    def examples(  # type: ignore[override]  # a batch is the same: Pairs
        self, rows: Iterable[Row], report: Report, recipe: TaskRecipe | None = None
    ) -> DenoisingExamples:
        windows, used = make_text_windows(rows, self.source, self.longest, report)
        return DenoisingExamples(windows, used, self.source, self.masking, 0 if recipe is None else recipe.seed)

    def refresh(self, model: EncoderDecoder, examples: Examples[Pairs], epoch: int) -> None:
        assert isinstance(examples, DenoisingExamples)
        examples.draw(epoch)

    def row_problem(self, row: Row) -> str | None:
        return None if self.source.normal(row.values[0]).strip() else EMPTY

    # Answers

    def split(self, given: str) -> list[list[int]]:
        """The tokens of a text with its masks, in windows of at most `longest`."""
        tokens = encode_masked(self.source, given, self.mask)
        return [tokens[begin : begin + self.longest] for begin in range(0, len(tokens), self.longest)]

    def output_limit(self, part: list[int]) -> int:
        return 2 * len(part) + 20  # a mask may stand for several words

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> Scores:
        raise ConfigError("a denoising model is scored by its loss, not by predictions; call evaluate")

    @torch.no_grad()
    def evaluate(self, model: EncoderDecoder, rows: Sequence[Row], options: SearchOptions) -> Evaluation:
        """Loss and perplexity of the original texts, given the same noise at every call; the first texts restored."""
        if isinstance(options, SampleOptions):
            examples: Examples[Pairs] = self.examples(rows[:SAMPLES], Report())
            scores: Scores = {}
        else:
            examples, scores = measure_loss(self, model, rows)
        assert isinstance(examples, DenoisingExamples)
        firsts = [examples.origins.index(row) for row in range(min(SAMPLES, len(examples.rows)))]
        noisy = [self._source_tokens(examples, place) for place in firsts]
        training = model.training
        model.eval()
        found = self.write(model, noisy, Search.of(SampleOptions(beams=1), self.decode))
        model.train(training)
        restored = [GeneratedText(self.decode_text(one.hypotheses[0])) for one in found]
        return Evaluation(scores, examples.rows, restored)

    def quick_options(self) -> SearchOptions:
        return SampleOptions(beams=1)

    def _source_tokens(self, examples: DenoisingExamples, place: int) -> list[int]:
        """The noisy source of an example, without its end."""
        begin, length = int(examples.source.starts[place]), int(examples.source.lengths[place])
        tokens: list[int] = examples.source.flat[begin : begin + length - 1].tolist()
        return tokens

    # Attention

    def traces(self, model: EncoderDecoder, given: str, *, answer: str | None, options: SearchOptions) -> list[Trace]:
        """A text with its masks and what is written for it; with an answer given, that one."""
        if answer is None:
            return super().traces(model, given, answer=None, options=options)
        source = encode_masked(self.source, given, self.mask)
        return [self._trace(source, self.target.encode(answer), answer, given=True)] if source else []

    # Model folder

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> DenoisingPretraining:
        tokenizer, masking = read_saved(folder, config, settings)
        try:
            decode = validate(Decode, settings.get("decode", {}))
        except ConfigError as error:
            raise CheckpointError(f"the settings of {folder} are invalid: decode.{error}") from None
        return cls(tokenizer, config, settings["longest"], masking, settings["documents"], decode)
