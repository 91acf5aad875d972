"""Answers to questions, their scores and tables, and the forward pass that `look` repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
import torch

from clearhead.model import PooledEncoder
from clearhead.tasks.answerer import Evaluation, Scores, ScoringAnswerer
from clearhead.tasks.answers.answer_finder import AnswerFinder
from clearhead.tasks.answers.answer_processor import AnswerProcessor, clean_pair
from clearhead.tasks.answers.answer_settings import AnswerOptions, AnswerPrediction
from clearhead.tasks.answers.out_of_scope import area_under_curve
from clearhead.tasks.metrics import count_labels
from clearhead.tasks.text_windows import cut_text, surface_windows
from clearhead.tasks.trace import AnswerPart, TaskTracer, Trace
from clearhead.text import Row

REPORTED_ANSWERS = 30  # the worst ones
REPORTED_LETTERS = 60  # of an answer


class QuestionAnswerer(ScoringAnswerer[AnswerProcessor, PooledEncoder, str, AnswerOptions]):
    options = AnswerOptions

    def __init__(self, processor: AnswerProcessor, model: PooledEncoder, finder: AnswerFinder | None = None) -> None:
        super().__init__(processor, model)
        self._fixed_finder = finder

    def find_finder(self) -> AnswerFinder:
        """The finder of this answerer, or the processor's with the index that other processes may have changed."""
        if self._fixed_finder is not None:
            return self._fixed_finder
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
        notes = [notes for _, notes in cut]
        return finder.answer(vectors, scores, empty=empty, notes=notes, best=options.best, reject=options.reject)

    @torch.no_grad()
    def evaluate(self, rows: Sequence[Row], options: AnswerOptions) -> Evaluation:
        """Scores of the model's answers; answers of pairs that the index lacks are candidates for the time being."""
        if self.processor.kind == "intents":
            return super().evaluate(rows, options)
        finder = self.find_finder()
        right = [answer for _, answer in map(clean_pair, rows)]
        wanted = dict.fromkeys([*right, *([] if finder.index.texts else self.processor.candidates)])
        texts = [text for text in wanted if text and text not in finder.index.texts]
        vectors = self.processor.encode_entries(self.model, texts, options.batch).numpy()
        extended = QuestionAnswerer(self.processor, self.model, finder.with_answers(texts, vectors))
        return ScoringAnswerer.evaluate(extended, rows, options)

    def score(self, rows: Sequence[Row], predictions: Sequence[AnswerPrediction], options: AnswerOptions) -> Scores:
        right = [clean_pair(row)[1] for row in rows]
        return score_answers(right, predictions, unseen=self.processor.find_unseen(rows))


class QuestionTracer(TaskTracer[QuestionAnswerer]):
    def traces(self, request: str, *, answer: str | None, options: AnswerOptions) -> list[Trace]:
        """A question, read once, or once for each window of a long one."""
        self.refuse_answer(answer)
        [prediction] = self.answerer.predict([request], options)
        (text, _), processor = cut_text(request), self.answerer.processor
        score = prediction.matches[0].score if prediction.known and prediction.matches else None
        parts = [AnswerPart(prediction.text, "", score)]
        return [
            Trace({"tokens": tokens}, (), prediction.text, False, prediction.notes, {"tokens": surfaces}, parts)
            for tokens, surfaces in surface_windows(processor.tokenizer, [text], processor.window)
        ]

    def run(self, trace: Trace) -> None:
        model = self.answerer.model
        model(torch.tensor([trace.reads["tokens"]], device=model.vocabulary.words.weight.device))


def score_answers(
    right: Sequence[str], predictions: Sequence[AnswerPrediction], *, unseen: Collection[str] = ()
) -> Scores:
    """Accuracy, recall at 5 and mean reciprocal rank (of the first ten) over the questions that have an answer.

    They are of the best answers, whether or not the model would rather have said "I don't know". With out-of-scope
    questions (whose right answer is empty): AUROC of the detector in use, and the shares of answerable questions
    that were refused and of the others that were answered. Questions whose answers are `unseen`, which the model cannot
    give, are wrong in the first three scores. The others leave them out: to refuse them is neither right nor wrong.
    """
    pairs = list(zip(right, predictions, strict=True))
    ranks = np.array([_rank(text, prediction) for text, prediction in pairs if text] or [np.inf])
    scores: Scores = {
        "accuracy": round(float((ranks == 1).mean()), 4),
        "recall_at_5": round(float((ranks <= 5).mean()), 4),
        "mrr": round(float((1 / ranks).mean()), 4),
    }
    inside = [prediction for text, prediction in pairs if text and text not in unseen]
    outside = [prediction for text, prediction in pairs if not text]
    if outside and inside:
        in_scope, out_of_scope = (np.array([answer.in_scope for answer in part]) for part in (inside, outside))
        scores["auroc"] = round(area_under_curve(in_scope, out_of_scope), 4)
    if not all("mean" in answer.evidence for answer in predictions):  # nothing has a threshold before it is calibrated
        return scores
    if inside:
        scores["false_rejection_rate"] = round(float(np.mean([not answer.known for answer in inside])), 4)
    if outside:
        scores["false_acceptance_rate"] = round(float(np.mean([answer.known for answer in outside])), 4)
    return scores


def _rank(text: str, prediction: AnswerPrediction) -> float:
    texts = [match.text for match in prediction.matches]
    return float(texts.index(text) + 1) if text in texts else np.inf


def make_report(right: Sequence[str], predictions: Sequence[AnswerPrediction], *, unseen: Collection[str] = ()) -> str:
    """A table of the answers that are found worst, and the AUROC of every detector."""
    pairs = list(zip(right, predictions, strict=True))
    asked = [(text, prediction) for text, prediction in pairs if text]
    guesses = [prediction.matches[0].text if prediction.matches else "" for _, prediction in asked]
    counts = count_labels([[text] for text, _ in asked], [[guess] for guess in guesses])
    answers = sorted({*counts.wanted, *counts.predicted} - {""})
    table, refused = counts.table(answers), Counter(text for text, prediction in asked if not prediction.known)
    lines = [f"{'precision':>9}  {'recall':>6}  {'f1':>6}  {'refused':>7}  {'questions':>9}  answer"]
    for text in sorted(answers, key=lambda text: table[text].f1)[:REPORTED_ANSWERS]:
        precision, recall, f1, questions = table[text]
        shown = " ".join(text.split())
        shown = shown if len(shown) <= REPORTED_LETTERS else shown[: REPORTED_LETTERS - 1] + "…"
        lines.append(f"{precision:9.4f}  {recall:6.4f}  {f1:6.4f}  {refused[text]:7}  {questions:9}  {shown}")
    if len(answers) > REPORTED_ANSWERS:
        lines.append(f"… and {len(answers) - REPORTED_ANSWERS} answers that are found better")
    return "\n".join([*lines, *_detector_lines([pair for pair in pairs if pair[0] not in unseen])])


def _detector_lines(pairs: Sequence[tuple[str, AnswerPrediction]]) -> list[str]:
    inside = np.array([bool(text) for text, _ in pairs])
    if inside.all() or not inside.any() or not pairs[0][1].evidence:
        return []
    lines = ["", f"{'AUROC':>9}  detector of out-of-scope questions"]
    for name in pairs[0][1].evidence:
        scores = np.array([prediction.evidence[name] for _, prediction in pairs])
        lines.append(f"{area_under_curve(scores[inside], scores[~inside]):9.4f}  {name}")
    return lines
