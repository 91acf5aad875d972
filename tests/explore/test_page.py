"""The page, in a real browser: what people do with it, and what hostile text cannot do."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead import Mask, Record
from clearhead.explore import Scene, open_record, write_page
from clearhead.explore.head_summaries import ALIGNMENT, BROKEN, ROLE_COLOURS
from clearhead.explore.live_model import LiveModel
from clearhead.explore.page_file import PAGE, render_notebook, render_page
from clearhead.explore.token_axis import Axis
from clearhead.lens.analysis.roles import NONE, ROLES
from clearhead.lens.record.attention_views import Forward
from clearhead.lens.record.call_metadata import AnswerChange
from tests.explore import records
from tests.explore.browser import Watched

SENTENCE = "人工智能正在改变我们的世界。"
START = "at=decoder.0.cross/1"  # looks back at the word just read
HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "\u202egnp.exe",
    "\u200f\u200fשלום",
    "\ud800",
    "x" * 10_000,
    "{step}",
    "&lt;b&gt;",
    "'\"`${alert(1)}",
    "=1+1",
    " ",
    "\n",
    "\x00\x07",
    "👩‍👩‍👧",
    "",
    "javascript:alert(1)",
    "é",
]


@pytest.fixture(scope="module")
def translator():
    return clearhead.load("zh-en")


@pytest.fixture(scope="module")
def translated(translator):
    return translator.look(SENTENCE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("pages")


def write(folder: Path, name: str, scene: Scene, **options) -> str:
    path = folder / f"{name}.html"
    path.write_text(render_page(scene, **options), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def short(folder, translated) -> str:
    return write(folder, "short", Scene(translated))


@pytest.fixture(scope="module")
def long_record():
    return records.drawn(709, heads=3, d=5, mask=Mask.causal())


@pytest.fixture(scope="module")
def long(folder, long_record) -> str:
    return write(folder, "long", Scene(long_record))


@pytest.fixture(scope="module")
def server(translator, translated):
    server = open_record(translated, live=LiveModel.from_predictor(translator), browser=False)
    yield server.url
    server.close()


def token(watched: Watched, place: str, text: str):
    return watched.page.locator(f"{place} .token", has_text=text).first


def cell(watched: Watched, query: int, key: int) -> str:
    """Walks to a cell by keys, and reads what is said of it."""
    page = watched.page
    page.locator(".map-canvas").first.focus()
    for _ in range(query + 1):
        page.keyboard.press("ArrowDown")
    for _ in range(key):
        page.keyboard.press("ArrowRight")
    page.locator("#tip:not([hidden])").wait_for()
    return watched.text("#tip")


def test_all_languages_say_the_same_things():
    registered = re.findall(r'from "./(\w+)\.js"', (PAGE / "words" / "languages.js").read_text(encoding="utf-8"))
    assert {"english", "chinese"} <= set(registered)
    said = [
        set(
            re.findall(
                r"^  (\w+):",
                "".join((PAGE / "words" / f"{language}{part}.js").read_text("utf-8") for part in ("", "_guide")),
                re.M,
            )
        )
        for language in registered
    ]
    assert all(one == said[0] for one in said)
    code = "".join(path.read_text(encoding="utf-8") for path in PAGE.rglob("*.*"))
    asked = re.findall(r'\bsay\("(\w+)"|data-(?:say|label|hint)="(\w+)"', code)
    assert {one or other for one, other in asked} <= said[0]


def test_roles_have_the_same_names_order_and_colours_in_page_and_figures():
    found = re.search(r"ROLE_COLOURS = (\{.*?\});", (PAGE / "draw" / "colours.js").read_text(encoding="utf-8"), re.S)
    assert found is not None
    in_page = json.loads(found[1].replace("],\n}", "]\n}"))
    assert list(in_page.items()) == [(role, list(colours)) for role, colours in ROLE_COLOURS.items()]
    assert list(ROLE_COLOURS) == [ALIGNMENT, *ROLES, NONE, BROKEN]
    translated = re.search(r"roles: \{(.*?)\}", (PAGE / "words" / "chinese.js").read_text(encoding="utf-8"), re.S)
    assert translated is not None
    assert {one or other for one, other in re.findall(r'(?:(\w+)|"([\w ]+)"): "', translated[1])} == set(ROLE_COLOURS)


def test_no_data_ever_becomes_markup():
    markup = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc\s*=")
    for path in PAGE.rglob("*.js"):
        assert not markup.search(path.read_text(encoding="utf-8")), path.name


def test_a_head_is_chosen_with_a_click_and_read_in_every_pane(watched, short):
    watched.open(short)
    page = watched.page
    assert watched.text("footer p strong") == "Attention weights alone do not explain the model's answer."
    assert page.locator(".tab").all_inner_texts() == ["encoder", "decoder", "cross"]
    page.locator('.head[data-name="decoder.1.cross"][data-head="2"]').click()
    watched.until("figcaption", "decoder 1 · cross · head 2")
    assert watched.fragment == "#at=decoder.1.cross/2"
    page.locator(".tab", has_text="encoder").click()
    watched.until("figcaption", "encoder 1 · self · head 2")
    assert page.locator('.head[aria-selected="true"]').count() == 1


def test_every_weight_of_the_table_is_what_attention_weights_gives(watched, short, translated):
    name, head, query = "decoder.0.cross", 1, 9
    weights = records.weights_of(translated[name])[head]
    watched.open(short, START)
    token(watched, "#output-text", "world").click()
    watched.until("#subject", "pinned")
    watched.settle()
    shown = [row.split("\t") for row in watched.page.locator("#keys tbody tr").all_inner_texts()]
    assert shown
    best = weights[query].topk(len(shown)).values.tolist()
    assert [float(row[1]) for row in shown] == pytest.approx(best, abs=0.0011)  # three digits, within 0.0005


def test_of_two_pinned_tokens_table_and_sentence_have_the_mean_or_the_sum(watched, short, translated):
    """The mean of what they look at, and the sum of what looks at them."""
    weights = records.weights_of(translated["decoder.0.cross"])[1]
    watched.open(short, START)
    token(watched, "#output-text", "changing").click()
    token(watched, "#output-text", "world").click()
    watched.until("#subject", "mean of 2 tokens")
    watched.settle()
    both = (weights[7] + weights[9]).max().item() / 2
    assert float(watched.page.locator("#keys tbody .number").first.inner_text()) == pytest.approx(both, abs=0.001)
    assert f"this head gives on average {100 * both:.0f}\u00a0% of its attention to " in watched.text("#explanation")
    assert watched.text("#shaded-title").endswith("what these tokens look at")
    assert watched.fragment == f"#{START}&pins=target:7,target:9"
    watched.page.get_by_role("button", name="Unpin changing").click()
    watched.page.locator("#subject .chip").nth(1).wait_for(state="detached")
    assert watched.fragment == f"#{START}&pins=target:9"
    watched.open(short, f"{START}&direction=by&pins=source:3,source:4")
    assert "sum of 2 tokens" in watched.text("#subject")
    both = (weights[:, 3] + weights[:, 4]).max().item()
    assert float(watched.page.locator("#keys tbody .number").first.inner_text()) == pytest.approx(both, abs=0.001)
    assert f" the most, {100 * both:.0f}\u00a0% of its attention. In all they receive" in watched.text("#explanation")
    watched.page.keyboard.press("l")
    watched.until("#subject", "2 个词元之和")
    watched.page.evaluate("hash => { location.hash = hash }", f"{START}&pins=target:7,target:9&language=zh")
    watched.until("#subject", "2 个词元的平均")
    watched.until("#explanation", "这个注意力头平均把")


def test_who_looks_at_a_token_is_its_column(watched, short, translated):
    weights = records.weights_of(translated["decoder.0.cross"])[1]
    watched.open(short, START)
    token(watched, "#source-text", "世界").click()
    watched.until("#shaded-title", "who looks at")
    watched.until("#keys", "in total")
    first = float(watched.page.locator("#keys tbody .number").first.inner_text())
    assert first == pytest.approx(weights[:, 7].max().item(), abs=0.0011)
    total = float(watched.text("#keys p").split()[1])
    assert total == pytest.approx(weights[:, 7].sum().item(), abs=0.03)


def test_a_cell_shows_query_key_and_weight(watched, short, translated):
    weights = records.weights_of(translated["decoder.0.cross"])[1]
    watched.open(short, START)
    said = cell(watched, 9, 6)
    assert "world" in said
    assert "我们的" in said
    assert float(said.split()[-4]) == pytest.approx(weights[9, 6].item(), abs=0.0006)
    assert watched.page.locator("#live").inner_text().startswith("query world, key 我们的, weight")


def test_zooming_in_reaches_exact_cells_and_the_link_brings_them_back(watched, long, long_record):
    weights = records.weights_of(long_record["encoder.0.self"])[1]
    watched.open(long, "at=encoder.0.self/1")
    page = watched.page
    box = page.locator(".map-canvas").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.6 * box["height"])
    for _ in range(7):
        page.mouse.wheel(0, -400)
        watched.settle()
    watched.until("#resolution", "exact")
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    page.locator("#tip .tip-place").wait_for()
    watched.settle()
    query, key = (int(part.replace("\u2009", "")) for part in watched.text(".tip-place").split(" → "))
    seen = float(watched.text("#tip .value strong"))
    assert seen == pytest.approx(weights[query, key].item(), abs=0.00056)
    fragment = watched.fragment
    assert "view=" in fragment
    watched.open(long, fragment.removeprefix("#"))
    watched.until("#resolution", "exact")
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    page.locator("#tip .tip-place").wait_for()
    watched.settle()
    again = [int(part.replace("\u2009", "")) for part in watched.text(".tip-place").split(" → ")]
    assert again == [query, key]
    assert watched.fragment == fragment


@pytest.mark.parametrize("watched", [{"viewport": {"width": 1360, "height": 820}}], indirect=True)
def test_a_map_keeps_its_place_while_its_legend_changes(watched, folder):
    url = write(folder, "longer", Scene(records.drawn(1511, heads=1, d=3)))
    feet = []
    for view, says in (("0,1511,0,1511", "tokens"), ("100,120,90,110", "exact")):
        watched.open(url, f"at=encoder.0.self/0&view={view}")
        watched.until("#resolution", says)
        feet.append(watched.page.locator("#map-foot").bounding_box())
    assert feet[0] == feet[1]


def test_dragging_moves_the_map_and_a_double_click_centres(watched, long):
    watched.open(long, "at=encoder.0.self/0&view=100,120,90,110")
    page = watched.page
    before = watched.fragment
    box = page.locator(".map-canvas").bounding_box()
    middle = (box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] - 80, middle[1] - 60, steps=4)
    page.mouse.up()
    moved = watched.fragment
    assert moved != before
    assert "pins" not in moved  # a drag is no click
    page.mouse.dblclick(middle[0] + 90, middle[1] + 90)
    assert watched.fragment not in (before, moved)
    assert "pins" not in watched.fragment  # two clicks pin and unpin


def test_decoding_is_scrubbed_with_its_probabilities(watched, short, translated):
    about = translated.calls[0].about
    watched.open(short, START)
    page = watched.page
    page.locator("#step").focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    watched.until("#step-text", "9 of 12")
    watched.settle()
    assert page.locator("#output-text .token.faded").all_inner_texts()[:2] == ["world", "."]
    assert page.locator("#output-text .token.current").inner_text() == "our"
    assert "our" in watched.text("#next h2")
    first = watched.page.locator("#next tbody tr").first.inner_text().split("\t")
    assert float(first[1]) == pytest.approx(about.next[8][0][1], abs=0.0006)
    assert watched.fragment == f"#{START}&step=9"


def test_rows_are_the_words_that_are_written_or_those_that_are_read(watched, short):
    """Head 1 looks for the source of what the decoder has just read."""
    watched.open(short, START)
    page = watched.page
    pressed = page.locator('#rows button[aria-pressed="true"]')
    assert pressed.inner_text() == "the word written"
    assert "world" in cell(watched, 9, 6)
    page.keyboard.press("w")
    watched.until('#rows button[aria-pressed="true"]', "the word read")
    page.locator("#output-text .token", has_text="⟨s⟩").wait_for()
    watched.until("#tip", "our")  # in the same cell
    token(watched, "#output-text", "our").click()
    assert watched.fragment == f"#{START}&pins=target:9&rows=read"
    watched.until("#next h2", "world")  # what is written there stays
    watched.open(short, watched.fragment.removeprefix("#"))
    watched.until("#subject", "our")
    page.keyboard.press("2")
    watched.until("figcaption", "self")
    page.locator("#rows button", has_text="written").click()
    watched.until("#subject", "world")
    page.locator(".map-canvas").first.focus()
    page.keyboard.press("ArrowDown")
    watched.until("#tip", "⟨s⟩")
    assert "Ar" in watched.text("#tip")
    assert page.locator("#output-text .token.pinned").all_inner_texts() == ["world"]
    assert watched.fragment == "#at=decoder.0.self/1&pins=target:9&rows=written"
    page.keyboard.press("1")
    watched.until("figcaption", "encoder")
    assert page.locator("#rows").is_hidden()
    page.keyboard.press("w")  # there is no choice
    assert watched.fragment.endswith("rows=written")


def test_two_heads_stand_side_by_side(watched, short, translated):
    watched.open(short, f"{START}&pins=target:9")
    page = watched.page
    page.locator('.head[data-name="decoder.0.cross"][data-head="7"]').click(modifiers=["Shift"])
    page.locator("#maps figure.second").wait_for()
    assert page.locator(".map-canvas").count() == 2
    watched.until("#keys", "head 7")
    watched.settle()
    weights = records.weights_of(translated["decoder.0.cross"])
    shown = {row.split("\t")[0]: row.split("\t")[2] for row in page.locator("#keys tbody tr").all_inner_texts()}
    assert float(shown["世界"]) == pytest.approx(weights[7, 9, 7].item(), abs=0.0011)
    assert watched.fragment == f"#{START}&beside=decoder.0.cross/7&pins=target:9"
    watched.open(short, watched.fragment.removeprefix("#"))
    assert page.locator(".map-canvas").count() == 2
    page.get_by_role("button", name="stop comparing").click()
    page.locator("#maps figure.second").wait_for(state="detached")
    page.locator('.head[data-name="decoder.2.cross"][data-head="0"]').click(modifiers=["Shift"])
    watched.until("#keys", "head 2·0")  # and not two columns called head 0
    assert "head 0·1" in watched.text("#keys thead")


def test_two_heads_share_one_scale_and_one_table(watched, folder):
    """The second head's favourites are listed where the first never looks; and the same colour is the same weight."""
    record = records.drawn(7, heads=2)
    sight = record["encoder.0.self"]
    sight.map[0, 0] = torch.full((7, 7), 1 / 7)
    sight.map[0, 1] = torch.eye(7).flip(1)
    sight.map[0, 0, 6] = torch.tensor([0, 0.2, 0.2, 0.2, 0.2, 0.1, 0.1])
    alone = dataclasses.replace(sight, kept=None)
    forward = Forward({"encoder.0.self": alone}, {"tokens": torch.arange(7)[None]})
    url = write(folder, "scales", Scene(Record(["encoder.0.self"], [forward])))
    watched.open(url, "at=encoder.0.self/0&pins=tokens:6")
    assert watched.text("#legend").endswith("0.57")  # 4/7
    watched.page.keyboard.press("c")
    watched.until("#legend", "1")
    watched.settle()
    assert watched.text("#legend").endswith("1")
    table = [row.split("\t")[:3] for row in watched.page.locator("#keys tbody tr").all_inner_texts()]
    assert table[0] == ["0", "<0.001", "1.000"]


