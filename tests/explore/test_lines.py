"""Lines between tokens on the page: every weight has the line that it should have, and no other."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
import torch

from clearhead import Mask
from clearhead.explore import Scene, from_weights, open_record, write_page
from clearhead.explore.page_file import render_page
from tests.explore import records
from tests.explore.browser import Watched
from tests.explore.test_page import saved

LEAST = 0.02  # smaller weights have no line
UNDER_POINTER = """() => {
  const line = [...document.querySelectorAll(".all-lines path")].at(-1);
  const at = line.getPointAtLength(line.getTotalLength() / 2).matrixTransform(line.getScreenCTM());
  const { q, k } = document.elementFromPoint(at.x, at.y).dataset;
  return [at.x, at.y, Number(q), Number(k)];
}"""  # the middle of the thickest line, which is drawn last
ODD_TOKENS = ["人工", "智能", "שלום", "🙂", "a" * 200, "<b>", "$5", "", "\u200f", "end"]


def expected(weights: torch.Tensor) -> dict[tuple[int, int], float]:
    """The weights that have a line."""
    return {(q, k): weights[q, k].item() for q, k in (weights >= LEAST).nonzero().tolist()}


def on_page(watched: Watched, colour: str | None = None) -> dict[tuple[int, int], float]:
    """The weights of the lines on the page by query and key, of all or of one colour."""
    script = """() => [...document.querySelectorAll('.all-lines path')].map((path) => [
        Number(path.dataset.q), Number(path.dataset.k), Number(path.dataset.weight), path.getAttribute('stroke')])"""
    found = watched.page.evaluate(script)
    return {(q, k): weight for q, k, weight, stroke in found if colour in (None, stroke)}


def check(watched: Watched, weights: torch.Tensor, colour: str | None = None) -> None:
    watched.settle()
    lines, known = on_page(watched, colour), expected(weights)
    assert set(lines) == set(known)
    assert max(abs(lines[cell] - known[cell]) for cell in known) < 1e-4


def test_the_page_has_a_line_for_each_weight_and_keeps_the_selection(watched, tmp_path):
    record = records.drawn(13, layers=2, heads=3, mask=Mask.causal(), texts=[*"ABCDEFGHIJKLM"])
    weights = [records.weights_of(record[f"encoder.{layer}.self"]) for layer in (0, 1)]
    path = tmp_path / "page.html"
    path.write_text(render_page(Scene(record)), encoding="utf-8")
    watched.open(path.as_uri(), "at=encoder.0.self/1")
    page = watched.page
    page.keyboard.press("v")
    assert "drawing=lines" in watched.fragment
    check(watched, weights[0][1])
    assert "weights below 0.02 have no line" in watched.text("#resolution")
    looks = page.locator(".line-row.below .token", has_text="K")
    looks.hover()
    watched.settle()
    assert page.locator(".all-lines.dim").count() == 1
    own = {k: weight for (q, k), weight in expected(weights[0][1]).items() if q == 10}
    numbers = page.locator(".line-numbers text").all_text_contents()
    assert sorted(numbers) == sorted(f"{one:.2f}" for one in own.values())
    x, y, q, k = page.evaluate(UNDER_POINTER)
    page.mouse.move(x, y)
    watched.until("#tip", f"{weights[0][1][q, k]:.3f}"[:-1])
    watched.until("#subject", "ABCDEFGHIJKLM"[q])  # the other panes follow
    looks.click()
    watched.until("#subject", "K")
    assert "pins=tokens:10" in watched.fragment
    page.mouse.move(2, 2)
    watched.settle()
    assert page.locator(".chosen-lines path").count() == len(own)  # still those of the pinned token
    drawing = ElementTree.fromstring(saved(watched, "#save-svg"))
    strokes = [one for one in drawing.iter("{http://www.w3.org/2000/svg}path") if one.get("data-weight")]
    assert len(strokes) == len(expected(weights[0][1])) + len(own)
    assert saved(watched, "#save-png").startswith(b"\x89PNG")
    window = json.loads(saved(watched, "#save-json"))["window"]["weights"]
    assert window[3][4:] == [None] * 9  # hidden
    assert window[12] == pytest.approx(weights[0][1][12].tolist(), abs=1e-4)
    page.locator("#averaged").select_option("layer")
    check(watched, weights[0].mean(0))
    assert "averaged=layer" in watched.fragment
    assert "mean of 3 heads" in watched.text("figcaption")
    assert "about head 1 alone" in watched.text("figcaption")
    watched.open(path.as_uri(), "at=encoder.0.self/1&beside=encoder.1.self/2&drawing=lines")
    check(watched, weights[0][1], "#ad3f17")
    check(watched, weights[1][2], "#2362b5")
    page.locator("#drawings button", has_text="matrix").click()
    watched.settle()
    assert page.locator(".map-canvas").count() == 2


def test_numbers_of_tokens_selected_on_both_sides_are_those_of_the_queries(watched, tmp_path):
    """The other rows' weights on the selected key are not added; and three keys are too few to be spread over."""
    weights = torch.tensor([[[0.67, 0.32, 0.01], [0.03, 0.04, 0.93], [0.1, 0.38, 0.52]]])
    path = write_page(from_weights(weights, ([*"abc"], [*"xyz"])), tmp_path / "page.html")
    watched.open(path.as_uri(), "drawing=lines&pins=source:2,target:1")
    watched.settle()
    assert watched.page.locator(".chosen-lines path").count() == 4
    assert watched.page.locator(".line-numbers text").all_text_contents() == ["0.03", "0.04", "0.93"]
    watched.open(path.as_uri(), "drawing=lines&pins=target:0,target:1")  # the mean of both, small weights included
    watched.settle()
    assert watched.page.locator(".line-numbers text").all_text_contents() == ["0.35", "0.18", "0.47"]
    watched.open(path.as_uri(), "pins=target:0")
    assert "67\u00a0% of its attention to x" in watched.text("#explanation")


