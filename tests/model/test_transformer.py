"""Encoder, Decoder, EncoderDecoder: shapes, masks, caches, ties, checkpointing."""

import math

import pytest
import torch
from torch import nn

from clearhead import Decoder, Encoder, EncoderDecoder, KeyValueCache, Mask, ModelConfig
from clearhead.errors import ConfigError, DtypeError, MaskError, ShapeError

SMALL = {"width": 24, "heads": 6, "layers": 2, "feedforward": 37, "dropout": 0.0}


def config(name: str = "classic", **changes) -> ModelConfig:
    return ModelConfig.named(name, vocabulary=53, **{**SMALL, **changes})


SHAPES = {
    "classic": {},
    "modern": {"name": "modern"},
    "tiny": {"name": "tiny"},
    "learned": {"positions": "learned"},
    "alibi": {"positions": "alibi"},
    "relative": {"positions": "relative"},
    "no positions": {"positions": "none"},
    "window": {"name": "modern", "window": 3},
    "wide values": {"head_dim": 5, "value_head_dim": 7},
    "untied": {"tie_embeddings": False, "logits_bias": True, "logits_transform": True},
    "geglu": {"activation": "geglu", "temperature": "learned"},
}


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 53, shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", SHAPES)
def test_padding_changes_nothing_for_the_real_tokens(shape):
    model = Encoder(config(**SHAPES[shape])).double().eval()
    long, short = tokens(1, 11), tokens(1, 7)
    batch = torch.cat([long, torch.cat([short, torch.full((1, 4), 5)], dim=1)])
    both = model(batch, mask=Mask.padding([11, 7]))
    torch.testing.assert_close(both[:1], model(long), rtol=0, atol=1e-12)
    torch.testing.assert_close(both[1:, :7], model(short), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_decoder_never_looks_ahead(shape):
    model = Decoder(config(**SHAPES[shape])).double().eval()
    first = tokens(2, 11)
    second = first.clone()
    second[:, 7:] = (second[:, 7:] + 1) % 53
    torch.testing.assert_close(model(first)[:, :7], model(second)[:, :7], rtol=0, atol=1e-12)
    assert (model(first)[:, 7:] - model(second)[:, 7:]).abs().max() > 1e-3


@pytest.mark.parametrize("shape", SHAPES)
def test_cached_decoding_equals_uncached_step_by_step(shape):
    model = Decoder(config(**SHAPES[shape])).double().eval()
    text, cache = tokens(2, 11), KeyValueCache()
    whole = model(text)
    with torch.no_grad():
        steps = [model(text[:, :4], cache=cache)] + [model(text[:, [t]], cache=cache) for t in range(4, 11)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_encoder_decoder_decodes_with_a_cache_as_without(shape):
    model = EncoderDecoder(config(**SHAPES[shape])).double().eval()
    source, target = tokens(2, 7), tokens(2, 5)
    seen = Mask.padding([7, 3])
    whole = model(source, target, source_mask=seen)
    with torch.no_grad():
        context, cache = model.encode(source, mask=seen), KeyValueCache(capacity=5)
        steps = [model.decode(target[:, [t]], context, context_mask=seen, cache=cache) for t in range(5)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-12)
    alone = model(source[1:, :3], target[1:])
    torch.testing.assert_close(whole[1:], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sample_of_pads_only_gives_no_nan_and_leaves_the_others_alone(shape):
    model = EncoderDecoder(config(**SHAPES[shape])).double()
    source, target = tokens(2, 7), tokens(2, 5)
    hidden = model(source, target, source_mask=Mask.padding([0, 7]), target_mask=Mask.padding([0, 5]))
    torch.testing.assert_close(hidden[1:], model(source[1:], target[1:]), rtol=0, atol=1e-12)
    hidden[1].square().sum().backward()
    with_pads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model(source[1:], target[1:]).square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(with_pads[name], parameter.grad, rtol=0, atol=1e-9)


def test_vectors_go_in_where_tokens_do():
    model = Encoder(config()).eval()
    text = tokens(2, 7)
    assert torch.equal(model(vectors=model.vocabulary(text)), model(text))


def test_explicit_positions_equal_the_default_ones_and_may_differ_by_sample():
    for positions in ("sinusoidal", "learned", "rotary"):
        model = Decoder(config(positions=positions)).double().eval()
        text = tokens(1, 7)
        torch.testing.assert_close(model(text, positions=torch.arange(7)), model(text), rtol=0, atol=1e-12)
        two = model(text.expand(2, 7), positions=torch.stack([torch.arange(7), torch.arange(7) * 2]))
        torch.testing.assert_close(two[:1], model(text), rtol=0, atol=1e-12)
        assert (two[1] - two[0]).abs().max() > 1e-3


def test_segments_are_added_and_default_to_the_first():
    model = Encoder(config(segments=2)).eval()
    text = tokens(2, 7)
    assert torch.equal(model(text, segments=torch.zeros_like(text)), model(text))
    assert (model(text, segments=torch.ones_like(text)) - model(text)).abs().max() > 1e-3


def test_tied_models_have_one_matrix_for_words_in_and_out():
    tied, untied = EncoderDecoder(config()), EncoderDecoder(config(tie_embeddings=False))
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    assert count[1] - count[0] == 53 * 24
    assert len({t.data_ptr() for t in tied.state_dict().values()}) == len(tied.state_dict())


def test_the_classic_transformer_has_the_sizes_of_2017():
    with torch.device("meta"):
        model = EncoderDecoder(ModelConfig.named("classic", vocabulary=37000))
    # 512·37000 words; an attention 4·(512²+512); a feed-forward 2·512·2048+2048+512; a norm 2·512
    attention, feed, norm = 4 * (512**2 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    want = 512 * 37000 + 6 * (attention + feed + 2 * norm) + 6 * (2 * attention + feed + 3 * norm)
    assert sum(p.numel() for p in model.parameters()) == want


def test_the_modern_shape_trains_and_has_no_biases():
    model = Decoder(config("modern", kv_heads=2))
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert model.decoder.layers[0].self_attention.kv_heads == 2


@pytest.mark.parametrize("shape", ["classic", "modern"])
def test_a_fresh_model_is_calm(shape):
    """Hidden states of ordinary size, and a first loss near that of guessing evenly."""
    torch.manual_seed(0)
    model = Decoder(ModelConfig.named(shape, vocabulary=1009, layers=12, dropout=0.0))
    text = torch.randint(0, 1009, (4, 31))
    logits = model.logits(model(text))
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), text[:, 1:].flatten())
    assert loss.item() == pytest.approx(6.92, abs=1.0)  # ln 1009 = 6.92


def test_checkpointing_changes_no_gradient():
    text, goal = tokens(2, 7), tokens(2, 5)
    model = EncoderDecoder(config(dropout=0.1))
    found = []
    for on in (False, True):
        model.checkpointing = on
        model.zero_grad()
        torch.manual_seed(1)
        model(text, goal, source_mask=Mask.padding([7, 3])).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert model.checkpointing
    for plain, recomputed in zip(*found, strict=True):
        assert torch.equal(plain, recomputed)


def test_document_masks_keep_packed_texts_apart():
    model = Decoder(config(positions="rotary")).double().eval()
    first, second = tokens(1, 5), tokens(1, 7)
    packed = torch.cat([first, second], dim=1)
    ids = torch.tensor([[0] * 5 + [1] * 7])
    places = torch.cat([torch.arange(5), torch.arange(7)])
    together = model(packed, mask=Mask.documents(ids), positions=places)
    torch.testing.assert_close(together[:, 5:], model(second), rtol=0, atol=1e-12)


def test_a_source_mask_that_says_nothing_of_the_context_asks_for_one():
    model, ids = EncoderDecoder(config()), torch.zeros(1, 7, dtype=torch.long)
    with pytest.raises(MaskError, match="keys as context_mask="):
        model(tokens(1, 7), tokens(1, 5), source_mask=Mask.documents(ids))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m: m(), ShapeError, "either tokens or vectors="),
        (lambda m: m(tokens(1, 3), vectors=torch.randn(1, 3, 24)), ShapeError, "either tokens or vectors="),
        (lambda m: m(vectors=torch.randn(1, 3, 23)), ShapeError, r"\(batch, tokens, 24\), got \(1, 3, 23\)"),
        (lambda m: m(torch.randn(1, 3)), DtypeError, "tokens must be whole numbers"),
        (lambda m: m(tokens(3)), DtypeError, r"shape \(3,\)"),
        (lambda m: m([[1, 2]]), DtypeError, r"got \[\[1, 2\]\]"),
        (lambda m: m(torch.ones(1, 2, dtype=torch.uint8)), DtypeError, "got torch.uint8"),
        (lambda m: m(torch.tensor([[53]])), ShapeError, "from 53 to 53, the vocabulary from 0 to 52"),
        (lambda m: m(tokens(1, 3), segments=tokens(1, 3)), ShapeError, r"ModelConfig\(segments=2\)"),
        (lambda m: m(tokens(1, 600)), ShapeError, "position 599 lies beyond the 512 learned positions"),
        (lambda m: m(tokens(2, 3), mask=Mask.padding([1, 2, 3])), ShapeError, "made for 3 samples"),
        (lambda m: m(tokens(1, 3), mask=torch.ones(1, 3).bool()), MaskError, "Mask.visible"),
    ],
)
def test_wrong_input_is_named_with_its_remedy(call, error, words):
    with pytest.raises(error, match=words):
        call(Encoder(config(positions="learned")))