def even_and_sharp(tokens: int) -> Record:
    """A head that looks everywhere alike, and one that looks at itself alone."""
    record = records.drawn(tokens, heads=2)
    sight = record["encoder.0.self"]
    sight.map[0, 0], sight.map[0, 1] = torch.full((tokens, tokens), 1 / tokens), torch.eye(tokens)
    sight.peak[0] = torch.tensor([[1 / tokens], [1.0]]).expand(2, tokens)
    alone = dataclasses.replace(sight, kept=None)
    forward = Forward({"encoder.0.self": alone}, {"tokens": torch.arange(tokens)[None]})
    return Record(["encoder.0.self"], [forward])


COMMONEST = """() => { const canvas = document.querySelector(".map-canvas"), seen = new Map();
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) {
      const colour = data.slice(i, i + 3).join(); seen.set(colour, (seen.get(colour) ?? 0) + 1) }
    return [...seen].sort((one, other) => other[1] - one[1])[0][0].split(",").map(Number) }"""


@pytest.mark.parametrize(
    ("tokens", "what", "end", "colour"),
    [(7, "weight", "0.57", (240, 210, 195)), (101, "weight · √", "0.040", (220, 156, 129))],
)
def test_a_head_that_looks_everywhere_stays_pale_and_the_legend_says_the_scale(
    watched, folder, tokens, what, end, colour
):
    """Even weights are at a quarter of the scale, or at the root of that: its colour there."""
    url = write(folder, f"even{tokens}", Scene(even_and_sharp(tokens)))
    watched.open(url, "at=encoder.0.self/0")
    assert watched.text("#legend").split("\n") == [what, "0", end]
    assert watched.page.evaluate(COMMONEST) == pytest.approx(colour, abs=3)
    watched.open(url, "at=encoder.0.self/1")
    assert watched.text("#legend").split("\n") == [what, "0", "1"]