@pytest.mark.parametrize(
    "watched", [{"locale": "zh-CN", "viewport": {"width": 390, "height": 800}, "has_touch": True}], indirect=True
)
def test_lines_on_a_phone_in_chinese_and_why_a_long_text_has_none(watched):
    weights = torch.rand(2, 1, 10, 10, generator=torch.Generator().manual_seed(7)).pow(4)
    weights = weights / weights.sum(-1, keepdim=True)
    with open_record(from_weights(weights, ODD_TOKENS), browser=False) as opened:
        watched.open(opened.url, "at=encoder.1.self/0&drawing=lines")
        check(watched, weights[1, 0])
        page = watched.page
        assert page.locator(".line-row.above .token").count() == 10
        sizes = [one.bounding_box() for one in page.locator(".line-row .token").all()]
        assert all(size["width"] >= 24 and size["height"] >= 24 for size in sizes)
        page.locator(".line-row.above .token").nth(9).tap()
        watched.until("#subject", "end")
        assert "direction=by" in watched.fragment
        page.locator(".line-row.above .token").nth(9).focus()
        page.keyboard.press("Enter")
        assert "pins" not in watched.fragment  # it was pinned, and keeps the focus
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Home")
        assert page.evaluate("() => document.activeElement.textContent") == "人工"
        assert watched.text("#live").startswith("人工 关注")
        watched.settle()  # nothing may be under way when the server closes
    with open_record(records.drawn(65, heads=1), browser=False) as opened:
        watched.open(opened.url, "drawing=lines")
        watched.until(".line-message", "连线只适合每边不超过 64 个词元的文本；这里下方有 65 个，上方有 65 个。")
        page.locator(".line-message button").tap()
        page.locator(".map-canvas").wait_for()
        watched.settle()


def test_a_token_that_receives_little_is_not_said_to_share_attention_evenly(watched):
    """31 tokens look at the fifth one."""
    weights = torch.full((1, 31, 31), 0.2 / 31)
    weights[:, :, 4] += 0.8
    with open_record(from_weights(weights, [f"t{place}" for place in range(31)]), browser=False) as opened:
        watched.open(opened.url, "drawing=lines")
        watched.page.locator(".line-row.above .token").nth(8).focus()
        watched.page.keyboard.press("ArrowRight")
        watched.settle()
        assert watched.text("#live") == "t9 is looked at by: no weight reaches 0.02"
