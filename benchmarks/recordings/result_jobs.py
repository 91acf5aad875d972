"""The jobs of same_results.py: data, models, messages, and what is read from an old recording."""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path

from clearhead import Record
from recordings.data_files import read_corpus, write_data
from recordings.foreign_folders import write_foreign_folders
from recordings.labelling_models import ANSWERS, CLASSIFICATION, PRETRAINING, TAGGING
from recordings.live_pages import record_pages
from recordings.messages import MISTAKES, record_help, record_mistakes
from recordings.models import predict_by_default, record_group, use_model
from recordings.recording import Items, Job
from recordings.records import describe_record
from recordings.run_files import extend_copy
from recordings.trainings import Training
from recordings.writing_models import CAPTIONING, DENOISING, LANGUAGE_MODEL, SUMMARISATION, TRANSCRIPTION, TRANSLATION

HARD = ["", "啊" * 50, "😀" * 32, "1,000,000人在2024年12月31日23:59。", "你好。" * 40, "Ｈello　World", "一" * 300]
TRANSLATOR = Training(
    "zh-en",
    inputs=[*(row[0] for row in read_corpus("tatoeba-zh-en.dev", 100)), *HARD],
    predictions={
        "greedy": ["--beam", "1"],
        "best": ["--best", "3", "--beam", "3", "--length-penalty", "0.5"],
        "sampled": ["--temperature", "0.8", "--top-p", "0.9", "--min-p", "0.01", "--seed", "7"],
        "prefix": ["--prefix", "I", "--longest", "12", "--batch", "7"],
    },
    plain=["--stream", "--longest", "20"],
    evaluate=["data/translate-dev.tsv"],
    look="我们昨天在公园里看见了很多漂亮的花。他们很高兴。",
    look_options=["--beam", "2"],
    figures=True,
)
POET = Training(
    "poems-zh",
    inputs=["春晓", "月", "", "A spring night"],
    predictions={
        "seed": ["--seed", "5", "--temperature", "0.9", "--top-k", "30"],
        "greedy": ["--temperature", "0", "--no-repeat-ngram", "2", "--repetition-penalty", "1.2"],
        "stop": ["--stop", "。", "--longest", "40"],
    },
    plain=["--stream", "--longest", "24"],
    evaluate=["data/chinese.txt"],
    look="春晓",
    look_options=["--longest", "12"],
    figures=True,
)
# The runs of a group are trained one after the other: later ones may start from the weights of earlier ones.
GROUPS = {  # those that take longest first
    "pretraining": PRETRAINING,
    "translation": TRANSLATION,
    "captioning": CAPTIONING,
    "denoising": DENOISING,
    "tagging": TAGGING,
    "classification": CLASSIFICATION,
    "answers": ANSWERS,
    "language model": LANGUAGE_MODEL,
    "transcription": TRANSCRIPTION,
    "summarisation": SUMMARISATION,
}


def record_data(folder: Path) -> Items:
    yield "data", write_data(folder / "data")
    write_foreign_folders(folder / "data")


def read_models(_: Path, before: Path, group: list[Training]) -> Items:
    """What the models of an old recording answer."""
    for training in group:
        if (before / training.name / "model").exists():
            yield f"{training.name}: predict/default", predict_by_default(before, training)


def read_records(_: Path, before: Path) -> Items:
    """The records of an old recording."""
    for file in sorted(before.glob("*.record")):
        yield f"{file.stem}: look/record", describe_record(Record.load(file))


def resume_run(folder: Path, before: Path, training: Training) -> Items:
    """A run of an old recording with more steps."""
    if (before / training.name / "checkpoints").exists():
        own = folder / training.name  # others run at the same time
        shutil.copytree(before / "data", own / "data")
        try:
            yield f"{training.name}: more steps", extend_copy(before / training.name, own, training)
        except RuntimeError as error:  # the code that compares refuses the run
            yield f"{training.name}: more steps", str(error)


JOBS = [
    Job("data", record_data, stage=0),
    *(Job(model.name, use_model, (model,)) for model in (TRANSLATOR, POET)),
    *(Job(name, record_group, (group,)) for name, group in GROUPS.items()),
    Job("live pages", record_pages, ([TRANSLATOR, POET, *chain.from_iterable(GROUPS.values())],), stage=2),
    Job("help", record_help, stage=2),
    *(Job(f"mistakes {part}", record_mistakes, (list(MISTAKES)[part::2],), stage=2) for part in (0, 1)),
]
READINGS = [
    Job("records", read_records),
    *(Job(name, read_models, (group,)) for name, group in GROUPS.items()),
    *(
        Job(f"{training.name}, extended", resume_run, (training,))
        for group in GROUPS.values()
        for training in group
        if training.extended
    ),
]
