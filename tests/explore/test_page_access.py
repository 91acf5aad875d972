"""The page can be read and used by everybody: names, headings, targets, contrast, and keys that can be switched off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import clearhead
from clearhead.explore import Scene, open_record
from clearhead.explore.live_model import LiveModel
from clearhead.explore.page_file import render_page
from tests.explore import media_records, records

SICK = "他昨天没有去学校，因为他病了。"
LOOKS = [{"locale": "en-GB"}, {"locale": "zh-CN", "color_scheme": "dark"}]
STATES = {
    "step": "at=decoder.1.cross/0&pins=target:10,target:3&step=11",
    "compared": "at=decoder.1.cross/0&beside=decoder.1.cross/4&direction=by&sort=entropy&role=alignment",
    "lines": "at=decoder.1.cross/0&drawing=lines&pins=target:10",
    "pinned": "at=decoder.1.cross/0&pins=source:8",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Iterator[dict[str, str]]:
    """A translation with its model, a long text of sixteen heads, a picture, a sound, and a page that is broken."""
    folder = tmp_path_factory.mktemp("access")
    scenes = {
        "long": Scene(records.drawn(211, heads=16, layers=2, d=3)),
        "picture": Scene(media_records.captioned()),
        "sound": Scene(media_records.transcribed()),
    }
    texts = {name: render_page(scene) for name, scene in scenes.items()}
    texts["broken"] = texts["picture"].replace('{"format": 1,', '{"format": 7,')
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    live = LiveModel.from_predictor(clearhead.load("zh-en"))
    with open_record(live.look(SICK), live=live, browser=False) as opened:
        yield {"live": opened.url} | {name: (folder / f"{name}.html").as_uri() for name in texts}


@pytest.mark.parametrize("watched", LOOKS, indirect=True)
def test_axe_finds_nothing_in_a_text(watched, pages):
    page, found = watched.page, {}
    for state, fragment in STATES.items():
        watched.open(pages["live"], fragment)
        found[state] = watched.audit()
    page.locator("#hide-word").click()
    page.locator("#hidden-answer").wait_for()
    found["hidden"] = watched.audit()
    page.locator("#switch-off").click()
    page.locator("#ablated").first.wait_for()
    page.locator(".map-canvas").hover()
    page.locator("#tip").wait_for()
    page.locator("#find").fill("他")
    page.locator("#another-text").fill("长" * 100_001)
    found["switched off, a tip, found, too long"] = watched.audit()
    page.locator("#help-button").click()
    found["help"] = watched.audit()
    page.locator("#start-tour").click()
    found["tour"] = watched.audit()
    assert not any(found.values()), found


@pytest.mark.parametrize("watched", LOOKS, indirect=True)
def test_axe_finds_nothing_in_pictures_sounds_long_texts_and_errors(watched, pages):
    found = {}
    for page, fragment in (("picture", "step=3"), ("sound", "pins=target:2"), ("long", "pins=tokens:7")):
        watched.open(pages[page], fragment)
        found[page] = watched.audit()
    watched.page.set_viewport_size({"width": 390, "height": 800})
    found["narrow"] = watched.audit()
    watched.page.goto(pages["broken"])
    watched.page.wait_for_selector("html[data-ready='failed']", state="attached")
    found["broken"] = watched.audit()
    assert not any(found.values()), found


def test_the_audit_can_fail(watched):
    watched.page.set_content(
        "<h1>one</h1><h3>three</h3><button style='width:9px;height:9px'></button><button>x</button>"
        "<p style='color:#999;background:#fff'>白</p>"
    )
    kinds = {problem.split(":")[0] for problem in watched.audit()}
    assert kinds >= {"heading-order", "button-name", "target-size", "color-contrast"}


def test_numbers_on_every_colour_can_be_read(watched, pages):
    """Of canvases, which axe does not see: the ink that the page chooses on each of 256 colours."""
    with open_record(records.drawn(3, heads=1), browser=False) as opened:
        watched.offer_modules()
        watched.open(opened.url)
        pairs = watched.page.evaluate(
            """async (base) => { const { Scale } = await import(base + "draw/colours.js");
            const { CHOICES } = await import(base + "state/store.js");
            return CHOICES.colours.flatMap((name) => [false, true].flatMap((dark) => {
              const scale = new Scale(name, dark);
              return Array.from({ length: 256 }, (_, i) => [scale.hex(i / 255), scale.ink(i / 255)]) })) }""",
            opened.url,
        )
    parts = torch.tensor([[[int(one[k : k + 2], 16) for k in (1, 3, 5)] for one in pair] for pair in pairs]) / 255
    linear = torch.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    light = (linear * torch.tensor([0.2126, 0.7152, 0.0722])).sum(-1) + 0.05
    assert (light.max(-1).values / light.min(-1).values).min() >= 4.5


def test_single_letter_keys_can_be_switched_off(watched, pages):
    watched.open(pages["live"], "at=decoder.1.cross/0")
    page = watched.page
    page.keyboard.press("?")
    page.locator("#letter-keys").uncheck()
    page.keyboard.press("Escape")
    for key in ("c", "t", "2", "+"):
        page.keyboard.press(key)
    watched.settle()
    assert watched.fragment == "#at=decoder.1.cross/0&keys=off"
    page.keyboard.press("ArrowRight")  # no letter
    assert watched.fragment == "#at=decoder.1.cross/1&keys=off"
    page.locator("#help-button").click()
    page.locator("#letter-keys").check()
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    page.locator("figure.second").wait_for()