@pytest.mark.parametrize("repeated", [1, 2, 3, 4])
def test_labels_of_keys_are_not_cut_where_cells_are_a_little_too_narrow(watched, folder, repeated):
    texts = ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", ".", "你", "好"]
    texts = [f"{text}{turn or ''}" for turn in range(repeated) for text in texts]
    watched.open(write(folder, f"labels{repeated}", Scene(records.drawn(12 * repeated, texts=texts))))
    drawing = ElementTree.fromstring(saved(watched, "#save-svg"))
    shown = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert all(shown.count(text) == 2 for text in texts)


def test_heads_are_sorted_and_roles_stand_out(watched, short, translated):
    watched.open(short, START)
    page = watched.page
    page.locator("#sorts button", has_text="entropy").click()
    watched.settle()
    found = [
        (translated[name].entropy[0].mean(-1)[head].item(), name, str(head))
        for name in ("decoder.0.cross", "decoder.1.cross", "decoder.2.cross")
        for head in range(8)
    ]
    _, name, head = max(found)
    first = page.locator(".head").first
    assert (first.get_attribute("data-name"), first.get_attribute("data-head")) == (name, head)
    page.locator(".role").first.click()
    assert "sort=entropy" in watched.fragment
    assert "role=" in watched.fragment


@pytest.mark.parametrize("watched", [{"color_scheme": "dark", "locale": "zh-CN"}], indirect=True)
def test_language_and_theme_are_the_systems_until_one_chooses(watched, short):
    watched.open(short, START)
    page = watched.page
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert watched.text("footer p strong") == "仅凭注意力权重，并不能解释模型为何这样回答。"
    page.locator("#language").click()
    watched.until("footer p strong", "Attention weights alone")
    page.locator("#theme").click()
    page.locator("html[data-theme='light']").wait_for(state="attached")
    assert watched.fragment == f"#{START}&theme=light&language=en"
    watched.open(short, watched.fragment.removeprefix("#"))
    assert page.locator("html").get_attribute("data-theme") == "light"
    assert page.locator("#find").get_attribute("placeholder") == "find token"


