"""Writer: it leaves the model as it was, on any device and in any precision."""

import copy

import pytest
import torch

from clearhead import Decoder, Mask, ModelConfig
from clearhead.decode import Writer, beam, greedy, sample, stream
from clearhead.errors import DecodeError, ShapeError
from tests.decode.models import END, SMALL, START, VOCABULARY, continuer, sources, translator

OPTIONS = {"start": START, "end": END, "max_length": 6}
WAYS = [beam, greedy, sample, lambda writer, **options: [*stream(writer, **options)]]


@pytest.mark.parametrize("way", WAYS, ids=["beam", "greedy", "sample", "stream"])
def test_a_model_in_training_writes_without_dropout_and_then_trains_on(way):
    model, (source, lengths) = translator().train(), sources(1)
    model.encoder.layers[0].eval()  # frozen by somebody, and to stay so
    before = [part.training for part in model.modules()]
    torch.manual_seed(1)
    first = way(Writer.translating(model, source, lengths), **OPTIONS)
    assert [part.training for part in model.modules()] == before
    torch.manual_seed(1)
    assert first == way(Writer.translating(model.eval(), source, lengths), **OPTIONS)
    model.train()
    model.logits(model(source, source)).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_model_is_as_it_was_after_an_error():
    model, (source, lengths) = translator().train(), sources(2)
    with pytest.raises(ShapeError, match="the vocabulary from 0"):
        Writer.translating(model, source + VOCABULARY, lengths).begin(START)
    assert all(part.training for part in model.modules())


def test_between_the_tokens_of_a_stream_the_model_and_gradients_are_free():
    model, (source, lengths) = translator().train(), sources(1)
    tokens = stream(Writer.translating(model, source, lengths), **OPTIONS, prefix=[5, 6, 7, 8, 9, 10])
    next(tokens)
    assert all(part.training for part in model.modules())
    assert not torch.is_inference_mode_enabled()
    model.logits(model(source, source)).sum().backward()
    assert len([*tokens]) == 5


def test_a_writer_can_be_used_again():
    source, lengths = sources(9)
    writer = Writer.translating(translator(), source, lengths)
    first = beam(writer, best=5, **OPTIONS)
    assert greedy(writer, **OPTIONS) == greedy(Writer.translating(translator(), source, lengths), **OPTIONS)
    assert beam(writer, best=5, **OPTIONS) == first


def test_what_the_pads_hold_does_not_matter():
    model, (source, lengths) = translator(), sources(5)
    other = source.where(torch.arange(7) < lengths[:, None], 11)
    first, second = (beam(Writer.translating(model, tokens, lengths), **OPTIONS) for tokens in (source, other))
    assert first == second


def test_vectors_are_translated_like_the_words_they_stand_for():
    model, (source, lengths) = translator(), sources(5)
    vectors = model.vocabulary(source).detach()
    first, second = (beam(Writer.translating(model, given, lengths), **OPTIONS) for given in (source, vectors))
    assert [row[0].tokens for row in first] == [row[0].tokens for row in second]


def test_a_decoder_with_a_context_writes_like_the_translator_it_is_part_of():
    model, (source, lengths) = translator().eval(), sources(5)
    decoder = Decoder(ModelConfig.named("tiny", vocabulary=VOCABULARY, **SMALL, norm_first=False, cross_attention=True))
    decoder = decoder.double().eval()
    decoder.vocabulary, decoder.decoder = model.vocabulary, model.decoder
    context = model.encode(source, Mask.padding(lengths)).detach()
    first = beam(Writer.translating(model, source, lengths), best=3, **OPTIONS)
    writer = Writer(decoder, [[START]] * 5, context=context, context_lengths=lengths)
    assert beam(writer, best=3, end=END, max_length=6) == first
    whole = Writer(decoder, [[START]], context=context[:1])  # the first fills its row
    assert greedy(whole, end=END, max_length=6)[0].tokens == greedy(writer, end=END, max_length=6)[0].tokens


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_weights_write_with_scores_in_float32(half, trained, device):
    model, (source, lengths) = copy.deepcopy(trained).to(device, half), sources(13)
    writer = Writer.translating(model, source.to(device), lengths)
    assert writer.begin(START).dtype == torch.float32
    found = beam(writer, **OPTIONS)
    usual = beam(Writer.translating(trained, source, lengths), **OPTIONS)
    same = sum(a[0].tokens == b[0].tokens for a, b in zip(found, usual, strict=True))
    assert same >= 9, f"only {same} of 13 lines as in float32"