def test_a_context_where_none_belongs_and_a_missing_one_are_named():
    with pytest.raises(ShapeError, match=r"cross_attention=True"):
        Decoder(config())(tokens(1, 3), context=torch.randn(1, 5, 24))
    with pytest.raises(ShapeError, match="pass the encoder's output as context="):
        Decoder(config(cross_attention=True))(tokens(1, 3))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 5}, "24 does not split into 5 heads"),
        ({"kv_heads": 4}, "6 query heads cannot share 4 key heads"),
        ({"norm": "batch"}, "norm must be one of layer, rms, got 'batch'"),
        ({"positions": "rotory"}, "positions must be one of"),
        ({"layers": 1_000_000}, "layers may be at most 1,000, got 1,000,000"),
        ({"decoder_layers": 1001}, "decoder_layers may be at most 1,000, got 1,001"),
        ({"layers": 0}, "layers must be a whole number of at least 1, got 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"dropout": "0.1"}, "dropout must be at least 0 and less than 1, got '0.1'"),
        ({"attention_dropout": math.nan}, "attention_dropout must be at least 0 and less than 1, got nan"),
        ({"norm_epsilon": math.nan}, "norm_epsilon must be a finite number of at least 0, got nan"),
        ({"rotary_base": math.inf}, "rotary_base must be a finite number of at least 0, got inf"),
        ({"window": 0}, "window must be a whole number of at least 1, got 0"),
        ({"kv_heads": 0}, "kv_heads must be a whole number of at least 1, got 0"),
        ({"width": 24.0}, "width must be a whole number of at least 1, got 24.0"),
        ({"segments": -1}, "segments must be a whole number of at least 0, got -1"),
        ({"norm_first": "no"}, "norm_first must be True or False, got 'no'"),
        ({"widht": 3}, "did you mean 'width'"),
    ],
)
def test_impossible_configurations_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        Encoder(config(**changes))


