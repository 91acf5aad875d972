"""Language models: continuations, losses of documents, traces, the loss on packed rows, and the declaration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import Mask
from clearhead.errors import ConfigError
from clearhead.model import Decoder
from clearhead.tasks.answerer import Evaluation, Scores, ScoringAnswerer, StreamingAnswerer
from clearhead.tasks.language_model.continuation import (
    BROKEN,
    TAIL,
    Continuation,
    Writing,
    WrittenText,
    window_begin,
    write_texts,
)
from clearhead.tasks.language_model.language_processor import (
    LanguageModelRecipe,
    LanguageOptions,
    LanguageProcessor,
)
from clearhead.tasks.language_model.sliding_window import DocumentLoss, score_documents, score_losses
from clearhead.tasks.objective import Objective
from clearhead.tasks.task import Task
from clearhead.tasks.trace import ContinuableTracer, TaskTracer, Trace
from clearhead.text import Row
from clearhead.text.batches import token_batches
from clearhead.text.packed_documents import PackedRows

SAMPLES = 3  # texts that are written at each evaluation during training
SAMPLE_PROMPT = 16  # tokens of a document that are the prompt of such a text
SAMPLE_TOKENS = 48  # tokens that are written after the prompt


class LanguageAnswerer(
    StreamingAnswerer[LanguageProcessor, Decoder, str, LanguageOptions],
    ScoringAnswerer[LanguageProcessor, Decoder, str, LanguageOptions],
):
    options = LanguageOptions

    def predict(self, inputs: Sequence[str], options: LanguageOptions, *, inputs_before: int = 0) -> list[Continuation]:
        check, encode = self.processor.inputs.check, self.processor.encode_prompt
        texts = self.begin_texts([encode(check(prompt)) for prompt in inputs], options, inputs_before)
        for numbers in token_batches([len(text.tokens) - text.window for text in texts], None, options.batch):
            self.write([texts[number] for number in numbers])
        return [Continuation(text.text, self._make_notes(text), text.finish or "length") for text in texts]

    def stream(self, prompt: str, options: LanguageOptions, *, inputs_before: int = 0) -> Iterator[str]:
        (text,), shown = self.begin_texts([self.processor.encode_prompt(prompt)], options, inputs_before), ""
        for _ in write_texts(self.model, [text], stream=True):
            if len(text.stable) > len(shown):
                yield text.stable[len(shown) :]
                shown = text.stable

    def begin_texts(
        self, prompts: Sequence[list[int]], options: LanguageOptions, inputs_before: int = 0
    ) -> list[WrittenText]:
        """Texts to be written, each after the tokens of its prompt."""
        processor, decode = self.processor, options.fill(self.processor.stored.decode)
        writing = Writing(processor.tokenizer, processor.stored.context, decode, options.seed, options.stop)
        return [WrittenText(prompt, writing, number) for number, prompt in enumerate(prompts, inputs_before)]

    def write(self, texts: Sequence[WrittenText]) -> None:
        for _ in write_texts(self.model, texts):
            pass

    def stream_notes(self, prompt: str) -> list[str]:
        return self._prompt_notes(len(self.processor.encode_prompt(prompt)))

    def _prompt_notes(self, tokens: int) -> list[str]:
        context = self.processor.stored.context
        if tokens <= context:
            return []
        read = tokens - window_begin(tokens, context)
        return [f"the prompt has {tokens:,} tokens; the model reads the last {read:,}"]

    def _make_notes(self, text: WrittenText) -> list[str]:
        notes = self._prompt_notes(text.prompt)
        if BROKEN in text.text:
            notes.append(f"the model wrote bytes that are no character, shown as {BROKEN}")
        if not text.text:
            notes.append("the model wrote nothing")
        return notes

    def predict_rows(self, rows: Sequence[Row], options: LanguageOptions) -> list[DocumentLoss]:
        """The losses of documents, by a sliding window."""
        context, pad = self.processor.stored.context, self.processor.tokenizer.pad
        stride = options.stride or max(1, context // 2)
        if stride > context:
            raise ConfigError(f"stride = {stride} would leave tokens out: the context has {context}; make it less")
        return score_documents(
            self.model, self.processor.encode_documents(rows), context=context, stride=stride, pad=pad
        )

    def score(self, rows: Sequence[Row], predictions: Sequence[DocumentLoss], options: LanguageOptions) -> Scores:
        return score_losses(predictions, sum(len(row.values[0].encode("utf-8", "replace")) for row in rows))

    def evaluate_quickly(self, rows: Sequence[Row], options: LanguageOptions) -> Evaluation:
        """Continuations of the beginnings of the first documents, beside what comes there; no scores."""
        processor, tokenizer = self.processor, self.processor.tokenizer
        samples, prompts = list[Any](), list[list[int]]()
        for row in rows[:SAMPLES]:
            text = row.values[0][: 40 * (SAMPLE_PROMPT + SAMPLE_TOKENS)]
            title, end, _ = text.partition(processor.stored.prompt_end) if processor.stored.prompt_end else ("", "", "")
            begin = len(tokenizer.encode(title + end)) if end else SAMPLE_PROMPT
            tokens = tokenizer.encode(text)
            parts = tokens[:begin], tokens[begin : begin + SAMPLE_TOKENS]
            samples.append(row._replace(values=tuple(map(tokenizer.decode, parts))))
            prompts.append(processor.start_prompt(parts[0]))
        texts = self.begin_texts(prompts, LanguageOptions(longest=SAMPLE_TOKENS))
        self.write(texts)
        return Evaluation({}, samples, [Continuation(text.text) for text in texts])


class LanguageTracer(TaskTracer[LanguageAnswerer], ContinuableTracer):
    context: int

    def __init__(self, name: str, answerer: LanguageAnswerer) -> None:
        super().__init__(name, answerer)
        self.processor, self.context = answerer.processor, answerer.processor.stored.context

    def traces(self, prompt: str, *, answer: str | None, options: LanguageOptions) -> list[Trace]:
        """One trace of the prompt and what follows: the given answer, or what the model writes.

        The model writes as much as `predict` does, but no more than fits into the context, unless `longest` is set.
        """
        tokens = self.processor.encode_prompt(prompt)
        if not prompt:
            return []
        more, text, notes = list[int](), answer or "", list[str]()
        room, ended = self.context - len(tokens), False
        if answer is not None:
            more = self.processor.tokenizer.encode(answer)
        elif options.longest is not None or room > 0:
            limit = options.longest or min(room, self.processor.stored.decode.longest)
            written = self._write_on(tokens, options, limit)
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
        last = self.processor.tokenizer.end if ended else -1
        return Trace({"tokens": whole}, [*whole[1:], last], notes=notes, prompt=prompt)

    def _write_on(self, tokens: list[int], options: LanguageOptions, longest: int) -> WrittenText:
        """What the model writes after these tokens, at most `longest` more."""
        (text,) = self.answerer.begin_texts([tokens], options.model_copy(update={"longest": longest}))
        self.answerer.write([text])
        return text

    def samples(self, options: LanguageOptions) -> bool:
        usual = self.processor.stored.decode.temperature
        return bool(usual if options.temperature is None else options.temperature)

    def continue_trace(self, trace: Trace, written: Sequence[int], *, options: LanguageOptions) -> Trace:
        """The trace of a text that begins with the first token and these; the model goes on as in `traces`.

        Within the prompt, what is chosen and what follows it is the answer.
        """
        tokens, prompt, ended = [*trace.reads["tokens"][:1], *written], min(trace.prompt, len(written)), False
        most = options.longest or min(self.context - prompt, self.processor.stored.decode.longest)
        limit = most + prompt - len(tokens)
        if tokens[-1] == self.processor.tokenizer.end:
            tokens, ended = tokens[:-1], True
        elif limit > 0:
            text = self._write_on(tokens, options, limit)
            tokens, ended = text.tokens, text.finish == "end"
        made = self._trace(tokens, prompt, ended, [])
        return made._replace(text=self.written_text(made), forced=len(written))

    def written_text(self, trace: Trace) -> str:
        tail = trace.reads["tokens"][max(0, trace.prompt - TAIL) :]
        before = trace.reads["tokens"][max(0, trace.prompt - TAIL) : trace.prompt]
        return self.processor.tokenizer.decode(tail)[len(self.processor.tokenizer.decode(before)) :]

    def run(self, trace: Trace) -> Float[Tensor, "tokens vocabulary"]:
        model = self.answerer.model
        tokens = torch.tensor([trace.reads["tokens"]], device=model.vocabulary.words.weight.device)
        scores: Tensor = model.logits(model(tokens))[0]
        return scores

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        return [self.processor.tokenizer.pieces([number])[0] if number >= 0 else "" for number in numbers]


class LanguageObjective(Objective[LanguageProcessor, LanguageModelRecipe, Decoder, PackedRows]):
    fixed_shapes = True

    def loss(self, model: Decoder, batch: PackedRows) -> Float[Tensor, ""]:
        mask = positions = None
        if batch.documents.shape[1]:  # rows with several documents, which must not see each other
            mask = Mask.documents(batch.documents)
            positions = None if model.decoder.positions is None else batch.positions
        # Pads come last in a row, so causality hides them from every token.
        hidden = model(batch.tokens, positions=positions, mask=mask)
        return self.token_loss(model.vocabulary, hidden, batch.labels, 0.0)


TASK = Task(
    name="language-model",
    recipe=LanguageModelRecipe,
    processor=LanguageProcessor,
    objective=LanguageObjective,
    answerer=LanguageAnswerer,
    tracer=LanguageTracer,
    metrics=(),
    writes_lines=True,
)
