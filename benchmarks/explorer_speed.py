"""The page in a real browser: its size, first paint and zoom, beside BertViz with the same weights in the same run.

    python benchmarks/explorer_speed.py                          pages of 64 to 2,048 tokens, 12 layers × 12 heads
    python benchmarks/explorer_speed.py --record long.record     and a record of 100,000 tokens, made if it is not there

BertViz runs only if BERTVIZ_PYTHON names a Python that has it, in an environment of its own. Its page wants three
libraries from a CDN; it gets them from the folder BERTVIZ_LIBRARIES (require.min.js, d3.min.js, jquery.min.js), so that
its time is not that of the network. At 384 tokens and more it never loads.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser, Page, sync_playwright

from clearhead import Mask, Record, attention_weights, measure
from clearhead.attention.call import check_call
from clearhead.explore import open_record, write_page
from clearhead.lens.measures.definition import choose_blocks
from clearhead.lens.measures.visible_keys import count_seeing_queries, count_visible_keys
from clearhead.lens.record.attention_views import Forward, Sight
from clearhead.lens.record.kept_inputs import KeptInputs, Step

from measuring import RESULTS, hardware

LAYERS, HEADS, WIDTH = 12, 12, 64
SIZES = {64: (3.0, 0.7), 128: (3.0, 0.7), 512: (15.0, 1.0), 2048: (25.0, 2.0)}  # tokens: megabytes, seconds
BERTVIZ = (64, 128)
LONG, LONG_HEADS, LONG_PIXELS = 100_000, 4, 2048
CHROMIUM = "/usr/bin/chromium"
SEEN = {"clearhead": "html[data-ready=map]", "bertviz": "svg rect"}
# When two frames have passed since something matched, it is on the screen.
WATCHER = """(selector => {
  const look = () => document.querySelector(selector)
    ? requestAnimationFrame(() => requestAnimationFrame(() => { window.paintedAt = performance.now(); }))
    : requestAnimationFrame(look);
  requestAnimationFrame(look);
})("%s")"""
NEXT_FRAME = """() => addEventListener("wheel", () => {
  const begin = performance.now();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.zoomed = performance.now() - begin; }));
}, { once: true, capture: true })"""
FRAMES = """() => {
  window.stamps = [];
  const next = (stamp) => { window.stamps.push(stamp); requestAnimationFrame(next); };
  requestAnimationFrame(next);
}"""
BERTVIZ_CODE = """
import sys, torch
from bertviz import head_view
weights = torch.load(sys.argv[1])
page = head_view(list(weights[:, None]), [f"w{n}" for n in range(weights.shape[-1])], html_action="return").data
open(sys.argv[2], "w").write("<!DOCTYPE html><meta charset=utf-8><body>" + page)
"""


def drawn(tokens: int, layers: int, heads: int, mask: Mask | None = None, pixels: int = 256) -> Record:
    """A record of random q and k."""
    chance = torch.Generator().manual_seed(tokens)
    pairs = (torch.randn(2, 1, heads, tokens, WIDTH, generator=chance) for _ in range(layers))
    return record_of(pairs, "encoder", [f"▁w{number}" for number in range(tokens)], mask, pixels)


def record_of(
    pairs: Iterable[Sequence[torch.Tensor]], part: str, labels: list[str], mask: Mask | None, pixels: int
) -> Record:
    """A record of one q and k a layer, (1, heads, tokens, d), over tokens with these labels."""
    sights: dict[str, Sight] = {}
    for layer, (q, k) in enumerate(pairs):
        heads, tokens, width = q.shape[1:]
        found = measure(q, k, mask, pixels=pixels)
        step = Step(0, 0, tokens, tokens, mask, None)
        kept = KeptInputs(q, k, width**-0.5, None, None, (step,), torch.tensor([tokens]), found.logsumexp)
        name = f"{part}.{layer}.self"
        call, rows = check_call(q, k, None, mask), range(tokens)
        sights[name] = Sight(
            **vars(found),
            visible=count_visible_keys(call, rows),
            seen_by=count_seeing_queries(call, rows),
            name=name,
            heads=tuple(range(heads)),
            queries=torch.arange(tokens),
            blocks=choose_blocks(tokens, tokens, pixels),
            inputs=(0,),
            kept=kept,
        )
    forward = Forward(sights, {"tokens": torch.arange(len(labels))[None]})
    forward.labels["tokens"] = dict(enumerate(labels))
    return Record(list(sights), [forward])


def every_weight(record: Record) -> torch.Tensor:
    """(layers, heads, queries, keys)"""
    calls = [record[name].attention() for name in record.names]
    return torch.cat([attention_weights(call.q, call.k, call.mask, scale=call.scale) for call in calls])


@contextmanager
def opened(browser: Browser, selector: str) -> Iterator[Page]:
    """A fresh page that notes when something is painted; BertViz's libraries come from a folder."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.add_init_script(WATCHER % selector)
    page.add_init_script("try { localStorage.setItem('clearhead-tour', 'seen') } catch { /* no page yet */ }")
    libraries = Path(os.environ.get("BERTVIZ_LIBRARIES", "."))
    page.route(
        "https://cdnjs.cloudflare.com/**", lambda route: route.fulfill(path=libraries / Path(route.request.url).name)
    )
    try:
        yield page
    finally:
        context.close()


