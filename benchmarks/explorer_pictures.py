"""The pictures of long texts in docs/explorer.md: Shakespeare's words, and q and k that are made up from them.

python benchmarks/explorer_pictures.py                       2,000 tokens, 12 layers × 12 heads
python benchmarks/explorer_pictures.py --record long.record  and 100,000 tokens, made if the file is not there
"""

from __future__ import annotations

import argparse
import gzip
import io
import math
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import torch
from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from torch import Tensor

from clearhead import Mask, Record
from clearhead.explore import open_record
from explorer_speed import CHROMIUM, record_of

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDTH = 48
KINDS = ("previous", "same word", "first", "speech", "stop", "broad")
SEEN_TOUR = "try { localStorage.setItem('clearhead-tour', 'seen') } catch { /* no page yet */ }"


def words(count: int) -> list[str]:
    """The first words and marks of the shipped plays; one that follows a space begins with its mark."""
    packed = (files("clearhead.shipped") / "corpora" / "shakespeare.txt.gz").read_bytes()
    text = gzip.decompress(packed).decode("utf-8")
    found = re.findall(r"( ?)([\w']+|[^\w\s]|\n)", text)
    return [("▁" if space else "") + word for space, word in found][:count]


def made_up(tokens: list[str], kind: str, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """q and k, (tokens, WIDTH), of a head that looks at tokens of this kind."""
    place = torch.arange(len(tokens))
    numbers = {word: number for number, word in enumerate(dict.fromkeys(tokens))}
    word = torch.tensor([numbers[one] for one in tokens])
    stop = torch.tensor([one.strip("▁") in ".:;?!" for one in tokens])
    speech = torch.tensor([both == ("\n", "\n") for both in zip(tokens, ["", *tokens], strict=False)]).cumsum(0)
    waves = torch.exp(-torch.rand(WIDTH // 2, generator=chance) * 5)

    def position(at: Tensor) -> Tensor:
        angles = at[:, None] * waves
        return torch.cat([angles.cos(), angles.sin()], -1) * (2 / WIDTH) ** 0.5

    def vectors(of: Tensor) -> Tensor:
        table = torch.randn(int(of.max()) + 1, WIDTH, generator=chance)
        return torch.nn.functional.normalize(table, dim=-1)[of]

    near, strength = position(place), math.log(len(tokens)) * (1.2 + 1.6 * float(torch.rand((), generator=chance)))
    constant = vectors(torch.zeros_like(place))
    pairs = {
        "previous": (position(place - 1), near),
        "same word": (vectors(word), None),
        "first": (constant, constant * (place == 0)[:, None]),
        "speech": (vectors(speech), None),
        "stop": (constant + near, constant * stop[:, None] + near),
        "broad": (0.3 * near, 0.3 * near),
    }
    q, k = pairs[kind]
    k = q if k is None else k
    noise = 0.04 * torch.randn(2, len(tokens), WIDTH, generator=chance)
    return strength * (q + noise[0]), k + noise[1] + 0.12 * near


def text_record(count: int, layers: list[list[str]], pixels: int) -> Record:
    """A record of these kinds of heads, one list a layer."""
    chance, tokens = torch.Generator().manual_seed(7), words(count)
    pairs = [[made_up(tokens, kind, chance) for kind in layer] for layer in layers]
    stacked = [tuple(torch.stack(side)[None] for side in zip(*layer, strict=True)) for layer in pairs]
    scale = WIDTH**0.5  # the scale of the record is 1 / √WIDTH
    labels = ["⏎" if word == "\n" else word for word in tokens]
    return record_of([(scale * q, k) for q, k in stacked], "decoder", labels, Mask.causal(), pixels)


def mixed(layers: int, heads: int) -> Iterator[list[str]]:
    chance = torch.Generator().manual_seed(11)
    for _ in range(layers):
        yield [KINDS[int(torch.randint(len(KINDS), (), generator=chance))] for _ in range(heads)]


def photograph(browser: Browser, record: Record, title: str, views: dict[str, str]) -> None:
    """Saves a picture of the page for each name with a fragment."""
    with open_record(record, title=title, browser=False) as server:
        for name, fragment in views.items():
            page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light", locale="en-GB")
            page.set_default_timeout(180_000)
            page.add_init_script(SEEN_TOUR)
            page.goto(f"{server.url}#{fragment}")
            page.wait_for_selector("html[data-ready='map'][data-shown]", state="attached")
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(4000)  # the tiles
            shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            shot.quantize(256, dither=Image.Dither.NONE).save(
                IMAGES / f"{name}.png", optimize=True
            )  # a third of the size
            page.close()
            print(f"{name}.png", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, help="the record of 100,000 tokens")
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        if given.record is not None:
            if not given.record.exists():
                text_record(100_000, [["previous", "same word", "first", "stop"]], 1024).save(given.record)
            views = {
                "explorer-100000": "at=decoder.0.self/1&pins=tokens:50018",
                "explorer-100000-near": "at=decoder.0.self/0&view=50005,50022,49999,50022&pins=tokens:50018",
            }
            photograph(browser, Record.load(given.record), "100,000 tokens", views)
        record = text_record(2000, list(mixed(12, 12)), 256)
        photograph(browser, record, "2,000 tokens", {"explorer-2000": "at=decoder.4.self/6&pins=tokens:1478"})
        browser.close()


if __name__ == "__main__":
    main()
