"""Transcription: the tiny recipe, times of words, long recordings, files that cannot be used."""

import json
import struct
import sys
import wave
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import clearhead
from clearhead import Predictor
from clearhead.audio.made_words import RATE, WORDS, make_utterances, speak
from clearhead.cli import main
from clearhead.errors import ClearheadError, ConfigError, DataError, PackageError
from clearhead.tasks.media import SoundInput, media_from_json
from clearhead.tasks.pretrained import Pretrained
from clearhead.tasks.transcription.transcription_processor import (
    TOO_FAST,
    TranscriptionOptions,
    TranscriptionProcessor,
)
from clearhead.tasks.transcription.transcription_task import TASK, TranscriptionObjective
from clearhead.text import Report, Row
from clearhead.text.batches import Batch
from clearhead.train.recipe import Recipe, check_recipe
from clearhead.train.training_run import run_training

SMALL = {"shape": "tiny", "width": 16, "heads": 2, "layers": 1, "feedforward": 16, "conv_channels": 4, "conv_blocks": 1}


def recipe_of(**sections: dict[str, object]) -> Recipe:
    values = {"data": {"train": "made:words.train"}, "model": SMALL, "sound": {"rate": 8000, "mels": 20}}
    return check_recipe({"task": "transcription", **values, **sections}, "test")


def prepare(**sections: dict[str, object]) -> TranscriptionProcessor:
    rows = list(TranscriptionProcessor.read("made:words.train:20"))
    return TranscriptionProcessor.prepare(rows, recipe_of(**sections))


