"""LoRA adapters: nothing changes at first, only adapters are trained, and merged weights compute the same."""

from typing import Any

import pytest
import torch

from clearhead import Decoder, Encoder, EncoderDecoder, Mask, ModelConfig, to_huggingface, watch
from clearhead.errors import CheckpointError
from clearhead.model.lora import LowRankLinear, add_adapters, merge_tensors

CONFIG = ModelConfig.named("tiny", vocabulary=31, width=2 * 11, heads=2, layers=2, feedforward=37, dropout=0.0)
TOKENS = torch.arange(2 * 11).view(2, 11)


def run(model: torch.nn.Module) -> torch.Tensor:
    if isinstance(model, EncoderDecoder):
        return model.logits(model(TOKENS, TOKENS.flip(1)))
    return model.logits(model(TOKENS))


def shake(model: torch.nn.Module) -> None:
    """Adapters as if they had been trained."""
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)


def merge_adapters(model: Any) -> Any:
    """A model of plain linear layers that computes the same."""
    scale = next(module.scale for module in model.modules() if isinstance(module, LowRankLinear))
    plain = type(model)(model.config).to(model.vocabulary.words.weight.dtype).eval()
    state = model.state_dict()
    base = {name: tensor for name, tensor in state.items() if "lora_" not in name}
    plain.load_state_dict(merge_tensors(base, {name: state[name] for name in state if name not in base}, scale))
    return plain


@pytest.mark.parametrize("kind", [Encoder, Decoder, EncoderDecoder])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_new_adapters_change_no_bit(kind, dtype):
    model = kind(CONFIG).to(dtype).eval()
    before = run(model)
    add_adapters(model, rank=5, alpha=16.0, on=("attention", "feedforward"))
    after = run(model)
    assert torch.equal(before, after)
    shake(model)
    assert not torch.equal(before, run(model))


@pytest.mark.parametrize("kind", [Encoder, Decoder, EncoderDecoder])
def test_merged_weights_compute_the_same_within_rounding(kind):
    model = kind(CONFIG).double().eval()
    add_adapters(model, rank=5, alpha=16.0, on=("attention", "feedforward"))
    shake(model)
    exact = run(model)
    single = model.float()
    apart = run(single)
    merged = run(merge_adapters(single))
    plain_error = (apart.double() - exact).abs().max()
    limit = 2 * plain_error + 4 * torch.finfo(torch.float32).eps * exact.abs().max()
    assert (merged.double() - exact).abs().max() <= limit


def test_only_adapters_are_trained_and_their_number_is_that_of_the_ranks():
    model = EncoderDecoder(CONFIG)
    adapted = add_adapters(model, rank=5, alpha=16.0)
    trained = {name: one.numel() for name, one in model.named_parameters() if one.requires_grad}
    assert all(name.rpartition(".")[2] in ("lora_down", "lora_up") for name in trained)
    # of a layer: qkv (22 → 66) and out (22 → 22); a decoder's layer has q, kv (22 → 44) and out again
    own, cross = 5 * (22 + 66) + 5 * 44, 5 * 44 + 5 * (22 + 44) + 5 * 44
    assert sum(trained.values()) == 2 * own + 2 * (own + cross)
    assert len(adapted) == 2 * 2 + 2 * 5


def test_only_named_layers_are_adapted():
    model = Encoder(CONFIG)
    wanted = "encoder.layers.1.self_attention.to_out"
    assert add_adapters(model, rank=2, alpha=2.0, only={f"{wanted}.weight"}) == [wanted]


def test_dropout_acts_on_the_inputs_of_adapters_in_training_only():
    layer = LowRankLinear(torch.nn.Linear(5, 7), rank=2, scale=1.0, dropout=0.9)
    torch.nn.init.normal_(layer.lora_up)
    x = torch.randn(3, 5)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_the_lens_sees_the_adapted_queries_keys_and_output_projection():
    model = Decoder(CONFIG).double().eval()
    add_adapters(model, rank=5, alpha=16.0)
    shake(model)
    with watch(model, keep="qk", norms=True) as apart, torch.no_grad():
        model(TOKENS)
    plain = merge_adapters(model)
    with watch(plain, keep="qk", norms=True) as merged, torch.no_grad():
        plain(TOKENS)
    for name in apart.names:
        for field in ("entropy", "received", "norms"):
            one, other = getattr(apart[name], field), getattr(merged[name], field)
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


def test_rows_of_an_adapted_projection_are_those_of_the_whole():
    model = Encoder(CONFIG).double().eval()
    add_adapters(model, rank=5, alpha=16.0)
    shake(model)
    attention, x = model.encoder.layers[0].self_attention, torch.randn(2, 5, 22, dtype=torch.float64)
    apart = attention(x, context=x.flip(1), mask=Mask.causal())
    attention = merge_adapters(model).encoder.layers[0].self_attention
    torch.testing.assert_close(apart, attention(x, context=x.flip(1), mask=Mask.causal()), atol=1e-12, rtol=0)


def test_adapters_are_merged_before_they_are_written_for_transformers(tmp_path):
    config = CONFIG.change(
        norm_first=False, positions="learned", max_length=17, embedding_norm=True, scale_embeddings=False
    )
    model = Encoder(config).eval()
    add_adapters(model, rank=5, alpha=10.0)
    with pytest.raises(CheckpointError, match="adapters are merged in a model"):
        to_huggingface(model, tmp_path)
    to_huggingface(merge_adapters(model), tmp_path)
