"""A model behind the page: texts that are too long, that take long, and what else works meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import clearhead
from clearhead.errors import DataError
from clearhead.explore import open_record
from clearhead.explore.live_model import LiveModel, count_positions
from tests.explore.browser import Watched
from tests.explore.test_page import SENTENCE, START, token


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


def test_a_text_that_is_too_long_is_refused_in_one_line(watched, url, live, monkeypatch):
    monkeypatch.setattr(live, "max_tokens", 23)
    watched.allowed = ["Failed to load resource"]
    watched.open(url, START)
    field = watched.page.locator("#another-text")
    assert field.get_attribute("title") == "another text (at most 100,000 characters, 23 tokens)"
    assert field.get_attribute("placeholder") == "another text, at most 23 tokens"
    enter(watched, "我喜欢猫" * 11)
    watched.until("#another-problem", "tokens; the page takes 23 at most")
    asked: list[str] = []
    watched.page.on("request", lambda request: asked.append(request.url))
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


def test_tables_of_positions_are_found_by_their_names():
    class Offset(nn.Embedding):
        offset = 2

    tables = {"embed_positions": Offset(514, 4), "other": nn.Embedding(7, 4), "embeddings": nn.Module()}
    tables["embeddings"].position_embeddings = nn.Embedding(600, 4, padding_idx=1)
    assert count_positions(nn.ModuleDict(tables)) == 512
    assert count_positions(nn.Linear(2, 3)) is None


def test_more_tokens_than_positions_are_refused_by_number(tmp_path):
    transformers = pytest.importorskip("transformers")
    from clearhead.explore.huggingface_folder import HuggingFaceOptions, HuggingFaceReader

    config = transformers.GPT2Config(vocab_size=31, n_positions=13, n_embd=8, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()

    class Letters:
        """A tokenizer whose tokens are letters."""

        all_special_ids = ()

        def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) % 31 for letter in text]}

    reader = HuggingFaceReader.__new__(HuggingFaceReader)
    reader.tokenizer = Letters()
    with pytest.raises(DataError, match="the text has 17 tokens; the model reads 13 at most"), torch.no_grad():
        reader.traces(model, "x" * 17, answer=None, options=HuggingFaceOptions())
