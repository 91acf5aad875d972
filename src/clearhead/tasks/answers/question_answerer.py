"""Answers to questions, their scores, the actions on the index, and the forward pass that `look` repeats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from clearhead.model import PooledEncoder
from clearhead.tasks.answerer import Answerer, Evaluation, Scores
from clearhead.tasks.answers.answer_finder import AnswerFinder
from clearhead.tasks.answers.answer_index import Vectors
from clearhead.tasks.answers.answer_processor import AnswerProcessor, clean_pair
from clearhead.tasks.answers.answer_scores import score_answers
from clearhead.tasks.answers.answer_settings import AnswerOptions, AnswerPrediction
from clearhead.tasks.answers.index_actions import run_action
from clearhead.tasks.text_windows import cut_text, surface_windows
from clearhead.tasks.trace import AnswerPart, TaskTracer, Trace

if TYPE_CHECKING:
    from clearhead.text import Row


class QuestionAnswerer(Answerer[AnswerProcessor, PooledEncoder, str, AnswerOptions]):
    """Finds answers in the index in force, or in another one that is given."""

    options = AnswerOptions

    def __init__(self, processor: AnswerProcessor, model: PooledEncoder, finder: AnswerFinder | None = None) -> None:
        super().__init__(processor, model)
        self._given_finder = finder

    def find_finder(self) -> AnswerFinder:
        """The finder that was given, or the processor's with the index that other processes may have changed."""
        if self._given_finder is not None:
            return self._given_finder
        self.processor.finder = self.processor.finder.with_newest_index()
        return self.processor.finder

    @torch.no_grad()
    def predict(
        self, inputs: Sequence[str], options: AnswerOptions, *, inputs_before: int = 0
    ) -> list[AnswerPrediction]:
        if not inputs:
            return []
        finder = self.find_finder()  # one index for the call, whatever other threads do
        vectors, scores = self.processor.encode_questions(self.model, inputs, options.batch)
        cut = [cut_text(question) for question in inputs]
        empty = [not self.processor.tokenizer.normal(text).strip() for text, _ in cut]
        return finder.answer(vectors, scores, empty=empty, notes=[notes for _, notes in cut], best=options.best)

    @torch.no_grad()
    def evaluate(self, rows: Sequence[Row], options: AnswerOptions) -> Evaluation:
        """Scores of the model's answers; answers of pairs that the index lacks are candidates for the time being."""
        if self.processor.kind == "intents":
            return super().evaluate(rows, options)
        finder = self.find_finder()
        known = {*finder.index.answers.values()}
        right = [answer for _, answer in map(clean_pair, rows)]
        wanted = dict.fromkeys([*right, *([] if known else self.processor.candidates)])
        texts = [text for text in wanted if text and text not in known]
        vectors = self.processor.encode_entries(self.model, texts, options.batch).numpy()
        extended = QuestionAnswerer(self.processor, self.model, finder.with_answers(texts, vectors))
        return Answerer.evaluate(extended, rows, options)

    def score(self, rows: Sequence[Row], predictions: Sequence[AnswerPrediction], options: AnswerOptions) -> Scores:
        right = [clean_pair(row)[1] for row in rows]
        return score_answers(right, predictions, unseen=self.processor.find_unseen(rows))

    def act(self, action: str, folder: Path, arguments: Sequence[str], as_json: bool) -> list[str]:
        """Runs one of the actions on the index in a model folder; returns the lines to print."""
        processor, model = self.processor, self.model

        def encode(texts: Sequence[str]) -> Vectors:
            return processor.encode_entries(model, texts).numpy()

        towers = processor.kind == "pairs"
        return run_action(action, folder, arguments, encode, read=processor.read, towers=towers, as_json=as_json)


class QuestionTracer(TaskTracer[QuestionAnswerer]):
    def traces(self, given: str, *, answer: str | None, options: AnswerOptions) -> list[Trace]:
        """A question, read once, or once for each window of a long one."""
        self.refuse_answer(answer)
        [prediction] = self.answerer.predict([given], options)
        (text, _), processor = cut_text(given), self.answerer.processor
        score = prediction.matches[0].score if prediction.known and prediction.matches else None
        parts = [AnswerPart(prediction.text, "", score)]
        return [
            Trace({"tokens": tokens}, (), prediction.text, False, prediction.notes, {"tokens": surfaces}, parts)
            for tokens, surfaces in surface_windows(processor.tokenizer, [text], processor.window)
        ]

    def run(self, trace: Trace) -> None:
        model = self.answerer.model
        model(torch.tensor([trace.reads["tokens"]], device=model.vocabulary.words.weight.device))