def saved(watched: Watched, button: str) -> bytes:
    with watched.page.expect_download() as download:
        watched.page.locator(button).click()
    return Path(download.value.path()).read_bytes()


def test_the_view_is_saved_as_svg_and_png(watched, short, translated):
    weights = records.weights_of(translated["decoder.0.cross"])[1]
    watched.open(short, START)
    drawing = ElementTree.fromstring(saved(watched, "#save-svg"))
    texts = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"人", "world", f"{weights[9, 6]:.2f}", "decoder 0 · cross · head 1"} <= set(texts)
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}rect"))) > 50
    picture = saved(watched, "#save-png")
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(picture[start : start + 4], "big") for start in (16, 20))
    assert (width, height) == (2 * int(drawing.get("width")), 2 * int(drawing.get("height")))
    assert len(picture) > 20_000  # not an empty sheet


def test_the_selection_is_saved_as_json_and_csv(watched, short, translated):
    weights = records.weights_of(translated["decoder.0.cross"])[1]
    watched.open(short, f"{START}&pins=target:9")
    selection = json.loads(saved(watched, "#save-json"))
    (one,) = selection["tokens"]
    assert one["position"] == 9
    got = {entry["position"]: entry["weight"] for entry in one["weights"]}
    assert [got.get(key, 0.0) for key in range(10)] == pytest.approx(weights[9].tolist(), abs=0.00051)
    assert torch.tensor(selection["window"]["weights"]).sub(weights).abs().max() < 0.00051
    table = saved(watched, "#save-csv")
    assert table.startswith(b'\xef\xbb\xbf"attention",')
    rows = list(csv.DictReader(io.StringIO(table.decode("utf-8-sig"))))
    assert {row["attention"] for row in rows} == {"decoder.0.cross"}
    assert {row["token"] for row in rows} == {"▁world"}
    assert max(rows, key=lambda row: float(row["weight"]))["other_token"] == "我们的"


