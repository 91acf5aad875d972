"""Tagging and classification on a CPU against transformers with the same weights: prediction, and a training step.

    python benchmarks/understanding_speed.py --tagger RUN --tagged dev.iob2.txt --classifier RUN --texts train.txt

Prediction includes tokenisation. Its peer is `transformers.pipeline` at the batch size that is its fastest on a sample,
with texts in their order, and again sorted by length, which a user of a pipeline has to do outside of it. Both RUNs
start from a BERT of Hugging Face; the tagger has no letter_case and no crf, the classifier model.pooling = "first",
so that transformers can express them. Answers are compared: tags with those of the pipeline where its best tags are a
legal sequence, for ours always are. Either task may be left out.

The training step is forward, backward and AdamW in float32 on one batch of the same tokens; the peer is a plain loop
over BertForTokenClassification or BertForSequenceClassification.

Every round runs both in turn. Ratios are given of wall time, and of the CPU time of the process, which other processes
on the machine change less.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import clearhead
from clearhead.predictor import Predictor
from clearhead.tasks.tagging.sentences import Sentence
from clearhead.text import Report
from clearhead.text.batches import Batch
from clearhead.train.processes import Processes
from clearhead.train.recipe import Train, read_recipe
from clearhead.train.updater import Updater

from measuring import RESULTS, hardware

BATCHES = (1, 8, 16, 32, 64)
STEP_TEXTS = 32  # of a training batch
# Changes to the recipes of the two models, for the plain loss that transformers computes.
PLAIN_LOSS = {
    "tagging": ["text.unknown=0.0", "loss.masked=0.0", "loss.label_smoothing=0.0"],
    "classification": [f"loss.{key}=0.0" for key in ("token_dropout", "masked", "label_smoothing")],
}
Run = Callable[[], Any]


class Cost(NamedTuple):
    wall: float
    cpu: float


def measure(run: Run) -> tuple[Cost, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    found = run()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu), found


def alternate(competitors: Sequence[Run], rounds: int) -> tuple[list[list[Cost]], list[Any]]:
    """The costs of all in each round, whose order changes from round to round; and the answers of the first round."""
    costs, answers = [], list[Any]()
    for number in range(rounds):
        order = list(range(len(competitors)))[:: 1 if number % 2 == 0 else -1]
        found = {place: measure(competitors[place]) for place in order}
        costs.append([found[place][0] for place in range(len(competitors))])
        answers = answers or [found[place][1] for place in range(len(competitors))]
    return costs, answers


class BestPipeline:
    """A pipeline of transformers at its best batch size, with texts in their order or sorted by length."""

    def __init__(self, pipeline: Any, texts: Sequence[str], sample: int, *, by_length: bool) -> None:
        self.pipeline, self.texts, self.by_length = pipeline, list(texts), by_length
        some = self.texts[:sample]
        self.trials = {size: measure(lambda size=size: self._predict(some, size))[0].cpu for size in BATCHES}
        self.size = min(self.trials, key=self.trials.__getitem__)

    def __call__(self) -> list[Any]:
        return self._predict(self.texts, self.size)

    def _predict(self, texts: list[str], size: int) -> list[Any]:
        order = list(range(len(texts)))
        if self.by_length:
            order.sort(key=lambda place: len(texts[place]))
        found: list[Any] = [None] * len(texts)
        answers = self.pipeline([texts[place] for place in order], batch_size=size)
        for place, answer in zip(order, answers, strict=True):
            found[place] = answer
        return found

    def __str__(self) -> str:
        return f"transformers.pipeline, batch {self.size}{', sorted by length' if self.by_length else ''}"


def to_transformers(predictor: Predictor, kind: str, folder: Path) -> tuple[Any, Any]:
    """The same weights as a model of transformers, and its tokenizer."""
    import transformers

    clearhead.to_huggingface(predictor.model, folder, labels=predictor.processor.labels)
    predictor.processor.tokenizer.to_huggingface(folder)
    model = getattr(transformers, f"AutoModelFor{kind}Classification").from_pretrained(folder)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def is_legal(tags: list[str]) -> bool:
    follows = ((one, other) for one, other in pairwise(["O", *tags]) if other.startswith("I-"))
    return all(one != "O" and one[2:] == other[2:] for one, other in follows)


def compare_tags(sentences: Sequence[Sentence], theirs: Sequence[Any], ours: Sequence[Any]) -> str:
    legal = same = 0
    for sentence, found, answer in zip(sentences, theirs, ours, strict=True):
        begins = {piece["start"]: piece["entity"] for piece in found}  # the pipeline leaves O out
        tags = [begins.get(begin, "O") for begin, _ in sentence.words]
        if is_legal(tags):
            legal += 1
            same += Sentence(sentence.text, sentence.words, answer.spans).tags("iob2") == tags
    return f"the same tags in {same:,} of {legal:,} sentences where the pipeline's are legal, of {len(sentences):,}"


def compare_labels(theirs: Sequence[Any], ours: Sequence[Any]) -> str:
    same = sum(one["label"] == other.label for one, other in zip(theirs, ours, strict=True))
    off = max(abs(one["score"] - other.score) for one, other in zip(theirs, ours, strict=True))
    return f"the same label for {same:,} of {len(ours):,} texts; scores differ by {off:.1e} at most"


def make_our_step(predictor: Predictor, examples: Any, batch: Batch) -> Run:
    """One step of our trainer on a batch."""
    train = Train(learning_rate=1e-5, precision="float32", compile=False, clip=1.0)
    model = predictor.processor.build()
    model.load_state_dict(predictor.model.state_dict())
    processes = Processes(0, 1, torch.device("cpu"))
    recipe, _ = read_recipe(f"{predictor.folder}/recipe.toml", PLAIN_LOSS[predictor.task.name])
    objective = predictor.task.objective(predictor.processor, recipe)
    updater = Updater(train, objective, model, examples, processes, seed=1)
    steps = iter(range(1, 1_000_000))
    return lambda: updater.update([batch], next(steps))


def make_their_step(model: Any, inputs: dict[str, Any]) -> Run:
    """One step of a plain loop over a model of transformers: AdamW, gradients clipped, as its Trainer does."""
    import copy

    model = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)

    def step() -> None:
        model(**inputs).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def make_steps(predictor: Predictor, model: Any, rows: Sequence[Any]) -> tuple[Run, Run, str]:
    """A step of each on the same tokens and labels, and the shape of the batch."""
    examples = predictor.processor.examples(rows[:STEP_TEXTS], Report())
    batch = Batch(np.arange(len(examples)), (int(examples.lengths.max()),))
    collated = examples.collate(batch)
    places = torch.arange(collated.tokens.shape[1])
    inputs = {"input_ids": collated.tokens, "attention_mask": (places < collated.lengths[:, None]).long()}
    if hasattr(collated, "words"):
        tags = torch.full_like(collated.tokens, -100)
        real = collated.tags >= 0
        tags[real.nonzero()[:, 0], collated.words[real]] = collated.tags[real]
        inputs["labels"] = tags
    else:
        inputs["labels"] = collated.labels
    shape = f"{collated.tokens.shape[0]} × {collated.tokens.shape[1]} tokens"
    return make_their_step(model, inputs), make_our_step(predictor, examples, batch), shape


class Table:
    """Rows of results, printed as they come and kept as a file."""

    def __init__(self) -> None:
        self.lines = ["| case | peer | peer s | clearhead s | times as fast, wall (spread) | CPU time (spread) |"]
        self.lines += ["|---|---|---|---|---|---|"]
        self.notes: list[str] = []

    def add(self, case: str, peers: Sequence[str], costs: Sequence[Sequence[Cost]]) -> None:
        """A row for each peer; ours are the last costs of each round."""
        for place, peer in enumerate(peers):
            walls = [one[place].wall / one[-1].wall for one in costs]
            cpus = [one[place].cpu / one[-1].cpu for one in costs]
            seconds = [statistics.median(one[side].wall for one in costs) for side in (place, -1)]
            ratios = [f"{statistics.median(some):.2f} ({min(some):.2f} to {max(some):.2f})" for some in (walls, cpus)]
            self.lines.append(f"| {case} | {peer} | {seconds[0]:.3f} | {seconds[1]:.3f} | {ratios[0]} | {ratios[1]} |")
            print(self.lines[-1], flush=True)

    def note(self, text: str) -> None:
        self.notes.append(f"- {text}")
        print(text, flush=True)

    def save(self, out: Path | None) -> None:
        import transformers

        about = [
            f"- date: {datetime.date.today()}",
            f"- hardware: {hardware()}",
            f"- versions: Python {platform.python_version()}, torch {torch.__version__}, "
            f"transformers {transformers.__version__}, clearhead {clearhead.__version__}",
            f"- command: `python {' '.join(Path(one).name if '/' in one else one for one in sys.argv)}`",
            "- times as fast: median over rounds of the peer's time / ours in the same round, smallest and largest",
        ]
        title = "# Tagging and classification on a CPU against transformers with the same weights"
        path = out or RESULTS / f"understanding_speed_cpu_{datetime.date.today()}.md"
        path.write_text("\n".join([title, "", *about, "", *self.lines, "", *self.notes, ""]), encoding="utf-8")
        print(f"kept as {path}")


def run_task(name: str, predictor: Predictor, rows: list[Any], table: Table, given: argparse.Namespace) -> None:
    """Prediction and training step of one task."""
    from transformers import pipeline

    tagging, processor = name == "tagging", predictor.processor
    inputs = [processor.inputs.of_row(row) for row in rows]
    options = predictor.task.read_options("predict", {})
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = to_transformers(predictor, "Token" if tagging else "Sequence", Path(folder))
    kind = "token-classification" if tagging else "text-classification"
    texts = [one.text if tagging else one for one in inputs]
    peer = pipeline(kind, model=model, tokenizer=tokenizer, device="cpu")
    peers = [BestPipeline(peer, texts, given.sample, by_length=by_length) for by_length in (False, True)]

    def predict() -> list[Any]:
        if tagging:
            processor.encoder._known.clear()  # words that were seen before are no merit
        with torch.inference_mode():
            return list(predictor.answerer.predict(inputs, options))

    costs, (theirs, _, ours) = alternate([*peers, predict], given.rounds)
    table.add(f"{name}: {len(inputs):,} texts", list(map(str, peers)), costs)
    table.note(f"{name}: {compare_tags(inputs, theirs, ours) if tagging else compare_labels(theirs, ours)}")
    for one in peers:
        trials = ", ".join(f"{size}: {cpu:.2f}" for size, cpu in one.trials.items())
        table.note(f"{name}: CPU seconds on {given.sample} texts by batch size, {one}: {trials}")
    their_step, our_step, shape = make_steps(predictor, model, rows)
    for step in (their_step, our_step):
        step()
    costs, _ = alternate([their_step, our_step], given.steps)
    table.add(f"{name}: training step, {shape}", ["plain transformers loop"], costs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tagger")
    parser.add_argument("--tagged")
    parser.add_argument("--classifier")
    parser.add_argument("--texts")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--sample", type=int, default=300, help="texts on which the pipeline's batch size is chosen")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    warnings.simplefilter("ignore")
    table = Table()
    for name, folder, data in (
        ("tagging", given.tagger, given.tagged),
        ("classification", given.classifier, given.texts),
    ):
        if folder is None:
            continue
        predictor = clearhead.load(folder, device="cpu")
        run_task(name, predictor, predictor.read_rows(data)[: given.count], table, given)
    table.save(given.out)


if __name__ == "__main__":
    main()
