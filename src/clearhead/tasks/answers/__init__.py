"""Customer service: the best known answer to a question, or "I don't know"."""

from clearhead.tasks.answers.question_answering import Answers

__all__ = ["Answers"]