def test_everything_can_be_done_by_keyboard_alone(watched, short):
    watched.open(short, START)
    page, press = watched.page, watched.page.keyboard.press
    press("ArrowRight")
    press("ArrowDown")
    watched.until("figcaption", "decoder 1 · cross · head 2")
    press("1")
    watched.until("figcaption", "encoder 1 · self · head 2")
    press("3")
    press("m")
    for _ in range(8):
        press("ArrowDown")
    press("p")
    watched.until("#subject", "changing")
    press("r")
    watched.until("#shaded-title", "who looks at")
    press("r")
    press("c")
    page.locator("figure.second").wait_for()
    press("Escape")  # unpins
    press("Escape")  # one head again
    page.locator("figure.second").wait_for(state="detached")
    press("[")
    watched.until("#step-text", "11 of 12")
    press("+")
    press("g")
    press("b")
    press("o")
    press("t")
    press("l")
    watched.until("footer p strong", "注意力权重")
    parts = dict(part.split("=") for part in watched.fragment[1:].split("&"))
    assert {key: parts[key] for key in ("step", "curve", "colours", "sort", "theme", "language")} == {
        "step": "11",
        "curve": "linear",
        "colours": "cividis",
        "sort": "role",
        "theme": "dark",
        "language": "zh",
    }
    press("/")
    page.keyboard.type("世界")
    watched.until("#found", "1")
    press("Escape")
    press("?")
    page.locator("dialog[open]").wait_for()
    press("Escape")
    page.locator("dialog[open]").wait_for(state="detached")
    press("h")
    press("ArrowRight")
    assert page.locator(".head:focus").count() == 1


def test_tab_reaches_every_pane_and_shows_where_it_is(watched, short):
    watched.open(short, START)
    page = watched.page
    seen = set()
    for _ in range(200):
        page.keyboard.press("Tab")
        where = page.evaluate(
            "() => [document.activeElement.closest('[id]')?.id, "
            "getComputedStyle(document.activeElement).outlineStyle, "
            "document.activeElement.getAttribute('aria-label') || document.activeElement.innerText "
            "|| document.activeElement.labels?.length]"
        )
        if where[0] is None:
            continue
        if where[0] == "skip" and seen:  # once around
            break
        assert where[1] != "none", f"no visible focus on {where}"
        assert where[2], f"no name for {where}"
        seen.add(where[0])
    else:
        pytest.fail("the focus never came back to the first link")
    assert {"find", "language", "save-svg", "step", "curve", "zoom-in"} <= seen


def test_hostile_tokens_are_text_and_run_nothing(watched, folder):
    record = records.drawn(len(HOSTILE), heads=2, d=5)
    scene = Scene(record, title=HOSTILE[0], axes={"tokens": Axis.text(HOSTILE)})
    url = write(folder, "hostile", scene)
    watched.open(url)
    page = watched.page
    texts = page.locator("#source-text .token").all_inner_texts()
    assert len(texts) == len(HOSTILE)
    assert texts[0] == HOSTILE[0][:39] or texts[0] == HOSTILE[0]
    assert texts[4] == "\ufffd"
    assert len(texts[5]) <= 40
    assert all(text.strip() for text in texts)
    assert not any("\u202a" <= letter <= "\u202e" or letter in "\u200e\u200f" for text in texts for letter in text)
    assert page.locator("img").count() == 0
    assert page.locator("script:not([type])").count() == 1
    for place in (0, 4, 5, 9):
        page.locator("#source-text .token").nth(place).click()
    watched.until("#subject", "mean of 4 tokens")
    page.mouse.move(600, 400)
    drawing = ElementTree.fromstring(saved(watched, "#save-svg"))
    assert any((element.text or "").startswith("</script>") for element in drawing.iter())
    saved(watched, "#save-png")
    table = saved(watched, "#save-csv").decode()
    assert '"=1+1"' not in table  # a table program would compute it
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_a_text_that_runs_from_right_to_left_does(watched, folder):
    texts = ["בראשית", "ברא", "אלהים", "GPT", "את", "ברא"]
    watched.open(write(folder, "hebrew", Scene(records.drawn(6, heads=2, texts=texts))))
    page = watched.page
    places = [token.bounding_box()["x"] for token in page.locator("#source-text .token").all()]
    assert places == sorted(places, reverse=True)
    page.locator("#source-text .token").first.focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("() => document.activeElement.textContent") == "ברא"
    watched.settle()
    shown = {row.split("\t")[0] for row in page.locator("#keys tbody tr").all_inner_texts()}
    assert {"ברא1", "ברא5", "את"} <= {text.replace("\n", "") for text in shown}