def test_an_unknown_shape_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="'clasic'; choose from classic, modern, tiny"):
        ModelConfig.named("clasic", vocabulary=3)


def test_a_configuration_survives_json():
    import json

    first = config("modern", rotary_scaling={"type": "linear", "factor": 2.0})
    assert ModelConfig.from_dict(json.loads(json.dumps(first.to_dict()))) == first


def test_a_window_shows_as_many_keys_as_it_says():
    """One layer: a token is influenced from window − 1 places away, and no further; encoders look both ways."""
    for kind, ahead in ((Decoder, 0), (Encoder, 2)):
        model = kind(config(window=3, layers=1, positions="none")).double().eval()
        text = tokens(1, 11)
        changed = text.clone()
        changed[0, 5] = (changed[0, 5] + 1) % 53
        moved = ((model(text) - model(changed)).abs().amax(-1)[0] > 1e-9).nonzero().flatten().tolist()
        assert moved == list(range(5 - ahead, 5 + 3))


def test_pad_queries_attend_to_nothing():
    """So that right padding under a causal mask needs no mask at all."""
    seen = []
    model = Decoder(config())
    model.decoder.layers[0].self_attention.observer = seen.append
    model(tokens(2, 7), mask=Mask.padding([7, 3]))
    assert seen[0].weights()[1, :, 3:].abs().sum() == 0
    assert seen[0].weights()[1, :, :3].sum(-1).allclose(torch.ones(1))


