"""Pre-training of a decoder on the next token: a language model under the name of the task pretraining."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from clearhead.model import ModelConfig
from clearhead.tasks.language_model import LanguageModel
from clearhead.tasks.language_model.language_settings import LanguageDecode
from clearhead.tasks.pretraining.pretraining_settings import PretrainingRecipe

if TYPE_CHECKING:
    from clearhead.tasks.settings import TaskRecipe


class NextTokenPretraining(LanguageModel):
    """`objective = "next"`: all as of the task language-model."""

    name = "pretraining"
    objective: ClassVar[str] = "next"
    recipe = PretrainingRecipe  # type: ignore[assignment]

    @property
    def settings(self) -> dict[str, Any]:
        return {"objective": self.objective, **super().settings}

    def configure(self, recipe: TaskRecipe) -> None:
        super().configure(recipe)
        assert isinstance(recipe, PretrainingRecipe)
        own = recipe.decode.model_dump(include=set(LanguageDecode.model_fields))  # without those of beam search
        self.decode = LanguageDecode(**own)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> LanguageModel:
        return super().load(folder, config, {key: value for key, value in settings.items() if key != "objective"})
