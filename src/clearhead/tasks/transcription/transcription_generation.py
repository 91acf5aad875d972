"""Transcripts of recordings, by the decoder and CTC together or by CTC alone, and the passes that `look` repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.audio import SoundPiece, split_at_silence
from clearhead.decode import Hypothesis, JointWriter, ctc_beam_search, ctc_greedy
from clearhead.decode.ctc import CtcHypothesis
from clearhead.errors import ConfigError
from clearhead.model import SpeechModel
from clearhead.model.speech_model import count_positions
from clearhead.tasks.answerer import Scores
from clearhead.tasks.media import SoundInput
from clearhead.tasks.segmentation import has_loop
from clearhead.tasks.sequence_to_sequence.generation import (
    GeneratedText,
    GeneratingAnswerer,
    Generation,
    WrittenPart,
)
from clearhead.tasks.sequence_to_sequence.generation_tracer import GenerationTracer
from clearhead.tasks.sequence_to_sequence.search import PartNumber, Search, SearchOptions
from clearhead.tasks.trace import Trace
from clearhead.tasks.transcription.error_rates import error_rates
from clearhead.tasks.transcription.sound_frames import compute_frames, pad_with_noise
from clearhead.tasks.transcription.transcript import Stretch, Transcript
from clearhead.tasks.transcription.transcription_processor import TranscriptionProcessor
from clearhead.tasks.transcription.transcription_settings import LONGEST_PIECE_SECONDS, TranscriptionOptions
from clearhead.tasks.transcription.word_times import find_spikes

if TYPE_CHECKING:
    from clearhead.text import Row


class TranscriptionGeneration(Generation[TranscriptionProcessor, Any, Stretch]):
    """A part is a stretch of a recording. `ctc_weight` is that of CTC in the score: with 1 CTC answers alone."""

    output_name = "transcript"
    model: SpeechModel

    def __init__(self, processor: TranscriptionProcessor, model: SpeechModel, search: Search) -> None:
        super().__init__(processor, model, search)
        self.ctc_weight = processor.decode.ctc_weight
        self.piece_seconds = processor.decode.piece_seconds or LONGEST_PIECE_SECONDS  # longer recordings are cut

    def split(self, given: Any) -> list[Stretch]:
        """The frames of a recording: of all of it, or of pieces cut at silence, without those that have no sound."""
        log_mel, padding = self.processor.log_mel, self.processor.decode.padding_seconds
        samples = torch.from_numpy(self.processor.inputs.load_input(given).content)
        shortest = min(1.0, self.piece_seconds / 2)
        stretches = []
        for piece in split_at_silence(samples, log_mel.rate, longest=self.piece_seconds, shortest=shortest):
            inside = samples[piece.begin : piece.end]
            if log_mel.frames(len(inside)) and bool((inside != inside[0]).any()):
                padded = pad_with_noise(inside, padding, log_mel.rate)
                frames, _ = compute_frames(padded[None], torch.tensor([len(padded)]), log_mel)
                stretches.append(Stretch(frames[0], piece))
        return stretches

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
        if self.ctc_weight < 1:
            return super().search_parts(parts, search, prefixes, numbers)
        if search.sampling_options is not None or any(prefixes):
            raise ConfigError("CTC alone neither samples nor takes a prefix; use ctc_weight below 1")
        hypotheses = list[list[Hypothesis]]()
        for begin in range(0, len(parts), search.batch):
            batch = parts[begin : begin + search.batch]
            self.encode(batch)
            for part in batch:
                assert part.log_probs is not None
                hypotheses.append(search_ctc(part.log_probs, search, self.processor.blank))
        return hypotheses

    def stream(self, given: Any, prefix: Sequence[int], number: int) -> Iterator[str]:
        if self.ctc_weight == 1:
            raise ConfigError("CTC alone has its answer only at the end and cannot stream it; use ctc_weight below 1")
        return super().stream(given, prefix, number)

    def join(self, given: Any, written: list[WrittenPart[Stretch]]) -> Transcript:
        plain = super().join(given, written)
        spoken = [stretch.part.with_tokens(stretch.hypotheses[0].tokens) for stretch in written]
        return Transcript(plain.text, plain.notes, plain.score, plain.alternatives, spoken, self.processor)


class TranscriptionAnswerer(GeneratingAnswerer[TranscriptionProcessor, Any]):
    options = TranscriptionOptions
    generation = TranscriptionGeneration
    model: SpeechModel

    def begin(self, options: SearchOptions) -> TranscriptionGeneration:
        request = TranscriptionGeneration(self.processor, self.model, Search.of(options, self.processor.decode))
        if isinstance(options, TranscriptionOptions) and options.ctc_weight is not None:
            request.ctc_weight = options.ctc_weight
        return request

    def score(self, rows: Sequence[Row], predictions: Sequence[GeneratedText], options: SearchOptions) -> Scores:
        """WER and CER."""
        return error_rates([transcript.text for transcript in predictions], [str(row.values[1]) for row in rows])


class TranscriptionTracer(GenerationTracer[TranscriptionAnswerer]):
    def traces(self, given: Any, *, answer: str | None, options: SearchOptions) -> list[Trace]:
        """A recording with its text, part by part; with an answer given, the whole recording at once."""
        processor, request = self.answerer.processor, self.answerer.begin(options)
        recording = processor.inputs.load_input(given)
        if answer is not None:
            whole = len(recording.content) / processor.log_mel.rate + 1
            request.piece_seconds = max(request.piece_seconds, whole)
            stretches, target = request.split(recording), processor.target.encode(answer)
            request.encode(stretches)
            return [self._make_trace(stretch, target, answer, recording.name, given=True) for stretch in stretches]
        written = request.write(request.split(recording))
        traces, notes = [], request.join(recording, written).notes
        for stretch in written:
            best = stretch.hypotheses[0]
            text = request.decode_text(best)
            traces.append(self._make_trace(stretch.part, best.tokens, text, recording.name, notes=notes))
        return traces

    def _make_trace(self, part: Stretch, target: list[int], text: str, name: str, **fields: Any) -> Trace:
        assert part.log_probs is not None
        processor = self.answerer.processor
        tokenizer, times = processor.target, processor.frame_times
        media = SoundInput(
            part.frames.cpu().numpy(),
            seconds=part.piece.end_seconds - part.piece.begin_seconds,
            frame_seconds=times.hop,
            position_seconds=times.hop * times.stride,
            spikes=find_spikes(part.log_probs, lambda token: tokenizer.pieces([token])[0], processor.blank),
            name=name,
            start=part.piece.begin_seconds + times.first,
        )
        reads = {"source": list(range(len(part.log_probs))), "target": [tokenizer.start, *target]}
        return Trace(reads, [*target, tokenizer.end], text, media=media, **fields)

    def traced_part(self, trace: Trace) -> Stretch:
        assert isinstance(trace.media, SoundInput)
        rate = self.answerer.processor.log_mel.rate
        piece = SoundPiece(0, round(trace.media.seconds * rate), rate)
        return Stretch(torch.tensor(trace.media.spectrogram), piece)

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


def search_ctc(log_probs: Float[Tensor, "positions vocabulary"], search: Search, blank: int) -> list[Hypothesis]:
    """The best texts by CTC alone, without the decoder: greedily with one beam, else by a search over prefixes."""
    if search.beams == 1:
        texts: list[CtcHypothesis] = ctc_greedy(log_probs[None], torch.tensor([len(log_probs)]), blank=blank)
    else:
        candidates = min(search.beams * 2, log_probs.shape[1] - 1)
        texts = ctc_beam_search(log_probs, beams=search.beams, best=search.best, blank=blank, candidates=candidates)
    return [Hypothesis(tokens, total / (len(tokens) + 1), total, True) for tokens, total in texts]