def test_an_address_full_of_nonsense_changes_nothing(watched, short):
    nonsense = "at=no.such/99&beside=x&pins=target:99,evil:1,target:-1,:,&view=1,0,NaN,9&step=-3&theme=<b>&sort=length"
    watched.open(short, nonsense)
    assert watched.fragment == "#at=decoder.1.cross/0"
    watched.until("figcaption", "decoder 1 · cross · head 0")
    assert watched.page.locator(".map-canvas").count() == 1


@pytest.mark.parametrize("tokens", [1, 2, 29])
def test_few_tokens_are_shown_with_their_numbers(watched, folder, tokens):
    url = write(folder, f"few{tokens}", Scene(records.drawn(tokens, heads=1, texts=["word"] * tokens)))
    watched.open(url)
    assert watched.text("#resolution") == "exact"
    drawing = ElementTree.fromstring(saved(watched, "#save-svg"))
    texts = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("word") == 2 * tokens
    assert sum(text[-1].isdigit() for text in texts if text and text.strip(".0123456789") == "") >= tokens


def test_a_file_of_maps_shows_the_largest_weights_exactly(watched, folder):
    record = records.drawn(613, heads=2, d=3, keep=False, pixels=64)
    weights = records.weights_of(records.drawn(613, heads=2, d=3)["encoder.0.self"])[0]
    watched.open(write(folder, "maps", Scene(record)), "at=encoder.0.self/0&pins=tokens:307")
    watched.until("#keys", "Only the largest")
    best = weights[307].topk(8).values.tolist()
    shown = [float(row.split("\t")[1]) for row in watched.page.locator("#keys tbody tr").all_inner_texts()]
    assert shown == pytest.approx(best, abs=0.00056)
    assert "This file contains" in watched.text("#notes")
    key = int(weights[307].argmax())
    watched.open(watched.page.url.split("#")[0], f"at=encoder.0.self/0&view=300,316,{key - 8},{key + 8}")
    watched.until("#resolution", "only top keys are exact")


def test_a_picture_is_shaded_patch_by_patch(watched, folder):
    picture = torch.rand(28, 42, 3)
    scene = Scene(records.drawn(7, heads=2), axes={"tokens": Axis.image(picture, (2, 3), ["[CLS]"])})
    watched.open(write(folder, "picture", scene))
    page = watched.page
    box = page.locator(".map-view .picture")
    box.wait_for()
    size = box.bounding_box()
    box.click(position={"x": 0.9 * size["width"], "y": 0.9 * size["height"]})
    watched.until("#subject", "1,2")
    assert watched.fragment.endswith("pins=tokens:6")
    page.locator("#drawings button", has_text="matrix").click()
    page.locator(".map-canvas").wait_for()
    saved(watched, "#save-png")


def test_a_patch_says_what_it_gets(watched, folder):
    record = records.drawn(7, heads=2)
    weights = records.weights_of(record["encoder.0.self"])[0]
    axes = {"tokens": Axis.image(torch.rand(28, 42, 3), (2, 3), ["[CLS]"])}
    watched.open(write(folder, "patch", Scene(record, axes=axes)), "at=encoder.0.self/0")
    page = watched.page
    assert watched.text("#subject") == "[CLS]"  # which sums the picture up
    page.locator("#source-text .token", has_text="[CLS]").click()
    watched.until("#subject", "pinned")
    size = page.locator(".map-view .picture").bounding_box()
    page.locator(".map-view .picture").hover(position={"x": 0.9 * size["width"], "y": 0.1 * size["height"]})
    watched.until("#tip", "0,2")
    assert watched.text("#tip").split()[:2] == ["query", "[CLS]"]
    assert float(watched.text("#tip .value strong")) == pytest.approx(weights[0, 3].item(), abs=0.00006)
    drawing = ElementTree.fromstring(saved(watched, "#save-svg"))
    assert any("what [CLS] looks at" in (element.text or "") for element in drawing.iter())


def test_a_sound_is_shaded_frame_by_frame(watched, folder):
    scene = Scene(records.drawn(11, heads=2), axes={"tokens": Axis.audio(torch.rand(5, 44), 11, 1.1)})
    watched.open(write(folder, "sound", scene))
    watched.page.locator(".map-view .picture").wait_for()
    assert watched.text("#subject") == "1.00 s"
    picture = saved(watched, "#save-png")
    assert picture.startswith(b"\x89PNG")


