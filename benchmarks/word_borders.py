"""How well attention and CTC find the borders of words in a recording, where these are known.

Three ways: the times that `predict --json` gives (CTC's alignment, extended to where the sound falls silent); CTC's
alignment alone, from the first position of a word to its last one; and the heads of cross-attention, where a word
lasts from the quantile q of the mass of its tokens to 1 − q. For the last two a constant shift of begins and one of
ends are fitted, and head and q are chosen, on other strings than those that are scored.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from clearhead.decode import align_tokens
from clearhead.tasks.transcription.word_times import SpokenPart, group_words
from digit_strings import RATE, DigitString

QUANTILES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
Borders = NDArray[np.float64]  # (words, 2): begin and end of each, in seconds


def measure_borders(predictor: Any, other: Sequence[DigitString], test: Sequence[DigitString]) -> dict[str, Any]:
    """Median distances in milliseconds from the true borders: by CTC, and by the best head."""
    known = {"other": _true_borders(other), "test": _true_borders(test)}
    ctc = {part: _ctc_borders(predictor, strings) for part, strings in (("other", other), ("test", test))}
    heads = {part: _head_borders(predictor, strings) for part, strings in (("other", other), ("test", test))}
    scores = {
        name: _error(found, known["other"], _shift(found, known["other"])) for name, found in heads["other"].items()
    }
    best = min(scores, key=lambda name: scores[name])
    plain = np.zeros(2)
    return {
        "words": len(known["test"]),
        "words_ms": _error(_word_borders(predictor, test), known["test"], plain),
        "ctc_ms": _error(ctc["test"], known["test"], _shift(ctc["other"], known["other"])),
        "ctc_unshifted_ms": _error(ctc["test"], known["test"], plain),
        "head": f"{best[0]} head {best[1]}, quantile {best[2]}",
        "head_ms": _error(heads["test"][best], known["test"], _shift(heads["other"][best], known["other"])),
        "shift_ms": [round(1000 * float(value)) for value in _shift(ctc["other"], known["other"])],
    }


def _shift(found: Borders, known: Borders) -> Borders:
    return np.asarray(np.median(known - found, axis=0))


def _error(found: Borders, known: Borders, shift: Borders) -> float:
    return round(1000 * float(np.median(np.abs(found + shift - known))), 1)


def _true_borders(strings: Sequence[DigitString]) -> Borders:
    return np.array(list(itertools.chain.from_iterable(one.times for one in strings)))


def _align(predictor: Any, one: DigitString) -> SpokenPart:
    """The right text of a string with what CTC says about it."""
    request = predictor.answerer.begin(predictor.task.options())
    stretch = request.split((one.samples, RATE))[0]
    request.encode([stretch])
    return cast(SpokenPart, stretch.with_tokens(predictor.processor.target.encode(one.text)))


def _word_borders(predictor: Any, strings: Sequence[DigitString]) -> Borders:
    found = [predictor.processor.time_words(_align(predictor, one)) for one in strings]
    return np.array([(word.start, word.end) for words in found for word in words])


def _ctc_borders(predictor: Any, strings: Sequence[DigitString]) -> Borders:
    processor, found = predictor.processor, []
    for one in strings:
        part = _align(predictor, one)
        aligned = align_tokens(part.log_probs, part.tokens, blank=processor.blank)
        for _, places in group_words(part.tokens, processor.target.decode):
            borders = aligned[places[0]].begin, aligned[places[-1]].end
            found.append([processor.frame_times.begin_of_position(place) for place in borders])
    return np.array(found)


def _head_borders(predictor: Any, strings: Sequence[DigitString]) -> dict[tuple[str, int, float], Borders]:
    found: dict[tuple[str, int, float], list[tuple[float, float]]] = {}
    processor = predictor.processor
    for one in strings:
        record = predictor.look((one.samples, RATE), answer=one.text, norms=False)
        words = group_words(processor.target.encode(one.text), processor.target.decode)
        for name in record.names:
            if not name.endswith(".cross"):
                continue
            for head in range(record[name].entropy.shape[1]):
                weights = np.asarray(record[name].weights(batch=0, head=head))
                for _, places in words:
                    mass = weights[places].mean(0).cumsum()
                    for share in QUANTILES:
                        begin, end = _crossing(mass, share), _crossing(mass, 1 - share)
                        times = tuple(processor.frame_times.begin_of_position(place) for place in (begin, end))
                        found.setdefault((name, head, share), []).append(times)
    return {key: np.array(borders) for key, borders in found.items()}


def _crossing(mass: NDArray[np.float32], share: float) -> float:
    """The position, with its fraction, at which the cumulative mass reaches a share of all of it."""
    wanted = share * float(mass[-1])
    place = int(np.searchsorted(mass, wanted))
    before = float(mass[place - 1]) if place else 0.0
    return place + (wanted - before) / max(1e-9, float(mass[place]) - before)
