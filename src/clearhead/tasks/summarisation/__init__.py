"""Summarisation: a text to its summary, scored by ROUGE, and what the summary covers of the text."""

from clearhead.tasks.summarisation.summarisation_task import Summarisation, Summary

__all__ = ["Summarisation", "Summary"]
