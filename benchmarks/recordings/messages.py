"""What the command line says: help texts, lists, and one line for each mistake that users make."""

from __future__ import annotations

from pathlib import Path

from recordings.commands import run_command
from recordings.recording import Items

COMMANDS = ("train", "predict", "evaluate", "look", "figures", "models", "merge", "answers")
# Wrong on purpose; the models are those of trainings.py.
MISTAKES = {
    "an option of another task": ["predict", "zh-en", "--ctc-weight", "0.5", "x"],
    "beams of a classifier": ["predict", "classify", "--beam", "2", "x"],
    "a model that is not there": ["predict", "zh-ne", "x"],
    "a value out of range": ["predict", "zh-en", "--temperature", "-1", "x"],
    "coverage without JSON": ["predict", "summarise", "--coverage", "x"],
    "a stream of labels": ["predict", "classify", "--stream", "x"],
    "a stream as JSON": ["predict", "zh-en", "--stream", "--json", "x"],
    "a prefix with unknown pieces": ["predict", "translate", "--prefix", "é😀", "我", "--json"],
    "a picture that is not there": ["predict", "caption", "missing.png"],
    "a text as picture": ["predict", "caption", "data/pictures.tsv"],
    "a sound without sound": ["predict", "transcribe", "data/stereo.wav", "data/silent.wav", "--json"],
    "one text for a classifier of pairs": ["predict", "classify pairs", "one text"],
    "a picture as sound": ["predict", "transcribe", "data/picture-0.png"],
    "a pair with one text": ["look", "classify pairs", "one text", "--out", "none.html"],
    "nothing to look at": ["look", "classify", "", "--out", "none.html"],
    "an answer of a classifier": ["look", "classify", "x", "--answer", "positive", "--out", "none.html"],
    "data that are not there": ["evaluate", "classify", "missing.tsv"],
    "columns that do not fit": ["evaluate", "classify", "data/labels.tsv", "--columns", "text,other,label"],
    "data of another task": ["evaluate", "translate", "data/spans.jsonl"],
    "a report of a translator": ["evaluate", "translate", "data/translate-dev.tsv", "--report"],
    "labels that training never saw": ["evaluate", "classify", "data/translate-dev.tsv", "--json"],
    "an action of another task": ["answers", "zh-en", "list"],
    "an answer that is not there": ["answers", "answers", "remove", "99999"],
    "an action that is not there": ["answers", "answers", "lst"],
    "nothing to merge": ["merge", "classify", "--out", "none"],
    "an unknown key": ["train", "classify-tiny", "--set=data.trian=x.tsv"],
    "keys of another task": ["train", "classify-tiny", "--set=decode.beam=2", "--set=loss.ctc=0.5"],
    "a setting out of range": ["train", "tag-tiny", "--set=train.steps=0", "--set=text.unknown=2"],
    "settings that exclude each other": ["train", "tag-tiny", "--set=loss.label_smoothing=0.1"],
    "a size that data decide": ["train", "classify-tiny", "--set=model.labels=3"],
    "an unknown task": ["train", "classify-tiny", "--set=task=clasification"],
    "an unknown recipe": ["train", "clasify-tiny"],
    "a metric of another task": ["train", "classify-tiny", "--set=train.metric=bleu"],
    "data without labels": ["train", "classify-tiny", "--set=data.train=data/sentences.txt"],
    "weights of another kind": ["train", "classify-tiny", "--set=train.init_from=next", "--set=model={}"],
    "a run that is there": ["train", "classify-tiny", "--out", "classify"],
    "another seed when resumed": ["train", "translate-zh-en-tiny", "--out", "translate", "--resume", "--seed=9"],
}


def record_help(folder: Path) -> Items:
    """The help of every command, and the list of what is shipped."""
    texts = {command: run_command(command, "--help", folder=folder) for command in COMMANDS}
    yield "help", {"": run_command("--help", folder=folder)} | texts
    yield "models", run_command("models", folder=folder)


def record_mistakes(folder: Path, names: list[str]) -> Items:
    """The exit code and the message for each of these mistakes."""
    for name in names:
        yield f"mistake: {name}", run_command(*MISTAKES[name], folder=folder)
