"""Captions: openmoji pictures of emoji never seen in training, and where the heads look in scenes drawn by a program.

    python benchmarks/captioning.py prepare --data openmoji.tar --out openmoji     # folders of pictures and texts
    python benchmarks/captioning.py openmoji --data openmoji --out runs-openmoji   # three seeds side by side, on a GPU
    python benchmarks/captioning.py scenes --out runs-scenes                       # minutes on two cores

The test emoji are those without skin tone for which sha1(base hexcode) mod 10 is 0. Training takes the others, and
those with a skin tone whose base is not in the test. Finished runs in --out are not repeated. `openmoji --tune` scores
on emoji with mod 10 = 1 instead, and never reads the test: settings are chosen with it, such as
--variant "small model.width=128". `openmoji --choose 2 --variant … --variant …` does both: it trains each variant for
two minutes, chooses one by chrF on dev, and scores that one's seeds on the test.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import hashlib
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from small_scenes import find_covered, make_scenes

from measuring import RESULTS, hardware

METRICS = ("chrf", "exact", "bleu")
OPENMOJI = Path(__file__).parent / "recipes" / "caption-openmoji.toml"
SCENES = Path(__file__).parent / "recipes" / "caption-scenes.toml"
PARTS = {"train": 6000, "dev": 100}  # scenes that a run learns from, and that it is scored on


# openmoji


def prepare_openmoji(data: Path, out: Path) -> None:
    """Writes the folders train, dev, test and, of emoji with a skin tone, tones and tones-dev.

    An emoji with a skin tone has the name of the one without: the test has no tones. One in five of them is taken; with
    all of them more than half of the pictures would be people.
    """
    from clearhead.images import read_picture

    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(data) as archive:
        archive.extractall(out / "files", filter="data")
    root = next((out / "files").rglob("openmoji.csv")).parents[1]
    rows = list(csv.DictReader(io.StringIO((root / "data" / "openmoji.csv").read_text(encoding="utf-8"))))
    names = {row["hexcode"]: row["annotation"] for row in rows}
    parts: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        fold = hash_code(row["skintone_base_hexcode"] or row["hexcode"]) % 10
        if not row["skintone"]:
            parts.setdefault({0: "test", 1: "dev"}.get(fold, "train"), []).append(row)
        elif fold and hash_code(row["hexcode"]) % 5 == 0:
            parts.setdefault("tones-dev" if fold == 1 else "tones", []).append(row)
    for name, some in parts.items():
        pictures = [read_picture(root / "color" / "72x72" / f"{row['hexcode']}.png") for row in some]
        pixels = [(one * 255).round().byte().permute(1, 2, 0).numpy() for one in pictures]
        write_folder(out / name, pixels, [names.get(row["skintone_base_hexcode"], row["annotation"]) for row in some])
        print(f"{name}: {len(some):,} pictures", flush=True)


def write_folder(folder: Path, pictures: Sequence[np.ndarray], texts: Sequence[str]) -> None:
    """Pictures as PNG files, each with its text beside it."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for number, (picture, text) in enumerate(zip(pictures, texts, strict=True)):
        Image.fromarray(picture).save(folder / f"{number:05}.png")
        (folder / f"{number:05}.txt").write_text(text, encoding="utf-8")


def hash_code(code: str) -> int:
    return int(hashlib.sha1(code.encode()).hexdigest(), 16)


def train_openmoji(arguments: argparse.Namespace) -> None:
    """The runs of every variant, or with --choose those of the variant that is the best on dev."""
    variants = dict(one.partition(" ")[::2] for one in arguments.variant or ["recipe"])
    lines = [f"# Captions of openmoji, {datetime.date.today().isoformat()}", ""]
    if arguments.choose and not arguments.tune:
        changes = {name: f"{own} train.minutes={arguments.choose}" for name, own in variants.items()}
        table, chrf = run_openmoji(arguments, changes, arguments.seeds[:1], tune=True)
        best = max(chrf, key=chrf.__getitem__)
        lines += [*table, "", f"Chosen on dev: {best} ({variants[best] or 'the recipe'}).", ""]
        variants = {best: variants[best]}
    table, _ = run_openmoji(arguments, variants, arguments.seeds, tune=arguments.tune)
    report([*lines, *table], arguments.out, f"captioning_{'tune' if arguments.tune else 'openmoji'}")