def untrained(**sections: dict[str, object]) -> Predictor:
    torch.manual_seed(3)
    processor = prepare(**sections)
    return Predictor(processor.build().eval(), TASK, processor, name="toy")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped recipe, shortened."""
    changes = ["train.steps=95", "train.evaluate_every=95", "train.log_every=19", "data.dev=made:words.dev:20"]
    changes += ["train.tensorboard=false", "loss.ctc=0.7", "train.warmup=30"]
    return run_training("transcribe-tiny", overrides=changes, out=tmp_path_factory.mktemp("runs") / "run", device="cpu")


@pytest.fixture(scope="module")
def transcriber(run_folder: Path) -> Predictor:
    return clearhead.load(run_folder, device="cpu")


@pytest.fixture(scope="module")
def spoken() -> list:
    """Utterances with the times of their words, not in training."""
    return [speak(list(WORDS[number : number + 3]), np.random.default_rng([9, number])) for number in range(9)]


# the shipped recipe


def test_the_tiny_recipe_learns_and_leaves_samples(run_folder, transcriber):
    scores = json.loads((run_folder / "model" / "metrics.json").read_text())
    assert scores["dev"]["wer"] < 10
    assert scores["dev"]["cer"] <= scores["dev"]["wer"]
    samples = sorted(path.name for path in (run_folder / "samples").iterdir())
    assert samples[:2] == ["1.txt", "1.wav"]
    paths = sorted((run_folder / "samples").glob("*.wav"))[:4]
    answers = transcriber.predict([str(path) for path in paths], beams=1)
    right = [one.text == path.with_suffix(".txt").read_text().strip() for one, path in zip(answers, paths, strict=True)]
    assert sum(right) >= 3


def test_ctc_alone_and_the_decoder_alone_answer_too(transcriber, spoken):
    rows = [((one.samples, RATE), one.text) for one in spoken]
    rates = {weight: transcriber.evaluate(rows, ctc_weight=weight)["wer"] for weight in (0.0, 0.4, 1.0)}
    assert rates[0.4] < 10
    assert rates[0.4] <= min(rates[0.0], rates[1.0])  # the decoder alone needs more steps than this to learn
    greedy = transcriber.evaluate(rows, ctc_weight=1.0, beams=1)["wer"]
    assert greedy >= rates[1.0] - 5
    assert transcriber.predict((spoken[0].samples, RATE), best=2).to_json()["alternatives"]


def test_words_have_the_times_at_which_they_are_spoken(transcriber, spoken):
    errors = []
    answers = transcriber.predict([(one.samples, RATE) for one in spoken], beams=1)
    for one, found in zip(spoken, answers, strict=True):
        answer = found.to_json()
        if answer["output"] == one.text:
            assert [word["text"] for word in answer["words"]] == one.text.split()
            times = [(word["start"], word["end"]) for word in answer["words"]]
            errors += np.abs(np.array(times) - np.array(one.times)).flatten().tolist()
    assert len(errors) > 20
    assert float(np.median(errors)) < 0.03


def change_decoding(monkeypatch: pytest.MonkeyPatch, transcriber: Predictor, **changes: float) -> None:
    """Other settings of decoding, for one test."""
    changed = transcriber.processor.stored.model_copy(update=changes)
    monkeypatch.setattr(transcriber.processor, "stored", changed)


def test_a_long_recording_is_cut_at_silence_and_joined(transcriber, spoken, monkeypatch):
    pause = np.zeros(int(0.4 * RATE), np.float32)
    whole = np.concatenate([part for one in spoken for part in (one.samples, pause)])
    change_decoding(monkeypatch, transcriber, piece_seconds=4.0)
    answer = transcriber.predict((whole, RATE))
    record = transcriber.look((whole, RATE), keep="none")
    assert any("parts" in note for note in answer.notes)
    begins = [float(call.labels["source"][0].removesuffix(" s")) for call in record.calls]
    assert len(begins) > 1
    assert begins == sorted(set(begins)), "labels are times of the recording, not of the part"
    wanted = " ".join(one.text for one in spoken).split()
    assert sum(a == b for a, b in zip(answer.text.split(), wanted, strict=False)) > 0.7 * len(wanted)
    starts = [word.start for word in answer.words]
    assert starts == sorted(starts)
    assert all(word.start <= word.end <= len(whole) / RATE for word in answer.words)
    last = sum(len(one.samples) + len(pause) for one in spoken[:-1]) / RATE
    assert abs(answer.words[-3].start - (last + spoken[-1].times[0][0])) < 0.3


def test_pieces_are_not_much_longer_than_the_training_recordings(transcriber):
    longest = max(len(samples) / rate for (samples, rate), _ in make_utterances("train", None))
    assert transcriber.processor.stored.piece_seconds == pytest.approx(1.2 * longest, abs=0.01)


def test_files_of_any_rate_and_number_of_channels_give_the_same_text(transcriber, spoken, tmp_path):
    one, texts = spoken[1], set()
    for name, rate, channels, kind in (("a.wav", 8000, 1, "PCM_16"), ("b.flac", 16000, 2, "PCM_24")):
        samples = np.repeat(one.samples, rate // RATE)
        soundfile.write(tmp_path / name, np.stack([samples] * channels, 1), rate, subtype=kind)
        texts.add(transcriber.predict(str(tmp_path / name)).text)
    whole = (one.samples * 32767).astype(np.int16)
    assert texts == {transcriber.predict((whole, RATE)).text}


def test_a_trace_holds_the_spectrogram_and_the_spikes_of_ctc(transcriber, spoken, monkeypatch):
    record = transcriber.look((spoken[0].samples, RATE))
    media = media_from_json(record.calls[0].about.media)
    assert isinstance(media, SoundInput)
    assert media.seconds == pytest.approx(len(spoken[0].samples) / RATE)
    assert media.position_seconds == pytest.approx(4 * media.frame_seconds)
    text = "".join(one[1] for one in media.spikes).replace("▁", " ")
    assert text.split()[0][0] == spoken[0].text[0]
    assert all(0 < chance <= 1 for _, _, chance in media.spikes)
    assert [one for one, _, _ in media.spikes] == sorted(one for one, _, _ in media.spikes)
    second = np.concatenate([spoken[0].samples, np.zeros(RATE, np.float32), spoken[1].samples])
    tracer, options = transcriber.tracer, TranscriptionOptions()
    with monkeypatch.context() as changed:
        change_decoding(changed, transcriber, piece_seconds=2.0, padding_seconds=0.5)
        starts = [trace.media.start for trace in tracer.traces((second, RATE), answer=None, options=options)]
        first = transcriber.processor.frame_times.first
        assert len(tracer.traces((second, RATE), answer="bami", options=options)) == 1, "a given answer is of the whole"
    assert starts[0] == pytest.approx(first), "half a second of padding comes first"
    assert starts[0] == pytest.approx(-0.5, abs=0.01)
    assert len(spoken[0].samples) / RATE < starts[1] + 0.5 < len(spoken[0].samples) / RATE + 1.1
    given = transcriber.look((spoken[0].samples, RATE), answer="bami")
    assert given.calls[0].about.given is True
    assert "decoder.0.cross" in given.names
    assert tracer.pieces("source", [0, 10]) == ["0.03 s", "0.53 s"]


def test_a_transcript_goes_on_from_another_token(transcriber, spoken):
    tracer, options = transcriber.tracer, TranscriptionOptions(beams=1, ctc_weight=0.0)
    [trace] = tracer.traces((spoken[0].samples, RATE), answer=None, options=options)
    again = tracer.continue_trace(trace, trace.writes[:2], options=options)
    assert (again.text, list(again.writes), again.forced) == (trace.text, list(trace.writes), 2)
    other = tracer.continue_trace(trace, [trace.writes[0], trace.writes[0]], options=options)
    assert list(other.writes[:2]) == [trace.writes[0]] * 2
    assert other.media is trace.media
    alone = tracer.continue_trace(trace, trace.writes[:2], options=TranscriptionOptions(ctc_weight=1.0))
    assert list(alone.writes[:2]) == list(trace.writes[:2])


def test_no_request_changes_the_model_or_the_processor(transcriber, spoken, monkeypatch):
    """Other threads may answer with the same model at the same time."""
    before = dict(vars(transcriber.processor))
    monkeypatch.setattr(transcriber.model, "train", lambda mode=True: pytest.fail("train() was called"))
    for weight in (0.0, 1.0):
        transcriber.predict((spoken[0].samples, RATE), ctc_weight=weight, beams=1)
    transcriber.look((spoken[0].samples, RATE), answer="bami", ctc_weight=1.0)
    assert vars(transcriber.processor) == before


def test_the_answer_can_be_streamed(transcriber, spoken):
    pieces = list(transcriber.stream((spoken[2].samples, RATE)))
    assert "".join(pieces) == transcriber.predict((spoken[2].samples, RATE), beams=1).text
    with pytest.raises(ConfigError, match="cannot stream"):
        list(transcriber.stream((spoken[2].samples, RATE), ctc_weight=1.0))


# data


def test_made_words_are_the_same_at_every_call_and_differ_between_parts():
    first, again = (next(make_utterances("train")) for _ in range(2))
    assert np.array_equal(first[0][0], again[0][0])
    assert not np.array_equal(first[0][0], next(make_utterances("dev"))[0][0])
    one = speak(["bami", "sola"], np.random.default_rng(2))
    borders = [0.0, *(time for word in one.times for time in word), len(one.samples) / RATE]
    assert all(before < after for before, after in pairwise(borders))


def test_recordings_that_cannot_be_learned_from_are_counted():
    processor = prepare()
    noise = np.random.default_rng(1).normal(0, 0.1, 8000).astype(np.float32)
    values = [
        ((noise, 8000), "bami"),
        ((noise, 8000), "bami " * 30),
        ((noise[:100], 8000), "bami"),
        ((np.tile(noise, 3), 8000), "bami"),
        ((noise, 8000), " "),
        ("missing.wav", "bami"),
    ]
    rows, report = [Row(one, "rows.tsv", line) for line, one in enumerate(values, 1)], Report()
    examples = processor.examples(rows, report, recipe_of(data={"train": "x", "longest_seconds": 2.0}))
    assert len(examples) == 1
    said = str(report)
    for reason in (TOO_FAST, "unreadable sound", "longer than 2 s", "without a text", "missing sound"):
        assert reason in said, said
    assert "rows.tsv:6" in said


def test_batches_hold_sound_at_a_random_speed_in_training():
    processor, recipe = prepare(), recipe_of(augmentation={"speeds": [1.1]})
    rows = list(TranscriptionProcessor.read("made:words.train:6"))
    plain, faster = processor.examples(rows, Report()), processor.examples(rows, Report(), recipe)
    batch = plain.lengths.max(0)

    chosen = Batch(np.arange(6), tuple(int(size) for size in batch))
    slow, fast = plain.collate(chosen), faster.collate(chosen)
    assert torch.equal(slow.labels, fast.labels)
    assert bool((fast.lengths < slow.lengths).all())
    model = processor.build()
    loss = TranscriptionObjective(processor, recipe).loss(model, slow)
    loss.backward()
    assert loss > 0
    assert model.to_ctc.weight.grad is not None
    assert plain.fingerprint() == faster.fingerprint()


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="speed of 3"):
        recipe_of(augmentation={"speeds": [3.0]})
    with pytest.raises(ConfigError, match=r"sound\.hop: should be less than or equal to 1"):
        untrained(sound={"hop": 2.0})
    with pytest.raises(ConfigError, match="ctc_weight"):
        untrained().predict("x.wav", ctc_weight=1.5)


def test_no_run_starts_from_or_for_a_transcriber(run_folder, transcriber, tmp_path):
    sets = ["train.steps=2", f"train.init_from={run_folder}", "model={}", "data.train=made:words.train:20"]
    with pytest.raises(ClearheadError, match=r"a run cannot start from .*, a model for transcription; choose another"):
        run_training("transcribe-tiny", overrides=sets, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    start = Pretrained(tmp_path, transcriber.processor.config, transcriber.processor.target, {})
    with pytest.raises(ConfigError, match=r"cannot start from the weights of another model; leave train.init_from out"):
        TranscriptionProcessor.prepare([], recipe_of(), start)


def test_scores_need_jiwer_before_the_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(PackageError, match=r"package jiwer, which is not installed; pip install 'clearhead\[audio\]'"):
        untrained()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (np.zeros(8000, np.float32), r"is \(samples, rate\)"),
        (("a", 3), r"is \(samples, rate\)"),
        ((np.zeros((2, 9)), 8000), r"one channel .* got shape \(2, 9\)"),
        ((np.ones(8000), 1), "a rate from 1000 to 768000 Hz"),
        ((np.zeros(10), 8000), "10 samples, less than one window"),
        ((np.zeros(8000), 8000), "all are the same"),
        ((np.arange(8000), 8000), r"16-bit integers, got torch\.int64"),
        ((np.arange(8000) * 1e30, 8000), "a sample of 8e"),
        ((np.full(8000, np.nan), 8000), "NaN or infinite"),
    ],
)
def test_what_is_no_sound_is_refused(value, problem):
    with pytest.raises(DataError, match=problem):
        untrained().predict([value])


# files that cannot be used


def broken_files(folder: Path) -> dict[str, str]:
    """Files that are no sound, and what is said about them."""
    (folder / "text.wav").write_text("this is no sound\n")
    (folder / "empty.wav").write_bytes(b"")
    with wave.open(str(folder / "silence.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(32000))
    hours = 10 * 3600 * 8000
    header = b"RIFF" + struct.pack("<I", 36 + hours) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8)
    with (folder / "long.wav").open("wb") as file:  # sparse: nothing but its header is written
        file.write(header + b"data" + struct.pack("<I", hours))
        file.truncate(44 + hours)
    return {
        "text.wav": "not a readable WAV or FLAC",
        "empty.wav": "is empty",
        "silence.wav": "no sound in it",
        "long.wav": "longer than the limit",
        "nothing.wav": "there is no such file",
    }


def test_files_without_usable_sound_are_one_line_each(run_folder, tmp_path, capsys):
    for name, words in broken_files(tmp_path).items():
        assert main(["predict", str(run_folder), str(tmp_path / name)]) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1), shown.err
        assert words in shown.err
        assert name in shown.err


def test_evaluate_counts_the_files_that_it_left_out(run_folder, transcriber, tmp_path, capsys):
    broken_files(tmp_path)
    soundfile.write(tmp_path / "good.wav", next(make_utterances("test"))[0][0], RATE)
    names = ["good.wav", "text.wav", "nothing.wav"]
    (tmp_path / "rows.tsv").write_text("".join(f"{name}\tbami\n" for name in names))
    scores = transcriber.evaluate(tmp_path / "rows.tsv")
    assert "1 of 3" in str(scores["note"])
    assert "missing sound" in str(scores["note"])
