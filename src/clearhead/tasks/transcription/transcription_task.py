"""Transcription: texts of recordings with the times of words, by a decoder and CTC together, and the task's loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention import Mask
from clearhead.audio import LogMelSettings, SoundPiece, compute_log_mel, mask_spectrogram, split_at_silence
from clearhead.decode import Hypothesis, JointWriter, ctc_beam_search, ctc_greedy
from clearhead.errors import ConfigError
from clearhead.model import SpeechModel
from clearhead.model.speech_model import count_positions
from clearhead.tasks.answerer import Scores
from clearhead.tasks.file_inputs import LoadedInput
from clearhead.tasks.losses import UNCOUNTED, token_loss
from clearhead.tasks.media import SoundInput
from clearhead.tasks.metrics import error_rates
from clearhead.tasks.objective import Objective
from clearhead.tasks.segmentation import has_loop
from clearhead.tasks.sequence_to_sequence.generation import (
    GeneratedText,
    Generation,
    GenerationTracer,
    ScoringGenerator,
    WrittenPart,
)
from clearhead.tasks.sequence_to_sequence.search import PartNumber, Search, SearchOptions
from clearhead.tasks.task import Task
from clearhead.tasks.trace import Trace
from clearhead.tasks.transcription.sound_examples import SpokenTexts
from clearhead.tasks.transcription.transcription_processor import (
    LONGEST_PIECE_SECONDS,
    Augmentation,
    TranscriptionOptions,
    TranscriptionProcessor,
    TranscriptionRecipe,
)
from clearhead.tasks.transcription.word_times import SpokenPart, TimedWord, find_spikes
from clearhead.text import Row

UNTIMED = "the times of words are unknown where CTC disagrees with the text"
PADDING_LOUDNESS = 0.1  # of the noise before and after a recording, as a share of the recording's own
PIECE_MARGIN = 1.2  # how many times the longest training recording a piece may last


@dataclass
class Stretch:
    """A piece of the recording `name` as frames; `log_probs` are CTC's, once it has been encoded."""

    frames: Float[Tensor, "frames mels"]
    piece: SoundPiece
    name: str
    log_probs: Float[Tensor, "positions vocabulary"] | None = None

    def with_tokens(self, tokens: Sequence[int]) -> SpokenPart:
        """The tokens that were written for it, with what their times are found by."""
        assert self.log_probs is not None
        loudness = self.frames.mean(1).cpu()
        smooth = F.avg_pool1d(loudness[None], 3, 1, 1, count_include_pad=False)[0]
        return SpokenPart(list(tokens), self.log_probs, smooth, self.piece)


@dataclass(frozen=True)
class Transcript(GeneratedText):
    """A transcribed recording; `words` are computed when they are asked for."""

    parts: Sequence[SpokenPart] = field(default=(), repr=False)
    processor: TranscriptionProcessor | None = field(default=None, repr=False)

    @cached_property
    def words(self) -> list[TimedWord]:
        """The words with their times in seconds; those of a part that CTC cannot align are left out."""
        return [word for words in self._timed for word in words or ()]

    @cached_property
    def _timed(self) -> list[list[TimedWord] | None]:
        return [] if self.processor is None else [self.processor.time_words(part) for part in self.parts]

    def to_json(self) -> dict[str, Any]:
        shown = super().to_json()
        words = [{"text": word.text, "start": round(word.start, 3), "end": round(word.end, 3)} for word in self.words]
        notes = shown["notes"] + ([UNTIMED] if None in self._timed else [])
        return {**shown, "words": words, "notes": notes}


def compute_frames(
    sound: Float[Tensor, "batch samples"],
    lengths: Int[Tensor, " batch"],
    settings: LogMelSettings,
    augmentation: Augmentation | None = None,
) -> tuple[Float[Tensor, "batch frames mels"], Int[Tensor, " batch"]]:
    """The log-mel frames of a padded batch, and how many each sound has; an `augmentation` adds noise and masks."""
    device = sound.device
    with torch.autocast(device.type, enabled=False):
        if augmentation is not None and augmentation.noise:
            level = sound.square().sum(1, keepdim=True) / lengths[:, None]
            share = torch.rand(len(sound), 1, device=device) * augmentation.noise
            sound = sound + torch.randn_like(sound) * level.sqrt() * share
        frames, counts = compute_log_mel(sound, lengths, settings)
        if augmentation is not None:
            frames = mask_spectrogram(frames, counts, augmentation, _default_generator(device))
    return frames, counts


def _default_generator(device: torch.device) -> torch.Generator:
    """The random generator of a device that the trainer seeds at every step."""
    if device.type != "cuda":
        return torch.default_generator
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]


