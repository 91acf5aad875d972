"""Tokens hidden in every layer, against the same model with a mask over their keys."""

import copy
from typing import Any

import pytest
import torch
import transformers

from clearhead import Decoder, KeyValueCache, Mask, ModelConfig, MultiHeadAttention, hide, watch
from clearhead.decode import Writer, beam, greedy
from clearhead.errors import LensError
from clearhead.lens.analysis.ablation import ablate
from clearhead.model import PointerGenerator
from tests.decode.models import END, KINDS, SMALL, START, VOCABULARY, continuer, decided, sources, translator
from tests.lens.huggingface_zoo import implementation, made, tokens

WORDS = {"start": START, "end": END, "max_length": 6}


def mask_of(keys: int, positions: list[int]) -> Mask:
    return Mask.hidden(torch.isin(torch.arange(keys), torch.tensor(positions)).view(1, 1, 1, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_as_if_a_mask_hid_these_keys_of_the_source(kind):
    model, (source, _) = translator(kind).eval(), sources(5)
    target, places = source.flip(1)[:, :5], [1, 4]
    with torch.no_grad():
        whole, want = model(source, target), model(source, target, mask_of(7, places))
        with hide(model, {"source": places}):
            found = model(source, target)
        after = model(source, target)
    assert torch.equal(found, want)
    assert not torch.equal(found, whole)
    assert torch.equal(after, whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # in float32 the writer has a quick way of its own
def test_a_decoder_goes_on_without_them_step_by_step_with_its_cache(dtype):
    model, prompt = continuer("modern", dtype).eval(), [5, 9, 14, 7, 3]
    with hide(model, {"tokens": [1, 3, 6]}):
        found = greedy(Writer.continuing(model, [prompt]), end=END, max_length=6)[0].tokens
        cache = KeyValueCache()
        stepwise = [model(torch.tensor([[token]]), cache=cache)[0, 0] for token in prompt + found]
    whole = torch.tensor([prompt + found])
    with torch.no_grad():
        hidden = model(whole, mask=mask_of(whole.shape[1], [1, 3, 6]))
    torch.testing.assert_close(torch.stack(stepwise), hidden[0])
    assert model.logits(hidden)[0, len(prompt) - 1 : -1].argmax(-1).tolist() == found
    assert not torch.allclose(model(whole), hidden)


def test_beams_are_written_without_the_hidden_source_words():
    model, (source, _) = translator("classic").eval(), sources(1)
    with hide(model, {"source": [1, 4]}):
        found = beam(Writer.translating(model, source, [7]), beams=3, **WORDS)
        again = model.eval()(source, torch.tensor([[START, *found[0][0].tokens]]))
    want = model(source, torch.tensor([[START, *found[0][0].tokens]]), mask_of(7, [1, 4]))
    assert torch.equal(again, want)
    assert found != beam(Writer.translating(model, source, [7]), beams=3, **WORDS)


def test_what_is_hidden_is_not_copied_either():
    torch.manual_seed(3)
    settings = {**SMALL, "copying": True}
    model = decided(PointerGenerator(ModelConfig.named("tiny", vocabulary=VOCABULARY, **settings))).double().eval()
    source, target = torch.tensor([[3, 17, 5, 11]]), torch.tensor([[START, 3]])
    with torch.no_grad():
        with hide(model, {"source": [1]}):
            found, copied = model.token_scores(source, target), copy.deepcopy(model).token_scores(source, target)
        want, whole = model.token_scores(source, target, mask_of(4, [1])), model.token_scores(source, target)
    assert torch.equal(found, want)
    assert torch.equal(copied, whole)  # a copy is another model
    assert not torch.equal(found, whole)


def test_several_add_up_with_heads_and_names_and_a_row_that_sees_nothing_is_zero():
    model, ids = continuer("classic").eval(), torch.tensor([[5, 9, 14]])
    with torch.no_grad():
        with hide(model, {"tokens": 2}), hide(model, {"decoder.0.self": [0]}), ablate(model, {"decoder.1.self": [2]}):
            with watch(model, keep="qk") as record:
                found = model(ids)
            weights = [record[name].weights(0) for name in ("decoder.0.self", "decoder.1.self")]
        layer = model.decoder.layers[0].self_attention
        assert layer.hidden_keys is None
    assert (weights[0][:, :, [0, 2]] == 0).all()
    assert (weights[0][:, 0] == 0).all()  # it sees only itself, and that is hidden
    assert (weights[1][:, :, 2] == 0).all()
    assert (weights[1][:, 1, 0] > 0).all()
    assert found.isfinite().all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"source": [1]}, "does not read a text 'source'; it reads 'tokens'"),
        ({"decoder.9.self": [0]}, "no attention of this model is called"),
        ({"tokens": [True]}, "whole numbers or slices, got True"),
        ({"tokens": [1.0]}, "whole numbers or slices, got 1.0"),
        ({"tokens": slice(0, 5, -1)}, r"positive step, got slice\(0, 5, -1\)"),
        ({"tokens": slice(0.5)}, r"whole numbers and a positive step, got slice\(None, 0.5, None\)"),
        ({("decoder.0.self", 1): [0]}, r"a key must be one name.* got \('decoder.0.self', 1\)"),
        ({"tokens": slice(0, 5, 0)}, "positive step"),
    ],
)
def test_what_cannot_be_hidden_is_refused_in_one_line(wrong, message):
    model = Decoder(ModelConfig.named("tiny", vocabulary=11))
    with pytest.raises(LensError, match=message), hide(model, wrong):
        pass
    assert all(part.hidden_keys is None for part in model.modules() if isinstance(part, MultiHeadAttention))


