"""Sentences a second of a tagger on a CPU, against transformers.pipeline with the same weights, tokenisation included.

    python benchmarks/tagging_speed.py RUN dev.conll

RUN is a tagger that started from a BERT of Hugging Face, without letter_case and crf, so that transformers can express
it. The pipeline is timed with every batch size of BATCHES, and the best one is the peer. Labels are compared word by
word: with those of the pipeline where its best tags are a legal sequence, for ours always are.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import clearhead
from clearhead.predictor import Predictor
from clearhead.tasks.tagging.sentences import Sentence

from measuring import Report, compare

BATCHES = (1, 8, 32, 64)


def make_pipeline(tagger: Predictor, folder: Path) -> Any:
    """transformers' pipeline with the weights and the tokenizer of our model."""
    from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

    clearhead.to_huggingface(tagger.model, folder, labels=tagger.task.labels)
    tagger.task.tokenizer.to_huggingface(folder)
    model = AutoModelForTokenClassification.from_pretrained(folder)
    return pipeline("token-classification", model=model, tokenizer=AutoTokenizer.from_pretrained(folder), device="cpu")


def pipeline_tags(sentence: Sentence, found: list[dict[str, Any]]) -> list[str]:
    """The tag of each word by its first piece; the pipeline leaves O out."""
    begins = {piece["start"]: piece["entity"] for piece in found}
    return [begins.get(begin, "O") for begin, _ in sentence.words]


def is_legal(tags: list[str]) -> bool:
    follows = ((one, other) for one, other in pairwise(["O", *tags]) if other.startswith("I-"))
    return all(one != "O" and one[2:] == other[2:] for one, other in follows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    warnings.simplefilter("ignore")
    tagger = clearhead.load(given.model, device="cpu")
    rows = list(tagger.task.read(given.data))[: given.sentences]
    sentences = [tagger.task.input_of(row) for row in rows]
    texts = [sentence.text for sentence in sentences]
    with tempfile.TemporaryDirectory() as folder:
        peer = make_pipeline(tagger, Path(folder))

    def run_ours() -> list[Any]:
        tagger.task.encoder._known.clear()  # words that were seen before are no merit
        with torch.inference_mode():
            return list(tagger.task.predict(tagger.model, sentences, tagger.task.read_options("predict", {})))

    def run_theirs(batch: int) -> Callable[[], list[Any]]:
        return lambda: peer(texts, batch_size=batch)

    trial = {batch: compare({"it": run_theirs(batch)}, rounds=2)["it"].median for batch in BATCHES}
    best = min(trial, key=trial.__getitem__)
    report = Report("tagging", "Tagging on a CPU against transformers.pipeline")
    times = compare(
        {f"transformers.pipeline, batch {best}": run_theirs(best), "clearhead": run_ours}, rounds=given.rounds
    )
    report.add("tagging", f"{len(texts)} sentences, {given.threads} threads", times)
    theirs = [pipeline_tags(*pair) for pair in zip(sentences, run_theirs(best)(), strict=True)]
    ours = [
        Sentence(sentence.text, sentence.words, answer.spans).tags("iob2")
        for sentence, answer in zip(sentences, run_ours(), strict=True)
    ]
    legal = [place for place, tags in enumerate(theirs) if is_legal(tags)]
    same = sum(ours[place] == theirs[place] for place in legal)
    said = f"Same tags in {same:,} of {len(legal):,} sentences whose best tags are legal, of {len(texts):,}."
    print(said)
    path = report.save()
    path.write_text(path.read_text(encoding="utf-8") + f"\n{said}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