class TranscriptionGeneration(Generation[TranscriptionProcessor, Any, Stretch]):
    """A part is a stretch of a recording. `ctc_weight` is that of CTC in the score: with 1 CTC answers alone."""

    output_name = "transcript"
    model: SpeechModel

    def __init__(self, processor: TranscriptionProcessor, model: SpeechModel, options: TranscriptionOptions) -> None:
        super().__init__(processor, model, options)
        self.ctc_weight = processor.stored.ctc_weight if options.ctc_weight is None else options.ctc_weight
        self.piece_seconds = processor.stored.piece_seconds or LONGEST_PIECE_SECONDS  # longer recordings are cut

    def whole(self, source: Any) -> list[Stretch]:
        recording = self.processor.inputs.load_input(source)
        stretches = self._cut(recording, len(recording.content) / self.processor.log_mel.rate + 1)
        self.encode(stretches)
        return stretches

    def split(self, source: Any) -> list[Stretch]:
        return self._cut(self.processor.inputs.load_input(source), self.piece_seconds)

    def _cut(self, recording: LoadedInput, longest: float) -> list[Stretch]:
        """The frames of a recording, in pieces of at most `longest` seconds, cut at silence; silent ones are out."""
        log_mel, samples = self.processor.log_mel, torch.from_numpy(recording.content)
        stretches = []
        for piece in split_at_silence(samples, log_mel.rate, longest=longest, shortest=min(1.0, longest / 2)):
            inside = samples[piece.begin : piece.end]
            if log_mel.frames(len(inside)) and bool((inside != inside[0]).any()):
                padded = self._pad_with_noise(inside)
                frames, _ = compute_frames(padded[None], torch.tensor([len(padded)]), log_mel)
                stretches.append(Stretch(frames[0], piece, recording.name))
        return stretches

    def _pad_with_noise(self, sound: Float[Tensor, " samples"]) -> Float[Tensor, " padded"]:
        """The sound with faint noise, which also lasts `padding_seconds` before and after it."""
        size = round(self.processor.stored.padding_seconds * self.processor.log_mel.rate)
        if not size:
            return sound
        padded = F.pad(sound, (size, size))
        noise = torch.randn(len(padded), generator=torch.Generator().manual_seed(0))
        return padded + noise * sound.square().mean().sqrt() * PADDING_LOUDNESS

    def part_length(self, part: Stretch) -> int:
        return len(part.frames)

    def output_limit(self, part: Stretch) -> int:
        return count_positions(len(part.frames), self.processor.stride) + 2

    def has_looped(self, hypothesis: Hypothesis, part: Stretch) -> bool:
        """People repeat themselves, above all in numbers: only an output without an end has looped."""
        return not hypothesis.finished and has_loop(hypothesis.tokens)

    def make_writer(self, parts: Sequence[Stretch]) -> JointWriter:
        context, positions = self.encode(parts)
        blank, end = self.processor.blank, self.target.end
        return JointWriter(self.model, context, positions, weight=self.ctc_weight, blank=blank, end=end)

    @torch.inference_mode()
    def encode(self, parts: Sequence[Stretch]) -> tuple[Tensor, Tensor]:
        """The encoder's hidden states of these parts, and their lengths; each part keeps its CTC log-probabilities."""
        device = self.model.vocabulary.words.weight.device
        frames = torch.nn.utils.rnn.pad_sequence([part.frames for part in parts], batch_first=True).to(device)
        lengths = torch.tensor([len(part.frames) for part in parts], device=device)
        context, positions = self.model.encode_sound(frames, lengths)
        log_probs = self.model.ctc_log_probs(context).cpu()
        for part, row, length in zip(parts, log_probs, positions.tolist(), strict=True):
            part.log_probs = row[:length]
        return context, positions

    def search_parts(
        self, parts: Sequence[Stretch], search: Search, prefixes: Sequence[list[int]], numbers: Sequence[PartNumber]
    ) -> list[list[Hypothesis]]:
        if self.ctc_weight < 1 or search.sampling_options is not None or any(prefixes):
            return super().search_parts(parts, search, prefixes, numbers)
        for begin in range(0, len(parts), search.batch):
            self.encode(parts[begin : begin + search.batch])
        log_probs = [part.log_probs for part in parts if part.log_probs is not None]
        blank, beams = self.processor.blank, search.beams
        if beams == 1:
            return [[ctc_greedy(of_part, blank=blank)] for of_part in log_probs]
        return [ctc_beam_search(of_part, beams=beams, best=search.best, blank=blank) for of_part in log_probs]

    def stream(self, source: Any, prefix: Sequence[int], number: int) -> Iterator[str]:
        if self.ctc_weight == 1:
            raise ConfigError("CTC alone has its answer only at the end and cannot stream it; use ctc_weight below 1")
        return super().stream(source, prefix, number)

    def join(self, source: Any, written: list[WrittenPart[Stretch]]) -> Transcript:
        plain = super().join(source, written)
        spoken = [stretch.part.with_tokens(stretch.hypotheses[0].tokens) for stretch in written]
        return Transcript(plain.text, plain.notes, plain.score, plain.alternatives, spoken, self.processor)


