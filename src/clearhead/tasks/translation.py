"""Translation: pairs of sentences in two languages, and a model that turns one into the other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.attention import Mask
from clearhead.decode import Hypothesis, Writer, beam, greedy
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.model import EncoderDecoder, ModelConfig
from clearhead.tasks.losses import UNCOUNTED, token_loss
from clearhead.tasks.quantities import listed, lost_numbers
from clearhead.tasks.reading import Reading
from clearhead.tasks.scores import translation_scores
from clearhead.tasks.sentences import full_width, han_share, joined, loops, parts, sentence_count, shortened
from clearhead.tasks.task import Examples, Prediction, Task
from clearhead.text.batches import Batch, Ragged

if TYPE_CHECKING:
    from clearhead.text import Report, Row, Tokenizer


EMPTY = "with an empty side"
BROKEN = re.compile("\ufffd+")  # bytes that are no character
SHORTENED = "what the text repeats was read three times: the first try ran in circles"
ANEW = "written anew without repetition: the first try ran in circles"
BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "none")


class Pairs(NamedTuple):
    """A batch: the source with its end, what the target's decoder reads, and what it should write."""

    source: Tensor
    lengths: Tensor
    target: Tensor
    labels: Tensor


class _Search(NamedTuple):
    """How texts are looked for."""

    beams: int
    best: int
    batch: int
    length_penalty: float
    no_repeat_ngram: int = 0


class _Written(NamedTuple):
    """What was found for a part, best first; a note if the first try ran in circles."""

    hypotheses: list[Hypothesis]
    source: list[int]
    note: str | None = None


class PairExamples(Examples):
    def __init__(self, sources: list[list[int]], targets: list[list[int]], rows: list[Row], pad: int) -> None:
        self.source, self.target, self.rows, self.pad = Ragged(sources), Ragged(targets), rows, pad
        self.counts = self.target.lengths.numpy() - 1  # every word but the start is predicted
        self.lengths = np.stack([self.source.lengths.numpy(), self.counts], axis=1)

    def to(self, device: torch.device) -> PairExamples:
        self.source.to(device), self.target.to(device)
        return self

    def batch(self, batch: Batch) -> Pairs:
        rows = torch.from_numpy(batch.examples).to(self.source.flat.device, non_blocking=True)
        source, lengths = self.source.padded(rows, batch.sizes[0], self.pad)
        target, _ = self.target.padded(rows, batch.sizes[1] + 1, UNCOUNTED)
        read, written = target[:, :-1], target[:, 1:]
        return Pairs(source, lengths, read.masked_fill(read == UNCOUNTED, self.pad), written.contiguous())

    def where(self, example: int) -> str:
        return self.rows[example].where

    def fingerprint(self) -> str:
        return f"{self.source.fingerprint()} {self.target.fingerprint()}"