OVERLAPS = """() => {
  const seen = [...document.querySelectorAll("button, select, input, h1, h3, figcaption, td, th, #legend span")]
    .filter((one) => one.offsetParent && !one.closest("dialog, footer, kbd"));
  const boxes = seen.map((one) => one.getBoundingClientRect());
  const shared = (a, b, low, high) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]);
  const over = (a, b) => Math.min(shared(a, b, "left", "right"), shared(a, b, "top", "bottom"));
  const wide = document.documentElement.clientWidth + 1;
  const found = seen.filter((one, i) => boxes[i].right > wide).map((one) => one.outerHTML);
  seen.forEach((one, i) => seen.forEach((other, k) => {
    if (i < k && !one.contains(other) && over(boxes[i], boxes[k]) > 2) found.push([one.outerHTML, other.outerHTML]);
  }));
  return found }"""


@pytest.mark.parametrize("width", [390, 700, 900, 1100, 1280])
@pytest.mark.parametrize("watched", [{"color_scheme": "dark", "locale": "zh-CN"}], indirect=True)
def test_nothing_lies_on_anything_else(watched, server, width):
    watched.page.set_viewport_size({"width": width, "height": 844})
    watched.open(server, "at=decoder.1.cross/0&pins=target:7,target:9")
    watched.until("#keys", "世界")
    watched.settle()
    assert watched.page.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("watched", [{"viewport": {"width": 390, "height": 800}, "has_touch": True}], indirect=True)
def test_a_narrow_screen_shows_all_panes_below_each_other(watched, short):
    watched.open(short, START)
    page = watched.page
    tops = [page.locator(selector).bounding_box()["y"] for selector in ("#top", "#atlas", "#maps", "#token")]
    assert tops == sorted(tops)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    page.locator("#output-text .token", has_text="world").tap()
    watched.until("#subject", "pinned")


def test_in_a_notebook_it_runs_in_a_frame_of_its_own(watched, folder, translated):
    path = folder / "notebook.html"
    path.write_text(f"<!DOCTYPE html><title>notebook</title>{render_notebook(Scene(translated))}", encoding="utf-8")
    watched.page.goto(path.as_uri())
    frame = watched.page.frame_locator("iframe")
    frame.locator("html[data-ready='map']").wait_for(state="attached")
    frame.locator("#output-text .token", has_text="world").click()
    frame.locator("#subject", has_text="pinned").wait_for()
    frame.locator("#copy-link").click()
    frame.locator("#said", has_text="notebook").wait_for()


def test_a_file_that_is_broken_says_so(watched, folder, short):
    content = Path(short.removeprefix("file://")).read_text(encoding="utf-8")
    path = folder / "broken.html"
    path.write_text(content.replace('{"format": 1,', '{"format": 7,'), encoding="utf-8")
    watched.page.goto(path.as_uri())
    watched.page.wait_for_selector("html[data-ready='failed']", state="attached")
    assert "format 1, not 7" in watched.text("#failed")


def test_the_server_switches_heads_off_and_reads_new_text(watched, server, translator):
    watched.open(server, START)
    page = watched.page
    page.keyboard.press("x")
    page.locator("#ablated").wait_for()
    with torch.inference_mode(), clearhead.ablate(translator.model, {"decoder.0.cross": [1]}):
        expected = translator.predict(SENTENCE).text
    if expected == translator.predict(SENTENCE).text:
        assert "stays the same" in watched.text("#ablated")
    else:
        new = page.evaluate(
            "() => [...document.querySelector('#ablated').childNodes].filter(n => n.nodeName !== 'DEL')"
            ".map(n => n.textContent).join('')"
        )
        assert new.split() == expected.split()
    assert "→" in watched.text("#ablation")
    page.keyboard.press("x")
    page.locator("#ablated").wait_for(state="detached")
    page.locator("#another-text").fill("我喜欢猫。")
    page.keyboard.press("Enter")
    token(watched, "#source-text", "猫").wait_for()
    token(watched, "#output-text", "cat").click()  # cat·s, as it was spelled
    watched.until("#subject", "cat")
    page.locator("#sorts button", has_text="effect").click()
    watched.page.locator("figcaption:has-text('effect on loss'), #said:has-text('too long')").first.wait_for()
    page.locator("#another-text").fill("   ")
    page.keyboard.press("Enter")


@pytest.mark.parametrize("watched", [{"locale": "zh-CN"}], indirect=True)
def test_what_the_server_refuses_is_said_in_the_readers_language(watched, server):
    watched.open(server, START)
    watched.allowed = ["Failed to load resource"]
    page = watched.page
    page.locator("#another-text").fill("长" * 100_001)  # longer than the page takes: refused, and not cut
    page.keyboard.press("Enter")
    watched.until("#another-problem", "文本有 100,001 个字符；本页最多接受 100,000 个。")
    page.locator("#another-text").fill("长" * 400_000)
    page.keyboard.press("Enter")
    watched.until("#another-problem", "文本有 400,000 个字符；本页最多接受 100,000 个。")
    watched.offer_modules()
    said = page.evaluate(
        """async (base) => { const { sayProblem, setLanguage } = await import(base + "words/languages.js");
        setLanguage("auto");
        return ["this text is no longer kept by the server; enter it again",
          "there is nothing to look at: '(' has no tokens", "RuntimeError: out of memory"].map(sayProblem) }""",
        server,
    )
    assert said == [
        "服务器已不再保存这段文本，请重新输入。",
        "没有可看的内容：'(' 不含任何词元。",
        "出错了：RuntimeError: out of memory",
    ]