PLACES = [  # as Python indexes seven tokens
    (slice(2, 5), [2, 3, 4]),
    (slice(-2, None), [5, 6]),
    (slice(1, -1, 2), [1, 3, 5]),
    (slice(None, -9), []),
    (slice(4, 99), [4, 5, 6]),
    ([-1, 0, -7, slice(2, 4)], [0, 2, 3, 6]),
    (-3, [4]),
]


@pytest.mark.parametrize(("given", "places"), PLACES)
def test_slices_and_negative_positions_are_those_of_pythons_indexing(given, places):
    model, (source, _) = translator("classic").eval(), sources(5)
    with torch.no_grad():
        want = model(source, source, mask_of(7, places))
        with hide(model, {"source": given}):
            assert torch.equal(model(source, source), want)


@pytest.mark.parametrize("given", [[-2], slice(-2, -1), slice(3, 4)])
def test_what_counts_from_the_end_of_a_prompt_stays_there_while_the_model_writes(given):
    model, options = continuer("modern").eval(), {"end": END, "max_length": 6}
    with hide(model, {"tokens": [3]}):
        want = beam(Writer.continuing(model, [[5, 9, 14, 7, 3]]), beams=2, **options)
    with hide(model, {"tokens": given}):
        found = beam(Writer.continuing(model, [[5, 9, 14, 7, 3]]), beams=2, **options)
    assert found == want != beam(Writer.continuing(model, [[5, 9, 14, 7, 3]]), beams=2, **options)


def test_a_slice_without_end_hides_what_is_written_too():
    model, prompt = continuer("modern").eval(), [5, 9, 14, 7, 3]
    with hide(model, {"tokens": slice(-1, None)}), watch(model, keep="qk") as record:
        greedy(Writer.continuing(model, [prompt]), end=END, max_length=4)
    weights = record["decoder.0.self"].weights(0)
    assert weights.shape[-1] > 5
    assert not weights[..., 4:].any()
    assert weights[..., :4].any()


def test_a_position_that_no_text_has_is_refused_with_the_number_of_tokens():
    model = Decoder(ModelConfig.named("tiny", vocabulary=11)).eval()
    short, long = torch.randint(11, (1, 3)), torch.randint(11, (1, 7))
    with pytest.raises(LensError, match="no token -4 of 'tokens', which has 3"), hide(model, {"tokens": [-4]}):
        model(short)
    refused = pytest.raises(LensError, match="no token 7 of 'tokens' to hide: the longest text had 7")
    with refused, hide(model, {"tokens": [1, 7]}):
        model(short), model(long)
    with hide(model, {"tokens": [6]}):
        model(short), model(long)
    with hide(model, {"tokens": [6]}):  # nothing ran
        pass


# Hugging Face


def padded(model: Any, ids: torch.Tensor, places: list[int], **more: Any) -> torch.Tensor:
    """What the model gives if its own padding mask hides these keys."""
    real = ~torch.isin(torch.arange(ids.shape[1]), torch.tensor(places)).expand(ids.shape)
    return model(input_ids=ids, attention_mask=real.long(), **more)[0]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "marian"])
