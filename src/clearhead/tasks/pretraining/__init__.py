"""Pre-training on texts alone: masked words, denoising, or the next token."""

from clearhead.tasks.pretraining.denoising_examples import DenoisingExamples
from clearhead.tasks.pretraining.denoising_task import DenoisingPretraining
from clearhead.tasks.pretraining.masked_examples import MaskedExamples
from clearhead.tasks.pretraining.masked_task import MaskedPretraining
from clearhead.tasks.pretraining.next_token_task import NextTokenPretraining
from clearhead.tasks.pretraining.pretraining_task import Pretraining

__all__ = [
    "DenoisingExamples",
    "DenoisingPretraining",
    "MaskedExamples",
    "MaskedPretraining",
    "NextTokenPretraining",
    "Pretraining",
]