def painted(page: Page, address: str, patience: float = 300.0) -> float:
    """Seconds from the beginning of the navigation until it is seen."""
    page.goto(address, wait_until="commit")
    begin = time.monotonic()
    while time.monotonic() - begin < patience:
        if found := page.evaluate("() => window.paintedAt ?? null"):
            return float(found) / 1e3
        time.sleep(0.01)
    return float("inf")


def median(measure_one: Callable[[], float], rounds: int) -> tuple[float, list[float]]:
    times = [measure_one() for _ in range(rounds)]
    return statistics.median(times), times


def pages(browser: Browser, folder: Path, rounds: int) -> Iterator[list[str]]:
    """One row for each page: who, tokens, megabytes, seconds, and what was asked for."""
    for tokens, (megabytes, seconds) in SIZES.items():
        record = drawn(tokens, LAYERS, HEADS)
        files = {"clearhead": write_page(record, folder / f"ours-{tokens}.html")}
        if tokens in BERTVIZ and "BERTVIZ_PYTHON" in os.environ:
            torch.save(every_weight(record), folder / "weights.pt")
            files["bertviz"] = folder / f"theirs-{tokens}.html"
            command = [os.environ["BERTVIZ_PYTHON"], "-c", BERTVIZ_CODE, folder / "weights.pt", files["bertviz"]]
            subprocess.run(command, check=True)
        for who, file in files.items():

            def once(who: str = who, file: Path = file) -> float:
                with opened(browser, SEEN[who]) as page:
                    return painted(page, file.resolve().as_uri())

            middle, times = median(once, rounds if who == "clearhead" else min(rounds, 3))
            size = file.stat().st_size / 1e6
            wanted = f"≤ {megabytes:g} MB, < {seconds:g} s" if who == "clearhead" else ""
            spread = f"{min(times):.2f}–{max(times):.2f}"
            yield [who, f"{tokens:,}", f"{size:.2f}", f"{middle:.2f}", spread, wanted]


def long_record(path: Path) -> Path:
    """100,000 tokens, one layer, four heads; measuring them takes minutes, so the file is kept."""
    if not path.exists():
        print(f"measuring {LONG:,} tokens", flush=True)
        drawn(LONG, 1, LONG_HEADS, Mask.causal(), LONG_PIXELS).save(path)
    return path


