"""Prepares a tagger from its data and settings: the window length, and what a model folder must hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.errors import CheckpointError
from clearhead.model import ModelConfig
from clearhead.tasks.tagging.schemes import OUTSIDE, list_tags
from clearhead.tasks.tagging.sentences import Sentence
from clearhead.tasks.tagging.tagging_examples import WordEncoder

if TYPE_CHECKING:
    from clearhead.text import Tokenizer

SHORTEST_WINDOW = 64  # pieces, even if all sentences of the training data are shorter


def choose_window(longest: int, config: ModelConfig, tokenizer: Tokenizer, sentences: Sequence[Sentence]) -> int:
    """How many pieces are read together: as many as training sentences have, within the limits.

    Beyond that a model would meet positions that it has never seen.
    """
    if config.positions == "learned":
        longest = min(longest, config.max_length - 2)
    encoder = WordEncoder(tokenizer, longest=longest, unknown=False)
    texts = [sentence.word_texts() for sentence in sentences]
    encoded = iter(encoder.encode([word for words in texts for word in words]))
    longest_sentence = max(sum(len(word.pieces) for word in islice(encoded, len(words))) for words in texts)
    return min(longest, max(longest_sentence, SHORTEST_WINDOW))


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuses a model folder whose settings are not those of a tagger."""
    kinds: dict[str, Any] = {
        "labels": list,
        "tags": str,
        "crf": bool,
        "letter_case": bool,
        "convolutions": int,
        "unknown": (int, float),
        "characters": bool,
        "scheme": (str, type(None)),
        "window": int,
    }
    wrong = [key for key, kind in kinds.items() if key not in settings or not isinstance(settings[key], kind)]
    if not wrong and settings["tags"] not in ("bioes", "iob2"):
        wrong = ["tags"]
    if not wrong:
        tags = [tag for tag in settings["labels"] if isinstance(tag, str)]
        types = {tag[2:] for tag in tags if tag != OUTSIDE}
        if not types or sorted(tags) != sorted(list_tags(sorted(types), settings["tags"])):
            wrong = ["labels"]
    if wrong:
        raise CheckpointError(f"the settings of {folder} are damaged: {', '.join(wrong)} missing or wrong")
