"""The page explains itself: a sentence about the selection, a line for every term, and a tour at the first visit."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead.explore import Scene, from_weights, open_record
from clearhead.explore.head_summaries import ALIGNMENT, BROKEN
from clearhead.explore.page_file import PAGE, render_notebook, render_page
from clearhead.lens.analysis.roles import NONE, ROLES
from tests.explore import media_records, records
from tests.explore.browser import Watched

SICK = "他昨天没有去学校，因为他病了。"
HEAD = "decoder.1.cross"


@pytest.fixture(scope="module")
def record():
    return clearhead.load("zh-en").look(SICK)


def draw_causal() -> torch.Tensor:
    """Two heads over 39 tokens; in the first, query 17 gives half of its attention to 4 of the 18 keys that it sees."""
    scores = torch.randn(2, 39, 39, generator=torch.Generator().manual_seed(5)) * 1.2
    weights = scores.masked_fill(torch.ones(39, 39).triu(1).bool(), -torch.inf).softmax(-1)
    weights[0, 17, :18] = torch.tensor([0.13, 0.125, 0.12, 0.126] + [0.499 / 14] * 14)
    return weights


def draw_late() -> torch.Tensor:
    """A head whose first four queries look at themselves alone, and whose others look evenly at all that they see."""
    weights = torch.ones(7, 7).tril()
    weights[:4] = torch.eye(7)[:4]
    return weights / weights.sum(-1, keepdim=True)


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
        "causal": Scene(from_weights(draw_causal(), [f"w{place}" for place in range(39)])),
        "sinks": Scene(from_weights(draw_causal() * torch.linspace(0.1, 1, 39)[:, None], [*map(str, range(39))])),
        "late": Scene(from_weights(draw_late()[None], [*"ABCDEFG"])),
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
        "Over this text, this head mostly looks at one source word at a time, and at others as the text goes on "
        "(alignment): "
        f"its largest weights average {peak}. Example: Writing ill, it gives 93 % of its attention to 病."
    )
    for query in range(0, len(weights), 3):
        said = sentence(watched, f"at={HEAD}/0&pins=target:{query}")
        most, key = weights[query].max(-1)
        assert f"this head gives {percent(float(most))} of its attention to " in said
        assert said.partition("attention to ")[2].strip("“").startswith(source[key])
        assert said.endswith(
            "mostly looks at one source word at a time, and at others as the text goes on (alignment)."
        )


def test_the_sentence_follows_rows_columns_cells_steps_and_two_heads(watched, pages, record):
    weights = records.weights_of(record[HEAD])[0]
    watched.open(pages["short"], f"at={HEAD}/0")
    begin = f"at={HEAD}/0"
    assert sentence(watched, f"{begin}&pins=target:10&rows=read").startswith("Having read was, this head gives 93 %")
    assert sentence(watched, f"{begin}&step=6").startswith("Step 6 of 13: writing school, this head gives >99.9 % ")
    both = percent(float(weights[1:3].sum(0).max() / 2))
    assert sentence(watched, f"{begin}&pins=target:1,target:2").startswith(
        f"Writing didn't, this head gives on average {both} of"
    )
    assert sentence(watched, f"{begin}&direction=by&pins=source:8").startswith(
        "Of all rows, ill gives 病 the most, 93 % of its attention. "
        f"In all it receives {weights[:, 8].sum():.2f}, where each of the 13 rows that can see it can give at most 1."
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
    assert watched.text("#axes-note").startswith("Each row: one word written; its attention weights add up to 100")
    watched.page.keyboard.press("Escape")
    mean = percent(float(records.weights_of(record[HEAD])[:, 10].mean(0).max()))
    lines = sentence(watched, f"{begin}&drawing=lines&averaged=layer&pins=target:10")
    assert lines.startswith(f"Writing ill, the mean of 8 heads gives {mean} of its attention to ")
    assert watched.page.locator("#axes-note").is_hidden()
    assert sentence(watched, f"{begin}&pins=target:10&language=zh") == (
        "写“ill”时，这个注意力头把 93% 的注意力给了“病”；"
        "在这段文本中，它大多每次集中看源文的一个词，并随着输出换到别的词（对齐）。"
    )


def test_arrow_keys_do_what_the_footer_says_after_a_click_and_where_the_focus_is(watched, pages):
    watched.open(pages["short"], f"at={HEAD}/0")
    page = watched.page
    page.locator("#output-text .token", has_text="school").click()
    watched.until("#arrows", "layer")
    page.keyboard.press("ArrowDown")  # not another token
    watched.until("figcaption", "decoder 2 · cross · head 0")
    assert sentence(watched).startswith("Writing school, this head gives ")
    assert "school" in watched.text("#subject")
    assert page.locator("#output-text .cursor").count() == 0  # no other row is marked
    page.keyboard.press("k")  # the text at the side, by keys
    watched.until("#own-arrows", "token")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => document.activeElement.textContent") == "昨天"
    page.keyboard.press("m")
    watched.until("#own-arrows", "cell of the map")
    page.keyboard.press("l")
    watched.until("#own-arrows", "图中的格子")
    assert page.locator("#arrows").is_hidden()


def test_hidden_broken_sampled_and_other_inputs_have_their_sentences(watched, pages):
    watched.open(pages["writer"], "at=decoder.0.self/0")
    walk(watched, "Home", "ArrowRight")
    assert sentence(watched) == "Having read token 0, this head cannot look at token 1: the mask hides it."
    watched.open(pages["sampled"])
    assert sentence(watched).endswith("an estimate, for not all rows were measured.")
    watched.open(pages["broken"])
    assert sentence(watched).startswith(
        "Over this text, this head has weights that are not finite numbers, NaN or ∞, so that it has neither measures "
        "nor a role (no numbers). Example: "
    )
    assert watched.text("#roles").split("\n") == ["no numbers", "1"]
    assert watched.page.locator(".head").get_attribute("title") == "layer 0, head 0: no numbers"
    assert "没有度量，也没有角色（非数值）。" in sentence(watched, "language=zh")
    watched.open(pages["broken"], "pins=tokens:2")
    assert sentence(watched).startswith("Not all weights of token 2 are finite numbers (NaN or ∞), so ")
    walk(watched, "Home", "ArrowDown", "ArrowDown")
    assert sentence(watched).startswith("The weight of token 2 on token 0 is NaN")
    watched.open(pages["given"])
    said = sentence(watched)
    assert said.startswith(
        "Over this text, this head mostly looks at the token after (next): 97 % of its attention on average"
    )
    assert "Example: From E, it gives" in said
    watched.open(pages["caption"])
    said = sentence(watched)
    assert "Writing square, it gives 23 % of its attention to the patch r2 c6; " in said
    assert "half of its attention lies on 5 of 63 patches that it can see" in said
    assert watched.page.locator("#axes-note").is_hidden()
    watched.open(pages["sound"])
    assert (
        "of its attention to the moment 2.92 s; half of its attention lies on 3 of 83 moments that it can see"
        in sentence(watched)
    )


def test_maxima_and_counts_are_of_what_the_mask_leaves(watched, pages):
    weights, at = draw_causal(), "at=decoder.0.self/0"
    received = weights[0].sum(0)
    most = sum(math.log(count) for count in range(1, 40)) / 39
    watched.open(pages["causal"], at)
    assert f" of at most {most:.2f} nats" in sentence(watched)
    assert watched.page.locator(".head").first.get_attribute("title") == "layer 0, head 0: none of these"  # no score
    assert "; half of its attention lies on 4 of 18 tokens that it can see;" in sentence(
        watched, f"{at}&pins=tokens:17"
    )
    assert sentence(watched, f"{at}&direction=by&pins=tokens:38").endswith(
        f" In all it receives {received[38]:.2f}, where the one row that can see it can give at most 1."
    )
    both = f"{at}&direction=by&pins=tokens:30,tokens:35"
    assert sentence(watched, both).endswith(
        f" In all they receive {received[30] + received[35]:.2f}, "
        "where each of the 9 rows that can see them can give at most 1."
    )
    assert sentence(watched, f"{both}&language=zh").endswith("而能看到它们的 9 行每行最多给 1。")
    assert sentence(watched, f"{at}&direction=by&pins=tokens:38&language=zh").endswith("而只有一行能看到它，最多给 1。")
    assert "注意力的一半集中在看得到的 18 个词元中的 4 个上；" in sentence(watched, f"{at}&pins=tokens:17&language=zh")
    assert f"奈特（至多 {most:.2f}）" in sentence(watched, f"{at}&language=zh")


def test_rows_of_a_model_with_sinks_add_up_to_at_most_all_of_the_attention(watched, pages):
    for name, total in (("sinks", "at most 100\u00a0%"), ("causal", "100\u00a0%")):
        watched.open(pages[name])
        for shown in ("", "pins=tokens:3", "direction=by&pins=tokens:38"):
            sentence(watched, shown)
            assert f"its attention weights add up to {total}." in watched.text("#axes-note"), (name, shown)
        watched.page.locator("#help-button").click()
        watched.page.locator("#start-tour").click()
        watched.page.locator("#tour-next").click()
        assert f"Each row adds up to {total}, and dark cells" in watched.text("#tour-text")
        watched.page.keyboard.press("Escape")


def test_the_entropy_of_a_broad_head_is_a_share_of_what_all_its_rows_allow(watched, pages):
    entropy = sum(math.log(count) for count in (5, 6, 7)) / 7
    share = percent(entropy / (math.log(math.factorial(7)) / 7))
    watched.open(pages["late"])
    assert f"broadly (broad): entropy {entropy:.2f} nats, {share} of the most possible." in sentence(watched)
    chinese = f"熵为 {entropy:.2f} 奈特，是最大可能值的 {share.replace(' ', '')}。"
    assert chinese in sentence(watched, "at=decoder.0.self/0&language=zh")


def test_every_role_and_measure_has_a_line_in_both_languages():
    for language in ("english", "chinese"):
        text = (PAGE / "words" / f"{language}_guide.js").read_text(encoding="utf-8")
        parts = {part: text.split(f"  {part}: {{")[1].split("\n  },")[0] for part in ("does", "roleLines", "terms")}
        keys = {
            part: set(re.findall(r'(?:^|[{,]) +"?([\w ]+?)"?:(?= "| \[|\n)', lines, re.M))
            for part, lines in parts.items()
        }
        assert keys["does"] == keys["roleLines"] == {*ROLES, ALIGNMENT, NONE, BROKEN}
        code = "".join(path.read_text(encoding="utf-8") for path in PAGE.rglob("*.*"))
        asked = set(re.findall(r'\bterm\("(\w+)"|data-define="(\w+)"', code))
        sorts = re.search(r"SORTS = (\[.*\])", code)[1]
        assert {one or other for one, other in asked} | set(json.loads(sorts)) <= keys["terms"]


def middle_of(locator) -> tuple[float, float]:
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


UNCOVERED = """() => {
    const line = document.getElementById("definition").getBoundingClientRect();
    const boxes = [...document.querySelectorAll("#sorts button")].map((one) => one.getBoundingClientRect());
    const beside = (box) => box.right <= line.left || box.left >= line.right;
    return line.height > 0 && boxes.every((box) => beside(box) || box.bottom <= line.top || box.top >= line.bottom);
}"""


@pytest.mark.parametrize("watched", [{"has_touch": True, "hurried": False}], indirect=True)
def test_terms_explain_themselves_on_hover_focus_and_touch_until_escape(watched, pages):
    watched.open(pages["short"], f"at={HEAD}/0&pins=target:10")
    page, line = watched.page, watched.page.locator("#definition")
    page.locator("#sorts button", has_text="entropy").hover()
    watched.until("#definition", "Entropy: how widely attention is spread")
    page.mouse.move(*middle_of(line), steps=4)
    watched.settle()
    assert line.is_visible()  # the pointer may rest on it
    page.keyboard.press("Escape")
    assert line.is_hidden()
    assert "pins=target:10" in watched.fragment  # Escape has closed the line alone
    page.locator("#scrubber .term").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    watched.until("#definition", "Step: a decoder writes one token a step.")
    page.keyboard.press("Escape")
    page.locator("#output-text .token.special").hover()
    watched.until("#definition", "probability 92 %")
    watched.until("#definition", "End mark: not a word.")
    page.keyboard.press("Escape")
    page.locator("#title .term").hover()
    watched.until("#definition", "6 layers read the source and 3 layers write the output")
    assert watched.text("#chances").endswith("no surprising word")
    page.keyboard.press("Escape")
    page.locator("#chances .term").last.hover()
    watched.until("#definition", "if another word was at least 10 times as likely in its place")
    page.keyboard.press("Escape")
    page.locator("figcaption strong .term").hover()
    watched.until("#definition", "Head: a part of a layer that decides")
    page.locator("#roles button", has_text="delimiter").tap()
    watched.until("#definition", "Delimiter: looks mostly at punctuation")
    assert watched.audit() == []
    page.keyboard.press("Escape")
    for place in range(page.locator("#sorts button").count()):  # no line covers another control of its row
        page.locator("#sorts button").nth(place).hover()
        watched.settle()
        assert page.evaluate(UNCOVERED), place
    middle = middle_of(line)
    page.mouse.move(*middle, steps=4)  # it stays while the pointer is on it, and takes no clicks
    watched.settle()
    assert line.is_visible()
    assert page.evaluate("([x, y]) => !document.elementFromPoint(x, y).closest('#definition')", middle)
    page.mouse.move(middle[0], middle[1] + 400, steps=4)
    line.wait_for(state="hidden")
    page.locator("#sorts button").first.hover()
    line.wait_for()
    assert min(page.locator("#play").bounding_box()[side] for side in ("width", "height")) >= 24
    page.keyboard.press("Escape")
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
    texts = []
    for _ in range(7):
        watched.settle()
        texts.append(watched.text("#tour-text"))
        card, (width, height) = tour.bounding_box(), page.viewport_size.values()
        assert 0 <= card["x"] <= width - card["width"]
        assert 0 <= card["y"] <= height - card["height"]
        ring = page.locator("#tour-ring").bounding_box()
        assert min(ring["width"], ring["height"]) > 20
        assert -ring["height"] < ring["y"] < height
        page.keyboard.press("ArrowRight" if len(texts) == 2 else "Enter")
    assert len(set(texts)) == 7
    dark = page.evaluate("() => matchMedia('(prefers-color-scheme: dark)').matches")
    assert ("颜色越亮，分到的注意力越多" if dark else "dark cells get much") in texts[1]
    assert not any(side in text for text in texts for side in ("left", "right", "左边", "右边"))
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
def test_the_tour_follows_language_theme_drawing_and_size(watched, pages):
    page = watched.page
    watched.open(pages["short"])
    page.locator("#tour-next").click()
    watched.until("#tour-text", "dark cells get much")
    page.keyboard.press("t")
    watched.until("#tour-text", "bright cells get much")
    page.keyboard.press("v")
    watched.until("#tour-text", "Lines lead from each token below")
    page.keyboard.press("v")
    watched.until("#tour-text", "bright cells get much")
    page.locator("#tour-next").click()
    for change in (lambda: page.keyboard.press("l"), lambda: page.set_viewport_size({"width": 1024, "height": 800})):
        change()
        watched.settle()
        ring, box = (page.locator(one).bounding_box() for one in ("#tour-ring", "#explanation-box"))
        assert ring == {"x": box["x"] - 3, "y": box["y"] - 3, "width": box["width"] + 6, "height": box["height"] + 6}
    watched.until("#tour-text", "这句话说明鼠标所指或点按的内容")
    heights = []
    for width in (1440, 390, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        watched.settle()
        heights.append(page.locator("#explanation-box").bounding_box()["height"])
    assert heights[0] == heights[2] < heights[1]


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
