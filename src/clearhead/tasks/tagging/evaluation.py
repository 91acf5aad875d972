"""What `evaluate` says beside the scores: flaws of the data, a confusion matrix, and a baseline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from clearhead.tasks.tagging.schemes import OUTSIDE, Span, read_tags
from clearhead.tasks.tagging.sentences import Sentence
from clearhead.text.report import Flaw

REPAIRED = Flaw(
    "tag out of sequence, repaired as conlleval reads it", "tags out of sequence, repaired as conlleval reads them"
)
MISPLACED = Flaw("entity that begins or ends inside a word", "entities that begin or end inside a word")
UNSEEN = Flaw(
    "entity with a label that is not in the training data, counted as missed",
    "entities with a label that is not in the training data, counted as missed",
)


def find_flaws(sentence: Sentence, labels: Collection[str]) -> dict[Flaw, int]:
    """What is wrong in a sentence that can be used all the same, and how often; `labels` are those of training."""
    strange = sum(span.label not in labels for span in sentence.entities)
    flaws = {REPAIRED: sentence.repairs, MISPLACED: sentence.misplaced, UNSEEN: strange}
    return {flaw: count for flaw, count in flaws.items() if count}


def count_confusions(
    sentences: Sequence[Sentence], predicted: Sequence[Iterable[Span]]
) -> tuple[list[str], NDArray[np.int64]]:
    """Labels, and how often a word in an entity of the one (rows) was given the other; "O" is outside of all."""
    pairs = Counter[tuple[str, str]]()
    for sentence, spans in zip(sentences, predicted, strict=True):
        wanted, found = (_word_labels(one, len(sentence.words)) for one in (sentence.entities, spans))
        pairs.update(zip(wanted, found, strict=True))
    names = [*sorted({name for pair in pairs for name in pair} - {OUTSIDE}), OUTSIDE]
    return names, np.array([[pairs[one, other] for other in names] for one in names], dtype=np.int64)


def _word_labels(spans: Iterable[Span], words: int) -> list[str]:
    labels = [OUTSIDE] * words
    for begin, end, label in spans:
        labels[begin:end] = [label] * (end - begin)
    return labels


def tag_by_frequency(train: Iterable[Sentence], sentences: Iterable[Sentence]) -> list[list[Span]]:
    """Entities by the tag that each word has most often in the training data; O for words that are not there."""
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in train:
        for word, tag in zip(sentence.word_texts(), sentence.tags("iob2"), strict=True):
            seen[word][tag] += 1
    likeliest = {word: min(tags, key=lambda tag: (-tags[tag], tag)) for word, tags in seen.items()}
    return [read_tags([likeliest.get(word, OUTSIDE) for word in one.word_texts()]) for one in sentences]
