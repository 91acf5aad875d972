"""How long exact search among 100,000 vectors of width 384 takes: usearch, faiss, NumPy, PyTorch, and our index.

    pip install usearch faiss-cpu
    OMP_NUM_THREADS=2 python benchmarks/answers_index.py

All use float32 and 2 threads and find the ten nearest by inner product; that they find the same is checked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from measuring import Report, compare

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from clearhead.tasks.answers.answer_index import AnswerIndex, Entry

ROWS, WIDTH, NEAREST, THREADS = 100_000, 384, 10, 2
BATCHES = {1: 21, 4: 11, 16: 7, 64: 5}  # questions at once, and rounds of measurement


def unit_vectors(count: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, WIDTH), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def competitors(known: np.ndarray, asked: np.ndarray) -> dict[str, Callable[[], np.ndarray]]:
    """Functions that find the places of the nearest vectors; the first is the peer."""
    import faiss
    from usearch.index import search

    faiss.omp_set_num_threads(THREADS)
    flat = faiss.IndexFlatIP(WIDTH)
    flat.add(known)
    tensor, questions = torch.from_numpy(known), torch.from_numpy(asked)
    own = AnswerIndex.empty(WIDTH).extend([Entry(row, "", "") for row in range(len(known))], known)

    def numpy_search() -> np.ndarray:
        scores = asked @ known.T
        some = np.argpartition(-scores, NEAREST, axis=1)[:, :NEAREST]
        return np.take_along_axis(some, np.argsort(-np.take_along_axis(scores, some, 1), axis=1), 1)

    def usearch_search() -> np.ndarray:
        found = search(known, asked, NEAREST, "ip", exact=True, threads=THREADS)
        return np.reshape(found.keys, (len(asked), NEAREST))

    return {
        "clearhead": lambda: own.search(asked, NEAREST)[1],
        "usearch": usearch_search,
        "faiss": lambda: flat.search(asked, NEAREST)[1],
        "numpy": numpy_search,
        "torch": lambda: (questions @ tensor.T).topk(NEAREST).indices.numpy(),
    }


def main() -> None:
    torch.set_num_threads(THREADS)
    print(f"load average {os.getloadavg()[0]:.1f}")
    known, report = unit_vectors(ROWS, 0), Report("answers_index", "Exact search among 100,000 vectors")
    for questions, rounds in BATCHES.items():
        some = competitors(known, unit_vectors(questions, 1))
        found = {name: run() for name, run in some.items()}
        assert all((one == found["numpy"]).all() for one in found.values())
        report.add(f"{questions} at once", f"{ROWS:,} × {WIDTH}", compare(some, rounds=rounds))
    report.save()


if __name__ == "__main__":
    main()
