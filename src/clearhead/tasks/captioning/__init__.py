"""Captioning: pictures to short texts, scored by BLEU, chrF and exact matches."""

from clearhead.tasks.captioning.captioning_task import Captioning

__all__ = ["Captioning"]
