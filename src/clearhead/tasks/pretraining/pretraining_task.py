"""Pre-training on texts alone: masked words, denoising, or the next token, as the recipe's `objective` says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.model import ModelConfig
from clearhead.tasks.language_model.language_processor import LanguageProcessor
from clearhead.tasks.language_model.language_task import TASK as LANGUAGE_MODEL
from clearhead.tasks.pretraining.denoising_task import DENOISING
from clearhead.tasks.pretraining.masked_task import MASKED
from clearhead.tasks.pretraining.pretraining_settings import PretrainingRecipe

if TYPE_CHECKING:
    from typing import Self


class NextTokenProcessor(LanguageProcessor):
    """`objective = "next"`: all as of the task language-model."""

    @property
    def settings(self) -> dict[str, Any]:
        return {"objective": "next", **super().settings}

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Self:
        return super().load(folder, config, {key: value for key, value in settings.items() if key != "objective"})


NEXT = replace(LANGUAGE_MODEL, name="pretraining", recipe=PretrainingRecipe, processor=NextTokenProcessor)

TASK = replace(MASKED, variants={"masked": MASKED, "denoise": DENOISING, "next": NEXT})
