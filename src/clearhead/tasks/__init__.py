"""What models are trained for, one file a task."""

from clearhead.tasks.task import Examples, Prediction, Task
from clearhead.tasks.translation import Translation

TASKS: dict[str, type[Task]] = {task.name: task for task in (Translation,)}

__all__ = ["TASKS", "Examples", "Prediction", "Task", "Translation"]
