"""Copying from the source: probabilities by hand, the loss from them, and decoding step by step."""

import math

import pytest
import torch
import torch.nn.functional as F

from clearhead import Mask, ModelConfig, watch
from clearhead.decode import Writer, beam, greedy
from clearhead.errors import ConfigError
from clearhead.model import Encoder, EncoderDecoder, PointerGenerator
from clearhead.model.pointer_generator import find_continuations, list_recent, pointer_loss

VOCABULARY, END = 23, 2


def model_of(**changes: object) -> PointerGenerator:
    torch.manual_seed(3)
    config = ModelConfig.named("tiny", vocabulary=VOCABULARY, copying=True, width=32, heads=2, **changes)
    return PointerGenerator(config).double().eval()


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    source, target = (torch.randint(3, VOCABULARY, (3, length), generator=generator) for length in (7, 5))
    target[:, 0] = 1
    return source, torch.tensor([7, 4, 6]), target


@torch.no_grad()
def test_a_probability_is_the_mixture_of_generating_and_copying():
    model, (source, lengths, target) = model_of(), batch()
    mask = Mask.padding(lengths)
    context = model.encode(source, mask)
    hidden = model.decode(target, context, context_mask=mask)
    weights, gate = model.copying(hidden, context, source, list_recent(target), mask)
    found = model.token_scores(source, target, mask).exp()
    generated = model.logits(hidden).softmax(-1)
    for row, place, token in ((0, 1, int(source[0, 2])), (1, 3, int(source[1, 0])), (2, 4, 3)):
        copied = sum(float(weights[row, place, i]) for i in range(7) if source[row, i] == token)
        share = 1 / (1 + math.exp(-float(gate[row, place])))
        wanted = share * float(generated[row, place, token]) + (1 - share) * copied
        assert float(found[row, place, token]) == pytest.approx(wanted, abs=1e-12)
    assert torch.allclose(found.sum(-1), torch.ones(3, 5, dtype=torch.float64), atol=1e-12)
    assert weights[1, :, 4:].abs().max() == 0, "padding is not copied"


def test_the_loss_is_that_of_the_probabilities():
    model, (source, lengths, target) = model_of(), batch()
    mask, labels = Mask.padding(lengths), target.roll(-1, 1)
    labels[1, 3:] = -100
    context = model.encode(source, mask)
    hidden = model.decode(target, context, context_mask=mask)
    scores = model.token_scores(source, target, mask).flatten(0, 1).detach()
    wanted = F.cross_entropy(scores, labels.flatten(), ignore_index=-100, reduction="sum")
    loss = pointer_loss(model, hidden, context, source, target, mask, labels, 0.0)
    assert float(loss.detach()) == pytest.approx(float(wanted), abs=1e-10)
    loss.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
    with torch.no_grad():
        smoothed = pointer_loss(model, hidden, context, source, target, mask, labels, 0.1)
        uniform = -(model.logits(hidden).log_softmax(-1).mean(-1))[labels >= 0].sum()
    assert float(smoothed) == pytest.approx(0.9 * float(wanted) + 0.1 * float(uniform), abs=1e-10)


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_decoding_step_by_step_gives_the_probabilities_of_one_pass(beams):
    model, (source, lengths, _) = model_of(), batch()
    writer, rules = Writer.translating(model, source, lengths), {"start": 1, "end": END, "max_length": [9, 3, 12]}
    found = greedy(writer, **rules) if beams == 1 else [one[0] for one in beam(writer, beams=beams, **rules)]
    for row, one in enumerate(found):
        written = [*one.tokens, END] if one.finished else one.tokens
        read = torch.tensor([[1, *written[:-1]]])
        scores = model.token_scores(source[row : row + 1, : lengths[row]], read)[0]
        total = float(scores.gather(1, torch.tensor(written)[:, None]).sum())
        assert one.log_probability == pytest.approx(total, abs=1e-9)


def test_places_after_what_was_written_are_found():
    source, recent = torch.tensor([[4, 5, 6, 4, 5, 7]]), list_recent(torch.tensor([[4, 5]]))
    one, two = find_continuations(source, recent)
    assert one[0].int().tolist() == [[0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 1]]
    assert two[0].int().tolist() == [[0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 1]]


def test_copying_wants_one_vocabulary():
    with pytest.raises(ConfigError, match=r"text\.shared = true"):
        model_of(source_vocabulary=11)


# windows of the encoder


@pytest.mark.parametrize("kind", [Encoder, EncoderDecoder])
def test_a_windowed_encoder_is_the_dense_mask_of_its_definition(kind):
    config = ModelConfig.named("tiny", vocabulary=VOCABULARY, width=32, heads=2)
    torch.manual_seed(1)
    windowed = kind(config.change(encoder_window=3)).double().eval()
    dense = kind(config).double().eval()
    dense.load_state_dict(windowed.state_dict())
    tokens, lengths = torch.randint(3, VOCABULARY, (2, 17)), torch.tensor([17, 11])
    place = torch.arange(17)
    near = (place[:, None] - place).abs() <= 3
    real = place < lengths[:, None]
    visible = near & real[:, None] & real[..., None]
    mask = Mask.visible(visible[:, None])
    run = {
        Encoder: lambda model, mask: model(tokens, mask=mask),
        EncoderDecoder: lambda model, mask: model.encode(tokens, mask),
    }[kind]
    found, wanted = run(windowed, Mask.padding(lengths)), run(dense, mask)
    for row, length in enumerate(lengths.tolist()):
        assert torch.allclose(found[row, :length], wanted[row, :length], atol=1e-12)
    wider = run(dense, Mask.padding(lengths))
    assert not torch.allclose(found[0], wider[0], atol=1e-3), "the window hides something"


def test_the_window_does_not_limit_the_decoder():
    config = ModelConfig.named("tiny", vocabulary=VOCABULARY, width=32, heads=2, encoder_window=1)
    model = EncoderDecoder(config).eval()
    with watch(model, keep="qk") as record:
        model(torch.randint(3, VOCABULARY, (1, 9)), torch.randint(3, VOCABULARY, (1, 7)))
    assert int((record["encoder.0.self"].weights(0, 0)[4] > 0).sum()) == 3
    assert int((record["decoder.0.self"].weights(0, 0)[6] > 0).sum()) == 7
    assert int((record["decoder.0.cross"].weights(0, 0)[0] > 0).sum()) == 9
