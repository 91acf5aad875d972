"""Attention rollout, against the product of all layers' matrices, built in float64."""

from collections.abc import Sequence

import pytest
import torch
import transformers
from torch import Tensor, nn

from clearhead import Decoder, Encoder, EncoderDecoder, Mask, ModelConfig
from clearhead.attention import reference
from clearhead.errors import LensError, RecordError
from clearhead.lens import watch
from clearhead.lens.analysis.attention_rollout import propagate, rollout
from clearhead.lens.attention_names import find_attentions
from tests.lens.cases import CASES
from tests.lens.huggingface_zoo import eager_weights, inputs, made, tokens
from tests.model.checkpoints import BERT, shaken

SMALL = {"vocabulary": 41, "width": 24, "heads": 3, "layers": 3, "feedforward": 37}


@pytest.mark.parametrize("tile", [20_000, 2**20])
@pytest.mark.parametrize("name", CASES)
def test_what_keys_receive_of_some_rows_is_the_mean_of_the_heads(name, tile, monkeypatch):
    monkeypatch.setattr("clearhead.lens.analysis.attention_rollout.TILE", tile)
    call = CASES[name].job(torch.float64).call
    rows = torch.rand(call.q.shape[0], call.q.shape[2], dtype=torch.float64)
    rows[:, 3:40] = 0.0
    want = torch.einsum("bhij,bi->bj", reference.weights(call), rows) / call.q.shape[1]
    torch.testing.assert_close(propagate(call, rows), want, rtol=1e-9, atol=1e-12)


def matrices(model: nn.Module, *texts: Tensor, **masks: Mask) -> dict[str, Tensor]:
    """The mean over heads of each attention's weights, (batch, queries, keys)."""
    seen = {}
    for name, attention in find_attentions(model).items():
        attention.observer = lambda given, name=name: seen.update({name: given.weights().mean(1)})
    with torch.no_grad():
        model(*texts, **masks)
    for attention in find_attentions(model).values():
        attention.observer = None
    return seen


def product(layers: Sequence[Tensor], residual: float = 0.5) -> Tensor:
    """(½ + ½ Āₗ) ⋯ (½ + ½ Ā₁)"""
    whole = torch.eye(layers[0].shape[1], dtype=torch.float64)
    for weights in layers:
        whole = (residual * torch.eye(weights.shape[1], dtype=torch.float64) + (1 - residual) * weights) @ whole
    return whole


@pytest.mark.parametrize("kind", [Encoder, Decoder])
@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_it_is_a_row_of_the_product_of_all_layers(kind, positions):
    torch.manual_seed(1)
    model = kind(ModelConfig.named("tiny", **SMALL, positions=positions)).double().eval()
    text, mask = torch.randint(41, (2, 17)), Mask.padding([17, 13])
    whole = product(list(matrices(model, text, mask=mask).values()))
    with torch.no_grad(), watch(model, keep="qk") as record:
        model(text, mask=mask)
    for token in (0, 5, -1):
        found = rollout(record, token)
        assert found.source is None
        torch.testing.assert_close(found.tokens, whole[:, token])
    torch.testing.assert_close(rollout(record, 5).tokens.sum(1), torch.ones(2, dtype=torch.float64))
    layers = list(matrices(model, text, mask=mask).values())
    torch.testing.assert_close(rollout(record, 5, residual=0.2).tokens, product(layers, 0.2)[:, 5])