class Translation(Task):
    name = "translation"
    architecture = EncoderDecoder
    columns = ("source", "target")
    metrics = ("bleu", "chrf")
    metric = "bleu"
    defaults = {  # noqa: RUF012 (nobody changes it)
        "beam": 5,
        "length_penalty": 1.0,
        "part": 64,  # an input of more tokens is split at its sentences, and the answers are joined
        "sentences": 3,  # and so is one of more sentences: pairs to learn from seldom have as many
        "bleu_tokenizer": None,  # sacrebleu's; None: zh for Chinese, else 13a
    }

    def __init__(self, source: Tokenizer, target: Tokenizer, config: ModelConfig, settings: dict[str, Any]) -> None:
        self.source, self.target, self.config = source, target, config
        self.settings = {**self.defaults, **settings, "shared": source is target}
        self.token_loss = token_loss  # a trainer may put a compiled one here

    @classmethod
    def prepared(cls, rows: Sequence[Row], text: Any, shape: dict[str, Any], settings: dict[str, Any]) -> Translation:
        from clearhead.text import Tokenizer

        _check({**cls.defaults, **settings})
        kinds = {"kind": text.tokenizer, "script": text.script, "lowercase": text.lowercase}
        sources, targets = [row.values[0] for row in rows], [row.values[1] for row in rows]
        if text.shared:
            source = target = Tokenizer.train(chain(sources, targets), vocabulary=text.vocabulary, **kinds)
            sizes = {"vocabulary": target.size}
        else:
            source = Tokenizer.train(sources, vocabulary=text.source_vocabulary or text.vocabulary, **kinds)
            target = Tokenizer.train(targets, vocabulary=text.vocabulary, **kinds)
            sizes = {"vocabulary": target.size, "source_vocabulary": source.size}
        name = shape.get("shape", "classic")
        changes = {key: value for key, value in shape.items() if key != "shape"}
        chinese = han_share(targets[:1000]) > 0.3
        settings = {**settings, "bleu_tokenizer": settings.get("bleu_tokenizer") or ("zh" if chinese else "13a")}
        return cls(source, target, ModelConfig.named(name, **sizes, **changes), settings)

    def examples(self, rows: Iterable[Row], report: Report, limits: Any = None) -> PairExamples:
        rows = list(rows)
        sources = self.source.encode_all([row.values[0] for row in rows])
        targets = self.target.encode_all([row.values[1] for row in rows])
        end, kept = self.target.end, []
        for place, (row, source, target) in enumerate(zip(rows, sources, targets, strict=True)):
            if reason := _unfit(source, target, limits):
                report.drop(row, reason)
            else:
                report.keep()
                kept.append(place)
        if not kept:
            raise DataError(f"no pair is left to use\n{report}")
        return PairExamples(
            [[*sources[place], self.source.end] for place in kept],
            [[self.target.start, *targets[place], end] for place in kept],
            [rows[place] for place in kept],
            self.source.pad,
        )

    def loss(self, model: nn.Module, batch: Pairs, smoothing: float) -> Tensor:
        # The target needs no mask of its own: its pads come last, so causality hides them from every word.
        hidden = model(batch.source, batch.target, Mask.padding(batch.lengths))
        return self.token_loss(model.vocabulary, hidden, batch.labels, smoothing)  # type: ignore[arg-type]

    def predict(  # type: ignore[override]
        self,
        model: EncoderDecoder,
        inputs: Sequence[str],
        *,
        beams: int | None = None,
        best: int = 1,
        batch: int | None = None,
        length_penalty: float | None = None,
    ) -> list[Prediction]:
        """Translations of all inputs: empty in, empty out; one that is long, or of many sentences, is split at them."""
        beams = self.settings["beam"] if beams is None else beams
        penalty = self.settings["length_penalty"] if length_penalty is None else length_penalty
        _check_search(beams=beams, best=best, batch=64 if batch is None else batch, length_penalty=penalty)
        if not 1 <= best <= max(beams, 1):
            raise ConfigError(f"the best {best} of {beams} beams cannot be given; ask for at most as many as beams")
        if batch is not None and batch < 1:
            raise ConfigError(f"batch must be at least 1, got {batch}")
        how = _Search(beams, best, batch or 64, penalty)
        split = [self._parts(text) for text in inputs]
        found = iter(self._written(model, list(chain.from_iterable(split)), how))
        return [
            self._prediction(text, [next(found) for _ in pieces], best)
            for text, pieces in zip(inputs, split, strict=True)
        ]

    def evaluate(  # type: ignore[override]
        self,
        model: EncoderDecoder,
        rows: Sequence[Row],
        *,
        lowercase: bool = False,
        **options: Any,
    ) -> dict[str, float | str]:
        """BLEU and chrF of the pairs that have two sides; a `note` says which were left out, if any were."""
        if not isinstance(lowercase, bool):
            raise ConfigError(f"lowercase must be True or False, got {lowercase!r}")
        whole, report = self._whole(rows)
        outputs = self.predict(model, [row.values[0] for row in whole], **options)
        scores = translation_scores(
            [output.text for output in outputs],
            [row.values[1] for row in whole],
            tokenize=self.settings["bleu_tokenizer"],
            lowercase=lowercase,
        )
        return {**scores, "note": str(report)} if report.dropped else scores

    def _whole(self, rows: Sequence[Row]) -> tuple[list[Row], Report]:
        """The rows with two sides; nothing can be learned or scored without one of them."""
        from clearhead.text import Report

        whole: list[Row] = []
        report = Report()
        for row in rows:
            if self.source.normal(row.values[0]).strip() and self.target.normal(row.values[1]).strip():
                whole.append(row)
                report.keep()
            else:
                report.drop(row, EMPTY)
        if rows and not whole:
            raise DataError(f"no pair is left to score: {report}")
        return whole, report

    def readings(  # type: ignore[override]
        self, model: EncoderDecoder, text: str, *, answer: str | None = None, beams: int | None = None
    ) -> list[Reading]:
        """A text with its translation, part by part; with an answer given, all of it at once."""
        if answer is not None:
            source, target = self.source.encode(text), self.target.encode(answer)
            return [self._reading(source, target, answer, given=True)] if source else []
        pieces = self._parts(text)
        how = _Search(self.settings["beam"] if beams is None else beams, 1, 64, self.settings["length_penalty"])
        _check_search(beams=how.beams)
        found = self._written(model, pieces, how)
        notes = self._prediction(text, found, 1).notes
        return [
            self._reading(one.source, one.hypotheses[0].tokens, self._spelled(one.hypotheses[0]), notes=notes)
            for one in found
        ]

    def _reading(self, source: list[int], target: list[int], text: str, **known: Any) -> Reading:
        reads = {"source": [*source, self.source.end], "target": [self.target.start, *target]}
        return Reading(reads, [*target, self.target.end], text, **known)

    def read_through(self, model: EncoderDecoder, reading: Reading) -> Tensor:  # type: ignore[override]
        device = model.vocabulary.words.weight.device
        source, target = (torch.tensor([reading.reads[side]], device=device) for side in self.columns)
        scores: Tensor = model.logits(model(source, target))[0]
        return scores

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        return (self.source if kind == "source" else self.target).pieces(numbers)

    def _parts(self, text: str) -> list[list[int]]:
        """The input's tokens, as one part or split where they are too many; none if it is empty."""
        limit = self.settings["part"]
        tokens = self.source.encode(text)
        if len(tokens) <= limit and sentence_count(text) <= self.settings["sentences"]:
            return [tokens] if tokens else []
        return [part for part in parts(self.source.normal(text), self.source.encode, limit) if part]

    def _written(self, model: EncoderDecoder, pieces: list[list[int]], how: _Search) -> list[_Written]:
        """What the model writes for every piece. What runs in circles is written anew.

        First from a text that repeats nothing more than three times, where there is something to shorten; and if that
        does not help, without repetition.
        """
        found = [_Written(*both) for both in zip(self._decoded(model, pieces, how), pieces, strict=True)]
        for note, search in ((SHORTENED, how), (ANEW, how._replace(no_repeat_ngram=3))):
            circling = [place for place, one in enumerate(found) if self._circles(one.hypotheses[0], one.source)]
            shorter = {place: shortened(pieces[place], self._digits[0]) for place in circling}
            if note == SHORTENED:
                shorter = {place: source for place, source in shorter.items() if source != pieces[place]}
            again = self._decoded(model, list(shorter.values()), search)
            for (place, source), better in zip(shorter.items(), again, strict=True):
                found[place] = _Written(better, source, note)
        return found

    def _circles(self, hypothesis: Hypothesis, source: list[int]) -> bool:
        """Whether a text repeats itself for no reason: 1,000,000 has one, and so has what the source repeats, too."""
        if not hypothesis.finished:
            return loops(hypothesis.tokens)
        words = [token for token in hypothesis.tokens if token not in self._digits[1]]
        return loops(words) and (not loops(source) or len(hypothesis.tokens) > len(source) + 8)

    @cached_property
    def _digits(self) -> tuple[set[int], set[int]]:
        """The tokens of digits, in the source and in the target."""
        source, target = (
            {token for digit in "0123456789" for token in side.encode(digit)} for side in (self.source, self.target)
        )
        return source, target

    def _decoded(self, model: EncoderDecoder, pieces: list[list[int]], how: _Search) -> list[list[Hypothesis]]:
        """Batches of similar length, longest first: what does not fit into memory fails at once."""
        order = sorted(range(len(pieces)), key=lambda place: -len(pieces[place]))
        device = model.vocabulary.words.weight.device
        found: list[list[Hypothesis]] = [[] for _ in pieces]
        for begin in range(0, len(order), how.batch):
            rows = order[begin : begin + how.batch]
            source = Ragged([[*pieces[row], self.source.end] for row in rows])
            lengths = source.lengths
            padded, _ = source.padded(torch.arange(len(rows)), int(lengths.max()), self.source.pad)
            writer = Writer.translating(model, padded.to(device), lengths.to(device))
            common: dict[str, Any] = {"start": self.target.start, "end": self.target.end}
            common["max_length"] = [2 * int(length) + 10 for length in lengths]
            common["no_repeat_ngram"] = how.no_repeat_ngram
            if how.beams == 1:
                written = [[one] for one in greedy(writer, **common)]
            else:
                written = beam(writer, beams=how.beams, best=how.best, length_penalty=how.length_penalty, **common)
            for row, hypotheses in zip(rows, written, strict=True):
                found[row] = hypotheses
        return found

    def _prediction(self, text: str, found: list[_Written], best: int) -> Prediction:
        """One answer from those of all parts; scores are log-probabilities per token, whatever the search ranked by."""
        if not found:
            return Prediction("", None, [], [])
        firsts = [one.hypotheses[0] for one in found]
        texts = [self._spelled(first) for first in firsts]
        length = sum(len(first.tokens) + 1 for first in firsts)
        score = sum(first.log_probability for first in firsts) / length
        notes = [] if len(found) == 1 else [f"translated in {len(found)} parts"]
        if len(found) > 1 and best > 1:
            notes[0] += ", so there are no alternatives to the whole"
        notes += [note for note in (SHORTENED, ANEW) if any(one.note == note for one in found)]
        if any(not first.finished for first in firsts):
            notes.append("the translation was cut off at its longest length")
        if "\ufffd" in "".join(texts) and "\ufffd" not in text:
            notes.append("the model wrote bytes that are no character, shown as \ufffd")
        if missing := sum(not text for text in texts):
            notes.append("the model wrote nothing" + (f" for {missing} of the parts" if len(found) > 1 else ""))
        elif lost := lost_numbers(text, joined(texts)):
            notes.append(f"numbers of the text are missing in the translation: {listed(lost)}")
        others = [] if len(found) > 1 else found[0].hypotheses[1:best]
        ranked = [(self._spelled(one), one.log_probability / (len(one.tokens) + 1)) for one in others]
        return Prediction(joined(texts), score, ranked, notes)

    def _spelled(self, hypothesis: Hypothesis) -> str:
        text = BROKEN.sub("\ufffd", self.target.decode(hypothesis.tokens))
        return full_width(text) if self.settings["bleu_tokenizer"] == "zh" else text

    def save(self, folder: Path) -> None:
        if self.source is self.target:
            self.target.save(folder)
        else:
            self.source.save(folder, "source-tokenizer")
            self.target.save(folder, "target-tokenizer")

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Translation:
        from clearhead.text import Tokenizer

        try:
            _check({**cls.defaults, **settings})
        except ConfigError as error:
            raise CheckpointError(f"the settings of {folder} make no sense: {error}") from None
        if settings.get("shared", True):
            source = target = Tokenizer.load(folder)
        else:
            source = Tokenizer.load(folder, "source-tokenizer")
            target = Tokenizer.load(folder, "target-tokenizer")
        sizes, wanted = (source.size, target.size), (config.source_vocabulary or config.vocabulary, config.vocabulary)
        if sizes != wanted:
            raise CheckpointError(
                f"the tokenizers of {folder} are not its model's: they know {sizes[0]} and {sizes[1]} tokens, "
                f"the model {wanted[0]} and {wanted[1]}"
            )
        return cls(source, target, config, settings)


