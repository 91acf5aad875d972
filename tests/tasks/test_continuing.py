"""Answers that go on from a beginning that somebody chose, against decoding by hand."""

from typing import Any

import pytest
import torch

import clearhead
from clearhead.explore.huggingface_folder import HuggingFaceOptions, HuggingFaceReader
from clearhead.tasks.language_model.language_settings import LanguageOptions
from clearhead.tasks.sequence_to_sequence import SearchOptions
from clearhead.tasks.trace import Continuable, Trace
from tests.lens.huggingface_zoo import made
from tests.tasks.test_captioning import untrained

TEXT = "他昨天没有去学校。"


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


def write_by_hand(task: Any, model: Any, trace: Trace, tokens: list[int], end: int, most: int) -> list[int]:
    """The likeliest token after these, one by one, each from a whole forward pass."""
    kind = list(trace.reads)[-1]
    while len(tokens) < most:
        reads = {**trace.reads, kind: [trace.reads[kind][0], *tokens]}
        token = int(task.run_trace(model, trace._replace(reads=reads, writes=tokens))[-1].argmax())
        if token == end:
            break
        tokens = [*tokens, token]
    return tokens


def test_a_translation_goes_on_from_any_place():
    predictor = clearhead.load("zh-en")
    task, model, options = predictor.task, predictor.model, SearchOptions(beams=1)
    assert isinstance(task, Continuable)
    [trace] = task.traces(model, TEXT, answer=None, options=options)
    scores = task.run_trace(model, trace)
    for place in (0, 3, len(trace.writes) - 2):
        others = [
            one for one in scores[place].topk(3).indices.tolist() if one not in (trace.writes[place], task.target.end)
        ]
        begin = [*trace.writes[:place], others[0]]
        new = task.continue_trace(model, trace, begin, options=options)
        want = write_by_hand(task, model, trace, begin, task.target.end, most=40)
        assert new.reads["target"] == [task.target.start, *want]
        assert list(new.writes) == [*want, task.target.end]
        assert new.reads["source"] == trace.reads["source"]
        assert new.text == task.target.decode(want) != trace.text
        assert new.forced == place + 1
    ended = task.continue_trace(model, trace, [*trace.writes[:2], task.target.end], options=options)
    assert ended.text == task.target.decode(trace.writes[:2])
    beams = task.continue_trace(model, trace, [*trace.writes[:2]], options=SearchOptions(beams=4))
    assert list(beams.writes[:2]) == list(trace.writes[:2])


def test_a_language_model_goes_on_after_its_prompt_and_within_it():
    predictor = clearhead.load("poems-zh")
    task, model, options = predictor.task, predictor.model, LanguageOptions(temperature=0, longest=13)
    assert isinstance(task, Continuable)
    [trace] = task.traces(model, "春眠", answer=None, options=options)
    assert 2 < trace.prompt < len(trace.reads["tokens"])
    other = task.tokenizer.encode("月")[-1]
    for place in (1, trace.prompt - 1, trace.prompt + 4):
        begin = [*trace.writes[:place], other]
        new = task.continue_trace(model, trace, begin, options=options)
        assert new.prompt == min(trace.prompt, place + 1)
        most = new.prompt - 1 + 13
        want = write_by_hand(task, model, trace, begin, task.tokenizer.end, most)
        assert new.reads["tokens"][1:] == want
        assert new.text == task.written_text(new)
        assert "月" in new.text
    assert task.written_text(trace) == trace.text


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_hugging_face_models_go_on(family):
    class Numbers:
        """A tokenizer whose texts are the numbers of tokens."""

        def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
            return {"input_ids": [int(one) for one in text.split()]}

        def decode(self, numbers: list[int], **_: object) -> str:
            return " ".join(map(str, numbers))

    reader = HuggingFaceReader.__new__(HuggingFaceReader)
    reader.tokenizer = Numbers()
    model, options = made(family), HuggingFaceOptions(most=6)
    [trace] = reader.traces(model, "5 9 14 7", answer=None, options=options)
    place = 1 if model.config.is_encoder_decoder else trace.prompt
    begin = [*trace.writes[:place], 23]
    new = reader.continue_trace(model, trace, begin, options=options)
    end = model.generation_config.eos_token_id
    want = write_by_hand(reader, model, trace, begin, -1 if end is None else end, most=place + 6 - (place > 1))
    written = [token for token in new.writes if token not in (end, -1)]
    shortest = min(len(want), len(written))
    assert written[:shortest] == want[:shortest]
    assert shortest > place
    assert new.forced == len(begin)
    assert "23" in new.text.split()


def test_a_caption_goes_on_and_is_written_again_if_it_loops():
    predictor = untrained()
    task, model = predictor.task, predictor.model
    picture = torch.randint(0, 255, (3, task.preprocessing.height, task.preprocessing.width), dtype=torch.uint8)
    short, long = (SearchOptions(beams=1, longest=longest) for longest in (4, 13))
    [trace] = task.traces(model, picture.permute(1, 2, 0).numpy(), answer="a b", options=short)
    new = task.continue_trace(model, trace, [7, 9], options=short)
    assert new.reads["target"][1:] == write_by_hand(task, model, trace, [7, 9], task.target.end, most=4)
    again = task.continue_trace(model, trace, [7, 7, 7, 7, 7, 7], options=long)
    assert again.reads["target"][1:7] == [7] * 6
    assert "the caption looped; retried without repeated trigrams" in again.notes
