"""Pretraining: the task by its name in recipes, which learns from texts alone as the `objective` says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.errors import CheckpointError
from clearhead.formatting import suggest_name
from clearhead.model import ModelConfig
from clearhead.tasks.base import AnyTask
from clearhead.tasks.pretraining.denoising_task import DenoisingPretraining
from clearhead.tasks.pretraining.masked_task import MaskedPretraining
from clearhead.tasks.pretraining.next_token_task import NextTokenPretraining
from clearhead.tasks.pretraining.pretraining_settings import PretrainingRecipe
from clearhead.tasks.settings import Options

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.tasks.settings import TaskRecipe
    from clearhead.text import Row

OBJECTIVES: dict[str, type[AnyTask]] = {
    "masked": MaskedPretraining,
    "denoise": DenoisingPretraining,
    "next": NextTokenPretraining,
}


class Pretraining(MaskedPretraining):
    """What is common to all objectives; `prepare` and `load` give a task of the class that the objective names."""

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: TaskRecipe, start: Pretrained | None = None) -> AnyTask:  # type: ignore[override]
        assert isinstance(recipe, PretrainingRecipe)
        return OBJECTIVES[recipe.objective].prepare(rows, recipe, start)

    @classmethod
    def make_config(cls, recipe: TaskRecipe, start: Pretrained | None = None, **sizes: int) -> ModelConfig:
        assert isinstance(recipe, PretrainingRecipe)
        return OBJECTIVES[recipe.objective].make_config(recipe, start, **sizes)

    @classmethod
    def stacks(cls, recipe: TaskRecipe) -> tuple[str, ...]:
        assert isinstance(recipe, PretrainingRecipe)
        return OBJECTIVES[recipe.objective].stacks(recipe)

    @classmethod
    def option_kinds(cls) -> Sequence[type[Options]]:
        return [task.options for task in OBJECTIVES.values()]

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> AnyTask:  # type: ignore[override]
        name = settings.get("objective")
        if name not in OBJECTIVES:
            hint = suggest_name(str(name), list(OBJECTIVES))
            raise CheckpointError(f"the settings of {folder}: objective {name!r} is not known; {hint}")
        return OBJECTIVES[name].load(folder, config, settings)
