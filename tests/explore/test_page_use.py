"""What people do with the page: find, compare, sort, move by keys and by touch."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead import Mask, Record
from clearhead.explore import Scene, from_weights, open_record, write_page
from clearhead.explore.live_model import LiveModel
from clearhead.explore.page_file import render_notebook, render_page
from tests.explore import records
from tests.explore.browser import Watched
from tests.explore.test_page import saved

SICK = "他昨天没有去学校，因为他病了。"
WORDS = [*"ABCDEFGHIJKLMNOP"]
CUT = """selector => [...document.querySelectorAll(selector)].filter(one => one.scrollWidth > one.clientWidth
  || one.scrollHeight > one.clientHeight + 1).map(one => one.textContent)"""


@pytest.fixture(scope="module")
def translator():
    return clearhead.load("zh-en")


@pytest.fixture(scope="module")
def page(translator, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("use") / "sick.html"
    path.write_text(render_page(Scene(translator.look(SICK))), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def seventeen(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("seventeen") / "page.html"
    path.write_text(render_page(Scene(records.drawn(17, heads=4, layers=3, texts=[*WORDS, "cat"]))), encoding="utf-8")
    return path.as_uri()


def find(watched: Watched, text: str) -> str:
    watched.page.locator("#find").fill(text)
    watched.settle()
    return watched.text("#found")


def test_a_text_is_found_across_tokens_and_escape_clears_it(watched, page):
    watched.open(page, "at=decoder.1.cross/0")
    assert find(watched, "didn't") == "1 of 1"
    assert watched.page.locator("#output-text .token.cursor").inner_text() == "didn"
    assert watched.text("#explanation").startswith("Writing didn't, this head gives on average ")
    assert find(watched, "去学校") == "1 of 1"
    assert watched.page.locator("#source-text .token.cursor").inner_text() == "去"
    assert "gives 去学校 the most" in watched.text("#explanation")  # all tokens that the text covers
    watched.page.evaluate("() => { location.hash += '&language=zh' }")
    watched.until("#language", "English")
    find(watched, "昨天没")  # ends inside a token
    assert "给“昨天没有”的最多" in watched.text("#explanation")
    watched.page.evaluate("() => { location.hash = location.hash.replace('&language=zh', '') }")
    watched.until("#language", "中文")
    assert find(watched, "TO  school") == "1 of 1"
    assert find(watched, "他") == "1 of 2"
    assert find(watched, "go school") == "not found"
    find(watched, "他")
    watched.page.keyboard.press("Escape")
    watched.settle()
    assert watched.page.locator("#find").input_value() == ""
    assert watched.text("#found") == ""
    assert watched.page.locator(".token.cursor").count() == 0


def test_enter_and_space_pin_on_the_map_and_the_tip_follows_it(watched, seventeen):
    watched.open(seventeen, "at=encoder.0.self/0")
    page = watched.page
    page.locator(".map-canvas").focus()
    page.keyboard.press("End")
    for key in ("ArrowUp", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    watched.until("#subject", "O")
    assert "pins=tokens:14" in watched.fragment
    page.keyboard.press(" ")
    assert "pins" not in watched.fragment
    before = page.locator("#tip").bounding_box()
    for _ in range(3):
        page.locator("#zoom-in").click()
    page.locator(".map-canvas").focus()
    page.keyboard.press("Home")
    said = watched.text("#tip")
    page.keyboard.press("Shift+ArrowRight")
    watched.settle()
    assert watched.text("#tip") == said  # the same cell, at its new place
    assert page.locator("#tip").bounding_box() != before


def test_sorting_twice_reverses(watched, page):
    watched.open(page, "at=decoder.1.cross/0&sort=entropy")

    def order() -> list[tuple[str, str]]:
        every = watched.page.locator(".head").all()
        return [(one.get_attribute("data-name"), one.get_attribute("data-head")) for one in every]

    down = order()
    watched.page.locator("#sorts button", has_text="entropy").click()
    watched.settle()
    assert order() == down[::-1]
    assert watched.text("#sorts button[aria-pressed='true']") == "entropy ↑"
    assert "sort=entropy&order=up" in watched.fragment
    watched.page.locator("#sorts button", has_text="peak").click()
    assert "order" not in watched.fragment


def test_thousands_of_heads_are_sorted_at_once_and_only_those_in_view_are_on_the_page(watched, tmp_path):
    weights = torch.randn(20, 64, 5, 5, generator=torch.Generator().manual_seed(6)).softmax(-1)
    record = from_weights(weights, [*"ABCDE"])
    watched.open(write_page(record, tmp_path / "many.html").as_uri())
    page = watched.page
    page.locator("#sorts button", has_text="peak").click()
    watched.settle()
    peaks = torch.stack([record[f"encoder.{layer}.self"].peak[0].mean(-1) for layer in range(20)]).flatten()
    order = [(f"encoder.{place // 64}.self", str(place % 64)) for place in peaks.sort(descending=True).indices.tolist()]

    names = "heads => heads.map(one => [one.dataset.name, one.dataset.head])"

    def shown() -> list[tuple[str, str]]:
        return [tuple(one) for one in page.locator(".head:not(.chosen)").evaluate_all(names)]

    [chosen] = page.locator(".head.chosen").evaluate_all(names)
    assert shown()[:50] == [one for one in order if one != tuple(chosen)][:50]
    assert len(shown()) < 700
    first = page.locator(".head").first.element_handle()
    page.locator("#atlas-grid").evaluate("grid => { grid.scrollTop = grid.scrollHeight }")
    page.wait_for_function(
        "([name, head]) => document.querySelector(`.head[data-name='${name}'][data-head='${head}']`)", arg=[*order[-1]]
    )
    assert len(shown()) < 700
    page.locator(f".head[data-name='{order[-1][0]}'][data-head='{order[-1][1]}']").click()
    watched.until("figcaption", f"{order[-1][1]}")
    for _ in range(30):
        page.keyboard.press("ArrowUp")
    assert page.evaluate("() => document.activeElement.matches('.head.chosen')")
    page.locator("#atlas-grid").evaluate("grid => { grid.scrollTop = 0 }")
    page.wait_for_function("first => first.isConnected", arg=first)  # the same button, not a new one


@pytest.mark.parametrize("watched", [{"viewport": {"width": 1024, "height": 768}, "has_touch": True}], indirect=True)
def test_two_heads_are_compared_by_touch_at_1024_pixels(watched, seventeen):
    watched.open(seventeen, "at=encoder.0.self/0&pins=tokens:4")
    page = watched.page
    page.locator("#compare").tap()
    watched.until("#said", "Choose the second head.")
    page.locator('.head[data-name="encoder.1.self"][data-head="2"]').tap()
    page.locator("figure.second").wait_for()
    watched.settle()
    maps = [one.bounding_box() for one in page.locator("figure .map-canvas").all()]
    assert all(box["width"] > 360 and 360 < box["height"] <= 740 - box["y"] for box in maps)  # both are seen at once
    assert maps[0]["y"] == maps[1]["y"]  # side by side
    assert page.locator("#shaded-second .token").count() == 17
    page.mouse.move(maps[1]["x"] + 200, maps[1]["y"] + 200)
    assert page.locator("#tip .value").count() == 2  # of both heads
    selection = json.loads(saved(watched, "#save-json"))
    for window, name, head in (("window", "encoder.0.self", 0), ("second_window", "encoder.1.self", 2)):
        record = records.drawn(17, heads=4, layers=3)
        weights = records.weights_of(record[name])[head]
        assert torch.tensor(selection[window]["weights"]).sub(weights).abs().max() < 1e-4
    assert {one["head"] for one in selection["tokens"]} == {0, 2}


@pytest.mark.parametrize(
    "watched",
    [{"viewport": {"width": 1024, "height": 768}}, {"viewport": {"width": 390, "height": 844}, "locale": "zh-CN"}],
    indirect=True,
)
def test_no_number_sentence_or_head_is_cut_on_narrow_screens(watched, page):
    watched.open(page, "at=decoder.1.cross/0&pins=written:10")
    watched.settle()
    assert "<0.001" in watched.text("#next")
    for cut in ("td.number", "#explanation-box", "#atlas-grid"):
        assert watched.page.evaluate(CUT, cut) == [], cut
    watched.page.keyboard.press("v")  # lines have no rows and columns to explain, and leave no gap for that
    watched.settle()
    box, sentence = (watched.page.locator(one).bounding_box() for one in ("#explanation-box", "#explanation"))
    assert box["height"] < sentence["height"] + 30


@pytest.mark.parametrize("watched", [{"viewport": {"width": 900, "height": 640}}], indirect=True)
def test_a_low_frame_as_in_a_notebook_keeps_a_map_that_can_be_read(watched, page):
    watched.open(page, "at=decoder.1.cross/0")
    watched.settle()
    assert watched.page.locator(".map-canvas").bounding_box()["height"] > 200
    centre = watched.page.locator("#centre")
    assert centre.evaluate("one => one.scrollHeight > one.clientHeight")  # the rest is scrolled to
    assert centre.evaluate("one => one.scrollWidth === one.clientWidth")


@pytest.mark.parametrize(("tokens", "mask"), [(19, None), (100, Mask.causal())])
def test_a_broad_head_stays_pale_in_the_text_and_has_short_bars(watched, tmp_path, tokens, mask):
    """Of the keys that can be seen: colours and bars end at four times their even weight."""
    path = tmp_path / "even.html"
    zeros = torch.zeros(1, 1, tokens, 3)
    path.write_text(render_page(Scene(records.record_of(zeros, zeros, mask))), "utf-8")
    watched.open(path.as_uri(), "" if mask is None else "pins=tokens:17")
    if mask is not None:
        mean = sum(1 / count for count in range(1, tokens + 1)) / tokens
        assert watched.text("#legend").split("\n")[2] == f"≥{4 * mean:.2f}"
    shares = watched.page.evaluate(
        "() => [...document.querySelectorAll('#keys .bar')].map((bar) => parseFloat(bar.style.width))"
    )
    assert shares == pytest.approx([25] * 8, abs=0.5)
    colour = watched.page.locator("#shaded .token").first.evaluate("one => getComputedStyle(one).backgroundColor")
    pale = [240, 210, 195] if mask is None else [220, 156, 129]  # as on the map; of long texts by the square root
    assert [int(part) for part in re.findall(r"\d+", colour)] == pytest.approx(pale, abs=4)


def test_phrases_have_plural_forms(watched, tmp_path):
    path = tmp_path / "one.html"
    path.write_text(render_page(Scene(records.drawn(1, heads=1))), encoding="utf-8")
    watched.open(path.as_uri())
    label = watched.page.locator(".map-canvas").get_attribute("aria-label")
    assert "1 query by 1 key." in label
    assert watched.text("#title").endswith("1 layer × 1 head")


def test_effects_are_those_of_the_new_text(watched, translator, monkeypatch):
    live = LiveModel.from_predictor(translator)

    def count_letters(record: Record, call: int) -> dict[str, list[float]]:
        """Effects at once, other ones for every text."""
        forward = record.calls[call]
        return {name: [len(forward.about.input) / 100] * 8 for name in forward.names}

    monkeypatch.setattr(live, "measure_effects", count_letters)
    with open_record(live.look(SICK), live=live, browser=False) as opened:
        watched.open(opened.url, "at=decoder.1.cross/0&sort=effect")
        watched.until("figcaption", "effect on loss +0.15")
        watched.page.locator("#another-text").fill("我喜欢猫。")
        watched.page.keyboard.press("Enter")
        watched.until("figcaption", "effect on loss +0.050")
        watched.page.locator("#source-text .token", has_text="猫").wait_for()
        watched.settle()  # nothing may be under way when the server closes


def test_effects_that_come_after_a_new_text_are_not_shown_with_it(watched, translator, monkeypatch):
    live, go_on = LiveModel.from_predictor(translator), threading.Event()

    def count_letters(record: Record, call: int) -> dict[str, list[float]]:
        """Effects that differ for every text; those of the first text come late."""
        forward = record.calls[call]
        assert forward.about.input != SICK or go_on.wait(20)
        return {name: [len(forward.about.input) / 100] * 8 for name in forward.names}

    monkeypatch.setattr(live, "measure_effects", count_letters)
    with open_record(live.look(SICK), live=live, browser=False) as opened:
        watched.open(opened.url, "at=decoder.1.cross/0")
        sorts, page = watched.page.locator("#sorts button"), watched.page
        with page.expect_response("**/effects?*"):
            sorts.filter(has_text="effect").click()
            sorts.filter(has_text="layer").click()
            page.locator("#another-text").fill("我喜欢猫。")
            page.keyboard.press("Enter")
            page.locator("#source-text .token", has_text="猫").wait_for()
            go_on.set()
        watched.settle()
        sorts.filter(has_text="effect").click()
        watched.until("figcaption", "effect on loss +0.050")
        watched.settle()


def test_the_probabilities_are_those_of_the_pinned_token(watched, page):
    watched.open(page, "at=decoder.1.cross/0&step=3&pins=target:10")
    watched.until("#next h2", "ill")


def test_a_notebook_that_is_not_trusted_says_what_to_do(watched, tmp_path):
    whole = render_notebook(Scene(records.drawn(5, heads=1)))
    left = re.sub(r"<style>.*?</style>|<iframe.*</iframe>", "", whole, flags=re.S)  # as a notebook cleans it
    for text, seen in ((whole, False), (left, True)):
        path = Path(tmp_path) / "notebook.html"
        path.write_text(f"<!DOCTYPE html><title>notebook</title>{text}", encoding="utf-8")
        watched.page.goto(path.as_uri())
        assert watched.page.get_by_text("trust the notebook").is_visible() == seen