def run_openmoji(
    arguments: argparse.Namespace, variants: dict[str, str], seeds: Sequence[int], *, tune: bool
) -> tuple[list[str], dict[str, float]]:
    """A table of variants, scored on dev (`tune`) or on the test, and the mean chrF of each that finished."""
    data, part = arguments.data.resolve(), "dev" if tune else "test"
    known = ["train", "tones"] if tune else ["train", "dev", "tones", "tones-dev"]
    sets = [f"data.train={json.dumps([str(data / name) for name in known])}", f'data.test="{data / part}"']
    jobs = [(name, changes.split(), seed) for name, changes in variants.items() for seed in seeds]
    begun = time.monotonic()

    def run(job: tuple[str, list[str], int]) -> dict[str, Any]:
        name, changes, seed = job
        where = arguments.out / f"{part}-{name}-{seed}"
        return train(str(OPENMOJI), [*sets, *arguments.set, *changes], where, seed)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = list(pool.map(run, jobs))
    minutes = (time.monotonic() - begun) / 60
    lines = [
        f"{hardware()}; PyTorch {torch.__version__}; {len(jobs)} runs, {arguments.jobs} at a time: {minutes:.1f} min.",
        "",
        f"| {part} | seeds | {' | '.join(METRICS)} | minutes a run |",
        f"|---|---|{'---|' * len(METRICS)}---|",
    ]
    chrf = {}
    for name in variants:
        own = [one for one, job in zip(found, jobs, strict=True) if job[0] == name and one]
        if not own:
            continue
        shown = [format_scores([one["test"][metric] for one in own]) for metric in METRICS]
        chrf[name] = statistics.mean(one["test"]["chrf"] for one in own)
        times = statistics.mean(one["minutes"] for one in own)
        lines.append(f"| {name} | {len(own)} | {' | '.join(shown)} | {times:.1f} |")
    if not chrf:
        raise SystemExit("no run finished; the .log files in --out say why")
    for baseline in [one["baseline"] for one in found if one][:1]:
        shown = [f"{baseline[metric]:.1f}" for metric in METRICS]
        lines.append(f"| {baseline['name']} | | {' | '.join(shown)} | |")
    print("\n".join(lines), flush=True)
    return lines, chrf


def train(recipe: str, changes: Sequence[str], where: Path, seed: int) -> dict[str, Any]:
    """The metrics of a run, which is trained in a process of its own if it is not finished."""
    metrics, record = where / "model" / "metrics.json", where.with_name(f"{where.name}.minutes")
    if not metrics.is_file():
        begun = time.monotonic()
        command = [sys.executable, "-m", "clearhead", "train", recipe, "--out", str(where), "--seed", str(seed)]
        where.parent.mkdir(parents=True, exist_ok=True)
        options = [option for change in changes for option in ("--set", change)]
        with where.with_name(f"{where.name}.log").open("w") as log:
            done = subprocess.run([*command, "--overwrite", *options], stdout=log, stderr=log, env=dict(os.environ))
        if done.returncode:  # the other runs go on
            print(f"{where.name} failed: {Path(log.name).read_text()[-1000:]}", flush=True)
            return {}
        record.write_text(str((time.monotonic() - begun) / 60))
        scores = json.loads(metrics.read_text()).get("test", {})
        print(where.name, {metric: scores.get(metric) for metric in METRICS}, flush=True)
    return {**json.loads(metrics.read_text()), "minutes": float(record.read_text()) if record.is_file() else 0.0}