def test_a_hugging_face_model_is_as_if_its_padding_mask_hid_them(family, attention):
    model, ids, places = made(family, attention), tokens(), [2, 5]
    both = {"decoder_input_ids": tokens(7)} if model.config.is_encoder_decoder else {}
    more = {} if family in ("bert", "t5", "marian") else {"position_ids": torch.arange(ids.shape[1])[None]}
    text = "source" if both else "tokens"
    with torch.no_grad():
        whole, want = model(input_ids=ids, **both, **more)[0], padded(model, ids, places, **both, **more)
        with hide(model, {text: places}):
            found = model(input_ids=ids, **both, **more)[0]
            with hide(model, {text: [3]}):
                assert not torch.equal(model(input_ids=ids, **both, **more)[0], found)
            assert torch.equal(model(input_ids=ids, **both, **more)[0], found)
        assert torch.equal(model(input_ids=ids, **both, **more)[0], whole)
    torch.testing.assert_close(found, want)
    assert not torch.allclose(found, whole)


@pytest.mark.parametrize("family", ["llama", "gemma2", "marian"])  # gemma2's cache slides
def test_hugging_face_generates_with_a_cache_as_without_one(family):
    model = made(family)
    text = "source" if model.config.is_encoder_decoder else "tokens"
    options = {"do_sample": False, "max_new_tokens": 7, "return_dict_in_generate": True, "output_scores": True}
    with hide(model, {text: [2, 5]}):
        found = [model.generate(tokens(), use_cache=use, **options) for use in (True, False)]
    # Sums in another order: rounding errors of float32 grow through the layers and the steps.
    torch.testing.assert_close(torch.stack(found[0].scores), torch.stack(found[1].scores), rtol=1e-4, atol=1e-4)
    whole = model.generate(tokens(), **options)
    assert not torch.allclose(torch.stack(found[0].scores[:1]), torch.stack(whole.scores[:1]))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_hugging_face_prompts_keep_the_places_that_count_from_their_end(family):
    model, ids = made(family), tokens()
    options = {"do_sample": False, "max_new_tokens": 4, "return_dict_in_generate": True, "output_scores": True}
    with hide(model, {"tokens": [3, 9]}):
        want = model.generate(ids, **options)
    with hide(model, {"tokens": [-2, slice(3, -7)]}):
        found = model.generate(ids, **options)
        first = model(ids, use_cache=True)  # the model makes the cache
        again = model(found.sequences[:, 11:12], past_key_values=first.past_key_values)
    assert torch.equal(torch.stack(found.scores), torch.stack(want.scores))
    torch.testing.assert_close(again.logits[:, -1].float(), found.scores[1])
    cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(LensError, match="the cache already held 11 tokens"), hide(model, {"tokens": [-2]}):
        model(ids[:, :1], past_key_values=cache)
    with pytest.raises(LensError, match="no token -12 of 'tokens', which has 11"), hide(model, {"tokens": [-12]}):
        model(ids)
    with pytest.raises(LensError, match="no token 11 of 'tokens' to hide"), hide(model, {"tokens": [11]}):
        model(ids)


def test_a_hugging_face_row_that_sees_nothing_is_zero_and_watched_so():
    for attention in ("eager", "sdpa"):
        model = made("gpt2", attention)
        with torch.no_grad(), hide(model, {"tokens": [0]}), watch(model, keep="qk") as record:
            found = model(input_ids=tokens())[0]
        assert found.isfinite().all()
        weights = record["decoder.0.self"].weights(0)
        assert (weights[:, :, 0] == 0).all()
        assert (weights[:, 1, 1] > 0.99).all()


def test_a_function_that_takes_no_such_mask_is_named(monkeypatch):
    def own(module, query, key, value, attention_mask, **options):
        return query.transpose(1, 2), None

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "own", own)
    model = made("llama")
    refused = pytest.raises(LensError, match=r"set_attn_implementation\('sdpa'\)")
    with implementation(model, "own"), refused, hide(model, {"tokens": [0]}):
        model(input_ids=tokens())


@pytest.mark.unchecked
def test_a_compiled_model_notices_what_is_hidden_and_shown_again():
    torch.manual_seed(3)
    model = Decoder(ModelConfig.named("tiny", vocabulary=11, width=24, heads=3, layers=1)).eval()
    ids, compiled = torch.randint(11, (2, 7)), torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        before = compiled(ids)
        with hide(compiled, {"tokens": [1, 3]}):
            found = compiled(ids)
        assert torch.equal(compiled(ids), before)
        torch.testing.assert_close(found, model(ids, mask=mask_of(7, [1, 3])))
        with hide(model, {"tokens": [-6, slice(3, -3)]}):
            torch.testing.assert_close(compiled(ids), found)
    assert not torch.allclose(before, found)
