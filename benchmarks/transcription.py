"""Transcription measured: spoken digits alone and in strings, the borders of digits, sentences by an unseen voice.

    python benchmarks/transcription.py digits --data fsdd.npz --out OUT [--minutes 4] [--peer]
    python benchmarks/transcription.py sentences --out OUT [--espeak FOLDER] [--train 30000] [--minutes 4] [--peer]

With --peer, transformers' Wav2Vec2ForCTC of similar size is trained instead, from scratch on the same batches, for as
many minutes; run both at the same time on one device, and both are slowed alike. Results are printed, and written to
OUT/NAME.json. digit_strings.py and spoken_sentences.py say what the data are.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

import clearhead
import digit_strings
import spoken_sentences
from clearhead.tasks.metrics import error_rates
from clearhead.tasks.transcription.sound_examples import SoundInputs
from clearhead.tasks.transcription.transcription_processor import TranscriptionProcessor
from clearhead.text import Report, Row
from clearhead.train.recipe import read_recipe
from clearhead.train.training_run import run_training
from peers.wav2vec2_ctc import PeerSettings, train_peer, transcribe
from word_borders import measure_borders

from measuring import hardware

Sound = tuple[Any, int]
WEIGHTS = (0.0, 1.0)  # of CTC in decoding, beside the recipe's


class Digits:
    """Training on recordings alone and on strings of 1 to 7 of them; tests on digits and strings."""

    recipe = "transcribe-digits"
    peer = PeerSettings(width=192, layers=7, feedforward=768, channels=192, mask_length=4)

    def __init__(self, given: argparse.Namespace) -> None:
        self.recordings = digit_strings.unpack(given.data)
        self.train, self.test = given.train or 14_000, given.test

    def make(self, part: str, count: int | None) -> Iterator[tuple[Sound, str]]:
        recordings = self.recordings
        made = digit_strings.make_dev(recordings)
        if part == "train":
            made = digit_strings.make_training(recordings, self.train)
        for one in made:
            yield (one.samples, digit_strings.RATE), one.text

    def tests(self) -> dict[str, list[Row]]:
        return {
            "single": _rows(digit_strings.make_singles(self.recordings, "test")),
            "strings": _rows(digit_strings.make_strings(self.recordings, "test", self.test)),
        }

    def measure(self, predictor: Any) -> dict[str, Any]:
        other = list(digit_strings.make_strings(self.recordings, "other", min(60, self.test)))
        test = list(digit_strings.make_strings(self.recordings, "test", min(100, self.test)))
        return {"borders": measure_borders(predictor, other, test)}


class Sentences:
    """Training on sentences by many voices; the test has other sentences and another voice."""

    recipe = "transcribe-sentences"
    peer = PeerSettings(layers=9)

    def __init__(self, given: argparse.Namespace) -> None:
        counts = {"train": given.train or 30_000, "dev": 300, "test": given.test}
        plans = {part: spoken_sentences.plan(part, count) for part, count in counts.items()}
        self.made: dict[str, list[tuple[Sound, str]]] = {part: [] for part in plans}
        # All at once, and before CUDA is in use: the speaking processes are forks of this one.
        sounds = spoken_sentences.speak_all(chain(*plans.values()), given.espeak, given.processes)
        for part, wanted in plans.items():
            for what in wanted:
                self.made[part].append(((next(sounds), spoken_sentences.RATE), what.text))
        print(f"spoken: {', '.join(f'{len(one):,} of {part}' for part, one in self.made.items())}", flush=True)

    def make(self, part: str, count: int | None) -> Iterator[tuple[Sound, str]]:
        return iter(self.made[part])

    def tests(self) -> dict[str, list[Row]]:
        made = self.make("test", None)
        return {"unseen voice": [Row(values, "made:data.test", line) for line, values in enumerate(made, 1)]}

    def measure(self, predictor: Any) -> dict[str, Any]:
        return {}


def _rows(strings: Iterator[digit_strings.DigitString]) -> list[Row]:
    return [Row(((one.samples, digit_strings.RATE), one.text), "made", line) for line, one in enumerate(strings, 1)]


def measure_ours(data: Any, given: argparse.Namespace) -> dict[str, Any]:
    overrides = ["data.train=made:data.train", "data.dev=made:data.dev", f"train.minutes={given.minutes}"]
    run_training(data.recipe, overrides=[*overrides, *given.set], out=given.out / "run", device=given.device)
    predictor = clearhead.load(given.out / "run", device=given.device)
    found: dict[str, Any] = {"weights": sum(one.numel() for one in predictor.model.parameters())}
    for name, rows in data.tests().items():
        loaded = predictor.processor.inputs.load_rows(rows)
        begin = time.monotonic()
        found[name] = {"joint": predictor.evaluate(loaded), "seconds": round(time.monotonic() - begin, 1)}
        for weight in WEIGHTS:
            scores = predictor.evaluate(loaded, ctc_weight=weight, **({"beams": 1} if weight == 1 else {}))
            found[name][f"ctc_weight {weight}"] = {key: scores[key] for key in ("wer", "cer")}
        print(name, json.dumps(found[name]), flush=True)
    return {**found, **data.measure(predictor)}


def measure_peer(data: Any, given: argparse.Namespace) -> dict[str, Any]:
    recipe, _ = read_recipe(data.recipe, given.set)
    rows = list(TranscriptionProcessor.read("made:data.train"))
    processor = TranscriptionProcessor.prepare(rows, recipe)
    examples = processor.examples(rows, Report(), recipe)
    device = torch.device(given.device if given.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    model, steps = train_peer(processor, examples, device, given.minutes, recipe.train.batch_tokens, data.peer)
    found: dict[str, Any] = {"weights": sum(one.numel() for one in model.parameters()), "steps": steps}
    for name, test in data.tests().items():
        sounds = [torch.from_numpy(row.values[0].content) for row in processor.inputs.load_rows(test)]
        found[name] = error_rates(transcribe(model, processor, sounds), [row.values[1] for row in test])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["digits", "sentences"])
    parser.add_argument("--data", type=Path, help="fsdd.npz, of digit_strings.py pack")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--train", type=int, help="how many training strings or sentences")
    parser.add_argument("--test", type=int, default=500, help="how many test strings or sentences")
    parser.add_argument("--espeak", help="folder with libespeak-ng.so and espeak-ng-data")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], help="as of clearhead train")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    data: Any = Digits(given) if given.what == "digits" else Sentences(given)
    SoundInputs.generators = MappingProxyType({"data": data.make})
    found = (measure_peer if given.peer else measure_ours)(data, given)
    found |= {"minutes": given.minutes, "hardware": hardware(), "set": given.set}
    name = f"{given.what}{'-peer' if given.peer else ''}"
    (given.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(name, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
