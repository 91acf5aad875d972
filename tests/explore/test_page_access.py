"""The page can be read and used by everybody: names, headings, targets, contrast, and keys that can be switched off."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import clearhead
from clearhead.explore import Scene, open_record
from clearhead.explore.page_file import render_page
from tests.explore import media_records, records

AUDIT = (Path(__file__).parent / "accessibility_audit.js").read_text(encoding="utf-8").partition("\n")[2]

LOOKS = [{"locale": "en-GB"}, {"locale": "zh-CN", "color_scheme": "dark"}]
STATES = {
    "pinned": "at=decoder.1.cross/0&pins=target:10,target:3&step=11",
    "compared": "at=decoder.1.cross/0&beside=decoder.1.cross/4&direction=by&sort=entropy&role=alignment",
    "lines": "at=decoder.1.cross/0&drawing=lines&pins=target:10",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    """A translation, a long text of sixteen heads, a picture and a sound."""
    folder = tmp_path_factory.mktemp("access")
    scenes = {
        "short": Scene(clearhead.load("zh-en").look("他昨天没有去学校，因为他病了。")),
        "long": Scene(records.drawn(211, heads=16, layers=2, d=3)),
        "picture": Scene(media_records.captioned()),
        "sound": Scene(media_records.transcribed()),
    }
    for name, scene in scenes.items():
        (folder / f"{name}.html").write_text(render_page(scene), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in scenes}


@pytest.mark.parametrize("watched", LOOKS, indirect=True)
def test_nothing_is_too_small_too_pale_or_without_a_name(watched, pages):
    found = {}
    for state, fragment in STATES.items():
        watched.open(pages["short"], fragment)
        watched.settle()
        found[state] = watched.page.evaluate(AUDIT)
    watched.page.keyboard.press("?")
    found["help"] = watched.page.evaluate(AUDIT)
    watched.page.keyboard.press("Escape")
    watched.page.locator("#find").fill("他")
    watched.settle()
    found["found"] = watched.page.evaluate(AUDIT)
    for page in ("picture", "sound"):
        watched.open(pages[page], "pins=target:2")
        watched.settle()
        found[page] = watched.page.evaluate(AUDIT)
    watched.open(pages["long"], "pins=tokens:7")
    watched.settle()
    found["long"] = watched.page.evaluate(AUDIT)
    watched.page.set_viewport_size({"width": 390, "height": 800})
    watched.settle()
    found["narrow"] = watched.page.evaluate(AUDIT)
    assert not any(found.values()), found


def test_the_audit_can_fail(watched):
    watched.page.set_content(
        "<h1>one</h1><h3>three</h3><button style='width:9px;height:9px'></button><button>x</button>"
        "<p style='color:#999;background:#fff'>pale</p>"
    )
    kinds = {problem.split()[0] for problem in watched.page.evaluate(AUDIT)}
    assert kinds == {"heading", "no", "target", "contrast"}


def test_numbers_on_every_colour_can_be_read(watched, pages):
    """Of canvases, which no audit sees: the ink that the page chooses on each of 256 colours."""
    with open_record(records.drawn(3, heads=1), browser=False) as opened:
        watched.open(opened.url)
        pairs = watched.page.evaluate(
            """async (base) => { const { Scale, COLOUR_NAMES } = await import(base + "draw/colours.js");
            return COLOUR_NAMES.flatMap((name) => [false, true].flatMap((dark) => {
              const scale = new Scale(name, dark);
              return Array.from({ length: 256 }, (_, i) => [scale.hex(i / 255), scale.ink(i / 255)]) })) }""",
            opened.url,
        )
    parts = torch.tensor([[[int(one[k : k + 2], 16) for k in (1, 3, 5)] for one in pair] for pair in pairs]) / 255
    linear = torch.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    light = (linear * torch.tensor([0.2126, 0.7152, 0.0722])).sum(-1) + 0.05
    assert (light.max(-1).values / light.min(-1).values).min() >= 4.5


def test_single_letter_keys_can_be_switched_off(watched, pages):
    watched.open(pages["short"], "at=decoder.1.cross/0")
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
