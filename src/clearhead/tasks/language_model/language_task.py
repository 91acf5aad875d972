"""The task language-model: its loss on packed documents, and its declaration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import Mask
from clearhead.model import Decoder
from clearhead.tasks.answerer import AnyAnswerer, Evaluation
from clearhead.tasks.language_model.language_answerer import LanguageAnswerer, LanguageTracer
from clearhead.tasks.language_model.language_processor import LanguageProcessor
from clearhead.tasks.language_model.language_settings import LanguageModelRecipe
from clearhead.tasks.language_model.packed_examples import PackedExamples
from clearhead.tasks.losses import token_loss
from clearhead.tasks.objective import Objective
from clearhead.tasks.processor import Examples
from clearhead.tasks.task import Task
from clearhead.text.packed_documents import PackedRows

if TYPE_CHECKING:
    from clearhead.text import Row


class LanguageObjective(Objective[LanguageProcessor, LanguageModelRecipe, Decoder, PackedRows]):
    fixed_shapes = True

    def __init__(self, processor: LanguageProcessor, recipe: LanguageModelRecipe) -> None:
        super().__init__(processor, recipe)
        self.token_loss = token_loss

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

    def evaluate(self, answerer: AnyAnswerer, rows: Sequence[Row]) -> Evaluation:
        """A few texts are written, and nothing is scored: the trainer computes the loss itself."""
        assert isinstance(answerer, LanguageAnswerer)
        return answerer.write_samples(rows)


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
