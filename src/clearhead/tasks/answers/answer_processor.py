"""The stored part of answers: tokenizer, labels, the index of known answers; questions become examples.

Two kinds of data. Intents: few answers with many questions each, told apart by a classifier over the vector of a
question. Pairs: many answers, each seen a few times; one encoder gives vectors of questions and of answers (two towers
with shared weights), and those of a pair learn to be similar. In both an index of vectors lies in the model folder, to
which questions and answers can be added without training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention import Mask
from clearhead.errors import DataError
from clearhead.model import ModelConfig, PooledEncoder
from clearhead.tasks.answers.answer_finder import AnswerFinder
from clearhead.tasks.answers.answer_settings import UNKNOWN, AnswerSettings, AnswersRecipe
from clearhead.tasks.losses import check_finite
from clearhead.tasks.pretrained import Pretrained
from clearhead.tasks.processor import Examples, Processor, RowCheck, TextExamples
from clearhead.tasks.text_windows import cut_text, enclose, padded_batches, text_windows, window_size
from clearhead.text import Report, Row, Tokenizer
from clearhead.text.batches import Batch, Ragged
from clearhead.text.report import Flaw

INTENT_QUESTIONS = 4  # questions to an answer, on average, from which on answers are intents
CANDIDATES = 1000  # training answers among which those of dev are searched before there is an index
BATCH_TOKENS = 4096  # of a batch in prediction, pads included
OUT_OF_SCOPE = -1  # the answer's number of a question that has none
UNSEEN = Flaw(
    "row with an answer that is not in the training data, counted as wrong",
    "rows with an answer that is not in the training data, counted as wrong",
)


class AnswerPairs(NamedTuple):
    """A batch of pairs: questions, their answers, and hard negatives: wrong answers that are similar."""

    tokens: Tensor
    lengths: Tensor
    answer_tokens: Tensor
    answer_lengths: Tensor
    answers: Tensor  # number of each question's answer
    negative_tokens: Tensor
    negative_lengths: Tensor
    negatives: Tensor  # number of each negative


class AnswerExamples(Examples[AnswerPairs]):
    """Questions and distinct answers as tokens; `negatives` has the numbers of wrong answers for each question.

    The number of an answer is its position in `distinct`, and -1 for a question out of scope. The negatives change
    during training and are stored in checkpoints: they are the `state` of the examples.
    """

    on_device = ("questions", "texts", "answers")

    def __init__(
        self,
        questions: Sequence[Sequence[int]],
        answers: Sequence[int],
        texts: Mapping[str, Sequence[int]],
        rows: list[Row],
        *,
        pad: int,
        negatives: int,
    ) -> None:
        self.questions, self.answers, self.rows, self.pad = Ragged(questions), torch.tensor(answers), rows, pad
        # The last text stands for the answer of a question that has none.
        self.distinct = list(texts)
        self.texts = Ragged([*texts.values(), [pad]])
        self._text_of = np.where(np.array(answers) == OUT_OF_SCOPE, len(texts), np.array(answers))
        self._sizes = self.texts.lengths.numpy().copy()
        self.lengths = np.stack([self.questions.lengths.numpy(), self._sizes[self._text_of]], axis=1)
        self.counts = np.ones(len(answers), dtype=np.int64)
        # They are mined before the first epoch; there are none where all questions have the same answer.
        self.negatives = torch.zeros(len(answers), max(0, min(negatives, len(texts) - 1)), dtype=torch.long)

    def collate(self, batch: Batch) -> AnswerPairs:
        device = self.answers.device
        rows = torch.from_numpy(batch.examples).to(device, non_blocking=True)
        questions = self.questions.pad(rows, batch.sizes[0], self.pad)
        right = torch.from_numpy(self._text_of[batch.examples]).to(device, non_blocking=True)
        answers = self.texts.pad(right, batch.sizes[1], self.pad)
        numbers = self.negatives[batch.examples].flatten()
        size = -(-int(self._sizes[numbers.numpy()].max(initial=1)) // 16) * 16  # rounded up: few shapes
        hard = numbers.to(device, non_blocking=True)
        return AnswerPairs(*questions, *answers, self.answers[rows], *self.texts.pad(hard, size, self.pad), hard)

    def fingerprint(self) -> str:
        parts = (self.questions, Ragged([(self.answers + 1).tolist()]), self.texts)
        return " ".join(part.fingerprint() for part in parts)

    def state(self) -> dict[str, Tensor]:
        return {"negatives": self.negatives}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.negatives = state["negatives"].cpu()


class AnswerProcessor(Processor[AnswersRecipe, Any]):
    columns = ("question", "answer")
    metric = "accuracy"
    added_tokens = 2
    default_shape = "tiny"
    tokenizer: Tokenizer

    stored_kind = AnswerSettings
    stored: AnswerSettings

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig, stored: AnswerSettings) -> None:
        super().__init__(tokenizer, config, stored)
        self.labels, self.kind = stored.labels, stored.kind
        self.candidates: list[str] = []  # of dev's questions during training, before there is an index
        self.finder = AnswerFinder(self.labels, config.width, stored.answers, stored.loss.temperature)
        self.finder.calibration = stored.calibration

    @property
    def settings(self) -> dict[str, Any]:
        return self.stored.model_copy(update={"calibration": self.finder.calibration}).model_dump()

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
        return cls(tokenizer, config, AnswerSettings(kind=kind, labels=sorted(answers) if kind == "intents" else []))

    def configure(self, recipe: AnswersRecipe) -> None:
        """A run finds its answers anew: the index is made when it ends."""
        self.store(loss=recipe.loss, answers=recipe.answers, longest=recipe.data.longest)
        self.finder = AnswerFinder(self.labels, self.config.width, recipe.answers, recipe.loss.temperature)
        self.chosen_settings = {"answers.kind": self.kind} if recipe.answers.kind == "auto" else {}

    def examples(self, rows: Iterable[Row], report: Report, recipe: AnswersRecipe | None = None) -> Examples[Any]:
        rows = list(rows)
        towers, pairs = self.kind == "pairs", [clean_pair(row) for row in rows]
        texts = tokenize_texts(self.tokenizer, (answer for _, answer in pairs if answer)) if towers else {}
        tokens_of = tokenize_texts(self.tokenizer, (question for question, _ in pairs))
        questions, answers, used = list[list[int]](), list[str](), list[Row]()
        for row, (question, answer) in zip(rows, pairs, strict=True):
            problem, flaws = self.check_row(row)
            if recipe is not None and problem is None:
                size = max(len(tokens_of[question]), len(texts.get(answer, ()))) - self.added_tokens
                unseen = "with an answer that is not in the training data" if flaws else None
                problem = unseen or recipe.data.find_excess(size)
            if report.admit(row, problem, flaws):
                questions.append(tokens_of[question])
                answers.append(answer)
                used.append(row)
        distinct = list(dict.fromkeys(answer for answer in answers if answer))
        if not distinct:
            raise DataError(f"no question with an answer is left to use: {report}")
        if recipe is not None:
            self.candidates = distinct[:CANDIDATES]
        numbers = {text: number for number, text in enumerate(distinct if towers else self.labels)}
        right, pad = [numbers.get(answer, OUT_OF_SCOPE) for answer in answers], self.tokenizer.pad
        if not towers:
            return TextExamples(questions, right, used, pad)
        candidates = {text: texts[text] for text in distinct}
        return AnswerExamples(questions, right, candidates, used, pad=pad, negatives=self.stored.answers.hard_negatives)

    def check_row(self, row: Row) -> RowCheck:
        if not self.tokenizer.normal(clean_pair(row)[0]).strip():
            return RowCheck("without a question")
        return RowCheck(flaws={UNSEEN: 1} if self.find_unseen([row]) else {})

    def find_unseen(self, rows: Sequence[Row]) -> set[str]:
        """The answers of these rows that the model cannot give; of pairs none, for evaluation adds them."""
        if self.kind == "pairs":
            return set()
        return {answer for _, answer in map(clean_pair, rows) if answer and not self.finder.has_answer(answer)}

    def answer_of(self, row: Row) -> str:
        return clean_pair(row)[1] or UNKNOWN

    def build(self) -> PooledEncoder:
        return PooledEncoder(self.config)

    def encode_questions(
        self, model: PooledEncoder, texts: Sequence[str], batch: int = 64
    ) -> tuple[Tensor, Tensor | None]:
        """Unit vectors of questions, and, for intents, the scores of all labels; on the CPU."""
        vectors = self.pool_texts(model, texts, batch)
        scores = model.label_scores(vectors).float().cpu() if self.kind == "intents" else None
        if scores is not None:
            check_finite(scores)
        return normalize(vectors).cpu(), scores

    def encode_entries(self, model: PooledEncoder, texts: Sequence[str], batch: int = 64) -> Tensor:
        """Unit vectors of the texts of an index, on the CPU."""
        return normalize(self.pool_texts(model, texts, batch)).cpu()

    @torch.no_grad()
    def pool_texts(self, model: PooledEncoder, texts: Sequence[str], batch: int = 64) -> Float[Tensor, "texts width"]:
        """Vectors of texts in float32, on the model's device: the mean over windows of long ones, cut by `cut_text`."""
        parts, owners, tokenizer = list[list[int]](), list[int](), self.tokenizer
        for number, tokens in enumerate(tokenizer.encode_all([cut_text(text)[0] for text in texts])):
            windows = text_windows([tokens], self.window, tokenizer.start, tokenizer.end)
            parts += windows
            owners += [number] * len(windows)
        device = model.vocabulary.words.weight.device
        total = torch.zeros(len(texts), model.config.width, device=device)
        counts = torch.zeros(len(texts), 1, device=device)
        for numbers, padded, lengths in padded_batches(parts, tokenizer.pad, device, tokens=BATCH_TOKENS, most=batch):
            vectors = pool_tokens(model, padded, lengths).float()
            rows = torch.tensor([owners[number] for number in numbers], device=device)
            sizes = lengths[:, None].float()
            total.index_add_(0, rows, vectors * sizes)
            counts.index_add_(0, rows, sizes)
        check_finite(total)
        return total / counts.clamp(min=1)

    @property
    def window(self) -> int:
        """The most tokens that the model reads at once, start and end included."""
        return window_size(self.config, self.stored.longest + self.added_tokens)

    def save(self, folder: Path) -> None:
        super().save(folder)
        self.finder.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> AnswerProcessor:
        processor = super().load(folder, config, settings)
        processor.finder.load(folder)
        return processor


def tokenize_texts(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, list[int]]:
    """The tokens of each different text, start and end included."""
    distinct = list(dict.fromkeys(texts))
    encoded = zip(distinct, tokenizer.encode_all(distinct), strict=True)
    return {text: enclose([tokens], tokenizer.start, tokenizer.end) for text, tokens in encoded}


def clean_pair(row: Row) -> tuple[str, str]:
    """Question and answer without white space around them."""
    question, answer = row.values
    return question.strip(), answer.strip()


def normalize(vectors: Tensor) -> Tensor:
    """Vectors of length one, in float32."""
    return F.normalize(vectors.float(), dim=-1)


def pool_tokens(
    model: PooledEncoder, tokens: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, "batch width"]:
    """The vector of each text of a padded batch."""
    return model.pool(model(tokens, mask=Mask.padding(lengths, queries=True)), lengths)
