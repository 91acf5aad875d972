"""How long several threads need with one predictor, as a ratio to one thread with the same work.

    clearhead train summarise-tiny --out summaries
    python benchmarks/shared_predictor.py summaries shipped:messages-en.dev

"in turns" is what decoding does with small steps, "side by side" is without the lock. A ratio is of two runs right
after each other; the median of five is shown, with the smallest and the largest.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch

import clearhead
from clearhead.model import small_passes
from clearhead.predictor import Predictor

CALLS, ROUNDS = 8, 5


def seconds(predictor: Predictor, calls: list[list[str]], threads: int, beams: int) -> float:
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda texts: predictor.predict(texts, beams=beams), calls))
    return time.perf_counter() - start


def compare(predictor: Predictor, calls: list[list[str]], threads: int, beams: int) -> str:
    ratios = []
    for _ in range(ROUNDS):
        alone = seconds(predictor, calls, 1, beams)
        ratios.append(seconds(predictor, calls, threads, beams) / alone)
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main(model: str, data: str) -> None:
    predictor = clearhead.load(model, device="cpu")
    texts = [row.values[0] for row in predictor.read_rows(data)]
    weights = sum(parameter.numel() for parameter in predictor.model.parameters())
    print(f"\n{predictor.name}, {weights:,} weights; {CALLS} calls; {platform.machine()}, torch {torch.__version__}\n")
    print("| threads of PyTorch | inputs a call × beams | threads | side by side | in turns |")
    print("| --- | --- | --- | --- | --- |")
    limit = small_passes.SMALL
    for inner in (1, torch.get_num_threads()):
        torch.set_num_threads(inner)
        for size, beams in ((1, 1), (1, 5), (8, 1), (8, 5)):
            calls = [[texts[(call * size + place) % len(texts)] for place in range(size)] for call in range(CALLS)]
            seconds(predictor, calls, 1, beams)
            for threads in (2, 4):
                ratios = []
                for small_passes.SMALL in (0, limit):
                    ratios.append(compare(predictor, calls, threads, beams))
                print(f"| {inner} | {size} × {beams} | {threads} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
