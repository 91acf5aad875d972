"""Transcription: recordings of speech to texts, with the times of words."""

from clearhead.tasks.transcription.transcript import Transcript
from clearhead.tasks.transcription.transcription_task import Transcription

__all__ = ["Transcript", "Transcription"]