def test_the_server_gives_the_same_weights_as_the_file(watched, long_record):
    weights = records.weights_of(long_record["encoder.0.self"])[1]
    with open_record(long_record, browser=False) as opened:
        watched.open(opened.url, "at=encoder.0.self/1&view=500,520,300,320")
        watched.until("#resolution", "exact")
        box = watched.page.locator(".map-canvas").bounding_box()
        watched.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
        watched.page.locator("#tip .tip-place").wait_for()
        query, key = (int(part) for part in watched.text(".tip-place").split(" → "))
        assert float(watched.text("#tip .value strong")) == pytest.approx(weights[query, key].item(), abs=0.00006)
        assert watched.page.locator("#another").is_hidden()
        watched.settle()  # nothing may be under way when the server closes


def test_a_record_of_several_texts_shows_each(watched):
    record = records.writer(13, batch=2, keep="qk")
    weights = records.weights_of(record["decoder.0.self"], 1)[2]
    with open_record(record, browser=False) as opened:
        watched.open(opened.url)
        watched.page.locator("#views").select_option(index=1)
        watched.page.locator("#views option:checked", has_text="2").wait_for(state="attached")
        watched.page.locator('.head[data-name="decoder.0.self"][data-head="2"]').click()
        watched.until("figcaption", "head 2")
        watched.settle()
        said = cell(watched, 11, 4)
        watched.settle()  # nothing may be under way when the server closes
        assert float(said.split()[-4]) == pytest.approx(weights[11, 4].item(), abs=0.00006)


def test_a_file_of_several_texts_shows_each_and_its_link_says_which(watched, folder):
    record = records.writer(13, batch=2, keep="qk").label(lambda number: f"▁w{number}")
    weights = records.weights_of(record["decoder.1.self"], 1)[2]
    for call in record.calls:
        call.about.notes = [
            "the translation was written in 2 parts",
            "numbers of the text are missing in the translation: 7, 1,000",
            "the model wrote bytes that are no character, shown as \ufffd",
        ]
    url = write_page(record, folder / "several.html").as_uri()
    watched.open(url, "at=decoder.1.self/2&language=zh")
    page = watched.page
    assert "译文分 2 部分生成" in watched.text("#notes")
    assert "译文中缺少原文的数字：7, 1,000" in watched.text("#notes")
    assert "模型输出了无效的字节，以 \ufffd 显示" in watched.text("#notes")
    page.locator("#views").select_option(index=1)
    page.locator("#source-text .token", has_text="w25").wait_for()
    assert watched.fragment == "#at=decoder.1.self/2&part=2&language=zh"
    watched.open(url, watched.fragment.removeprefix("#"))
    said = cell(watched, 11, 4)
    assert float(said.split()[-4]) == pytest.approx(weights[11, 4].item(), abs=0.00051)
    watched.open(url, "at=decoder.1.self/2&part=3")  # there is none
    assert watched.fragment == "#at=decoder.1.self/2"


def test_a_file_shows_what_the_model_did_without_a_head(watched, folder):
    record = clearhead.load("zh-en").look(SENTENCE)
    about = record.calls[0].about
    without = AnswerChange("The robots are here.", about.text, [about.loss, 2.5], [[("robots", 0.75)]] * 12)
    same = AnswerChange(about.text, about.text, [about.loss, about.loss])
    about.without = {"decoder.0.cross": {"1": without, "0": same}}
    watched.open(write(folder, "without", Scene(record)), START)
    page = watched.page
    assert page.locator("#next thead").count() == 0
    page.keyboard.press("x")
    watched.until("#ablated ins", "robots")
    assert watched.text("#ablation p:last-child").endswith("→ 2.50")
    first = page.locator("#next tbody tr", has_text="robots").inner_text().split("\t")
    assert first[1:3] == ["–", "0.750"]
    assert watched.text(".verdict") == "Without it the answer changes: it matters here."
    page.keyboard.press("l")
    watched.until("#axes-note", "这个注意力头已停用。这里显示的仍是停用前它看的地方。")
    assert watched.text("figcaption .off-mark") == "已停用"
    assert watched.text(".verdict") == "停用后输出变了：它在这里起作用。"
    page.keyboard.press("l")
    page.keyboard.press("x")
    page.locator("#ablated").wait_for(state="detached")
    page.keyboard.press("ArrowRight")  # of this head the file knows nothing
    watched.until("#ablation", "clearhead look MODEL INPUT")
    page.keyboard.press("x")
    assert page.locator("#switch-off").count() == 0
    assert page.locator(".off-mark").is_hidden()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("x")
    watched.until(
        "#ablated", "Without it the answer stays the same, and the loss too: here the model can do without it."
    )


def test_a_server_that_is_gone_is_named(watched, long_record):
    with open_record(long_record, browser=False) as opened:
        watched.open(opened.url)
        watched.settle()
        watched.allowed = ["Failed to load resource"]
        watched.page.context.set_offline(True)
        watched.page.keyboard.press("ArrowRight")
        watched.until(".map-note", "does not answer")
