"""The page explains itself: a sentence about the selection, a line for every term, and a tour at the first visit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead.explore import Scene, from_weights, open_record
from clearhead.explore.head_summaries import ALIGNMENT
from clearhead.explore.page_file import PAGE, render_notebook, render_page
from clearhead.lens.analysis.roles import NONE, ROLES
from tests.explore import media_records, records
from tests.explore.browser import Watched
from tests.explore.test_page_access import AUDIT

SICK = "他昨天没有去学校，因为他病了。"
HEAD = "decoder.1.cross"


@pytest.fixture(scope="module")
def record():
    return clearhead.load("zh-en").look(SICK)


@pytest.fixture(scope="module")
def pages(record, tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("guide")
    broken = torch.rand(1, 1, 7, 3, generator=torch.Generator().manual_seed(1))
    broken[0, 0, 2] = torch.nan
    scenes = {
        "short": Scene(record),
        "writer": Scene(records.writer(keep="qk")),
        "sampled": Scene(records.writer(61, rows=1 / 4)),
        "broken": Scene(records.record_of(broken, torch.rand(1, 1, 7, 3))),
        "caption": Scene(media_records.captioned()),
        "sound": Scene(media_records.transcribed()),
        "given": Scene(from_weights(torch.eye(5).roll(1, 1)[None] * 0.96 + 0.008, [*"ABCDE"])),
    }
    for name, scene in scenes.items():
        (folder / f"{name}.html").write_text(render_page(scene), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in scenes}


def sentence(watched: Watched, fragment: str | None = None) -> str:
    """The sentence of the page; of another view of it, if a fragment is given."""
    if fragment is not None:
        watched.page.evaluate("(fragment) => { location.hash = fragment }", fragment)
    watched.settle()
    return watched.text("#explanation").replace("\u00a0", " ")


def walk(watched: Watched, *keys: str) -> None:
    watched.page.locator(".map-canvas").first.focus()
    for key in keys:
        watched.page.keyboard.press(key)


def percent(weight: float) -> str:
    """As the page writes it.

    >>> percent(0.926), percent(0.0123)
    ('93 %', '1.2 %')
    """
    if weight >= 0.9995:
        return ">99.9 %"
    return f"{100 * weight:.{0 if 0.0995 <= weight < 0.995 else 1}f} %"


def test_the_sentence_of_each_row_says_what_attention_weights_says(watched, pages, record):
    weights = records.weights_of(record[HEAD])[0]
    source = Scene(record).to_json()["axes"]["source"]["shown"]
    watched.open(pages["short"], f"at={HEAD}/0")
    peak = percent(float(weights.max(-1).values.mean()))
    assert sentence(watched) == (
        "Over this text, this head follows the source from word to word (alignment): "
        f"its largest weights average {peak}. Example: Writing ill, it gives 93 % of its attention to 病."
    )
    for query in range(0, len(weights), 3):
        said = sentence(watched, f"at={HEAD}/0&pins=target:{query}")
        most, key = weights[query].max(-1)
        assert f"this head gives {percent(float(most))} of its attention to " in said
        assert said.partition("attention to ")[2].strip("“").startswith(source[key])
        assert said.endswith("; over this text it follows the source from word to word (alignment).")


def test_the_sentence_follows_rows_columns_cells_steps_and_two_heads(watched, pages, record):
    weights = records.weights_of(record[HEAD])[0]
    watched.open(pages["short"], f"at={HEAD}/0")
    begin = f"at={HEAD}/0"
    assert sentence(watched, f"{begin}&pins=target:10&rows=read").startswith("Having read was, this head gives 93 %")
    assert sentence(watched, f"{begin}&step=6").startswith("Step 6 of 13: writing school, this head gives >99.9 % ")
    both = percent(float(weights[1:3].sum(0).max() / 2))
    assert sentence(watched, f"{begin}&pins=target:1,target:2").startswith(f"Writing didn't, this head gives {both} of")
    assert sentence(watched, f"{begin}&direction=by&pins=source:8").startswith(
        "Of all rows, ill gives 病 the most, 93 % of its attention. "
        f"In all it receives {weights[:, 8].sum():.2f}, where each of the 13 rows can give 1."
    )
    other = records.weights_of(record["decoder.0.cross"])[1]
    two = percent(float(other[10].max()))
    assert sentence(watched, f"{begin}&beside=decoder.0.cross/1&pins=target:10") == (
        f"Writing ill, head 1·0 gives 93 % of its attention to 病; head 0·1 gives {two} of its attention to 了."
    )
    sentence(watched, begin)
    watched.page.locator("#source-text .token", has_text="病").hover()  # the other side than that of the table
    assert sentence(watched).startswith("Of all rows, ill gives 病 the most")
    walk(watched, "Home", *["ArrowDown"] * 9, *["ArrowRight"] * 9)
    assert sentence(watched) == (
        f"Writing was, this head gives {percent(float(weights[9, 9]))} of its attention to 了; "
        f"the largest share, {percent(float(weights[9, 8]))}, goes to 病."
    )
    assert watched.page.locator("#explanation").get_attribute("aria-live") == "off"  # the cell itself is announced
    assert watched.text("#axes-note").startswith("Each row: one word written; its weights add up to 100")
    watched.page.keyboard.press("Escape")
    mean = percent(float(records.weights_of(record[HEAD])[:, 10].mean(0).max()))
    lines = sentence(watched, f"{begin}&drawing=lines&averaged=layer&pins=target:10")
    assert lines.startswith(f"Writing ill, the mean of 8 heads gives {mean} of its attention to ")
    assert watched.page.locator("#axes-note").is_hidden()
    assert sentence(watched, f"{begin}&pins=target:10&language=zh") == (
        "写“ill”时，这个头把注意力的 93% 给了“病”；在这段文本中，它逐词跟随源文（对齐）。"
    )


def test_hidden_broken_sampled_and_other_inputs_have_their_sentences(watched, pages):
    watched.open(pages["writer"], "at=decoder.0.self/0")
    walk(watched, "Home", "ArrowRight")
    assert sentence(watched) == "Having read token 0, this head cannot look at token 1: the mask hides it."
    watched.open(pages["sampled"])
    assert sentence(watched).endswith("an estimate, for not all rows were measured.")
    watched.open(pages["broken"], "pins=tokens:2")
    assert "not finite numbers (NaN or ∞)" in sentence(watched)
    walk(watched, "Home", "ArrowDown", "ArrowDown")
    assert sentence(watched).startswith("The weight of token 2 on token 0 is NaN")
    watched.open(pages["given"])
    said = sentence(watched)
    assert said.startswith(
        "Over this text, this head looks at the token after (next): 97 % of its attention on average"
    )
    assert "Example: From E, it gives" in said
    watched.open(pages["caption"])
    said = sentence(watched)
    assert "Writing square, it gives 23 % of its attention to the patch r3 c7; " in said
    assert "half of its attention lies on 5 of 63 patches" in said
    assert watched.page.locator("#axes-note").is_hidden()
    watched.open(pages["sound"])
    assert "of its attention to the moment 2.92 s; half of its attention lies on 3 of 83 moments" in sentence(watched)


def test_every_role_and_measure_has_a_line_in_both_languages():
    for language in ("english", "chinese"):
        text = (PAGE / "words" / f"{language}_guide.js").read_text(encoding="utf-8")
        keys = {
            part: set(
                re.findall(r'(?:^|[{,]) +"?([\w ]+?)"?: "', text.split(f"  {part}: {{")[1].split("\n  },")[0], re.M)
            )
            for part in ("does", "roleLines", "terms")
        }
        assert keys["does"] == keys["roleLines"] == {*ROLES, ALIGNMENT, NONE}
        code = "".join(path.read_text(encoding="utf-8") for path in PAGE.rglob("*.*"))
        asked = set(re.findall(r'\bterm\("(\w+)"|data-define="(\w+)"', code))
        sorts = re.search(r"SORTS = (\[.*\])", code)[1]
        assert {one or other for one, other in asked} | set(json.loads(sorts)) <= keys["terms"]


@pytest.mark.parametrize("watched", [{"has_touch": True}], indirect=True)
def test_terms_explain_themselves_on_hover_focus_and_touch_until_escape(watched, pages):
    watched.open(pages["short"], f"at={HEAD}/0&pins=target:10")
    page, line = watched.page, watched.page.locator("#definition")
    page.locator("#sorts button", has_text="entropy").hover()
    watched.until("#definition", "Entropy: how widely attention is spread")
    line.hover()
    watched.settle()
    assert line.is_visible()  # the pointer may rest on it
    page.keyboard.press("Escape")
    assert line.is_hidden()
    assert "pins=target:10" in watched.fragment  # Escape has closed the line alone
    page.locator("#scrubber .term").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    watched.until("#definition", "Step: a decoder writes one token a step.")
    page.locator("#roles button", has_text="delimiter").tap()
    watched.until("#definition", "Delimiter: looks mostly at punctuation")
    assert not page.evaluate(AUDIT)
    page.keyboard.press("l")
    page.locator("figcaption .term", has_text="对齐").tap()
    watched.until("#definition", "对齐：")
    described = page.evaluate(
        """() => [...document.querySelectorAll("[data-define]")].map((one) =>
        [one.dataset.define, document.getElementById(one.getAttribute("aria-describedby"))?.textContent ?? ""])"""
    )
    assert len(described) > 12
    assert all(text for _, text in described), described


FIRST = {"first_visit": True}
LOOKS = [FIRST, FIRST | {"locale": "zh-CN", "color_scheme": "dark", "viewport": {"width": 390, "height": 800}}]


@pytest.mark.parametrize("watched", LOOKS, indirect=True)
def test_the_tour_starts_at_the_first_visit_and_only_then(watched, pages):
    page, tour = watched.page, watched.page.locator("#tour")
    watched.open(pages["short"], f"at={HEAD}/0")  # a link to a view
    watched.settle()
    assert tour.is_hidden()
    watched.open(pages["short"])
    tour.wait_for()
    texts, problems = [], []
    for _ in range(7):
        watched.settle()
        texts.append(watched.text("#tour-text"))
        card, (width, height) = tour.bounding_box(), page.viewport_size.values()
        assert 0 <= card["x"] <= width - card["width"]
        assert 0 <= card["y"] <= height - card["height"]
        ring = page.locator("#tour-ring").bounding_box()
        assert min(ring["width"], ring["height"]) > 20
        assert -ring["height"] < ring["y"] < height
        problems += page.evaluate(AUDIT)
        page.keyboard.press("ArrowRight" if len(texts) == 2 else "Enter")
    assert not problems
    assert len(set(texts)) == 7
    assert tour.is_hidden()
    watched.open(pages["short"])  # the second visit
    watched.settle()
    assert tour.is_hidden()
    page.locator("#help-button").click()
    page.locator("#start-tour").click()
    tour.wait_for()
    assert watched.text("#tour-text") == texts[0]
    page.keyboard.press("Escape")
    assert tour.is_hidden()
    assert page.evaluate("() => document.activeElement.id") == "help-button"


@pytest.mark.parametrize("watched", [FIRST], indirect=True)
def test_the_tour_tells_only_what_the_page_has(watched, pages, tmp_path):
    watched.open(pages["writer"])
    watched.page.locator("#tour").wait_for()
    assert watched.text("#tour-text").startswith("This is what the model read")
    texts = []
    while watched.page.locator("#tour").is_visible():
        texts.append(watched.text("#tour-text"))
        watched.page.locator("#tour-next").click()
    assert len(texts) == 6  # no steps of decoding
    assert not any("source" in text for text in texts)
    for seen in (False, True):  # another port each time, and so another storage
        with open_record(records.drawn(5, heads=1), browser=False) as opened:
            watched.open(opened.url)
            watched.settle()
            assert watched.page.locator("#tour").is_hidden() == seen
    path = Path(tmp_path) / "notebook.html"
    path.write_text(
        f"<!DOCTYPE html><title>notebook</title>{render_notebook(Scene(records.drawn(5, heads=1)))}", "utf-8"
    )
    watched.page.goto(path.as_uri())  # a sandboxed frame, which can remember nothing
    frame = watched.page.frame_locator("iframe")
    frame.locator("html[data-ready='map'][data-shown]").wait_for()
    watched.settle()
    assert frame.locator("#tour").is_hidden()
