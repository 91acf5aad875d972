"""Turns CLINC150's data_full.json into files that `clearhead train answers-clinc150` reads.

    python examples/convert_clinc150.py data_full.json clinc150
    clearhead train answers-clinc150 --set data.train=clinc150/train.tsv --set data.dev=clinc150/dev.tsv \\
        --set data.test=clinc150/test.tsv --set train.init_from=MINILM

Each line is a question, a tab, and its intent; a question that is out of scope has none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PARTS = {"train": ("train", "oos_train"), "dev": ("val", "oos_val"), "test": ("test", "oos_test")}


def main(source: Path, target: Path) -> None:
    data = json.loads(source.read_text(encoding="utf-8"))
    target.mkdir(parents=True, exist_ok=True)
    for name, (inside, outside) in PARTS.items():
        rows = [*data[inside], *([question, ""] for question, _ in data[outside])]
        lines = [f"{' '.join(question.split())}\t{intent}\n" for question, intent in rows]
        (target / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
        print(f"{target / name}.tsv: {len(data[inside])} questions, and {len(data[outside])} out of scope")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python {sys.argv[0]} data_full.json FOLDER")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
