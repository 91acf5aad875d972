"""Tagging: finds the named entities of a text."""

from clearhead.tasks.tagging.tagged_text import Entity, TaggedText
from clearhead.tasks.tagging.tagging_task import Tagging

__all__ = ["Entity", "TaggedText", "Tagging"]
