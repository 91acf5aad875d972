"""Base classes of tasks that generate text: search settings, splitting and joining of long inputs, loop guards."""

from clearhead.tasks.sequence_to_sequence.generation import GeneratedText, SequenceToSequence
from clearhead.tasks.sequence_to_sequence.search import Decode, PartNumber, Search, SearchOptions
from clearhead.tasks.sequence_to_sequence.text_to_text import Loss, PairData, PairExamples, Pairs, PairText, TextToText

__all__ = [
    "Decode",
    "GeneratedText",
    "Loss",
    "PairData",
    "PairExamples",
    "PairText",
    "Pairs",
    "PartNumber",
    "Search",
    "SearchOptions",
    "SequenceToSequence",
    "TextToText",
]