def test_autocast_writes_with_scores_in_float32(trained, device):
    model, (source, lengths) = copy.deepcopy(trained).to(device), sources(13)
    with torch.autocast(device, torch.bfloat16):
        writer = Writer.translating(model, source.to(device), lengths)
        assert writer.begin(START).dtype == torch.float32
        found = beam(writer, **OPTIONS)
    usual = beam(Writer.translating(trained, source, lengths), **OPTIONS)
    assert found != usual  # it did compute in half precision
    assert sum(a[0].tokens == b[0].tokens for a, b in zip(found, usual, strict=True)) >= 9


def test_float64_stays_float64(device):
    source, lengths = sources(3)
    assert Writer.translating(translator().to(device), source.to(device), lengths).begin(START).dtype == torch.float64


@pytest.mark.parametrize("way", WAYS[:3], ids=["beam", "greedy", "sample"])
def test_a_device_writes_what_a_cpu_writes(way, device):
    model, (source, lengths) = translator(), sources(11)
    there = copy.deepcopy(model).to(device)
    options = {**OPTIONS, "no_repeat_ngram": 2, "prefix": [[5]] * 11}
    for seed in range(3):
        torch.manual_seed(seed)
        usual = way(Writer.translating(model, source, lengths), **options)
        torch.manual_seed(seed)
        found = way(Writer.translating(there, source.to(device), lengths.to(device)), **options)
        best = (lambda row: row[0]) if way is beam else (lambda row: row)
        assert [best(row).tokens for row in found] == [best(row).tokens for row in usual]


def test_what_does_not_fit_is_refused(trained):
    source, _ = sources(3)
    with pytest.raises(ShapeError, match="2 lengths for a source of shape"):
        Writer.translating(trained, source, [7, 7])
    with pytest.raises(ShapeError, match="lengths go from 1 to 9, but the source is 7 long"):
        Writer.translating(trained, source, [1, 2, 9])
    decoder = continuer()
    with pytest.raises(DecodeError, match="row 1 has an empty prompt; pass start="):
        greedy(Writer.continuing(decoder, [[5], []]), end=END, max_length=3)


def test_more_tokens_than_learned_positions_are_refused_before_anything_is_written():
    source, lengths = sources(2)
    writer = Writer.translating(translator("learned"), source, lengths)
    greedy(writer, start=START, end=END, max_length=31, forbidden=[END - 1])
    with pytest.raises(DecodeError, match="max_length=32 would need 32 positions, but this model learned 31; write at"):
        greedy(writer, start=START, end=END, max_length=32)
    prompts = Writer.continuing(continuer("learned"), [[5, 6, 7]])
    with pytest.raises(DecodeError, match="write at most 28 tokens"):
        greedy(prompts, start=START, end=END, max_length=29)
    assert len(greedy(prompts, start=START, end=END, max_length=28)) == 1


def test_all_of_it_may_happen_under_inference_mode():
    usual = beam(Writer.translating(translator(dtype=torch.float32), *sources(9)), **OPTIONS)
    with torch.inference_mode():
        model, (source, lengths) = translator(dtype=torch.float32), sources(9)
        found = beam(Writer.translating(model, source, lengths), **OPTIONS)
        greedy(Writer.translating(model, source, lengths), **OPTIONS)
    assert found == usual
    assert beam(Writer.translating(model, source, lengths), **OPTIONS) == usual
