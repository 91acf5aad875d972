"""Transcription: an encoder of sound with CTC and an attention decoder on top; recordings of any length to texts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearhead.attention import Mask
from clearhead.audio import (
    LogMelSettings,
    SplitSettings,
    split_at_silence,
)
from clearhead.audio.made_words import make_utterances
from clearhead.audio.silence import SoundPiece
from clearhead.decode import Hypothesis, JointWriter
from clearhead.errors import CheckpointError, ConfigError, DataError
from clearhead.model import EncoderDecoder, ModelConfig, SpeechModel
from clearhead.model.speech_model import count_positions
from clearhead.tasks.base import Scores
from clearhead.tasks.file_inputs import LoadedInput
from clearhead.tasks.losses import UNCOUNTED, token_loss
from clearhead.tasks.media import SoundInput
from clearhead.tasks.segmentation import has_loop
from clearhead.tasks.sequence_to_sequence.generation import GeneratedText, SequenceToSequence, WrittenPart
from clearhead.tasks.sequence_to_sequence.search import PartNumber, Search, SearchOptions
from clearhead.tasks.settings import TaskRecipe, validate
from clearhead.tasks.trace import Trace
from clearhead.tasks.transcription.ctc_search import search_ctc
from clearhead.tasks.transcription.error_rates import error_rates, import_jiwer
from clearhead.tasks.transcription.sound_examples import SoundExamples, SpokenTexts
from clearhead.tasks.transcription.sound_frames import compute_frames, pad_with_noise
from clearhead.tasks.transcription.sound_inputs import SoundInputs
from clearhead.tasks.transcription.transcript import Stretch, Transcript
from clearhead.tasks.transcription.transcription_settings import (
    Augmentation,
    TranscriptionDecode,
    TranscriptionOptions,
    TranscriptionRecipe,
)
from clearhead.tasks.transcription.word_times import (
    FrameTimes,
    SpokenPart,
    TimedWord,
    find_spikes,
    time_words,
)
from clearhead.text.corpora import Row

if TYPE_CHECKING:
    from clearhead.tasks.pretrained import Pretrained
    from clearhead.text import Report, Tokenizer

LONGEST_PIECE = 20.0  # seconds, where decode.piece_seconds is not set
PIECE_MARGIN = 1.2
TOO_FAST = "with more text than the sound has room for"


class Transcription(
    SoundInputs[EncoderDecoder, SpokenTexts, SearchOptions], SequenceToSequence[Any, SpokenTexts, Stretch]
):
    """Speech to text: rows of (audio, text), where audio is the path of a WAV or FLAC file, or (samples, rate)."""

    name = "transcription"
    output_name = "transcript"
    columns = ("audio", "text")
    generators = MappingProxyType({"words": make_utterances})
    recipe = TranscriptionRecipe
    options = TranscriptionOptions
    metrics = ("wer", "cer")
    metric = "wer"
    minimised: ClassVar[tuple[str, ...]] = ("wer", "cer")
    decode: TranscriptionDecode

    def __init__(
        self, target: Tokenizer, config: ModelConfig, sound: LogMelSettings, decode: TranscriptionDecode
    ) -> None:
        self.target, self.config, self.sound, self.decode = target, config, sound, decode
        self.augmentation, self.label_smoothing, self.ctc = Augmentation(), 0.0, 0.3

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.decode.model_dump(), "sound": self.sound.to_dict()}

    @property
    def blank(self) -> int:
        """CTC's label for no token: the padding token, which no text has."""
        return self.target.pad

    @property
    def piece_seconds(self) -> float:
        """How long a recording may be before it is cut."""
        return self.decode.piece_seconds or LONGEST_PIECE

    # Data

    @classmethod
    def prepare(cls, rows: Sequence[Row], recipe: TaskRecipe, start: Pretrained | None = None) -> Transcription:
        assert isinstance(recipe, TranscriptionRecipe)
        if start is not None:
            raise ConfigError("transcription cannot start from the weights of another model; leave train.init_from out")
        import_jiwer()  # which the scores need: better refused now than after the last step
        sound = recipe.sound.to_log_mel()
        target = recipe.text.train_tokenizer(str(row.values[1]) for row in rows)
        config = cls.make_config(recipe, None, vocabulary=target.size, mel_bands=sound.mels)
        task = cls(target, config, sound, recipe.decode)
        task.configure(recipe)
        return task

    def configure(self, recipe: TaskRecipe) -> None:
        assert isinstance(recipe, TranscriptionRecipe)
        self.decode, self.augmentation = recipe.decode, recipe.augmentation
        self.label_smoothing, self.ctc = recipe.loss.label_smoothing, recipe.loss.ctc

    def examples(self, rows: Iterable[Row], report: Report, recipe: TaskRecipe | None = None) -> SoundExamples:
        given = recipe if isinstance(recipe, TranscriptionRecipe) else None
        kept, sounds, targets = list[Row](), list[Tensor](), list[list[int]]()
        for row in self.keep_readable(rows, report):
            samples, tokens = torch.from_numpy(row.values[0].content), self.target.encode(str(row.values[1]))
            if reason := self._unfit(len(samples), tokens, given):
                report.drop(row, reason)
                continue
            report.keep()
            kept.append(row)
            sounds.append(samples)
            targets.append([self.target.start, *tokens, self.target.end])
        if not kept:
            raise DataError(f"no recording is left to use: {report}")
        speeds = (1.0,) if given is None else given.augmentation.speeds
        return SoundExamples(sounds, targets, kept, self.sound, self.target.pad, speeds)

    def _unfit(self, samples: int, tokens: list[int], recipe: TranscriptionRecipe | None) -> str | None:
        """Why a recording cannot be learned from, or None."""
        frames = self.sound.frames(samples)
        if not frames:
            return f"shorter than one window of {self.sound.window:g} s"
        if recipe is not None and len(tokens) > recipe.data.longest:
            return f"longer than {recipe.data.longest} tokens"
        if recipe is not None and samples / self.sound.rate > recipe.data.longest_seconds:
            return f"longer than {recipe.data.longest_seconds:g} s"
        fastest = 1.0 if recipe is None else max(recipe.augmentation.speeds)
        repeats = sum(one == other for one, other in pairwise(tokens))
        positions = count_positions(self.sound.frames(int(samples / fastest)), self.config.conv_stride)
        return TOO_FAST if len(tokens) + repeats > positions else None

    # Model

    def build(self) -> SpeechModel:
        return SpeechModel(self.config)

    @classmethod
    def fit(cls, rows: int, *, gpu: bool) -> dict[str, dict[str, Any]]:
        found = super().fit(rows, gpu=gpu)
        return {**found, "train": {**found.get("train", {}), "batch_tokens": 40_000 if gpu else 8192}}

    def loss(self, model: EncoderDecoder, batch: SpokenTexts) -> Float[Tensor, ""]:
        assert isinstance(model, SpeechModel)
        augmentation = self.augmentation if model.training else None
        frames, lengths = compute_frames(batch.sound, batch.lengths, self.sound, augmentation)
        context, positions = model.encode_sound(frames, lengths)
        tokens = (batch.labels != UNCOUNTED).sum(1) - 1  # without the end
        spoken = F.ctc_loss(
            model.ctc_log_probs(context).transpose(0, 1),
            batch.labels.clamp(min=0),
            positions,
            tokens,
            blank=self.blank,
            reduction="sum",
            zero_infinity=True,
        )
        if self.ctc == 1:
            return spoken
        hidden = model.decode(batch.target, context, context_mask=Mask.padding(positions))
        smoothing = self.label_smoothing if model.training else 0.0
        return self.ctc * spoken + (1 - self.ctc) * token_loss(model.vocabulary, hidden, batch.labels, smoothing)

    def calibrate(self, model: EncoderDecoder, train: Sequence[Row], dev: Sequence[Row]) -> str | None:
        """Limits pieces to about the longest training recording, unless the recipe sets `decode.piece_seconds`."""
        if self.decode.piece_seconds is None:
            longest = max(len(row.values[0].content) for row in train) / self.sound.rate
            seconds = round(min(max(1.0, PIECE_MARGIN * longest), LONGEST_PIECE), 2)
            self.decode = self.decode.model_copy(update={"piece_seconds": seconds})
        return None

    # Answers

    def split(self, given: Any) -> list[Stretch]:
        """The frames of a recording: of all of it, or of pieces cut at silence, without those that have no sound."""
        samples = torch.from_numpy(self.load_input(given).content)
        cuts = SplitSettings(longest=self.piece_seconds, shortest=min(1.0, self.piece_seconds / 2))
        found = []
        for piece in split_at_silence(samples, self.sound.rate, cuts):
            inside = samples[piece.begin : piece.end]
            if self.sound.frames(len(inside)) and bool((inside != inside[0]).any()):
                padded = pad_with_noise(inside, self.decode.padding_seconds, self.sound.rate)
                frames, _ = compute_frames(padded[None], torch.tensor([len(padded)]), self.sound)
                found.append(Stretch(frames[0], piece))
        return found

    def part_length(self, part: Stretch) -> int:
        return len(part.frames)

    def output_limit(self, part: Stretch) -> int:
        return count_positions(len(part.frames), self.config.conv_stride) + 2

    def has_looped(self, hypothesis: Hypothesis, part: Stretch) -> bool:
        """People repeat themselves, above all in numbers: only an output without an end has looped."""
        return not hypothesis.finished and has_loop(hypothesis.tokens)

    def traced_part(self, trace: Trace) -> Stretch:
        assert isinstance(trace.media, SoundInput)
        piece = SoundPiece(0, round(trace.media.seconds * self.sound.rate), self.sound.rate)
        return Stretch(torch.tensor(trace.media.spectrogram), piece)

    def writer(self, model: EncoderDecoder, parts: Sequence[Stretch]) -> JointWriter:
        context, positions = self._encode(model, parts)
        assert isinstance(model, SpeechModel)
        return JointWriter(
            model, context, positions, weight=self.decode.ctc_weight, blank=self.blank, end=self.target.end
        )

    @torch.inference_mode()
    def _encode(self, model: EncoderDecoder, parts: Sequence[Stretch]) -> tuple[Tensor, Tensor]:
        """The encoder's hidden states of these parts, and their lengths; each part keeps its CTC log-probabilities."""
        assert isinstance(model, SpeechModel)
        device = model.vocabulary.words.weight.device
        frames = torch.nn.utils.rnn.pad_sequence([part.frames for part in parts], batch_first=True).to(device)
        lengths = torch.tensor([len(part.frames) for part in parts], device=device)
        training = model.training
        model.eval()
        context, positions = model.encode_sound(frames, lengths)
        log_probs = model.ctc_log_probs(context).cpu()
        model.train(training)
        for part, row, length in zip(parts, log_probs, positions.tolist(), strict=True):
            part.log_probs = row[:length]
        return context, positions

    def predict(self, model: EncoderDecoder, inputs: Sequence[Any], options: SearchOptions) -> list[GeneratedText]:
        return super(Transcription, self._choose(options)).predict(model, inputs, options)

    def stream(self, model: EncoderDecoder, given: Any, options: SearchOptions) -> Iterator[str]:
        chosen = self._choose(options)
        if chosen.decode.ctc_weight == 1:
            raise ConfigError("CTC alone has its answer only at the end and cannot stream it; use ctc_weight below 1")
        return super(Transcription, chosen).stream(model, given, options)

    def quick_options(self) -> TranscriptionOptions:
        return TranscriptionOptions(beams=1, ctc_weight=1.0 if self.ctc else 0.0)

    def _choose(self, options: SearchOptions) -> Transcription:
        """This task with the weight of CTC that the options ask for."""
        weight = options.ctc_weight if isinstance(options, TranscriptionOptions) else None
        if weight is None:
            return self
        chosen = copy.copy(self)
        chosen.decode = self.decode.model_copy(update={"ctc_weight": weight})
        return chosen

    def _search(
        self,
        model: EncoderDecoder,
        parts: Sequence[Stretch],
        search: Search,
        prefixes: Sequence[list[int]],
        numbers: Sequence[PartNumber],
    ) -> list[list[Hypothesis]]:
        if self.decode.ctc_weight < 1:
            return super()._search(model, parts, search, prefixes, numbers)
        if search.sampling_options is not None or any(prefixes):
            raise ConfigError("CTC alone neither samples nor takes a prefix; use ctc_weight below 1")
        found = list[list[Hypothesis]]()
        for begin in range(0, len(parts), search.batch):
            batch = parts[begin : begin + search.batch]
            self._encode(model, batch)
            found += [search_ctc(cast(Tensor, part.log_probs), search, self.blank) for part in batch]
        return found

    def _join(self, given: Any, found: list[WrittenPart[Stretch]], best: int) -> GeneratedText:
        plain = super()._join(given, found, best)
        parts = [one.part.with_tokens(one.hypotheses[0].tokens) for one in found if one.part.log_probs is not None]
        return Transcript(plain.text, plain.notes, plain.score, plain.alternatives, parts, self)

    def time_words(self, part: SpokenPart) -> list[TimedWord] | None:
        """The words of a part with their times; None if CTC cannot align them."""
        return time_words(part, self.target.decode, self.frame_times, self.blank)

    @property
    def frame_times(self) -> FrameTimes:
        """When frames are, and positions of the encoder: a frame stands for one hop, amid its window."""
        hop = self.sound.hop_samples / self.sound.rate
        first = self.sound.frame_seconds(0) - hop / 2 - self.decode.padding_seconds
        return FrameTimes(first, hop, self.config.conv_stride)

    def score(self, rows: Sequence[Row], predictions: Sequence[Any], options: SearchOptions) -> Scores:
        """WER and CER."""
        return error_rates([one.text for one in predictions], [str(row.values[1]) for row in rows])

    # Attention

    def traces(self, model: EncoderDecoder, given: Any, *, answer: str | None, options: SearchOptions) -> list[Trace]:
        """A recording with its text, part by part; with an answer given, the whole recording at once."""
        task, loaded = self._choose(options), self.load_input(given)
        if answer is not None:
            task = copy.copy(task)
            whole = len(loaded.content) / self.sound.rate + 1
            task.decode = task.decode.model_copy(update={"piece_seconds": max(task.piece_seconds, whole)})
            stretches = task.split(loaded)
            task._encode(model, stretches)
            return [task._trace(one, self.target.encode(answer), answer, loaded, given=True) for one in stretches]
        found = task.write(model, task.split(loaded), Search.of(options, task.decode))
        notes = task._join(loaded, found, 1).notes
        return [
            task._trace(one.part, one.hypotheses[0].tokens, task.decode_text(one.hypotheses[0]), loaded, notes=notes)
            for one in found
        ]

    def _trace(self, part: Stretch, tokens: list[int], text: str, loaded: LoadedInput, **known: Any) -> Trace:
        assert part.log_probs is not None
        times = self.frame_times
        media = SoundInput(
            part.frames.cpu().numpy(),
            seconds=part.piece.end_seconds - part.piece.begin_seconds,
            frame_seconds=times.hop,
            position_seconds=times.hop * times.stride,
            spikes=find_spikes(part.log_probs, lambda token: self.target.pieces([token])[0], self.blank),
            name=loaded.name,
            start=part.piece.begin_seconds + times.first,
        )
        reads = {"source": list(range(len(part.log_probs))), "target": [self.target.start, *tokens]}
        return Trace(reads, [*tokens, self.target.end], text, media=media, **known)

    def continue_trace(
        self, model: EncoderDecoder, trace: Trace, written: Sequence[int], *, options: SearchOptions
    ) -> Trace:
        return super(Transcription, self._choose(options)).continue_trace(model, trace, written, options=options)

    def run_trace(self, model: EncoderDecoder, trace: Trace) -> Float[Tensor, "tokens vocabulary"]:
        assert isinstance(model, SpeechModel)
        assert isinstance(trace.media, SoundInput)
        device = model.vocabulary.words.weight.device
        frames = self.traced_part(trace).frames[None].to(device)
        context, _ = model.encode_sound(frames, torch.tensor([frames.shape[1]], device=device))
        hidden = model.decode(torch.tensor([trace.reads["target"]], device=device), context)
        return model.logits(hidden)[0]

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        if kind == "target":
            return self.target.pieces(numbers)
        return [f"{self.frame_times.begin_of_position(number + 0.5):.2f} s" for number in numbers]

    # Model folder

    def save(self, folder: Path) -> None:
        self.target.save(folder)

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> Transcription:
        from clearhead.text import Tokenizer

        values = dict(settings)
        try:
            sound = LogMelSettings.from_dict(values.pop("sound", {}))
            decode = validate(TranscriptionDecode, values)
        except (ConfigError, TypeError) as error:
            raise CheckpointError(f"the settings of {folder} are invalid: {error}") from None
        target = Tokenizer.load(folder)
        if target.size != config.vocabulary or sound.mels != config.mel_bands:
            raise CheckpointError(
                f"{folder} has {target.size} tokens and {sound.mels} bands, but its model {config.vocabulary} and "
                f"{config.mel_bands}; copy the folder again"
            )
        return cls(target, config, sound, decode)