def test_in_an_encoder_decoder_it_crosses_to_the_source():
    torch.manual_seed(2)
    model = EncoderDecoder(ModelConfig.named("tiny", **SMALL, decoder_layers=2)).double().eval()
    source, target = torch.randint(41, (2, 11)), torch.randint(41, (2, 7))
    layers = matrices(model, source, target)
    encoder = product([layers[f"encoder.{n}.self"] for n in range(3)])
    own = torch.eye(7, dtype=torch.float64).expand(2, 7, 7)
    given = torch.zeros(2, 7, 11, dtype=torch.float64)  # what each target vector holds of the source's
    for n in range(2):
        own, given = (0.5 * held + 0.5 * layers[f"decoder.{n}.self"] @ held for held in (own, given))
        own, given = 0.5 * own, 0.5 * given + 0.5 * layers[f"decoder.{n}.cross"] @ encoder
    with torch.no_grad(), watch(model, keep="qk") as record:
        model(source, target)
    found = rollout(record, 4)
    torch.testing.assert_close(found.tokens, own[:, 4])
    torch.testing.assert_close(found.source, given[:, 4])
    torch.testing.assert_close(found.tokens.sum(1) + found.source.sum(1), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("family", ["llama", "gpt-oss", "bert"])
def test_hugging_face_models_can_be_followed_back(family):
    model, given = made(family), {"input_ids": tokens()}
    with torch.no_grad(), watch(model, keep="qk") as record:
        model(**given)
    eager = eager_weights(model, given, record.names)
    whole = product([weights.detach().double().mean(1) for weights in eager.values()])
    torch.testing.assert_close(rollout(record, 8).tokens.double(), whole[:, 8], rtol=1e-5, atol=1e-6)


def test_an_encoder_that_holds_cross_attention_is_the_target():
    config = transformers.BertConfig(**BERT, is_decoder=True, add_cross_attention=True)
    model, context = shaken(transformers.BertLMHeadModel(config)), torch.randn(3, 5, 21)
    given = {"input_ids": tokens(), "encoder_hidden_states": context}
    with torch.no_grad(), watch(model, keep="qk") as record:
        model(**given)
    assert record.names[:2] == ["encoder.0.self", "encoder.0.cross"]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(**given, output_attentions=True)
    own, taken = torch.eye(11).expand(3, 11, 11), torch.zeros(3, 11, 5)
    for layer, crossed in zip(eager.attentions, eager.cross_attentions, strict=True):
        own, taken = (0.5 * held + 0.5 * layer.mean(1) @ held for held in (own, taken))
        own, taken = 0.5 * own, 0.5 * taken + 0.5 * crossed.mean(1)
    found = rollout(record, 4)
    torch.testing.assert_close(found.tokens, own[:, 4], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.source, taken[:, 4], rtol=1e-5, atol=1e-6)


def test_text_that_was_written_step_by_step_is_followed_back_as_if_read_at_once():
    model = made("llama")
    with torch.no_grad():
        with watch(model, keep="qk") as written:
            text = model.generate(tokens(5), max_new_tokens=7, do_sample=False)
        with watch(model, keep="qk") as read:
            model(input_ids=text[:, :-1])
    torch.testing.assert_close(rollout(written, -1).tokens, rollout(read, -1).tokens, rtol=1e-5, atol=1e-6)


def test_beams_share_the_encoder_of_their_text():
    model = made("marian")
    source = tokens()[:2]
    visible = torch.ones_like(source)
    visible[1, 8:] = 0
    with torch.no_grad():
        with watch(model, keep="qk") as written:
            model.generate(source, attention_mask=visible, num_beams=3, max_new_tokens=4, do_sample=False)
        found, target = rollout(written, 2), written.calls[0].ids["target"]
        assert len(target) > 2
        for sample in range(len(target)):
            text = written["decoder.0.self"].inputs[sample] // 3
            with watch(model, keep="qk") as read:
                one = slice(text, text + 1)
                model(source[one], attention_mask=visible[one], decoder_input_ids=target[sample : sample + 1, :3])
            alone = rollout(read, 2)
            torch.testing.assert_close(found.tokens[sample, :3], alone.tokens[0], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found.source[sample], alone.source[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "asked", "words"),
    [
        ({"keep": "qk"}, {"token": 17}, "tokens 0 to 16, not 17"),
        ({"keep": "qk"}, {"token": 3, "residual": 1.5}, "from 0 to 1, got 1.5"),
        ({}, {"token": 3}, "keep='qk'"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_a_remedy(options, asked, words):
    model = Decoder(ModelConfig.named("tiny", **SMALL)).eval()
    with watch(model, **options) as record:
        model(torch.randint(41, (2, 17)))
    with pytest.raises((LensError, RecordError), match=words):
        rollout(record, **asked)


def test_of_several_runs_one_has_to_be_named():
    model = Decoder(ModelConfig.named("tiny", **SMALL)).double().eval()
    with torch.no_grad(), watch(model, keep="qk") as record:
        model(torch.randint(41, (2, 17)))
        model(torch.randint(41, (2, 5)))
    with pytest.raises(LensError, match=r"ran 2 times: .*record.calls\[0\]"):
        rollout(record, 3)
    assert rollout(record.calls[1], 3).tokens.shape == (2, 5)


def test_layers_that_do_not_follow_each_other_are_refused():
    model = made("clip")
    with torch.no_grad(), watch(model, keep="qk") as record:
        model(**inputs("clip"))
    with pytest.raises(LensError, match="layers of one stack: call watch"):
        rollout(record, 3)
