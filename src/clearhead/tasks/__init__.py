"""The tasks that models are trained for, such as translation and classification; one file or folder each.

A task is imported when it is first asked for: `TASKS` knows all names, and imports none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from clearhead.tasks.answerer import Prediction
from clearhead.tasks.task import Task

MODULES = {
    "translation": "translation",
    "classification": "classification.classification_task",
    "tagging": "tagging.tagging_task",
    "answers": "answers.answers_task",
    "language-model": "language_model.language_task",
    "summarisation": "summarisation",
    "captioning": "captioning.captioning_task",
    "pretraining": "pretraining.pretraining_task",
    "transcription": "transcription.transcription_task",
}


class TaskTable(Mapping[str, Task]):
    """All tasks by their names in recipes."""

    def __init__(self) -> None:
        self._loaded: dict[str, Task] = {}

    def add(self, task: Task) -> None:
        """Makes a task known that is declared outside this package."""
        self._loaded[task.name] = task

    def __getitem__(self, name: str) -> Task:
        if name not in self._loaded:
            task = import_module(f"clearhead.tasks.{MODULES[name]}").TASK
            assert task.name == name, f"{MODULES[name]} declares {task.name!r}, and MODULES calls it {name!r}"
            self._loaded[name] = task
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*MODULES, *self._loaded]))

    def __len__(self) -> int:
        return len({*MODULES, *self._loaded})


TASKS = TaskTable()

__all__ = ["TASKS", "Prediction", "Task", "TaskTable"]