def _check(settings: dict[str, Any]) -> None:
    """Refuses what a recipe's [decode] cannot mean, before hours are spent on training."""
    for name in ("beam", "part", "sentences"):
        value = settings[name]
        if type(value) is not int or value < 1:
            raise ConfigError(f"decode.{name} must be a whole number of at least 1, got {value!r}")
    penalty, tokenizer = settings["length_penalty"], settings["bleu_tokenizer"]
    if type(penalty) not in (int, float) or not math.isfinite(penalty):
        raise ConfigError(f"decode.length_penalty must be a number, got {penalty!r}")
    # Others of sacrebleu's want further packages, or download a model.
    if tokenizer not in (None, *BLEU_TOKENIZERS):
        raise ConfigError(f"decode.bleu_tokenizer: choose from {', '.join(BLEU_TOKENIZERS)}, not {tokenizer!r}")


def _check_search(*, length_penalty: Any = 1.0, **counts: Any) -> None:
    """Refuses options of a search that are of the wrong kind."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
    if isinstance(length_penalty, bool) or not isinstance(length_penalty, Real):
        raise ConfigError(f"length_penalty must be a number, got {length_penalty!r}")


def _unfit(source: list[int], target: list[int], limits: Any) -> str | None:
    """Why a pair cannot be trained on, or None."""
    if not source or not target:
        return EMPTY
    if limits is None:
        return None
    if max(len(source), len(target)) > limits.longest:
        return f"longer than {limits.longest} tokens"
    ratio = max(len(source), len(target)) / min(len(source), len(target))
    if limits.ratio and ratio > limits.ratio and max(len(source), len(target)) > 10:
        return f"with sides that differ more than {limits.ratio:g} times in length"
    return None
