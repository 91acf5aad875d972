"""Pictures and sounds in a real browser: click a word, click a patch, step through the decoding, from every size."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clearhead.explore import Scene, open_record
from clearhead.explore.page_file import render_page
from tests.explore import media_records
from tests.explore.browser import Watched
from tests.explore.test_media import captioner, png
from tests.explore.test_page import OVERLAPS, saved

__all__ = ["captioner"]

NAME = "</script><img src=x onerror=alert(1)>\u202e.png"
CROSS = "at=decoder.1.cross/1"


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    """The addresses of three pages: of a caption, of a transcript, and of a later part of a recording."""
    folder: Path = tmp_path_factory.mktemp("media")
    found = {}
    records = {
        "picture": media_records.captioned(NAME),
        "sound": media_records.transcribed(),
        "part": media_records.transcribed(start=61.85),
    }
    for name, record in records.items():
        path = folder / f"{name}.html"
        path.write_text(render_page(Scene(record)), encoding="utf-8")
        found[name] = path.as_uri()
    return found


def film(watched: Watched, word: str):
    return watched.page.locator(".film", has_text=word).first


def click_patch(watched: Watched, row: int, column: int) -> None:
    box = watched.page.locator(".map-view .picture").bounding_box()
    high, wide = box["height"] / media_records.ROWS, box["width"] / media_records.COLUMNS
    place = {"x": (column + 0.5) * wide, "y": (row + 0.5) * high}
    watched.page.locator(".map-view .picture").click(position=place)


def colour_at(watched: Watched, row: int, column: int) -> list[int]:
    """The colour in the middle of a patch of the large picture."""
    watched.allowed.append("willReadFrequently")
    return watched.page.evaluate(
        """([x, y]) => {
          const canvas = document.querySelector(".map-view .picture");
          const pixel = canvas.getContext("2d").getImageData(x * canvas.width, y * canvas.height, 1, 1);
          return [...pixel.data].slice(0, 3) }""",
        [(column + 0.5) / media_records.COLUMNS, (row + 0.5) / media_records.ROWS],
    )


def test_a_word_shows_its_patches_and_a_patch_its_words(watched, pages):
    weights = media_records.captioned()["decoder.1.cross"].weights(0, 1)
    watched.open(pages["picture"])
    assert watched.page.locator(".film").count() == len(media_records.WORDS)
    film(watched, "circle").click()
    watched.until("#subject", "circle")
    watched.until("#keys tbody tr", "r3 c2")
    first = watched.page.locator("#keys tbody tr").first.inner_text().split("\t")
    assert (first[0], float(first[1])) == ("r3 c2", pytest.approx(weights[2].max().item(), abs=0.0006))
    watched.settle()
    assert colour_at(watched, *media_records.CIRCLE) == [214, 52, 44]  # in full colour where it looks
    red, _, blue = colour_at(watched, *media_records.SQUARE)
    assert abs(red - blue) < 12  # grey elsewhere
    click_patch(watched, *media_records.SQUARE)
    watched.until("#subject", "r2 c6")
    watched.until("#keys tbody tr", "square")
    watched.settle()  # rows that are replaced while they are read have no tabs
    best = watched.page.locator("#keys tbody tr").all_inner_texts()[:2]
    assert {row.split("\t")[0] for row in best} == {"blue", "square"}
    assert "direction=by" in watched.fragment
    assert watched.page.locator(".map-view .picture").is_visible()  # the picture stays
    assert film(watched, "square").locator(".film-word").evaluate("one => one.style.backgroundColor") != ""


def test_the_name_of_a_file_is_text(watched, pages):
    watched.open(pages["picture"])
    shown = watched.text("#source-text .file")
    assert shown.startswith("script><img src=x onerror=alert(1)>")
    assert "\u202e" not in shown
    assert watched.page.locator("#source-text img").count() == 0


def test_decoding_is_stepped_and_played_over_the_picture(watched, pages):
    watched.open(pages["picture"], f"{CROSS}&pins=target:7")
    page = watched.page
    page.locator("#step").fill("3")
    watched.until("#subject", "circle")  # the word of the step, not the pinned one
    watched.settle()
    assert "faded" in film(watched, "left").get_attribute("class")
    assert "current" in film(watched, "circle").get_attribute("class")
    page.keyboard.press("Escape")
    page.keyboard.press("]")
    watched.until("#subject", "left")
    page.locator("#step").fill(str(len(media_records.WORDS) - 1))
    page.locator("#play").click()
    watched.until("#step-text", "9 of 9")
    assert page.locator("#play").get_attribute("aria-label") == "play the decoding"


def test_words_are_reached_by_keys(watched, pages):
    watched.open(pages["picture"])
    page = watched.page
    page.keyboard.press("m")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    watched.until("#subject", "r0 c1")
    page.locator(".film[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    watched.until("#subject", "red")
    assert "pins=source:1,target:1" in watched.fragment


def test_a_letter_shows_its_moment_and_a_moment_its_letters(watched, pages):
    weights = media_records.transcribed()["decoder.1.cross"].weights(0, 1)
    watched.open(pages["sound"])
    page = watched.page
    canvas = page.locator(".map-view .sound")
    canvas.focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    watched.settle()
    assert watched.text("#live").startswith("query o, key 0.04 s, weight ")
    page.keyboard.press("Enter")
    watched.until("#subject", "pinned")
    best = page.locator("#keys tbody tr").first.inner_text().split("\t")
    moment = int(weights[2].argmax())
    assert (best[0], float(best[1])) == (f"{moment * 0.04:.2f} s", pytest.approx(weights[2].max().item(), abs=0.0006))
    box = canvas.bounding_box()
    canvas.click(position={"x": 0.5 * box["width"], "y": 60})
    watched.until("#directions [aria-pressed='true']", "is looked at by")
    assert watched.text("#subject").endswith(" s×")
    page.locator("#drawings button", has_text="matrix").click()
    page.locator(".map-canvas").wait_for()


@pytest.mark.parametrize("watched", [{}], indirect=True)  # a page of its own, for its script
def test_a_later_part_of_a_recording_has_the_times_of_the_recording(watched, pages):
    watched.page.add_init_script(
        """window.written = []; const { fillText } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
          window.written.push(String(text)); return fillText.call(this, text, ...rest) }"""
    )
    watched.open(pages["part"])
    ruler = [one for one in watched.page.evaluate("() => window.written") if re.fullmatch(r"6\d(\.\d)?( s)?", one)]
    assert ruler[0] == "62.0 s"
    assert {"63.0", "65.0"} <= set(ruler)
    assert not {"0 s", "61.0", "66.0"} & set(ruler)
    watched.page.locator(".map-view .sound").focus()
    for _ in range(2):
        watched.page.keyboard.press("ArrowRight")
    watched.settle()
    assert ", key 61.89 s, weight " in watched.text("#live")


@pytest.mark.parametrize("kind", ["picture", "sound"])
def test_what_is_shown_is_saved(watched, pages, kind):
    watched.open(pages[kind], f"{CROSS}&pins=target:2")
    watched.settle()
    drawing = ElementTree.fromstring(saved(watched, "#save-svg"))
    assert any(f"the {kind}, shaded by what" in (element.text or "") for element in drawing.iter())
    pixels = np.asarray(Image.open(io.BytesIO(saved(watched, "#save-png"))).convert("RGB"))
    assert len(np.unique(pixels[::7, ::7].reshape(-1, 3), axis=0)) > 50
    assert b"r3 c2" in saved(watched, "#save-csv") or kind == "sound"


@pytest.mark.parametrize("width", [390, 1100])
@pytest.mark.parametrize("watched", [{"color_scheme": "dark", "locale": "zh-CN", "has_touch": True}], indirect=True)
def test_nothing_lies_on_anything_else(watched, pages, width):
    watched.page.set_viewport_size({"width": width, "height": 844})
    for name in ("picture", "sound"):
        watched.open(pages[name], f"{CROSS}&pins=target:2")
        watched.until("#subject", "已固定")
        watched.settle()
        assert watched.page.evaluate(OVERLAPS) == []
        assert watched.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_another_picture_is_sent_to_the_model(watched, captioner):
    with open_record(captioner.look_at_file("first.png", png()), live=captioner, browser=False) as server:
        watched.open(server.url)
        assert watched.text("#another-file-label") == "another picture …"
        assert not watched.page.locator("#another-text").is_visible()
        second = {"name": "second.png", "mimeType": "image/png", "buffer": png(50, 30)}
        watched.page.locator("#another-file").set_input_files(second)
        watched.until("#source-text .file", "second.png")
        watched.allowed.append("400")
        broken = {"name": "broken.png", "mimeType": "image/png", "buffer": b"no picture"}
        watched.page.locator("#another-file").set_input_files(broken)
        watched.until("#another-problem", "broken.png")
