"""Training tokens a second of a character model of 10.7 million weights, against a plain loop in the manner of nanoGPT.

    python benchmarks/language_model_speed.py            # a GPU: about a minute
    python benchmarks/language_model_speed.py --small    # a CPU: that it runs

Both train on tiny Shakespeare in bfloat16 with dropout, the peer compiled as a whole (peers/nanogpt_loop.py), clearhead
as `train lm-shakespeare` does it: compiled layers in a CUDA graph, clipping, AdamW, a moving average of the weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.tasks.language_model.language_processor import LanguageProcessor, PackedExamples
from clearhead.tasks.language_model.language_task import LanguageObjective
from clearhead.text import Report as DataReport
from clearhead.text import Row
from clearhead.text.batches import BatchPlan
from clearhead.train.data import read_training_rows
from clearhead.train.processes import Processes, select_attention_kernels
from clearhead.train.recipe import Recipe, read_recipe
from clearhead.train.updater import Updater
from peers.nanogpt_loop import Size, make_step

from measuring import Report, compare

SMALL = Size(layers=2, heads=2, width=32, context=32, rows=8, dropout=0.0)


def read_own(size: Size, *, compiled: bool) -> tuple[Recipe, list[Row]]:
    """The recipe lm-shakespeare with another size, and its training data."""
    sizes = {
        "model.layers": size.layers,
        "model.heads": size.heads,
        "model.kv_heads": size.heads,
        "model.width": size.width,
        "model.feedforward": 8 * size.width // 3,
        "model.dropout": size.dropout,
        "data.longest": size.context,
        "train.batch_tokens": size.rows * size.context,
        "train.compile": str(compiled).lower(),
    }
    recipe, base = read_recipe("lm-shakespeare", [f"{key}={value}" for key, value in sizes.items()])
    return recipe, read_training_rows(recipe, base)


def make_own_step(
    recipe: Recipe, processor: LanguageProcessor, examples: PackedExamples, device: torch.device
) -> Callable[[], Tensor]:
    """A function that makes one of our training steps, with all that the trainer does for it."""
    objective, processes = LanguageObjective(processor, recipe), Processes(0, 1, device)
    updater = Updater(recipe.train, objective, processor.build(), examples.to(device), processes, recipe.seed)
    plan = BatchPlan(examples.lengths, tokens=recipe.train.batch_tokens, seed=recipe.seed, shapes=recipe.train.shapes)
    done, batches = 0, plan.epoch(0)

    def step() -> Tensor:
        nonlocal done, batches
        place = done % plan.batches
        if done and place == 0:
            epoch = done // plan.batches
            batches = plan.epoch(epoch)
            objective.refresh(updater.model, examples, epoch)
        done += 1
        updater.set_learning_rate(done, done / recipe.train.steps)
        with select_attention_kernels(float(recipe.data.longest)):
            loss, _ = updater.update([batches[place]], done)
        return loss / max(1, int(examples.counts[batches[place].examples].sum()))

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true", help="a tiny model that is not compiled, for a CPU")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=50, help="steps in a round")
    parser.add_argument("--dry", action="store_true", help="keep no file")
    settings = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not settings.small:
        print("no GPU here, so the sizes are those of --small, whose ratio says little")
        settings.small = True
    size = SMALL if settings.small else Size()
    recipe, rows = read_own(size, compiled=not settings.small)
    processor = LanguageProcessor.prepare(rows, recipe)
    examples = processor.examples(rows, DataReport(), recipe)
    text = rows[0].values[0]
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    data = torch.tensor([letters[letter] for letter in text])
    size = size._replace(vocabulary=len(letters))
    losses: dict[str, Tensor] = {}

    def keep(name: str, step: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            losses[name] = step()

        return run

    steps = {
        "nanoGPT-style loop": make_step(data, size, device, compiled=not settings.small),
        "clearhead": make_own_step(recipe, processor, examples, device),
    }
    for step in steps.values():  # compilation, and the capture of both shapes of batches
        for _ in range(3 if settings.small else 40):
            step()
    calls = 3 if settings.small else settings.calls
    timings = compare({name: keep(name, step) for name, step in steps.items()}, rounds=settings.rounds, calls=calls)
    tokens = {
        "nanoGPT-style loop": size.rows * size.context,
        "clearhead": int(examples.counts.sum()) / count_steps(recipe, examples),  # pads are not counted
    }
    named = {
        f"{name}: {tokens[name] / timing.median:,.0f} tokens/s, loss {float(losses[name]):.2f}": timing
        for name, timing in timings.items()
    }
    report = Report("language_model_speed", "Training a character model against a plain loop with torch.compile")
    shape = f"{size.layers} layers, width {size.width}, {size.rows} × {size.context} tokens"
    report.add("training step", shape, named)
    ratio = (tokens["clearhead"] / timings["clearhead"].median) / (
        tokens["nanoGPT-style loop"] / timings["nanoGPT-style loop"].median
    )
    print(f"clearhead trains on {ratio:.2f} times the tokens a second of the peer")
    if not settings.dry:
        report.save()


def count_steps(recipe: Recipe, examples: PackedExamples) -> int:
    """The steps of an epoch."""
    return BatchPlan(examples.lengths, tokens=recipe.train.batch_tokens, seed=0, shapes=recipe.train.shapes).batches


if __name__ == "__main__":
    main()
