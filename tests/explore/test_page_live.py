"""A model behind the page: texts that are too long, that take long, and what else works meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import clearhead
from clearhead import Record
from clearhead.errors import DataError, LensError
from clearhead.explore import Scene, live_model, open_record, page_requests, write_page
from clearhead.explore.live_model import LiveModel, count_positions
from clearhead.explore.page_requests import PageRequests
from clearhead.tasks.trace import Tracer
from tests.explore.browser import Watched
from tests.explore.records import drawn
from tests.explore.test_page import SENTENCE, START, token

SICK = "他昨天没有去学校，因为他病了。"
GIVEN = "Yesterday he stayed at home because he was sick."


@pytest.fixture(scope="module")
def live() -> LiveModel:
    return LiveModel.from_predictor(clearhead.load("zh-en"))


@pytest.fixture(scope="module")
def url(live) -> Iterator[str]:
    with open_record(live.look(SENTENCE), live=live, browser=False) as opened:
        yield opened.url


def enter(watched: Watched, text: str) -> None:
    watched.page.locator("#another-text").fill(text)
    watched.page.keyboard.press("Enter")


def test_a_text_that_is_too_long_or_missing_is_refused_in_one_line(watched, url, live, monkeypatch):
    monkeypatch.setattr(live, "max_tokens", 23)
    watched.allowed = ["Failed to load resource"]
    watched.open(url, START)
    field = watched.page.locator("#another-text")
    assert watched.text("#another-limit") == "at most 100,000 characters and 23 tokens"
    enter(watched, "我喜欢猫" * 11)
    watched.until("#another-problem", "tokens; the page takes 23 at most")
    asked: list[str] = []
    watched.page.on("request", lambda request: asked.append(request.url))
    enter(watched, "  ")
    assert watched.text("#another-problem") == "Enter the text that the model should read."
    field.fill("x")
    assert watched.text("#another-problem") == ""
    field.fill("长" * 100_001)
    assert watched.text("#another-problem") == "the text has 100,001 characters; the page takes 100,000 at most"
    watched.page.keyboard.press("Enter")
    watched.settle()
    assert asked == []  # not even sent


def test_a_long_text_shows_progress_and_can_be_cancelled_while_other_requests_go_on(watched, url, live):
    watched.allowed = ["Failed to load resource"]
    watched.open(url, START)
    page = watched.page
    enter(watched, "他昨天没有去学校，因为他病了。" * 400)
    watched.until("#another button", "computing … 1 s")
    page.locator("#another-text").blur()
    page.keyboard.press("ArrowRight")  # another head, and its numbers
    watched.until("figcaption", "head 2")
    token(watched, "#output-text", "world").click()
    page.locator("#keys tbody tr").first.wait_for()
    assert page.locator("#another").get_attribute("aria-busy") == "true"
    page.locator("#another-cancel").click()
    watched.until("#another-problem", "cancelled")
    assert page.locator("#another-cancel").is_hidden()
    assert page.locator("#another").get_attribute("aria-busy") is None
    enter(watched, "我喜欢猫。")  # and the model reads on
    token(watched, "#source-text", "猫").wait_for()


def test_cancelling_ends_the_text_of_this_browser_and_no_other(watched, another, url, live, monkeypatch):
    kind, go_on = type(live.tracer), threading.Event()
    traces = kind.traces

    def wait(tracer: Any, text: str, **options: Any) -> Any:
        assert go_on.wait(20)
        return traces(tracer, text, **options)

    monkeypatch.setattr(kind, "traces", wait)
    for page, text in ((watched, "我爱你。"), (another, "我喜欢猫。")):  # the second waits for the first
        page.open(url, START)
        enter(page, text)
    watched.page.locator("#another-cancel").click()
    watched.until("#another-problem", "cancelled")
    go_on.set()
    token(another, "#source-text", "猫").wait_for()
    assert token(watched, "#source-text", "世界").count() == 1


def test_each_browser_keeps_its_own_text_when_it_is_reloaded(watched, another, url, monkeypatch):
    for page, text, word in ((watched, "我喜欢猫。", "猫"), (another, "他病了。", "病")):
        page.open(url, START)
        token(page, "#source-text", "世界").wait_for()  # of the text that the server was started with
        enter(page, text)
        token(page, "#source-text", word).wait_for()
    token(watched, "#source-text", "猫").click()
    assert "pins=source" in watched.fragment
    watched.page.reload()
    token(watched, "#source-text", "猫").wait_for()
    monkeypatch.setattr(page_requests, "MAX_RECORDS", 1)
    enter(another, "我爱你。")  # which leaves no room for the text of the first
    token(another, "#source-text", "爱").wait_for()
    watched.allowed = ["Failed to load resource"]
    watched.page.reload()
    token(watched, "#source-text", "世界").wait_for()
    watched.until("#another-problem", "this text is no longer kept by the server; enter it again")
    assert "pins" not in watched.fragment
    watched.page.reload()  # said once
    token(watched, "#source-text", "世界").wait_for()
    assert watched.text("#another-problem") == ""


def test_a_tab_of_an_earlier_server_shows_the_text_of_the_new_one(watched):
    port = 0
    for word in ("before", "after"):
        with open_record(drawn(3, texts=[word] * 3), port=port, browser=False) as opened:
            watched.open(opened.url)
            token(watched, "#source-text", word).wait_for()
            assert watched.page.locator("#another-problem").inner_text() == ""
            watched.settle()
            port = opened.port


def test_tables_of_positions_are_found_by_their_names():
    class Offset(nn.Embedding):
        offset = 2

    tables = {"embed_positions": Offset(514, 4), "other": nn.Embedding(7, 4), "embeddings": nn.Module()}
    tables["embeddings"].position_embeddings = nn.Embedding(600, 4, padding_idx=1)
    assert count_positions(nn.ModuleDict(tables)) == 512
    assert count_positions(nn.Linear(2, 3)) is None


def test_more_tokens_than_positions_are_refused_by_number(tmp_path):
    transformers = pytest.importorskip("transformers")
    from clearhead.explore.huggingface_folder import HuggingFaceOptions, HuggingFaceTracer

    config = transformers.GPT2Config(vocab_size=31, n_positions=13, n_embd=8, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()

    class Letters:
        """A tokenizer whose tokens are letters."""

        all_special_ids = ()

        def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) % 31 for letter in text]}

    tracer = HuggingFaceTracer(model, Letters())
    with pytest.raises(DataError, match="the text has 17 tokens; the model reads 13 at most"), torch.no_grad():
        tracer.traces("x" * 17, answer=None, options=HuggingFaceOptions())


def greens(watched: Watched, selector: str) -> list[int]:
    """How green the ground of each element is: the deeper the violet, the less."""
    return watched.page.evaluate(
        "(selector) => [...document.querySelectorAll(selector)].map((one) => "
        "Number(getComputedStyle(one).backgroundColor.match(/[\\d.]+/g)[1]))",
        selector,
    )


def test_a_given_answer_shows_where_the_model_disagrees_also_in_a_file(watched, live, tmp_path):
    record = live.look(SICK, answer=GIVEN)
    about = record.calls[0].about
    with torch.inference_mode():
        tracer, [trace] = live.tracer, live.tracer.traces(SICK, answer=GIVEN, options=live.tracer.options())
        chances = tracer.run(trace).softmax(-1)
    assert about.chances == pytest.approx(chances.gather(1, torch.tensor(trace.writes)[:, None])[:, 0].tolist())
    best = chances.argmax(-1).tolist()
    wrong = [place for place, token in enumerate(trace.writes) if best[place] != token]
    assert [place for place, rank in enumerate(about.ranks) if rank] == wrong != []
    watched.open(write_page(record, tmp_path / "given.html").as_uri(), "at=decoder.1.cross/0")
    page = watched.page
    watched.until("#chances", f"{len(wrong)} of {len(best)} disagree: the model prefers others")
    marked = page.locator("#output-text .token.surprising")
    assert [int(one.get_attribute("data-position")) for one in marked.all()] == wrong
    watched.settle()  # colours fade in
    ground = greens(watched, "#output-text .token")
    assert [round(240 - 81 * (1 - chance)) for chance in about.chances] == pytest.approx(ground, abs=1)
    assert "or: He 87 %" in marked.first.get_attribute("title")
    assert watched.audit() == []
    page.locator("#next-surprise").click()
    watched.until("#next h2", f"alternatives to {marked.first.inner_text()}")
    assert page.locator("#next .alternative").count() == 0  # no model, nothing to go on with
    assert "clearhead look MODEL INPUT" in watched.text("#ablation")
    page.keyboard.press("t")  # dark
    page.keyboard.press("l")
    watched.until("#chances", f"{len(best)} 处中有 {len(wrong)} 处模型不同意")
    assert watched.audit() == []
    page.locator('#chances button[value="attention"]').click()
    page.locator(".chance-legend").wait_for(state="detached")
    assert "shading=attention" in watched.fragment


def test_the_model_goes_on_from_another_token_and_the_page_opens_that_answer(watched, live):
    record = live.look(SICK)
    about = record.calls[0].about
    place = about.writes.index("▁was")
    begin = [*about.written[:place], about.choices[place][1]]
    with torch.inference_mode():
        [trace] = live.tracer.traces(SICK, answer=None, options=live.tracer.options())
        want = live.tracer.continue_trace(trace, begin, options=live.tracer.options())
    assert want.text != about.text
    with open_record(record, live=live, browser=False) as opened:
        watched.open(opened.url, "at=decoder.1.cross/0")
        page = watched.page
        token(watched, "#output-text", "was").click()
        watched.until("#next h2", "alternatives to was")
        watched.settle()
        page.locator("#next .alternative").first.click()
        page.locator("#continued").wait_for()
        assert watched.text("#continued").split() == want.text.split()
        assert watched.text(".before-after del").split() == ["he", "was"]
        assert watched.text("#continued ins").split() == ["he's"]
        assert watched.audit() == []
        page.locator("#open-continued").click()
        watched.until("#notes", "the model was made to write 's, and then went on by itself")
        token(watched, "#output-text", "'s").wait_for()
        assert page.locator("#output-text .flow:not([hidden]) .token").count() == len(want.writes)
        page.keyboard.press("x")  # without a head, the answer begins as it was made to
        page.locator("#ablated").wait_for()
        page.keyboard.press("l")
        watched.until("#notes", "模型被要求写出“'s”")
        watched.settle()


def test_a_word_is_hidden_from_the_model_and_a_layer_or_a_role_is_switched_off(watched, live):
    record = live.look(SENTENCE)
    with open_record(record, live=live, browser=False) as opened:
        watched.open(opened.url, START)
        hide_a_word(watched, live, record)
        for scope, off in (("layer", {"decoder.0.cross": None}), ("role", roles_like(record))):
            watched.page.locator(f'#ablation button[value="{scope}"]').click()
            watched.page.locator("#switch-off").click()
            watched.until("#ablation p", "loss")
            with torch.inference_mode(), clearhead.ablate(live.tracer.model, off):
                loss = live_model._repeat(live.tracer, record.calls[0]).loss
            assert f"→ {loss:.2f}" in watched.text("#ablation p:last-child")
            assert watched.text("figcaption .off-mark") == "switched off"
            watched.until("#axes-note", "This head is switched off. The page still shows where it looked before.")
            check_verdict(watched, float(watched.text("#ablation p:last-child").split()[1]), round(loss, 2))
            watched.page.locator("#switch-off").click()
            watched.page.locator("#ablated").wait_for(state="detached")
        watched.page.keyboard.press("l")
        watched.until("#hide-word", "隐藏“世界”")
        watched.settle()


def check_verdict(watched: Watched, before: float, after: float) -> None:
    """The verdict says what answer and loss show, and no more."""
    said = watched.text("#ablation .verdict")
    if watched.page.locator("#ablation .before-after").count():
        want = "Without them the answer changes: they matter here."
    elif before == after:
        want = "Without them the answer stays the same, and the loss too: here the model can do without them."
    else:
        want = "Without them the answer stays the same, " + (
            "but the model is less" if after > before else "and the model"
        )
    assert said.startswith(want)


def hide_a_word(watched: Watched, live: LiveModel, record: Record) -> None:
    """Hides 世界 and compares with the lens, then shows it again."""
    page = watched.page
    watched.until("#hide-hint", "Click a word of the text")
    place = page.locator("#source-text .token").all_inner_texts().index("世界")
    token(watched, "#source-text", "世界").click()
    watched.until("#hide-word", "hide “世界”")
    page.locator("#hide-word").click()
    page.locator("#hidden-answer").wait_for()
    with torch.inference_mode(), clearhead.hide(live.tracer.model, {"source": [place]}):
        [want] = live.tracer.traces(SENTENCE, answer=None, options=live.tracer.options())
        loss = live_model._repeat(live.tracer, record.calls[0]).loss
    assert "world" not in want.text
    assert watched.text("#hidden-answer").split() == want.text.split()
    assert f"→ {loss:.2f}" in watched.text("#hiding")
    assert page.locator("#source-text .token.concealed").all_inner_texts() == ["世界"]
    assert watched.text("figcaption .off-mark") == "“世界” hidden"
    watched.until("#axes-note", "“世界” is hidden from the model. The page still shows where this head looked before.")
    assert watched.text("#hiding .verdict") == "With this hidden the answer changes: it matters here."
    page.locator("#hide-word").click()
    page.locator("#hidden-answer").wait_for(state="detached")
    assert page.locator(".off-mark").is_hidden()
    watched.until("#axes-note", "Each row: ")
    assert page.locator(".token.concealed").count() == 0


def test_a_model_that_draws_its_words_says_that_texts_also_differ_by_chance(watched):
    poet = clearhead.load("poems-zh")
    live = LiveModel.from_predictor(poet, longest=24)
    with open_record(live.look("春"), live=live, browser=False) as opened:
        watched.open(opened.url, "at=decoder.0.self/0")
        watched.page.keyboard.press("x")
        watched.until("#ablation", "This model draws its words at random: the texts also differ by chance.")
        assert "the model predicts this text" in watched.text("#ablation .verdict")
        assert "matter" not in watched.text("#ablation")
        watched.page.keyboard.press("l")
        watched.until("#ablation", "这个模型随机抽取用词")
        watched.settle()


def roles_like(record: Record) -> dict[str, list[int]]:
    """All heads that have the role of the head that START chooses."""
    scene = Scene(record, takes="text").to_json()
    heads = {one["name"]: {head["number"]: head["role"] for head in one["heads"]} for one in scene["attentions"]}
    role = heads["decoder.0.cross"][1]
    return {name: [number for number, own in some.items() if own == role] for name, some in heads.items()}


@pytest.mark.parametrize(
    ("name", "wrong", "problem"),
    [
        ("continue", {"place": 99, "choice": 0}, "no alternative 0 at place 99"),
        ("continue", {"place": 0, "choice": 7}, "no alternative 7"),
        ("continue", {"place": "0", "choice": True}, "place and choice must be whole numbers"),
        ("ablate", {"hide": {"source": [99]}}, "there is no token 99 of 'source', which has"),
        ("ablate", {"hide": {"source": ["1"]}}, "name the tokens by text and position"),
        ("ablate", {"hide": [1]}, "name the tokens by text and position"),
        ("ablate", {"hide": {"colour": [0]}}, "there is no token 0 of 'colour'"),
    ],
)
def test_requests_that_name_what_is_not_there_are_refused(live, name, wrong, problem):
    requests = PageRequests(live.look("我喜欢猫。"), live=live)
    with pytest.raises(LensError, match=problem):
        requests.post(name, wrong)
    requests.close()


def test_a_model_that_does_not_write_tokens_does_not_offer_to_go_on(live):
    class Reader(Tracer):
        """Reads, and says nothing of how to go on."""

        name, options, model = "text", live.tracer.options, live.tracer.model
        traces, run, pieces = live.tracer.traces, live.tracer.run, live.tracer.pieces

        def with_model(self, model: Any) -> Any:
            return self

    reading = LiveModel(Reader(), "reader")
    assert live.can_continue
    assert not reading.can_continue
    with pytest.raises(LensError, match="does not write token by token"):
        reading.continue_answer(live.look("我喜欢猫。"), 0, 0, 1)
