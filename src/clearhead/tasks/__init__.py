"""The tasks that models are trained for, such as translation and classification; one module each."""

from clearhead.tasks.answers import Answers
from clearhead.tasks.base import AnyTask, Examples, Prediction, Task
from clearhead.tasks.captioning import Captioning
from clearhead.tasks.classification import Classification
from clearhead.tasks.language_model import LanguageModel
from clearhead.tasks.pretraining import Pretraining
from clearhead.tasks.summarisation import Summarisation
from clearhead.tasks.tagging import Tagging
from clearhead.tasks.transcription import Transcription
from clearhead.tasks.translation import Translation

TASKS: dict[str, type[AnyTask]] = {
    task.name: task
    for task in (
        Translation,
        Classification,
        Tagging,
        Answers,
        LanguageModel,
        Summarisation,
        Captioning,
        Pretraining,
        Transcription,
    )
}

__all__ = [
    "TASKS",
    "Answers",
    "AnyTask",
    "Captioning",
    "Classification",
    "Examples",
    "LanguageModel",
    "Prediction",
    "Pretraining",
    "Summarisation",
    "Tagging",
    "Task",
    "Transcription",
    "Translation",
]