def long(browser: Browser, path: Path, rounds: int) -> Iterator[list[str]]:
    """From the file to the first map; and windows of any size, from the server."""

    def opening() -> float:
        begin = time.perf_counter()
        with open_record(Record.load(path), browser=False) as server, opened(browser, SEEN["clearhead"]) as page:
            started = time.perf_counter() - begin
            return started + painted(page, server.url)

    middle, times = median(opening, rounds)
    yield ["open", "file to first map", "", f"{middle:.2f}", f"{min(times):.2f}–{max(times):.2f}", "< 2 s"]
    record = Record.load(path)
    name = record.names[0]
    with open_record(record, browser=False) as server, opened(browser, SEEN["clearhead"]) as page:
        painted(page, server.url)
        for tokens in (256, 2048, 8000):

            def once(tokens: int = tokens) -> float:
                start = int(torch.randint(0, LONG - tokens, ())) // 2
                query = {"name": name, "head": 1, "q0": LONG - tokens - start, "q1": LONG - start, "k0": start}
                query |= {"k1": start + tokens, "height": -(-tokens // 1000), "width": -(-tokens // 1000)}
                begin = time.perf_counter()
                server.requests.get("window", {key: str(value) for key, value in query.items()})
                return time.perf_counter() - begin

            middle, times = median(once, rounds)
            spread = f"{min(times):.3f}–{max(times):.3f}"
            yield ["window", f"{tokens:,} × {tokens:,}, exact", "", f"{middle:.3f}", spread, "< 0.5 s"]
        yield from interaction(page, rounds)


def interaction(page: Page, rounds: int) -> Iterator[list[str]]:
    """What a hand at the mouse sees: the first frame after a turn of the wheel, and frames while dragging."""
    box = page.locator(".map-canvas").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    waits, arrivals, finished = [], [], list[float]()
    page.on("requestfinished", lambda request: "/window?" in request.url and finished.append(time.perf_counter()))
    for _ in range(2 * rounds):
        page.evaluate(NEXT_FRAME)
        finished.clear()
        begin = time.perf_counter()
        page.mouse.wheel(0, -240)
        while (found := page.evaluate("() => window.zoomed ?? null")) is None:
            page.wait_for_timeout(5)
        page.evaluate("() => { delete window.zoomed; }")
        waits.append(float(found) / 1e3)
        page.wait_for_timeout(1500)
        arrivals += [finished[-1] - begin] if finished else []
    yield [
        "zoom",
        "first frame",
        "",
        f"{statistics.median(waits):.3f}",
        f"{min(waits):.3f}–{max(waits):.3f}",
        "< 0.1 s",
    ]
    if arrivals:
        spread = f"{min(arrivals):.3f}–{max(arrivals):.3f}"
        yield ["zoom", "last tile", "", f"{statistics.median(arrivals):.3f}", spread, "< 0.5 s"]
    page.evaluate(FRAMES)
    page.mouse.down()
    for step in range(60):
        page.mouse.move(box["x"] + box["width"] / 2 - 4 * step, box["y"] + box["height"] / 2 - 2 * step)
        time.sleep(1 / 60)
    page.mouse.up()
    frames = page.evaluate("() => window.stamps")
    gaps = sorted(b - a for a, b in pairwise(frames))
    rate = 1e3 * (len(frames) - 1) / (frames[-1] - frames[0])
    worst = 1e3 / gaps[int(0.95 * (len(gaps) - 1))]
    yield ["pan", "frames a second", "", f"{rate:.0f}", f"95 % of frames at {worst:.0f} or more", "≥ 30"]
    memory: Any = page.evaluate("() => performance.memory?.usedJSHeapSize ?? 0")
    yield ["memory", "JavaScript heap", f"{memory / 1e6:.0f}", "", "", "< 500 MB"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path, help="the record of 100,000 tokens")
    given = parser.parse_args()
    rows, load = [], os.getloadavg()[0]
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        version = browser.version
        for row in pages(browser, Path(folder), given.rounds):
            rows.append(row)
            print(" | ".join(f"{cell:<14}" for cell in row), flush=True)
        for row in long(browser, long_record(given.record), given.rounds) if given.record else ():
            rows.append(row)
            print(" | ".join(f"{cell:<14}" for cell in row), flush=True)
        browser.close()
    header = ["what", "tokens", "MB", "seconds, median", "spread", "wanted"]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])
    about = [
        f"- date: {datetime.date.today()}",
        f"- hardware: {hardware()}",
        f"- load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after; quiet is below 1",
        f"- versions: Chromium {version}, Python {platform.python_version()}, torch {torch.__version__}",
        f"- {LAYERS} layers × {HEADS} heads, random q and k; first paint: from navigation until it is seen",
    ]
    path = RESULTS / f"explorer_speed_cpu_{datetime.date.today()}.md"
    path.write_text("\n".join(["# The page in a browser", "", *about, "", table, ""]), encoding="utf-8")
    print(f"kept as {path}")


if __name__ == "__main__":
    main()
