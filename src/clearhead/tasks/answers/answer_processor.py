"""The stored part of answers: tokenizer, labels, the index of known answers; questions become examples.

Two kinds of data. Intents: few answers with many questions each, told apart by a classifier over the vector of a
question. Pairs: many answers, each seen a few times; one encoder gives vectors of questions and of answers (two towers
with shared weights), and those of a pair learn to be similar. In both an index of vectors lies in the model folder, to
which questions and answers can be added without training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from clearhead.errors import CheckpointError, DataError
from clearhead.model import ModelConfig, PooledEncoder
from clearhead.tasks.answers.answer_finder import AnswerFinder
from clearhead.tasks.answers.answer_settings import UNKNOWN, AnswersLoss, AnswersRecipe, AnswersSection
from clearhead.tasks.answers.contrastive_losses import OUT_OF_SCOPE
from clearhead.tasks.answers.out_of_scope import Calibration
from clearhead.tasks.answers.question_examples import PairExamples, QuestionExamples
from clearhead.tasks.answers.text_vectors import encode_texts
from clearhead.tasks.finite_scores import check_finite
from clearhead.tasks.processor import Examples, Processor
from clearhead.tasks.text_windows import enclose, window_size
from clearhead.text.report import Flaw

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Row, Tokenizer

INTENT_QUESTIONS = 4  # questions to an answer, on average, from which on answers are intents
CANDIDATES = 1000  # training answers among which those of dev are searched before there is an index
UNSEEN = Flaw(
    "row with an answer that is not in the training data, counted as wrong",
    "rows with an answer that is not in the training data, counted as wrong",
)


class AnswerProcessor(Processor[AnswersRecipe, Any]):
    columns = ("question", "answer")
    metric = "accuracy"
    added_tokens = 2
    default_shape = "tiny"
    tokenizer: Tokenizer

    def __init__(
        self,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        config: ModelConfig,
        *,
        kind: str,
        section: AnswersSection | None = None,
        losses: AnswersLoss | None = None,
    ) -> None:
        self.tokenizer, self.labels, self.config, self.kind = tokenizer, list(labels), config, kind
        self.section, self.losses = section or AnswersSection(), losses or AnswersLoss()
        self.longest = 0  # tokens of a text in training; 0: not known
        self.candidates: list[str] = []  # of dev's questions during training, before there is an index
        self.finder = AnswerFinder(self.labels, config.width, self.section, self.losses.temperature)

    @property
    def settings(self) -> dict[str, Any]:
        found = self.finder.calibration
        calibration = None if found is None else found.to_json()
        section, loss = self.section.model_dump(), self.losses.model_dump()
        own = {"kind": self.kind, "labels": self.labels, "longest": self.longest}
        return {**own, "answers": section, "loss": loss, "calibration": calibration}

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: AnswersRecipe, start: Pretrained | None = None) -> AnswerProcessor:
        pairs = [clean_pair(row) for row in rows]
        answers = list(dict.fromkeys(answer for question, answer in pairs if question and answer))
        if len(answers) < 2:
            said = f"the only one is {answers[0]!r:.60}" if answers else "all are empty"
            raise DataError(f"at least two different answers are needed; {said}")
        kind = recipe.answers.kind
        if kind == "auto":
            kind = "intents" if sum(bool(answer) for _, answer in pairs) >= INTENT_QUESTIONS * len(answers) else "pairs"
        texts = (text for pair in pairs for text in (pair if kind == "pairs" else pair[:1]))
        tokenizer = recipe.text.make_tokenizer(texts, start)
        config = cls.make_config(recipe, start, vocabulary=tokenizer.size)
        config = config.change(labels={"count": len(answers)} if kind == "intents" else None)
        return cls(tokenizer, sorted(answers) if kind == "intents" else [], config, kind=kind)

    def configure(self, recipe: AnswersRecipe) -> None:
        """A run finds its answers anew: the index is made when it ends."""
        self.losses, self.section, self.longest = recipe.loss, recipe.answers, recipe.data.longest
        self.finder = AnswerFinder(self.labels, self.config.width, self.section, self.losses.temperature)
        self.chosen_settings = {"answers.kind": self.kind} if self.section.kind == "auto" else {}

    def examples(self, rows: Iterable[Row], report: Report, recipe: AnswersRecipe | None = None) -> Examples[Any]:
        rows = list(rows)
        longest = None if recipe is None else recipe.data.longest
        towers, pairs = self.kind == "pairs", [clean_pair(row) for row in rows]
        distinct = list(dict.fromkeys(answer for _, answer in pairs if answer))
        texts = dict(zip(distinct, _tokenize(self.tokenizer, distinct), strict=True)) if towers else {}
        tokenized = _tokenize(self.tokenizer, [question for question, _ in pairs])
        kept: list[tuple[list[int], str, Row]] = []
        for row, (_, answer), tokens in zip(rows, pairs, tokenized, strict=True):
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

    def row_problem(self, row: Row) -> str | None:
        return None if self.tokenizer.normal(clean_pair(row)[0]).strip() else "without a question"

    def contradict(self, rows: Sequence[Row]) -> bool:
        """Pairs may have several answers to a question, but it is not out of scope then."""
        answers = {clean_pair(row)[1] for row in rows}
        return len(answers) > 1 and (self.kind == "intents" or "" in answers)

    def find_flaws(self, row: Row) -> dict[Flaw, int]:
        return {UNSEEN: 1} if self.find_unseen([row]) else {}

    def find_unseen(self, rows: Sequence[Row]) -> set[str]:
        """The answers of these rows that the model cannot give; of pairs none, for evaluation adds them."""
        if self.kind == "pairs":
            return set()
        return {answer for _, answer in map(clean_pair, rows) if answer and not self.finder.has_answer(answer)}

    def answer_of(self, row: Row) -> str:
        return clean_pair(row)[1] or UNKNOWN

    def build(self) -> PooledEncoder:
        return PooledEncoder(self.config)

    def score_labels(self, model: PooledEncoder, vectors: Tensor) -> Tensor:
        """The scores (questions, labels) of vectors of questions, of intents."""
        if self.section.head == "linear" or model.to_labels is None:
            return model.label_scores(vectors)
        weight, bias = model.to_labels.weight, model.to_labels.bias
        cosine = F.linear(F.normalize(model.dropout(vectors), dim=-1), F.normalize(weight, dim=-1))
        return cosine / self.losses.temperature + bias

    def encode_questions(
        self, model: PooledEncoder, texts: Sequence[str], batch: int = 64
    ) -> tuple[Tensor, Tensor | None]:
        """Unit vectors of questions, and, for intents, the scores of all labels; on the CPU."""
        vectors = self.pool_texts(model, texts, batch)
        scores = self.score_labels(model, vectors).float().cpu() if self.kind == "intents" else None
        if scores is not None:
            check_finite(scores)
        return normalize(vectors).cpu(), scores

    def encode_entries(self, model: PooledEncoder, texts: Sequence[str], batch: int = 64) -> Tensor:
        """Unit vectors of the texts of an index, on the CPU."""
        return normalize(self.pool_texts(model, texts, batch)).cpu()

    def pool_texts(self, model: PooledEncoder, texts: Sequence[str], batch: int = 64) -> Tensor:
        """Vectors of texts, on the model's device."""
        return encode_texts(model, self.tokenizer, texts, batch, limit=self.window)

    @property
    def window(self) -> int:
        """The most tokens that the model reads at once, start and end included."""
        return window_size(self.config, self.longest + self.added_tokens)

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder)
        self.finder.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> AnswerProcessor:
        from clearhead.text import Tokenizer

        tokenizer = Tokenizer.load(folder)
        try:
            kind, labels = settings["kind"], settings["labels"]
            section, losses = AnswersSection(**settings["answers"]), AnswersLoss(**settings["loss"])
            processor = cls(tokenizer, labels, config, kind=kind, section=section, losses=losses)
            processor.longest = int(settings.get("longest", 0))
            if settings["calibration"] is not None:
                processor.finder.calibration = Calibration.from_json(settings["calibration"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the settings of {folder} are not those of answers: {error!r:.200}") from None
        if (len(labels), tokenizer.size) != (config.label_count, config.vocabulary):
            raise CheckpointError(
                f"{folder} has {len(labels)} labels and {tokenizer.size} tokens, but its model "
                f"{config.label_count} and {config.vocabulary}; copy the folder again"
            )
        processor.finder.load(folder)
        return processor


def _tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [enclose([tokens], tokenizer.start, tokenizer.end) for tokens in tokenizer.encode_all(texts)]


def clean_pair(row: Row) -> tuple[str, str]:
    """Question and answer without white space around them."""
    question, answer = row.values
    return question.strip(), answer.strip()


def normalize(vectors: Tensor) -> Tensor:
    """Vectors of length one, in float32."""
    return F.normalize(vectors.float(), dim=-1)
