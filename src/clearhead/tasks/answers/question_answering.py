"""Answers: finds the best known answer to a question, and says "I don't know" where there is none.

Two kinds of data. Intents: few answers with many questions each, told apart by a classifier over the vector of a
question. Pairs: many answers, each seen a few times; one encoder gives vectors of questions and of answers (two towers
with shared weights), and those of a pair learn to be similar. In both an index of vectors lies in the model folder, to
which questions and answers can be added without training.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import CheckpointError, DataError
from clearhead.formatting import format_count
from clearhead.model import ModelConfig, PooledEncoder
from clearhead.tasks.answers.answer_finder import AnswerFinder
from clearhead.tasks.answers.answer_index import Entry
from clearhead.tasks.answers.answer_scores import make_report, score_answers
from clearhead.tasks.answers.answer_settings import (
    UNKNOWN,
    AnswerOptions,
    AnswerPrediction,
    AnswersLoss,
    AnswersRecipe,
    AnswersSection,
)
from clearhead.tasks.answers.contrastive_losses import (
    OUT_OF_SCOPE,
    intent_loss,
    mix_questions,
    pair_loss,
    question_contrast,
    uniform_loss,
)
from clearhead.tasks.answers.hard_negatives import mine_negatives
from clearhead.tasks.answers.index_actions import ACTIONS, Encode, carry_changes, run_action
from clearhead.tasks.answers.out_of_scope import Calibration
from clearhead.tasks.answers.question_examples import PairExamples, Pairs, QuestionExamples, Questions
from clearhead.tasks.answers.text_vectors import encode_texts, pool_tokens
from clearhead.tasks.base import Baseline, Evaluation, Examples, Scores, Task
from clearhead.tasks.finite_scores import check_finite
from clearhead.tasks.label_tables import count_confusions
from clearhead.tasks.losses import consistency_loss
from clearhead.tasks.settings import TaskRecipe
from clearhead.tasks.text_windows import cut_text, enclose, surface_windows, window_size
from clearhead.tasks.trace import AnswerPart, Trace
from clearhead.text.report import Flaw

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Row, Tokenizer

MANY = 4  # questions to an answer, on average, from which on answers are intents
CANDIDATES = 1000  # training answers among which those of dev are searched before there is an index
HELD_OUT = 10  # without dev, every so many-th training question stands in for it
FEWEST_REJECTED = 5  # questions of dev below the threshold: with fewer it is a matter of chance
UNSEEN = Flaw(
    "row with an answer that is not in the training data, counted as wrong",
    "rows with an answer that is not in the training data, counted as wrong",
)


class Answers(Task[PooledEncoder, str, Any, AnswerOptions]):
    name = "answers"
    recipe = AnswersRecipe
    options = AnswerOptions
    columns = ("question", "answer")
    metrics = ("accuracy", "recall_at_5", "mrr")
    metric = "accuracy"
    added_tokens = 2
    default_shape = "tiny"
    splits_batches = False  # negatives come from the same batch
    actions = MappingProxyType(ACTIONS)

    def __init__(self, tokenizer: Tokenizer, labels: Sequence[str], config: ModelConfig, *, kind: str) -> None:
        self.tokenizer, self.labels, self.config, self.kind = tokenizer, list(labels), config, kind
        self.candidates: list[str] = []
        self.losses, self.section = AnswersLoss(), AnswersSection()
        self.longest = 0  # tokens of a text in training; 0: not known
        self.finder = self._make_finder()

    def _make_finder(self) -> AnswerFinder:
        return AnswerFinder(self.labels, self.config.width, self.section, self.losses.temperature)

    @property
    def settings(self) -> dict[str, Any]:
        found = self.finder.calibration
        calibration = None if found is None else found.to_json()
        section, loss = self.section.model_dump(), self.losses.model_dump()
        own = {"kind": self.kind, "labels": self.labels, "longest": self.longest}
        return {**own, "answers": section, "loss": loss, "calibration": calibration}

    # Data

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: TaskRecipe, start: Pretrained | None = None) -> Answers:
        assert isinstance(recipe, AnswersRecipe)
        pairs = [_clean(row) for row in rows]
        answers = list(dict.fromkeys(answer for question, answer in pairs if question and answer))
        if len(answers) < 2:
            said = f"the only one is {answers[0]!r:.60}" if answers else "all are empty"
            raise DataError(f"at least two different answers are needed; {said}")
        kind = recipe.answers.kind
        if kind == "auto":
            kind = "intents" if sum(bool(answer) for _, answer in pairs) >= MANY * len(answers) else "pairs"
        texts = (text for pair in pairs for text in (pair if kind == "pairs" else pair[:1]))
        tokenizer = recipe.text.make_tokenizer(texts, start)
        config = cls.make_config(recipe, start, vocabulary=tokenizer.size)
        config = config.change(labels=len(answers) if kind == "intents" else None)
        return cls(tokenizer, sorted(answers) if kind == "intents" else [], config, kind=kind)

    def configure(self, recipe: TaskRecipe) -> None:
        assert isinstance(recipe, AnswersRecipe)
        self.losses, self.section, self.longest = recipe.loss, recipe.answers, recipe.data.longest
        self.finder = self._make_finder()

    def chosen_settings(self) -> dict[str, str]:
        chosen, calibration = dict[str, str](), self.finder.calibration
        if self.section.kind == "auto":
            chosen["answers.kind"] = self.kind
        if self.section.detector == "auto" and calibration is not None:
            chosen["answers.detector"] = calibration.detector
        return chosen

    def examples(self, rows: Iterable[Row], report: Report, recipe: TaskRecipe | None = None) -> Examples[Any]:
        rows = list(rows)
        longest = recipe.data.longest if isinstance(recipe, AnswersRecipe) else None
        towers, pairs = self.kind == "pairs", [_clean(row) for row in rows]
        distinct = list(dict.fromkeys(answer for _, answer in pairs if answer))
        texts = dict(zip(distinct, self._tokenize(distinct), strict=True)) if towers else {}
        kept: list[tuple[list[int], str, Row]] = []
        for row, (_, answer), tokens in zip(rows, pairs, self._tokenize([pair[0] for pair in pairs]), strict=True):
            size = max(len(tokens), len(texts.get(answer, ()))) - self.added_tokens
            flaws = self.find_flaws(row)
            if problem := self.row_problem(row):
                report.drop(row, problem)
            elif flaws and recipe is not None:
                report.drop(row, "with an answer that is not in the training data")
            elif longest is not None and size > longest:
                report.drop(row, f"longer than {longest} tokens")
            else:
                report.keep()
                for flaw, count in flaws.items():
                    report.add_flaw(row, flaw, count)
                kept.append((tokens, answer, row))
        used = dict.fromkeys(answer for _, answer, _ in kept if answer)
        if not used:
            raise DataError(f"no question with an answer is left to use: {report}")
        if recipe is not None:
            self.candidates = list(used)[:CANDIDATES]
        numbers = {text: number for number, text in enumerate(used if towers else self.labels)}
        answers = [numbers.get(answer, OUT_OF_SCOPE) for _, answer, _ in kept]
        questions, own, pad = [tokens for tokens, *_ in kept], [row for *_, row in kept], self.tokenizer.pad
        if not towers:
            return QuestionExamples(questions, answers, own, pad)
        known = {text: texts[text] for text in used}
        return PairExamples(questions, answers, known, own, pad=pad, negatives=self.section.hard_negatives)

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        ends = (self.tokenizer.start, self.tokenizer.end)
        return [enclose([tokens], *ends) for tokens in self.tokenizer.encode_all(texts)]

    def row_problem(self, row: Row) -> str | None:
        return None if self.tokenizer.normal(_clean(row)[0]).strip() else "without a question"

    def contradict(self, rows: Sequence[Row]) -> bool:
        """Pairs may have several answers to a question, but it is not out of scope then."""
        answers = {_clean(row)[1] for row in rows}
        return len(answers) > 1 and (self.kind == "intents" or "" in answers)

    def find_flaws(self, row: Row) -> dict[Flaw, int]:
        return {UNSEEN: 1} if self._find_unseen([row]) else {}

    def _find_unseen(self, rows: Sequence[Row]) -> set[str]:
        """The answers of these rows that the model cannot give; of pairs none, for evaluation adds them."""
        if self.kind == "pairs":
            return set()
        return {answer for _, answer in map(_clean, rows) if answer and not self.finder.has_answer(answer)}

    def answer_of(self, row: Row) -> str:
        return _clean(row)[1] or UNKNOWN

    # Model

    def build(self) -> PooledEncoder:
        return PooledEncoder(self.config)

    def loss(self, model: PooledEncoder, batch: Any) -> Float[Tensor, ""]:
        return self._pair_loss(model, batch) if self.kind == "pairs" else self._intent_loss(model, batch)

    def _intent_loss(self, model: PooledEncoder, batch: Questions) -> Tensor:
        settings, learning = self.losses, model.training
        twice = learning and settings.r_drop > 0
        tokens, lengths = (part.repeat(2, *[1] * (part.ndim - 1)) if twice else part for part in batch[:2])
        vectors = pool_tokens(model, tokens, lengths)
        scores = self._label_scores(model, vectors).float()
        answers = batch.answers.repeat(2) if twice else batch.answers
        smoothing, outliers = (settings.label_smoothing, settings.outliers) if learning else (0.0, 0.0)
        loss = intent_loss(scores, answers, smoothing=smoothing, outliers=outliers)
        if learning and settings.mixtures:
            mixed, different = mix_questions(vectors, answers)
            spread = uniform_loss(self._label_scores(model, mixed).float())
            loss = loss + settings.mixtures * spread.masked_fill(~different, 0.0).sum()
        if learning and settings.contrast:
            contrast = question_contrast(_normalize(vectors), answers, settings.temperature)
            loss = loss + settings.contrast * contrast
        if not twice:
            return loss
        one, other = scores.chunk(2)
        return loss / 2 + settings.r_drop * consistency_loss(one, other)

    def _pair_loss(self, model: PooledEncoder, batch: Pairs) -> Tensor:
        settings, learning = self.losses, model.training
        parts = [(batch.tokens, batch.lengths), (batch.answer_tokens, batch.answer_lengths)]
        if learning:
            parts.append((batch.negative_tokens, batch.negative_lengths))
        # One pass over all texts: what watches a model, and DDP, want one.
        size = max(tokens.shape[1] for tokens, _ in parts)
        tokens = torch.cat([F.pad(one, (0, size - one.shape[1]), value=self.tokenizer.pad) for one, _ in parts])
        vectors = _normalize(pool_tokens(model, tokens, torch.cat([lengths for _, lengths in parts])))
        count = len(batch.tokens)
        questions, answers, negatives = vectors[:count], vectors[count : 2 * count], vectors[2 * count :]
        numbers = batch.negatives[: len(negatives)]
        loss = pair_loss(
            questions,
            answers,
            negatives,
            batch.answers,
            numbers,
            temperature=settings.temperature,
            outliers=settings.outliers if learning else 0.0,
        )
        if learning and settings.contrast:
            loss = loss + settings.contrast * question_contrast(questions, batch.answers, settings.temperature)
        return loss

    def _label_scores(self, model: PooledEncoder, vectors: Tensor) -> Tensor:
        if self.section.head == "linear" or model.to_labels is None:
            return model.label_scores(vectors)
        weight, bias = model.to_labels.weight, model.to_labels.bias
        cosine = F.linear(F.normalize(model.dropout(vectors), dim=-1), F.normalize(weight, dim=-1))
        return cosine / self.losses.temperature + bias

    @torch.no_grad()
    def refresh(self, model: PooledEncoder, examples: Examples[Any], epoch: int) -> None:
        """Mines hard negatives for pairs with the weights at the beginning of an epoch."""
        if not isinstance(examples, PairExamples) or examples.negatives.shape[1] == 0:
            return
        if epoch % self.section.mine_every:
            return
        asked = [_clean(row)[0] for row in examples.rows]
        questions, answers = (_normalize(self._pooled_vectors(model, some)) for some in (asked, examples.distinct))
        count = examples.negatives.shape[1]
        examples.negatives = mine_negatives(questions, answers, examples.answers.to(answers.device), count).cpu()

    @torch.no_grad()
    def calibrate(self, model: PooledEncoder, train: Sequence[Row], dev: Sequence[Row]) -> str | None:
        """Builds the index, and chooses detector and threshold on dev.

        Without dev every tenth training question is used for that: the threshold is then too strict for new questions.
        """
        rest, dev = list(train), [row for row in dev if not self.find_flaws(row)]
        if not dev:
            dev, rest = rest[::HELD_OUT], [row for place, row in enumerate(rest) if place % HELD_OUT]
        self._fill_index(model, rest, dev)
        pairs = [_clean(row) for row in dev]
        vectors, scores = self._encode(model, [question for question, _ in pairs])
        self.finder.fit(vectors, scores, [answer for _, answer in pairs])
        if len(rest) < len(train):
            self._fill_index(model, train, dev)
        asked, reject = sum(bool(answer) for _, answer in pairs), self.section.reject
        if not reject or asked * reject >= FEWEST_REJECTED:
            return None
        return (
            f'the threshold of "I don\'t know" rests on {format_count(asked, "answerable question")}: too few for '
            f"reject = {reject:g}; give at least {math.ceil(FEWEST_REJECTED / reject):,} in dev, or set reject = 0"
        )

    def _fill_index(self, model: PooledEncoder, train: Sequence[Row], dev: Sequence[Row]) -> None:
        """Makes training questions known, and of pairs all answers, those of dev included, but not dev's questions."""
        pairs = list(dict.fromkeys(pair for pair in map(_clean, train) if all(pair)))
        answers = self.labels
        if self.kind == "pairs":
            answers = list(dict.fromkeys(answer for _, answer in [*pairs, *map(_clean, dev)] if answer))
        numbers = {text: number for number, text in enumerate(answers)}
        entries = [Entry(numbers[answer], answer, question) for question, answer in pairs]
        if self.kind == "pairs":
            entries += [Entry(number, text, None) for text, number in numbers.items()]
        self.finder.fill(entries, self._text_vectors(model, [entry.text for entry in entries]))

    @torch.no_grad()
    def carry_over(self, model: PooledEncoder, folder: Path) -> str | None:
        self.finder.index, message = carry_changes(folder, self.finder.index, self._make_encoder(model))
        return message

    def _make_encoder(self, model: PooledEncoder) -> Encode:
        """The function from texts to the vectors of the index."""
        return lambda texts: self._text_vectors(model, texts).numpy()

    def _text_vectors(self, model: PooledEncoder, texts: Sequence[str], batch: int = 64) -> Tensor:
        """Unit vectors of texts, on the CPU."""
        return _normalize(self._pooled_vectors(model, texts, batch)).cpu()

    def _pooled_vectors(self, model: PooledEncoder, texts: Sequence[str], batch: int = 64) -> Tensor:
        return encode_texts(model, self.tokenizer, texts, batch, limit=self._limit())

    def _limit(self) -> int:
        """The most tokens that the model reads at once, start and end included."""
        return window_size(self.config, self.longest + self.added_tokens)

    def _encode(self, model: PooledEncoder, texts: Sequence[str], batch: int = 64) -> tuple[Tensor, Tensor | None]:
        """Unit vectors of questions, and, for intents, the scores of all labels; on the CPU."""
        vectors = self._pooled_vectors(model, texts, batch)
        scores = self._label_scores(model, vectors).float().cpu() if self.kind == "intents" else None
        if scores is not None:
            check_finite(scores)
        return _normalize(vectors).cpu(), scores

    # Answers

    @torch.no_grad()
    def predict(self, model: PooledEncoder, inputs: Sequence[str], options: AnswerOptions) -> list[AnswerPrediction]:
        if not inputs:
            return []
        finder = self.finder = self.finder.with_newest_index()  # one index for the call, whatever other threads do
        vectors, scores = self._encode(model, inputs, options.batch)
        cut = [cut_text(given) for given in inputs]
        empty = [not self.tokenizer.normal(text).strip() for text, _ in cut]
        return finder.answer(vectors, scores, empty=empty, notes=[notes for _, notes in cut], best=options.best)

    def evaluate(self, model: PooledEncoder, rows: Sequence[Row], options: AnswerOptions) -> Evaluation:
        """Scores of a model's answers; answers of pairs that the index lacks are candidates for the time being."""
        if self.kind == "intents":
            return super().evaluate(model, rows, options)
        self.finder = self.finder.with_newest_index()
        own = {*self.finder.index.answers.values()}
        wanted = dict.fromkeys([*(answer for _, answer in map(_clean, rows)), *([] if own else self.candidates)])
        texts, there = [text for text in wanted if text and text not in own], copy.copy(self)
        with torch.no_grad():
            there.finder = self.finder.with_answers(texts, self._text_vectors(model, texts, options.batch).numpy())
        return super(Answers, there).evaluate(model, rows, options)

    def score(self, rows: Sequence[Row], predictions: Sequence[AnswerPrediction], options: AnswerOptions) -> Scores:
        return score_answers([_clean(row)[1] for row in rows], predictions, unseen=self._find_unseen(rows))

    def report(self, rows: Sequence[Row], predictions: Sequence[AnswerPrediction]) -> str:
        return make_report([_clean(row)[1] for row in rows], predictions, unseen=self._find_unseen(rows))

    def confusion(
        self, rows: Sequence[Row], predictions: Sequence[AnswerPrediction]
    ) -> tuple[list[str], NDArray[np.int64]]:
        """How often questions of one answer were given another, of the questions that have an answer."""
        pairs = [(_clean(row)[1], one.matches) for row, one in zip(rows, predictions, strict=True)]
        found = [(right, matches[0].text) for right, matches in pairs if right and matches]
        labels = sorted({text for pair in found for text in pair})
        return labels, count_confusions([right for right, _ in found], [given for _, given in found], labels)

    def baseline(self, train: Sequence[Row], rows: Sequence[Row]) -> Baseline:
        from clearhead.tasks.answers.retrieval_baselines import score_bm25, score_tf_idf

        simple = score_tf_idf if self.kind == "intents" else score_bm25
        return simple([_clean(row) for row in train], [_clean(row) for row in rows])

    def act(
        self, action: str, model: PooledEncoder, folder: Path, arguments: Sequence[str], *, as_json: bool = False
    ) -> list[str]:
        encode, towers = self._make_encoder(model), self.kind == "pairs"
        return run_action(action, folder, arguments, encode, read=self.read, towers=towers, as_json=as_json)

    # Attention

    def traces(self, model: PooledEncoder, given: str, *, answer: str | None, options: AnswerOptions) -> list[Trace]:
        """A question, read once, or once for each window of a long one."""
        if answer is not None:
            raise DataError("the task answers cannot use --answer; omit it")
        [prediction] = self.predict(model, [given], options)
        text, _ = cut_text(given)
        score = prediction.matches[0].score if prediction.known and prediction.matches else None
        parts = [AnswerPart(prediction.text, "", score)]
        return [
            Trace({"tokens": tokens}, (), prediction.text, False, prediction.notes, {"tokens": surfaces}, parts)
            for tokens, surfaces in surface_windows(self.tokenizer, [text], self._limit())
        ]

    def run_trace(self, model: PooledEncoder, trace: Trace) -> None:
        model(torch.tensor([trace.reads["tokens"]], device=model.vocabulary.words.weight.device))

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        return self.tokenizer.pieces(numbers)

    # Model folder

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder)
        self.finder.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Answers:
        from clearhead.text import Tokenizer

        tokenizer = Tokenizer.load(folder)
        try:
            kind, labels = settings["kind"], settings["labels"]
            task = cls(tokenizer, labels, config, kind=kind)
            task.longest = int(settings.get("longest", 0))
            task.section, task.losses = AnswersSection(**settings["answers"]), AnswersLoss(**settings["loss"])
            task.finder = task._make_finder()
            if settings["calibration"] is not None:
                task.finder.calibration = Calibration.from_json(settings["calibration"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the settings of {folder} are not those of answers: {error!r:.200}") from None
        if tokenizer.size != config.vocabulary or (config.labels or 0) != len(labels):
            raise CheckpointError(
                f"{folder} has {len(labels)} labels and {tokenizer.size} tokens, but its model {config.labels} and "
                f"{config.vocabulary}; copy the folder again"
            )
        task.finder.load(folder)
        return task


def _clean(row: Row) -> tuple[str, str]:
    """Question and answer without white space around them."""
    question, answer = row.values
    return question.strip(), answer.strip()


def _normalize(vectors: Tensor) -> Tensor:
    return F.normalize(vectors.float(), dim=-1)
