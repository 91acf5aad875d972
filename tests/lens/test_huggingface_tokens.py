"""The tokens of Hugging Face models are known, whatever is around the model; where they are not, label says so."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead import MultiHeadAttention, Record
from clearhead.errors import RecordError
from clearhead.lens.capture.watch_context import watch
from tests.lens.huggingface_zoo import inputs, made, tokens

UNKNOWN = "the record has no token ids"


class Around(nn.Module):
    """A wrapper with names of its own."""

    def __init__(self, *models: Any) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, *texts: dict[str, Tensor]) -> Any:
        return [self.models[n % len(self.models)](**text) for n, text in enumerate(texts)]


def text(number: int) -> str:
    return f"▁{number}"


def recorded(model: nn.Module, *given: Any, **named: Any) -> Record:
    with torch.no_grad(), watch(model) as record:
        model(*given, **named)
    return record


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("wrap", [nn.Sequential, nn.DataParallel, pytest.param(compiled, marks=pytest.mark.unchecked)])
def test_tokens_are_those_of_the_model_within(wrap):
    numbers = tokens()
    record = recorded(wrap(made("bert")), numbers).label(text)
    sight = record["encoder.1.self"]
    assert [[sight.text(row, key) for key in range(11)] for row in range(3)] == [
        [text(number) for number in row] for row in numbers.tolist()
    ]


@pytest.mark.parametrize("wrap", [nn.DataParallel, Around])
def test_a_translator_within_reads_a_source_and_a_target(wrap):
    model, given = wrap(made("marian")), inputs("marian")
    record = recorded(model, given) if wrap is Around else recorded(model, **given)
    assert torch.equal(record.calls[0].ids["source"], given["input_ids"])
    assert torch.equal(record.calls[0].ids["target"], given["decoder_input_ids"])
    found = record.label(text)["decoder.1.cross"].text(2, 1)
    assert found == text(int(given["input_ids"][2, 1]))


@torch.no_grad()
def test_a_text_that_a_model_within_writes_is_known():
    model = Around(made("marian"))
    with watch(model) as record:
        written = model.models[0].generate(tokens(), max_new_tokens=5, do_sample=False)
    assert torch.equal(record.calls[0].ids["source"], tokens())
    assert torch.equal(record.calls[0].ids["target"], written[:, :-1])


@pytest.mark.parametrize("family", ["bert", "llama"])
@pytest.mark.parametrize("models", [1, 2])
def test_of_different_texts_in_one_pass_none_is_taken_for_the_other(family, models):
    model = Around(*[made(family) for _ in range(models)])
    first, second = {"input_ids": tokens()}, {"input_ids": tokens().flip(1)}
    with pytest.raises(RecordError, match=f"{UNKNOWN}.*one pass read several texts"):
        recorded(model, first, second, first).label(text)
    same = recorded(model, first, first)
    assert torch.equal(same.calls[0].ids["tokens"], tokens())


class Turning(Around):
    """Its own argument has the name of a model's."""

    def forward(self, input_ids: Tensor) -> Any:
        return self.models[0](input_ids=input_ids.flip(1))


class Changing(Around):
    def forward(self, input_ids: Tensor) -> Any:
        self.models[0](input_ids)
        return self.models[0](input_ids.add_(1))


def test_what_counts_is_what_the_model_within_reads():
    record = recorded(Turning(made("bert")), tokens()).label(text)
    assert record["encoder.0.self"].text(0, 0) == text(int(tokens()[0, -1]))
    with pytest.raises(RecordError, match=UNKNOWN):
        recorded(Changing(made("bert")), tokens()).label(text)


@pytest.mark.parametrize("order", [1, -1])
def test_texts_of_different_kinds_in_one_pass_are_not_distinguished(order):
    vectors = {"inputs_embeds": torch.randn(3, 11, 21)}
    with pytest.raises(RecordError, match=UNKNOWN):
        recorded(Around(made("bert")), *[{"input_ids": tokens()}, vectors][::order]).label(text)
    both = [(made("marian"), inputs("marian")), (made("llama"), {"input_ids": tokens()})][::order]
    with pytest.raises(RecordError, match=UNKNOWN):
        recorded(Around(*[model for model, _ in both]), *[given for _, given in both]).label(text)


@torch.no_grad()
def test_a_generation_in_a_wrapper_has_the_tokens_that_it_began_with():
    class Writer(Around):
        def forward(self, numbers: Tensor) -> Any:
            return self.models[0].generate(numbers, max_new_tokens=3, num_beams=2, do_sample=False)

    record = recorded(Writer(made("llama")), tokens()).label(text)
    assert torch.equal(record.calls[0].ids["tokens"], tokens().repeat_interleave(2, 0))
    assert record["decoder.0.self"].text(5, 1) == text(int(tokens()[2, 1]))
    assert record["decoder.0.self:2"].text(5, 1) is None, "its beams were not followed"


def test_labels_without_tokens_are_refused(tmp_path):
    vectors = recorded(made("bert"), inputs_embeds=torch.randn(3, 7, 21))
    vectors.save(tmp_path / "vectors.record")
    unknown = [
        vectors,
        recorded(made("vit"), **inputs("vit")),
        recorded(MultiHeadAttention(12, 3), torch.randn(1, 7, 12)),
        Record.load(tmp_path / "vectors.record"),
        Record(),
    ]
    for record in unknown:
        with pytest.raises(RecordError, match=UNKNOWN):
            record.label(text)
        with pytest.raises(RecordError, match="the record has no tokens of 'source'; it has none"):
            record.label(source=text)
    merged = Record.merge([vectors, recorded(made("bert"), tokens())]).label(text)
    assert merged.calls[0]["encoder.0.self"].text(0, 1) is None
    assert merged.calls[1]["encoder.0.self"].text(0, 1) == text(int(tokens()[0, 1]))


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("family", ["marian", "t5"])
def test_the_source_of_a_generation_is_known_if_only_cross_attention_is_watched(family, beams):
    model, source = made(family), tokens(9)
    with watch(model, layers="decoder.*.cross") as record:
        model.generate(source, max_new_tokens=4, min_new_tokens=4, num_beams=beams, do_sample=False)
        model.generate(tokens(7), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    first, second = record.calls
    assert torch.equal(first.ids["source"], source)
    assert torch.equal(second.ids["source"], tokens(7))
    record.label(source=lambda number: f"s{number}", target=lambda number: f"t{number}")
    sight = first["decoder.1.cross"]
    for sample, row in enumerate(sight.inputs):
        for key, _, text in sight.top(sample, 1, 2):
            assert text == f"s{source[row // beams, key]}"
