"""The task language-model: packed documents, their loss, continuations of prompts, scores, and what `look` shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import Mask
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.model import Decoder, ModelConfig
from clearhead.tasks.base import Evaluation, Examples, Scores, Task
from clearhead.tasks.language_model.continuation import (
    BROKEN,
    TAIL,
    Continuation,
    Writing,
    WrittenText,
    window_begin,
    write_texts,
)
from clearhead.tasks.language_model.document_reading import DocumentReading
from clearhead.tasks.language_model.language_settings import (
    LanguageDecode,
    LanguageModelRecipe,
    LanguageOptions,
)
from clearhead.tasks.language_model.packed_examples import PackedExamples
from clearhead.tasks.language_model.sliding_window import DocumentLoss, score_documents, score_losses
from clearhead.tasks.losses import token_loss
from clearhead.tasks.segmentation import join_texts
from clearhead.tasks.settings import validate
from clearhead.tasks.trace import Trace
from clearhead.text.batches import length_batches
from clearhead.text.packed_documents import PackedDocuments, PackedRows

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.tasks.settings import TaskRecipe
    from clearhead.text import Report, Row, Tokenizer

EMPTY = "empty"
SAMPLES, SAMPLE_PROMPT, SAMPLE_TOKENS = 3, 16, 48  # written at evaluations during training, each after so many tokens
STARTS = 0.05  # of all rows must begin a document, for a prompt to be read as the beginning of one
ESTIMATED = 200  # documents from which that is estimated


class SampleOptions(LanguageOptions):
    """Options of the evaluations during training: a few texts are written, and nothing is scored but the loss."""


class LanguageModel(DocumentReading, Task[Decoder, str, PackedRows, LanguageOptions]):
    name = "language-model"
    recipe = LanguageModelRecipe
    options = LanguageOptions
    columns: tuple[str, ...] = ("text",)
    metrics = ()
    metric = "loss"
    added_tokens = 0
    default_shape = "modern"
    predicts_tokens = True
    fixed_shapes = True
    writes_lines = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: ModelConfig,
        *,
        context: int,
        documents: str = "file",
        prompt_end: str = "",
        prompt_start: bool = True,
        decode: LanguageDecode | None = None,
    ) -> None:
        self.tokenizer, self.config, self.context, self.documents = tokenizer, config, context, documents
        self.prompt_end = prompt_end
        self.prompt_start = prompt_start  # whether a prompt is read as the beginning of a document
        self.decode = decode or LanguageDecode()
        self.token_loss = token_loss

    @property
    def settings(self) -> dict[str, Any]:
        own = ("context", "documents", "prompt_end", "prompt_start")
        return {**{name: getattr(self, name) for name in own}, "decode": self.decode.model_dump()}

    # Data

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: TaskRecipe, start: Pretrained | None = None) -> LanguageModel:
        assert isinstance(recipe, LanguageModelRecipe)
        tokenizer = recipe.text.make_tokenizer((row.values[0] for row in rows), start)
        config = cls.make_config(recipe, start, vocabulary=tokenizer.size)
        task = cls(tokenizer, config, context=recipe.data.longest, documents=recipe.data.documents)
        some = rows[:: -(-len(rows) // ESTIMATED)]
        tokens = [len(one) for one in tokenizer.encode_all([row.values[0] for row in some])]
        task.prompt_start = len(some) >= STARTS * sum(-(-count // task.context) for count in tokens)
        task.configure(recipe)
        return task

    def configure(self, recipe: TaskRecipe) -> None:
        assert isinstance(recipe, LanguageModelRecipe)
        self.decode, self.prompt_end = recipe.decode, recipe.text.prompt_end

    def examples(self, rows: Iterable[Row], report: Report, recipe: TaskRecipe | None = None) -> PackedExamples:
        rows = list(rows)
        used: list[Row] = []
        documents: list[list[int]] = []
        for row, document in zip(rows, self._encode_documents(rows), strict=True):
            if self.row_problem(row):
                report.drop(row, EMPTY)
            else:
                report.keep()
                if len(document) - 1 > self.context:
                    report.remark(f"longer than the context of {self.context} tokens, so read in parts")
                used.append(row)
                documents.append(document)
        if not used:
            raise DataError(f"no document is left to use: {report}")
        seed = None if recipe is None else recipe.seed
        return PackedExamples(PackedDocuments(documents, self.context, seed=seed, pad=self.tokenizer.pad), used)

    def _encode_documents(self, rows: Sequence[Row]) -> list[list[int]]:
        """The tokens of each document, with its start and end."""
        texts = self.tokenizer.encode_all([row.values[0] for row in rows])
        return [[self.tokenizer.start, *text, self.tokenizer.end] for text in texts]

    def row_problem(self, row: Row) -> str | None:
        return None if self.tokenizer.normal(row.values[0][:1000]).strip() or row.values[0].strip() else EMPTY

    # Model

    @classmethod
    def stacks(cls, recipe: TaskRecipe) -> tuple[str, ...]:
        return ("decoder",)

    def build(self) -> Decoder:
        return Decoder(self.config)

    @classmethod
    def fit(cls, rows: int, *, gpu: bool) -> dict[str, dict[str, Any]]:
        small = {"width": 128, "heads": 4, "kv_heads": 4, "layers": 4, "feedforward": 352, "dropout": 0.0}
        large = {"width": 384, "heads": 6, "kv_heads": 6, "layers": 6, "feedforward": 1024, "dropout": 0.2}
        train = {"learning_rate": 1e-3, "warmup": 100, "schedule": "cosine", "evaluate_every": 250}
        return {"model": {"shape": "modern", **(large if gpu else small)}, "train": train}

    def loss(self, model: Decoder, batch: PackedRows) -> Float[Tensor, ""]:
        mask = positions = None
        if batch.documents.shape[1]:  # rows with several documents, which must not see each other
            mask = Mask.documents(batch.documents)
            positions = None if model.decoder.positions is None else batch.positions
        # Pads come last in a row, so causality hides them from every token.
        hidden = model(batch.tokens, positions=positions, mask=mask)
        return self.token_loss(model.vocabulary, hidden, batch.labels, 0.0)

    def compile_loss(self) -> None:
        self.token_loss = torch.compile(token_loss, dynamic=False)

    def refresh(self, model: Decoder, examples: Examples[PackedRows], epoch: int) -> None:
        """New cuts of long documents for every epoch."""
        assert isinstance(examples, PackedExamples)
        examples.draw_cuts(epoch)

    # Answers

    def predict(self, model: Decoder, inputs: Sequence[str], options: LanguageOptions) -> list[Continuation]:
        texts = self._begin_texts([self._encode_prompt(self.check_input(given)) for given in inputs], options)
        for places in length_batches([len(one.tokens) - one.window for one in texts], options.batch):
            for _ in write_texts(model, [texts[place] for place in places]):
                pass
        return [Continuation(one.text, self._notes(one), one.finish or "length") for one in texts]

    def stream(self, model: Decoder, given: str, options: LanguageOptions) -> Iterator[str]:
        """Yields the continuation in pieces, each as soon as no later token can change it."""
        (text,), shown = self._begin_texts([self._encode_prompt(given)], options), ""
        for _ in write_texts(model, [text], stream=True):
            if len(text.stable) > len(shown):
                yield text.stable[len(shown) :]
                shown = text.stable

    def _begin_texts(self, prompts: Sequence[list[int]], options: LanguageOptions) -> list[WrittenText]:
        """Texts to be written, each after the tokens of its prompt."""
        writing = Writing(self.tokenizer, self.context, options.fill(self.decode), options.seed, options.stop)
        return [WrittenText(prompt, writing, number) for number, prompt in enumerate(prompts, options.inputs_before)]

    def _encode_prompt(self, prompt: str) -> list[int]:
        if self.prompt_end:
            prompt = self._join_lines(prompt)
        return self._start_prompt(self.tokenizer.encode(prompt + self.prompt_end))

    def _join_lines(self, prompt: str) -> str:
        """The prompt with nothing inside that ends one: parts between are joined, lines too if a line break ends it."""
        parts = prompt.splitlines() if self.prompt_end.isspace() else prompt.split(self.prompt_end)
        return join_texts([part.strip() for part in parts])

    def _start_prompt(self, tokens: list[int]) -> list[int]:
        return [self.tokenizer.start, *tokens] if self.prompt_start or not tokens else tokens

    def stream_notes(self, given: str) -> list[str]:
        return self._prompt_notes(len(self._encode_prompt(given)))

    def _prompt_notes(self, tokens: int) -> list[str]:
        if tokens <= self.context:
            return []
        read = tokens - window_begin(tokens, self.context)
        return [f"the prompt has {tokens:,} tokens; the model reads the last {read:,}"]

    def _notes(self, text: WrittenText) -> list[str]:
        """What the user should know about a continuation."""
        notes = self._prompt_notes(text.prompt)
        if BROKEN in text.text:
            notes.append(f"the model wrote bytes that are no character, shown as {BROKEN}")
        if not text.text:
            notes.append("the model wrote nothing")
        return notes

    def quick_options(self) -> LanguageOptions:
        return SampleOptions()

    @torch.no_grad()
    def evaluate(self, model: Decoder, rows: Sequence[Row], options: LanguageOptions) -> Evaluation:
        """Loss, perplexity and bits per byte, by a sliding window; during training only a few written samples."""
        from clearhead.text import Report

        if isinstance(options, SampleOptions):
            return self._write_samples(model, rows)
        report, usable = Report(), list[Any]()
        for row in rows:
            if problem := self.row_problem(row):
                report.drop(row, problem)
            else:
                report.keep()
                usable.append(row)
        if not usable:
            raise DataError(f"no document is left to score: {report}")
        losses = score_documents(
            model,
            self._encode_documents(usable),
            context=self.context,
            stride=self._check_stride(options.stride),
            pad=self.tokenizer.pad,
        )
        scores = self.score(usable, losses, options)
        return Evaluation({**scores, "note": str(report)} if report.dropped else scores, usable, losses)

    def _check_stride(self, stride: int | None) -> int:
        if stride is not None and stride > self.context:
            raise ConfigError(f"stride = {stride} would leave tokens out: the context has {self.context}; make it less")
        return stride or max(1, self.context // 2)

    def score(self, rows: Sequence[Row], predictions: Sequence[Any], options: LanguageOptions) -> Scores:
        losses: Sequence[DocumentLoss] = predictions
        return score_losses(losses, sum(len(row.values[0].encode("utf-8", "replace")) for row in rows))

    def _write_samples(self, model: Decoder, rows: Sequence[Row]) -> Evaluation:
        """Continuations of the beginnings of the first documents, beside what comes there."""
        samples, prompts = list[Any](), list[list[int]]()
        for row in rows[:SAMPLES]:
            text = row.values[0][: 40 * (SAMPLE_PROMPT + SAMPLE_TOKENS)]
            title, end, _ = text.partition(self.prompt_end) if self.prompt_end else ("", "", "")
            begin = len(self.tokenizer.encode(title + end)) if end else SAMPLE_PROMPT
            tokens = self.tokenizer.encode(text)
            parts = tokens[:begin], tokens[begin : begin + SAMPLE_TOKENS]
            samples.append(row._replace(values=tuple(map(self.tokenizer.decode, parts))))
            prompts.append(self._start_prompt(parts[0]))
        texts = self._begin_texts(prompts, LanguageOptions(longest=SAMPLE_TOKENS))
        for _ in write_texts(model, texts):
            pass
        return Evaluation({}, samples, [Continuation(one.text) for one in texts])

    # Attention

    def traces(self, model: Decoder, given: str, *, answer: str | None, options: LanguageOptions) -> list[Trace]:
        """One trace of the prompt and what follows: the given answer, or what the model writes.

        The model writes as much as `predict` does, but no more than fits into the context, unless `longest` is given.
        """
        tokens = self._encode_prompt(given)
        if not given:
            return []
        more, text, notes = list[int](), answer or "", list[str]()
        room, ended = self.context - len(tokens), False
        if answer is not None:
            more = self.tokenizer.encode(answer)
        elif options.longest is not None or room > 0:
            limit = min(room, self.decode.longest) if options.longest is None else options.longest
            (written,) = self._begin_texts([tokens], options.model_copy(update={"longest": limit}))
            for _ in write_texts(model, [written]):
                pass
            more, text, ended = written.tokens[written.prompt :], written.text, written.finish == "end"
        else:
            notes.append("the prompt fills the context, so nothing is written after it; --longest 20 writes 20 tokens")
        made = self._trace([*tokens, *more], len(tokens), ended, notes)
        return [made._replace(text=text, given=answer is not None)]

    def _trace(self, whole: list[int], prompt: int, ended: bool, notes: list[str]) -> Trace:
        """The trace of a text and its end; of more than a context, of the last tokens."""
        if (cut := len(whole) - self.context) > 0:
            notes.append(f"the text has {len(whole):,} tokens; the model reads the last {self.context:,} of them")
            whole, prompt = whole[cut:], max(0, prompt - cut)
        last = self.tokenizer.end if ended else -1
        return Trace({"tokens": whole}, [*whole[1:], last], notes=notes, prompt=prompt)

    def continue_trace(
        self, model: Decoder, trace: Trace, written: Sequence[int], *, options: LanguageOptions
    ) -> Trace:
        """The trace of a text that begins with the first token and these; the model writes on as far as `traces` does.

        Within the prompt, what is chosen and what follows it is the answer.
        """
        tokens, prompt, ended = [*trace.reads["tokens"][:1], *written], min(trace.prompt, len(written)), False
        room = self.context - prompt
        limit = (min(room, self.decode.longest) if options.longest is None else options.longest) + prompt - len(tokens)
        if tokens[-1] == self.tokenizer.end:
            tokens, ended = tokens[:-1], True
        elif limit > 0:
            (more,) = self._begin_texts([tokens], options.model_copy(update={"longest": limit}))
            for _ in write_texts(model, [more]):
                pass
            tokens, ended = more.tokens, more.finish == "end"
        made = self._trace(tokens, prompt, ended, [])
        return made._replace(text=self.written_text(made), forced=len(written))

    def written_text(self, trace: Trace) -> str:
        tail = trace.reads["tokens"][max(0, trace.prompt - TAIL) :]
        before = trace.reads["tokens"][max(0, trace.prompt - TAIL) : trace.prompt]
        return self.tokenizer.decode(tail)[len(self.tokenizer.decode(before)) :]

    def run_trace(self, model: Decoder, trace: Trace) -> Float[Tensor, "tokens vocabulary"]:
        tokens = torch.tensor([trace.reads["tokens"]], device=model.vocabulary.words.weight.device)
        scores: Tensor = model.logits(model(tokens))[0]
        return scores

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        return [self.tokenizer.pieces([number])[0] if number >= 0 else "" for number in numbers]

    # Model folder

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> LanguageModel:
        from clearhead.text import Tokenizer

        tokenizer, values = Tokenizer.load(folder), dict(settings)
        if tokenizer.size > config.vocabulary:
            raise CheckpointError(
                f"the tokenizer of {folder} has {tokenizer.size} tokens, but its model {config.vocabulary}; "
                "copy the folder again"
            )
        try:
            decode = validate(LanguageDecode, values.pop("decode", {}))
            return cls(tokenizer, config, decode=decode, **values)
        except (ConfigError, TypeError) as error:
            raise CheckpointError(f"the settings of {folder} are invalid: {error}") from None