def format_scores(values: Sequence[float]) -> str:
    """The mean, and if there are several values the smallest and the largest."""
    mean = statistics.mean(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ({min(values):.1f}–{max(values):.1f})"


# scenes


def train_scenes(arguments: argparse.Namespace) -> None:
    from clearhead import load

    lines = [
        f"# Where heads look in scenes, {datetime.date.today().isoformat()}",
        "",
        f"{hardware()}; PyTorch {torch.__version__}. Scenes of 2 to 4 shapes, each at most 10 % of the picture, "
        "8 × 8 patches. The mean share of a head's attention on the patches of a shape, while the model writes the "
        "colour and the name of that shape; the head was chosen on other scenes.",
        "",
        "| run | exact | head | on its patches | words above 60 % | patches of a shape |",
        "|---|---|---|---|---|---|",
    ]
    variants = dict(one.partition(" ")[::2] for one in arguments.variant or ["recipe"])
    jobs = [(name, changes.split(), seed) for name, changes in variants.items() for seed in arguments.seeds]

    def run(job: tuple[str, list[str], int]) -> dict[str, Any]:
        name, changes, seed = job
        sets = [f'data.{part}="{(arguments.out / part).resolve()}"' for part in PARTS]
        return train(str(SCENES), [*sets, *arguments.set, *changes], arguments.out / f"{name}-{seed}", seed)

    arguments.out.mkdir(parents=True, exist_ok=True)
    for part, count in PARTS.items():
        scenes = list(make_scenes(part, count))
        write_folder(arguments.out / part, [scene.pixels for scene in scenes], [scene.text for scene in scenes])
    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = list(pool.map(run, jobs))
    for (name, _, seed), metrics in zip(jobs, found, strict=True):
        if not metrics:
            continue
        model = load(arguments.out / f"{name}-{seed}", device="cpu")
        chosen, _, _, _ = best_head(model, "dev", arguments.scenes)
        _, share, above, area = best_head(model, "test", arguments.scenes, chosen)
        lines.append(
            f"| {name}, seed {seed} | {metrics['dev']['exact']:.1f} % | {chosen[0]}, head {chosen[1]} | "
            f"{100 * share:.1f} % | {100 * above:.1f} % | {100 * area:.1f} % |"
        )
        print(lines[-1], flush=True)
    report(lines, arguments.out, "captioning_scenes")


def best_head(
    model: Any, part: str, count: int, chosen: tuple[str, int] | None = None
) -> tuple[tuple[str, int], float, float, float]:
    """The head of the decoder (the best, or the `chosen` one) and its mean share of attention on the right patches.

    Also the share of words for which it is above 60 %, and the share of the picture's patches that a shape has.
    """
    found: dict[tuple[str, int], list[float]] = {}
    areas = []
    for scene in make_scenes(part, count):
        rows, columns = model.processor.grid.rows, model.processor.grid.columns
        places, record = shape_places(scene, model.processor.target), model.look(scene.pixels, answer=scene.text)
        for name in record.names:
            if not name.endswith("cross"):
                continue
            for head in range(model.processor.config.heads):
                if chosen is None or chosen == (name, head):
                    weights = record[name].weights(batch=0, head=head).float()
                    for place, shape in places:
                        covered = torch.from_numpy(find_covered(scene, shape, rows, columns)).flatten()
                        found.setdefault((name, head), []).append(float(weights[place, covered].sum()))
        areas += [find_covered(scene, shape, rows, columns).mean() for _, shape in places]
    best = chosen or max(found, key=lambda head: statistics.mean(found[head]))
    shares = found[best]
    return best, statistics.mean(shares), statistics.mean(share > 0.6 for share in shares), float(np.mean(areas))


def shape_places(scene: Any, tokenizer: Any) -> list[tuple[int, int]]:
    """Which decoder positions write the colour and the name of a shape, and the shape's number."""
    word = 0
    shape_of: dict[int, int] = {}  # by the number of the word
    for number, shape in enumerate(scene.shapes):
        shape_of[word + 1] = shape_of[word + 2] = number
        word += 3
        if number + 1 < len(scene.shapes):
            word += 2 if scene.text.split()[word] == "left" else 1
        assert shape.text in scene.text
    places, word = [], -1
    for place, piece in enumerate(tokenizer.pieces(tokenizer.encode(scene.text))):
        word += piece.startswith("▁")
        if word in shape_of:
            places.append((place, shape_of[word]))
    return places


def report(lines: Sequence[str], out: Path, name: str) -> None:
    text = "\n".join([*lines, ""])
    print(text)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.md").write_text(text, encoding="utf-8")
    if os.environ.get("CLEARHEAD_KEEP_RESULTS") == "1":
        kind = "h200" if torch.cuda.is_available() else "cpu"
        (RESULTS / f"{name}_{kind}_{datetime.date.today().isoformat()}.md").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "openmoji", "scenes"))
    parser.add_argument("--data", type=Path, help="the archive for prepare, its folder for openmoji")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=3, help="runs at a time")
    parser.add_argument("--scenes", type=int, default=200, help="how many are measured")
    parser.add_argument("--choose", type=float, metavar="MINUTES", help="train each variant so long, choose on dev")
    parser.add_argument("--tune", action="store_true", help="score on dev and leave the test alone")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipe")
    parser.add_argument("--variant", action="append", metavar="'NAME KEY=VALUE …'", help="another set of changes")
    arguments = parser.parse_args()
    if arguments.what == "prepare":
        prepare_openmoji(arguments.data, arguments.out)
    elif arguments.what == "openmoji":
        train_openmoji(arguments)
    else:
        train_scenes(arguments)


if __name__ == "__main__":
    main()