class TranscriptionAnswerer(ScoringGenerator[TranscriptionProcessor, Any]):
    options = TranscriptionOptions
    generation = TranscriptionGeneration
    model: SpeechModel

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> Scores:
        return error_rates([transcript.text for transcript in predictions], [str(row.values[1]) for row in rows])


class TranscriptionTracer(GenerationTracer[TranscriptionAnswerer, Any, Stretch]):
    def trace_source(self, part: Stretch) -> tuple[list[int], SoundInput]:
        assert part.log_probs is not None
        tokenizer, times = self.answerer.processor.target, self.answerer.processor.frame_times
        blank = self.answerer.processor.blank
        media = SoundInput(
            part.frames.cpu().numpy(),
            seconds=part.piece.end_seconds - part.piece.begin_seconds,
            frame_seconds=times.hop,
            position_seconds=times.hop * times.stride,
            spikes=find_spikes(part.log_probs, lambda token: tokenizer.pieces([token])[0], blank),
            name=part.name,
            start=part.piece.begin_seconds + times.first,
        )
        return list(range(len(part.log_probs))), media

    def traced_part(self, trace: Trace) -> Stretch:
        assert isinstance(trace.media, SoundInput)
        rate = self.answerer.processor.log_mel.rate
        piece = SoundPiece(0, round(trace.media.seconds * rate), rate)
        return Stretch(torch.tensor(trace.media.spectrogram), piece, trace.media.name)

    def run(self, trace: Trace) -> Float[Tensor, "tokens vocabulary"]:
        model = self.answerer.model
        device = model.vocabulary.words.weight.device
        frames = self.traced_part(trace).frames[None].to(device)
        context, _ = model.encode_sound(frames, torch.tensor([frames.shape[1]], device=device))
        hidden = model.decode(torch.tensor([trace.reads["target"]], device=device), context)
        return model.logits(hidden)[0]

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        processor = self.answerer.processor
        if kind == "target":
            return processor.target.pieces(numbers)
        return [f"{processor.frame_times.begin_of_position(number + 0.5):.2f} s" for number in numbers]


class TranscriptionObjective(Objective[TranscriptionProcessor, TranscriptionRecipe, SpeechModel, SpokenTexts]):
    def loss(self, model: SpeechModel, batch: SpokenTexts) -> Float[Tensor, ""]:
        settings = self.recipe.loss
        augmentation = self.recipe.augmentation if model.training else None
        frames, lengths = compute_frames(batch.sound, batch.lengths, self.processor.log_mel, augmentation)
        context, positions = model.encode_sound(frames, lengths)
        spoken = F.ctc_loss(
            model.ctc_log_probs(context).transpose(0, 1),
            batch.labels.clamp(min=0),
            positions,
            (batch.labels != UNCOUNTED).sum(1) - 1,  # without the end
            blank=self.processor.blank,
            reduction="sum",
            zero_infinity=True,
        )
        if settings.ctc == 1:
            return spoken
        hidden = model.decode(batch.target, context, context_mask=Mask.padding(positions))
        smoothing = settings.label_smoothing if model.training else 0.0
        written = token_loss(model.vocabulary, hidden, batch.labels, smoothing)
        return settings.ctc * spoken + (1 - settings.ctc) * written

    @property
    def quick_options(self) -> Mapping[str, Any]:
        return {"beams": 1, "ctc_weight": 1.0 if self.recipe.loss.ctc else 0.0}

    def calibrate(
        self, model: SpeechModel, train: Sequence[Row], dev: Sequence[Row], unlabelled: Sequence[Row] = ()
    ) -> str | None:
        """Limits pieces to about the longest training recording, unless the recipe sets `decode.piece_seconds`."""
        processor = self.processor
        if processor.stored.piece_seconds is None:
            longest = max(len(row.values[0].content) for row in train) / processor.log_mel.rate
            seconds = round(min(max(1.0, PIECE_MARGIN * longest), LONGEST_PIECE_SECONDS), 2)
            processor.store(piece_seconds=seconds)
        return None


TASK = Task(
    name="transcription",
    recipe=TranscriptionRecipe,
    processor=TranscriptionProcessor,
    objective=TranscriptionObjective,
    answerer=TranscriptionAnswerer,
    tracer=TranscriptionTracer,
    metrics=("wer", "cer"),
    minimised=("wer", "cer"),
    input_kind="sound",
)