def test_pad_queries_flag_of_a_context_mask_says_nothing_about_the_target():
    model = EncoderDecoder(config()).eval()
    source, target = tokens(2, 7), tokens(2, 5)
    context = model.encode(source, Mask.padding([7, 2]))
    plain = model.decode(target, context, context_mask=Mask.padding([7, 2]))
    flagged = model.decode(target, context, context_mask=Mask.padding([7, 2], queries=True))
    assert torch.equal(plain, flagged)


def test_positions_where_they_mean_nothing_are_refused():
    for kind in ("alibi", "relative", "none"):
        with pytest.raises(ShapeError, match=f"no effect in a model with positions='{kind}'"):
            Encoder(config(positions=kind))(tokens(1, 3), positions=torch.arange(3))


def test_embeddings_are_dropped_out_too():
    model = Encoder(config(dropout=0.5, attention_dropout=0.0))
    torch.manual_seed(0)
    placed, _ = model.encoder._add_positions(torch.ones(1, 7, 24), None, None, 0)
    assert 0.3 < (placed == 0).float().mean() < 0.7


def test_what_is_added_to_the_residual_is_calm_in_deep_models():
    torch.manual_seed(0)
    deep, shallow = (Encoder(config("tiny", layers=n, width=96)) for n in (8, 2))
    for part in ("self_attention.to_out", "feedforward.down"):
        sizes = [m.encoder.layers[0].get_submodule(part).weight.std() for m in (deep, shallow)]
        assert (sizes[1] / sizes[0]).item() == pytest.approx(2.0, rel=0.1)


def test_double_models_get_positions_in_double():
    for positions in ("sinusoidal", "rotary"):
        single = Encoder(config(positions=positions)).eval()
        double = Encoder(config(positions=positions)).double().eval()
        double.load_state_dict(single.state_dict())
        stack = double.encoder
        found = stack.positions(torch.arange(5), torch.float64)
        assert all(t.dtype == torch.float64 for t in (found if isinstance(found, tuple) else (found,)))
        assert (double(tokens(1, 7)) - single(tokens(1, 7))).abs().max() < 1e-5


def test_models_can_be_pickled_by_those_who_must():
    import pickle

    for changes in ({"positions": "relative"}, {"activation": "gelu_tanh"}):
        model = Encoder(config(**changes)).eval()
        again = pickle.loads(pickle.dumps(model))
        assert torch.equal(again(tokens(1, 3)), model(tokens(1, 3)))


@pytest.mark.parametrize("changes", [{}, {"norm_first": False}, {"positions": "rotary", "layers": 1}])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_hidden_states_of_chosen_places_are_those_of_all(changes, checkpointing):
    torch.manual_seed(1)
    model = Encoder(ModelConfig.named("tiny", vocabulary=11, **changes)).eval()
    model.checkpointing = checkpointing
    tokens, mask = torch.randint(11, (2, 7)), Mask.padding([7, 5], queries=True)
    places = torch.tensor([[0, 6, 3], [4, 4, 1]])
    whole = model(tokens, mask=mask)
    expected = torch.stack([row[chosen] for row, chosen in zip(whole, places, strict=True)])
    torch.testing.assert_close(model(tokens, mask=mask, places=places), expected)
