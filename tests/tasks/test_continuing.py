"""Answers that go on from a beginning that somebody chose, against decoding by hand."""

from typing import Any

import pytest
import torch

import clearhead
from clearhead.explore.huggingface_folder import HuggingFaceOptions, HuggingFaceTracer
from clearhead.tasks.language_model.language_processor import LanguageOptions
from clearhead.tasks.sequence_to_sequence.search import SearchOptions
from clearhead.tasks.trace import ContinuableTracer, Trace
from tests.lens.huggingface_zoo import made
from tests.tasks.test_captioning import untrained

TEXT = "他昨天没有去学校。"


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


def write_by_hand(tracer: Any, trace: Trace, tokens: list[int], end: int, most: int) -> list[int]:
    """The likeliest token after these, one by one, each from a whole forward pass."""
    kind = list(trace.reads)[-1]
    while len(tokens) < most:
        reads = {**trace.reads, kind: [trace.reads[kind][0], *tokens]}
        token = int(tracer.run(trace._replace(reads=reads, writes=tokens))[-1].argmax())
        if token == end:
            break
        tokens = [*tokens, token]
    return tokens


def test_a_translation_goes_on_from_any_place():
    predictor = clearhead.load("zh-en")
    tracer, target, options = predictor.tracer, predictor.processor.target, SearchOptions(beams=1)
    assert isinstance(tracer, ContinuableTracer)
    [trace] = tracer.traces(TEXT, answer=None, options=options)
    scores = tracer.run(trace)
    for place in (0, 3, len(trace.writes) - 2):
        others = [one for one in scores[place].topk(3).indices.tolist() if one not in (trace.writes[place], target.end)]
        begin = [*trace.writes[:place], others[0]]
        new = tracer.continue_trace(trace, begin, options=options)
        want = write_by_hand(tracer, trace, begin, target.end, most=40)
        assert new.reads["target"] == [target.start, *want]
        assert list(new.writes) == [*want, target.end]
        assert new.reads["source"] == trace.reads["source"]
        assert new.text == target.decode(want) != trace.text
        assert new.forced == place + 1
    ended = tracer.continue_trace(trace, [*trace.writes[:2], target.end], options=options)
    assert ended.text == target.decode(trace.writes[:2])
    beams = tracer.continue_trace(trace, [*trace.writes[:2]], options=SearchOptions(beams=4))
    assert list(beams.writes[:2]) == list(trace.writes[:2])


def test_a_language_model_goes_on_after_its_prompt_and_within_it():
    predictor = clearhead.load("poems-zh")
    tracer, tokenizer = predictor.tracer, predictor.processor.tokenizer
    options = LanguageOptions(temperature=0, longest=13)
    assert isinstance(tracer, ContinuableTracer)
    [trace] = tracer.traces("春眠", answer=None, options=options)
    assert 2 < trace.prompt < len(trace.reads["tokens"])
    other = tokenizer.encode("月")[-1]
    for place in (1, trace.prompt - 1, trace.prompt + 4):
        begin = [*trace.writes[:place], other]
        new = tracer.continue_trace(trace, begin, options=options)
        assert new.prompt == min(trace.prompt, place + 1)
        most = new.prompt - 1 + 13
        want = write_by_hand(tracer, trace, begin, tokenizer.end, most)
        assert new.reads["tokens"][1:] == want
        assert new.text == tracer.written_text(new)
        assert "月" in new.text
    assert tracer.written_text(trace) == trace.text


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_hugging_face_models_go_on(family):
    class Numbers:
        """A tokenizer whose texts are the numbers of tokens."""

        def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
            return {"input_ids": [int(one) for one in text.split()]}

        def decode(self, numbers: list[int], **_: object) -> str:
            return " ".join(map(str, numbers))

    model, options = made(family), HuggingFaceOptions(most=6)
    tracer = HuggingFaceTracer.__new__(HuggingFaceTracer)
    tracer.model, tracer.tokenizer = model, Numbers()
    [trace] = tracer.traces("5 9 14 7", answer=None, options=options)
    place = 1 if model.config.is_encoder_decoder else trace.prompt
    begin = [*trace.writes[:place], 23]
    new = tracer.continue_trace(trace, begin, options=options)
    end = model.generation_config.eos_token_id
    want = write_by_hand(tracer, trace, begin, -1 if end is None else end, most=place + 6 - (place > 1))
    written = [token for token in new.writes if token not in (end, -1)]
    shortest = min(len(want), len(written))
    assert written[:shortest] == want[:shortest]
    assert shortest > place
    assert new.forced == len(begin)
    assert "23" in new.text.split()


def test_a_caption_goes_on_and_is_written_again_if_it_loops():
    predictor = untrained()
    tracer, target, sizes = predictor.tracer, predictor.processor.target, predictor.processor.preprocessing
    picture = torch.randint(0, 255, (3, sizes.height, sizes.width), dtype=torch.uint8)
    short, long = (SearchOptions(beams=1, longest=longest) for longest in (4, 13))
    [trace] = tracer.traces(picture.permute(1, 2, 0).numpy(), answer="a b", options=short)
    new = tracer.continue_trace(trace, [7, 9], options=short)
    assert new.reads["target"][1:] == write_by_hand(tracer, trace, [7, 9], target.end, most=4)
    again = tracer.continue_trace(trace, [7, 7, 7, 7, 7, 7], options=long)
    assert again.reads["target"][1:7] == [7] * 6
    assert "the caption looped; retried without repeated trigrams" in again.notes
