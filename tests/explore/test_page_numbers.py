"""Every number of the page is true for the area that is named, at every size, whatever the weights are."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clearhead import Mask, Record, attention_weights
from clearhead.explore import Scene, from_weights, open_record, page_file
from clearhead.explore.page_file import render_page
from tests.explore import records
from tests.explore.browser import Watched
from tests.explore.test_page import saved

LONG = 9001  # more than are computed at once
AREA = re.compile(r"query (\d+)–(\d+) → key (\d+)–(\d+) ([\d.]+)(?:·10⁻(.))? of their attention")


@pytest.fixture(scope="module")
def long_record() -> Record:
    """A head of random q and k, and one that looks at all keys alike."""
    torch.manual_seed(2)
    q, k = torch.randn(2, 1, 2, LONG, 3)
    q[:, 1] = 0
    return records.record_of(q, 2 * k)


@pytest.fixture(scope="module")
def long_url(long_record):
    with open_record(long_record, browser=False) as opened:
        yield opened.url


def rest(watched: Watched) -> None:
    """Waits until all tiles are there."""
    watched.page.wait_for_function("() => !document.querySelector('#resolution').textContent.includes('loading')")
    watched.settle()


def hover(watched: Watched, down: float, across: float) -> str:
    """What the tip says at a point of the map, by shares of its height and width."""
    box = watched.page.locator(".map-canvas").first.bounding_box()
    watched.page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    watched.page.locator("#tip:not([hidden])").wait_for()
    watched.settle()
    return watched.text("#tip").replace("\u2009", "").replace("\n", " ")


def number_of(said: re.Match) -> float:
    return float(said[5]) * 10.0 ** -"⁰¹²³⁴⁵⁶⁷⁸⁹".index(said[6] or "⁰")


def share_of(record: Record, area: list[int], head: int = 0) -> float:
    """The share of their attention that these queries give to these keys, by the definition."""
    q0, q1, k0, k1 = area
    kept = record["encoder.0.self"].kept
    weights = attention_weights(kept.q[:, head : head + 1, q0 : q1 + 1].double(), kept.k[:, head : head + 1].double())
    return weights[0, 0, :, k0 : k1 + 1].sum(-1).mean().item()


@pytest.mark.parametrize(
    ("view", "block"), [("", 36), ("&view=1000,5400,3000,7400", 8), ("&view=8000,9001,8000,9001", 2)]
)
def test_every_number_of_a_long_map_is_exact_for_the_area_that_it_names(watched, long_record, long_url, view, block):
    watched.open(long_url, f"at=encoder.0.self/0{view}")
    rest(watched)
    assert watched.text("#resolution") == f"1 cell = {block}×{block} tokens"
    for down, across in ((0.2, 0.3), (0.5, 0.52), (0.85, 0.6)):
        said = AREA.match(hover(watched, down, across))
        assert said, watched.text("#tip")
        area = [int(number) for number in said.groups()[:4]]
        assert {area[1] - area[0] + 1, area[3] - area[2] + 1} <= {block, LONG % block}
        assert number_of(said) == pytest.approx(share_of(long_record, area), abs=0.00006)
    window = json.loads(saved(watched, "#save-json"))["window"]
    assert window["weights"] is None
    assert window["shown"] == {"queries": block, "keys": block, "exact": True}


COLOURS = """() => { const canvas = document.querySelector(".map-canvas"), seen = new Set();
    const { width, height } = canvas, context = canvas.getContext("2d");
    const { data } = context.getImageData(width * 0.3, height * 0.2, width * 0.4, height * 0.7);
    for (let i = 0; i < data.length; i += 4) seen.add(data.slice(i, i + 4).join());
    return [...seen] }"""


@pytest.mark.parametrize("view", ["", "&view=1000,6000,3000,8000.3"])
def test_tiles_meet_without_a_seam(watched, long_url, view):
    """A head that gives all keys the same has one colour everywhere."""
    watched.open(long_url, f"at=encoder.0.self/1{view}")
    rest(watched)
    watched.page.mouse.move(2, 2)
    watched.settle()
    assert len(watched.page.evaluate(COLOURS)) == 1


def test_small_weights_of_a_long_text_have_digits_and_short_bars(watched, long_url):
    """A head that gives all of 9,001 keys the same."""
    watched.open(long_url, "at=encoder.0.self/1&pins=tokens:4000")
    table = [row.split("\t")[1] for row in watched.page.locator("#keys tbody tr").all_inner_texts()]
    assert table[0] == f"{1 / LONG:.5f}"
    cells = "() => [...document.querySelectorAll('td.number')].filter(one => one.scrollWidth > one.clientWidth).length"
    assert watched.page.evaluate(cells) == 0  # none is cut
    bars = watched.page.evaluate(
        "() => [...document.querySelectorAll('#keys .bar')].map((bar) => parseFloat(bar.style.width))"
    )
    assert max(bars) <= 3
    assert "none gets more than 0.01 %" in watched.text("#explanation").replace("\u00a0", " ")
    watched.settle()  # nothing may be under way when the server closes


def test_a_record_without_q_and_k_is_not_refined_by_guesses(watched):
    record = records.drawn(709, heads=1, d=3, keep=False, pixels=64)
    with open_record(record, browser=False) as opened:
        watched.open(opened.url, "at=encoder.0.self/0&view=200,240,300,340")
        rest(watched)
        assert watched.text("#resolution") == "1 cell = 12×12 tokens"
        said = AREA.match(hover(watched, 0.5, 0.5))
        area = [int(number) for number in said.groups()[:4]]
        whole = records.weights_of(records.drawn(709, heads=1, d=3)["encoder.0.self"])[0]
        share = whole[area[0] : area[1] + 1, area[2] : area[3] + 1].sum(-1).mean().item()
        assert number_of(said) == pytest.approx(share, abs=0.00006)
        watched.settle()  # nothing may be under way when the server closes


def test_a_map_of_every_fourth_query_says_that_it_is_an_estimate(watched, tmp_path):
    record = records.writer(37, rows=1 / 4, pixels=64)
    page = tmp_path / "sampled.html"
    page.write_text(render_page(Scene(record)), encoding="utf-8")
    watched.open(page.as_uri())
    assert watched.text("#resolution").startswith("estimate: 1 cell = 4×1 tokens")
    assert "(estimate)" in hover(watched, 0.6, 0.4)


def broken(tokens: int = 7) -> tuple[Record, Tensor]:
    """Causal weights with a query that is NaN, one with tiny weights, and one whose weights are zero beyond float32."""
    torch.manual_seed(3)
    q, k = torch.randn(2, 1, 1, tokens, 4)
    q[0, 0, 2], k[0, 0, :, 0] = math.nan, torch.arange(tokens).float()
    q[0, 0, 4] = torch.tensor([26.0, 0, 0, 0])
    q[0, 0, 5] = torch.tensor([400.0, 0, 0, 0])
    return records.record_of(q, k, Mask.causal()), attention_weights(q, k, Mask.causal())[0, 0]


@pytest.fixture(params=["file", "server"])
def broken_url(request, tmp_path):
    record, _ = broken()
    if request.param == "file":
        page = tmp_path / "broken.html"
        page.write_text(render_page(Scene(record)), encoding="utf-8")
        yield page.as_uri()
        return
    with open_record(record, browser=False) as opened:
        yield opened.url


def test_weights_that_are_no_numbers_tiny_or_hidden_show_as_themselves(watched, broken_url):
    _, weights = broken()
    assert weights[2, :3].isnan().all()
    assert 0 < weights[4, 3] < 1e-5
    assert weights[5, 0] == 0
    watched.open(broken_url)
    rest(watched)
    exact = broken_url.startswith("http")
    assert "not finite numbers" in watched.text("#resolution")
    assert watched.text("#legend").split("\n")[-2:] == ["hidden", "no number"]
    drawing = ElementTree.fromstring(saved(watched, "#save-svg"))
    svg = "{http://www.w3.org/2000/svg}"
    assert [rect.get("fill") for rect in drawing.iter(f"{svg}rect")].count("url(#hidden)") == 21
    assert [text.text for text in drawing.iter(f"{svg}text")].count("NaN") == 3
    values = [text.text for text in drawing.iter(f"{svg}text") if re.fullmatch(r"[<.\d]+", text.text or "")]
    assert "0.00" not in values
    assert "<0.01" in values
    assert "0" in values or not exact
    for cell, said in (((2, 1), "NaN"), ((3, 5), "hidden by the mask"), ((4, 3), "·10⁻" if exact else "<0.00")):
        assert said in tip(watched, *cell)
    assert tip(watched, 5, 0).split(" 5 → 0")[0].split()[-1] == ("0" if exact else "<0.000008")
    watched.settle()  # nothing may be under way when the server closes


def tip(watched: Watched, query: int, key: int) -> str:
    page = watched.page
    page.locator(".map-canvas").first.focus()
    page.keyboard.press("Home")
    for _ in range(query):
        page.keyboard.press("ArrowDown")
    for _ in range(key):
        page.keyboard.press("ArrowRight")
    page.locator("#tip:not([hidden])").wait_for()
    return watched.text("#tip").replace("\n", " ")


def test_rows_of_no_numbers_say_so_and_exports_keep_every_visible_key(watched, broken_url):
    _, weights = broken()
    watched.open(broken_url, "at=encoder.0.self/0&pins=tokens:2")
    watched.until("#keys", "not finite numbers")
    rows = list(csv.DictReader(io.StringIO(saved(watched, "#save-csv").decode("utf-8-sig"))))
    assert [row["weight"] for row in rows] == ["NaN"] * 3
    watched.open(broken_url, "at=encoder.0.self/0&pins=tokens:4")
    selection = json.loads(saved(watched, "#save-json"))
    got = [one["weight"] for one in selection["tokens"][0]["weights"]]
    assert got == pytest.approx(weights[4, :5].tolist(), abs=selection["tokens"][0]["error"] + 1e-5)
    assert len(got) == 5  # every visible key, however small
    window = selection["window"]["weights"]
    assert window[2] == ["NaN"] * 3 + [None] * 4
    assert sum(value is None for row in window for value in row) == 21
    watched.settle()


def test_numbers_in_cells_have_the_digits_that_the_view_needs(watched, tmp_path):
    """Even weights of 367 keys are 0.0027; and no cell says 39 where the scale ends at 1."""
    record = records.record_of(torch.zeros(1, 1, 367, 3), torch.randn(1, 1, 367, 3))
    page = tmp_path / "even.html"
    page.write_text(render_page(Scene(record)), encoding="utf-8")
    assert read_cells(watched, page, "&view=100,110,100,110") == {"0.0027"}
    sharp = records.record_of(4 * torch.randn(1, 1, 31, 3), torch.randn(1, 1, 31, 3))
    page.write_text(render_page(Scene(sharp)), encoding="utf-8")
    for width in (1280, 1024, 1600):
        watched.page.set_viewport_size({"width": width, "height": 820})
        values = read_cells(watched, page)
        assert all(re.fullmatch(r"0?\.\d\d|1|1\.00|<0?\.01|", value) for value in values), values
        assert len({value.startswith("0") for value in values if value.startswith(("0", "."))}) <= 1  # one format


@pytest.mark.parametrize("room", [300_000, 0])
def test_the_file_of_a_broad_head_states_nothing_that_its_rounding_hides(watched, tmp_path, monkeypatch, room):
    """Of 409 keys that all get about 0.0024: with fine levels, and in the coarsest file."""
    torch.manual_seed(4)
    monkeypatch.setattr(page_file, "PRECISION_BYTES", room)
    weights = (torch.rand(1, 2, 409, 409) * 3).softmax(-1)
    page = tmp_path / "broad.html"
    page.write_text(render_page(Scene(from_weights(weights, [f"w{n}" for n in range(409)]))), encoding="utf-8")
    cells = read_cells(watched, page, "&view=70,82,70,82&pins=tokens:77")
    form = r"0?\.00\d\d" if room else r"0?\.00\d|<0?\.001|"
    assert all(re.fullmatch(form, cell) for cell in cells), cells
    assert len(cells) > (40 if room else 4)
    most = weights[0, 0, 77].max().item()
    number = f"none gets more than (about )?{100 * most:.1f} %"
    told = watched.text("#explanation").replace("\u00a0", " ")
    assert ("409 tokens" in told) if room else ("over many tokens" in told)
    assert re.search(number, told) or (room and f"{100 * most:.1f} % of its attention to" in told), told
    watched.until("#resolution", "exact to ±0.0" if room else "exact to ±0.0005")
    watched.open(page.as_uri(), "at=encoder.0.self/0&pins=tokens:77&direction=by")
    watched.until("#keys", "in total")
    received = weights[0, 0, :, 77].sum().item()
    said = re.search(r"receives (≈?)([\d.]+) in total", watched.text("#keys"))
    assert bool(said[1]) == (not room)
    assert float(said[2]) == pytest.approx(received, abs=0.006 if room else 0.1)
    told = watched.text("#explanation").replace("\u00a0", " ")
    assert f"no row gives w77 more than about {100 * weights[0, 0, :, 77].max().item():.1f} %" in told


def read_cells(watched: Watched, page: Path, fragment: str = "") -> set[str]:
    """The numbers in the cells of the map, by its SVG."""
    watched.open(page.as_uri(), f"at=encoder.0.self/0{fragment}")
    rest(watched)
    drawing = ElementTree.fromstring(saved(watched, "#save-svg"))
    cells = drawing.iter("{http://www.w3.org/2000/svg}g")
    inside = next(group for group in cells if "clip-path" in group.attrib)
    return {text.text or "" for text in inside.iter("{http://www.w3.org/2000/svg}text")}


def keys_of(watched: Watched, fragment: str) -> str:
    """What the table of weights says in another view of the page."""
    watched.page.evaluate("(fragment) => { location.hash = fragment }", fragment)
    watched.settle()
    return watched.text("#keys")


def test_weights_that_are_zero_rounded_hidden_or_left_out_are_told_apart(watched, tmp_path):
    """To the last token, one head gives 10⁻⁷ and the other nothing."""
    tiny = torch.tensor([1 / 3, 1 / 3, 1 / 3, 1e-7]).expand(4, 4)
    record = from_weights(torch.stack([tiny, torch.tensor([0, 0.5, 0.5, 0]).expand(4, 4)]), [*"abcd"])
    path, last = tmp_path / "tiny.html", "pins=tokens:3&direction=by"
    both = "at=encoder.0.self/0&beside=encoder.0.self/1&pins=tokens:2"
    path.write_text(render_page(Scene(record)), encoding="utf-8")
    watched.open(path.as_uri())
    said = "No token gives this one more than 0.000008 of its attention; this file rounds smaller weights to 0."
    assert keys_of(watched, f"at=encoder.0.self/0&{last}") == said
    chinese = keys_of(watched, f"at=encoder.0.self/0&{last}&language=zh")
    assert chinese == "没有词元给它的权重超过 0.000008；此文件把更小的权重舍入为 0。"
    assert "a\t0.333\t<0.001" in keys_of(watched, both)
    with open_record(record, browser=False) as opened:
        watched.open(opened.url)
        assert keys_of(watched, f"at=encoder.0.self/1&{last}") == "No token looks at this one."
        assert "a\t<0.000001\t" in keys_of(watched, f"at=encoder.0.self/0&{last}")
        assert "a\t0.333\t0\t" in keys_of(watched, both)
        watched.settle()  # nothing may be under way when the server closes
    scene = Scene(records.drawn(13, heads=1, mask=Mask.padding([12], queries=True), top=2))
    path.write_text(render_page(scene), encoding="utf-8")
    watched.open(path.as_uri())
    assert keys_of(watched, "pins=tokens:12&direction=by") == "The mask hides this token from every token."
    assert keys_of(watched, "pins=tokens:12&language=zh") == "掩码对这个词元隐藏了所有词元。"
    limits = page_file.FILE_LIMITS._replace(tokens=2, weights=1)
    path.write_text(render_page(scene, limits=limits), encoding="utf-8")
    listed = set(scene.find_map("encoder.0.self").sight.top_keys.flatten().tolist())
    watched.open(path.as_uri(), f"pins=tokens:{min(set(range(12)) - listed)}&direction=by")
    assert watched.text("#keys").startswith("No token has this one among its largest weights, which are all that ")


def test_a_key_whose_weight_is_no_number_in_the_other_head_is_listed(watched):
    weights = torch.tensor([0.7, 0.2, 0.1]).expand(2, 3, 3).clone()
    weights[1, 1, 1] = torch.nan
    with open_record(from_weights(weights, [*"abc"]), browser=False) as opened:
        watched.open(opened.url)
        keys = keys_of(watched, "at=encoder.0.self/0&beside=encoder.0.self/1&pins=tokens:1")
        watched.settle()  # nothing may be under way when the server closes
    assert re.findall(r"([abc])\t(\S+)\t(\S+)", keys) == [
        ("a", "0.700", "0.700"),
        ("b", "0.200", "NaN"),
        ("c", "0.100", "0.100"),
    ]


def test_shares_of_blocks_are_means_over_the_queries_that_see_anything(watched):
    with open_record(records.drawn(5, heads=1), browser=False) as opened:
        watched.offer_modules()
        watched.open(opened.url)
        shares = watched.page.evaluate(
            """async (base) => {
            const { HeadTiles } = await import(base + "data/tiles.js");
            const map = { rows: 2, columns: 1, values: Float32Array.of(3, 1) };
            const attention = { name: "a", counts: [6, 4], blocks: [3, 4], first: [0, 0], heads: [{ number: 0 }],
              visible: [[[4, 0, 4], [0, 0, 2]]] };
            const tiles = new HeadTiles({ exact: () => true, map: async () => map }, attention, 0, () => {});
            await tiles.loaded;
            return [0, 3].map((query) => tiles.at(query, 0).share) }""",
            opened.url,
        )
        watched.settle()  # nothing may be under way when the server closes
    assert shares == [1, 1]  # the last two queries see nothing
