"""What watching the heads costs while a model is trained: steps with and without it, in alternation.

    python benchmarks/heads_cost.py [--recipe translate-zh-en-tiny] [--rounds 7] [--every 100]

Both train the model of a recipe, `every` steps a round; one looks at its heads at the end of them, as
`train.heads_every` says, and writes down what it sees. The look by itself is timed as well: its ratio is the share of
the time of these steps, which is not lost in how much they differ from round to round.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from clearhead.train import read_recipe
from clearhead.train.data import prepare_data
from clearhead.train.head_monitor import HeadLog
from clearhead.train.loop import Trainer
from clearhead.train.observers import TensorBoardLog
from clearhead.train.processes import Processes, join_processes
from clearhead.train.run_folder import Checkpoints

from measuring import Report, compare

MOST = 2.0  # per cent of training time that watching the heads may take


class Learner:
    """A training run that goes on by the same number of steps each time it is called."""

    def __init__(self, name: str, folder: Path, processes: Processes, every: int, heads_every: int) -> None:
        recipe, base = read_recipe(name, [f"train.heads_every={heads_every}", "train.schedule=constant"])
        folder.mkdir()
        data = prepare_data(folder, recipe, base, processes)
        torch.manual_seed(recipe.seed)
        checkpoints = Checkpoints(folder / "checkpoints", 1, processes)
        observers = [HeadLog(folder, 0), TensorBoardLog(folder / "tensorboard", 0)] if heads_every else []
        data, self.every = data._replace(dev=None), every
        self.trainer = Trainer(data, data.processor.build(), checkpoints, processes, observers)

    def __call__(self) -> None:
        trainer = self.trainer
        trainer.train = trainer.train.model_copy(update={"steps": trainer.position.step + self.every})
        trainer.position.stopped = None
        trainer.run()

    def look(self) -> None:
        self.trainer.measure_heads(self.trainer.position.step)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--recipe", default="translate-zh-en-tiny")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--every", type=int, default=100, help="steps from one look to the next")
    parser.add_argument("--dry", action="store_true", help="keep no file")
    options = parser.parse_args()
    report = Report("heads_cost", "Watching the heads while a model is trained")
    with tempfile.TemporaryDirectory() as folder, join_processes("auto") as processes:
        blind, watching = (
            Learner(options.recipe, Path(folder) / name, processes, options.every, every)
            for name, every in (("blind", 0), ("watching", options.every))
        )
        competitors = {
            f"{options.every} steps": blind,
            f"{options.every} steps, heads watched": watching,
            "the look by itself": watching.look,
        }
        timings = compare(competitors, rounds=options.rounds)
    report.add(f"heads_every={options.every}", options.recipe, timings)
    report.judge("the look by itself,", 100 * timings["the look by itself"].ratio, MOST, " % of training time")
    if not options.dry:
        report.save()


if __name__ == "__main__":
    main()
