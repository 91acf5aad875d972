"""watch() on Hugging Face models: what it leaves behind, who may watch together, and what is refused."""

import contextlib
import copy
import copyreg
import io
import pickle
import threading
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from clearhead.errors import LensError
from clearhead.lens import ablate, hide
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.huggingface import find_attentions
from tests.lens.huggingface_zoo import FAMILIES, assert_sees, eager_weights, inputs, made, tokens, wrapped_attention
from tests.lens.test_interrupted_passes import InterruptionByUser, watch_failing
from tests.model.checkpoints import BERT, shaken


def state(model: nn.Module) -> Any:
    """Everything that a watch could leave behind on a model, and on the interface that all models share."""
    hooks = [
        (sorted(vars(module)), len(module._forward_pre_hooks), len(module._forward_hooks)) for module in model.modules()
    ]
    return hooks, model.config._attn_implementation, sorted(vars(ALL_ATTENTION_FUNCTIONS)), type(model).forward


def note_run(module: nn.Module, args: Any, output: Any) -> None:
    """A hook of the user's own."""


def assert_same_record(record: Any, other: Any) -> None:
    assert record.names == other.names
    assert all(torch.equal(record[name].map, other[name].map) for name in record.names)


@pytest.mark.parametrize("family", ["bert", "llama", "marian", "clip"])
def test_everything_is_as_before_afterwards(family):
    model = made(family)
    before = state(model)
    with watch(model):
        model(**inputs(family))
        assert state(model) != before
    assert state(model) == before


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_everything_is_as_before_after_an_exception(family):
    model, given = made(family), inputs(family)
    before = state(model)

    class Interruption(BaseException):
        pass

    def fail(*_: Any) -> None:
        raise Interruption

    hook = list(find_attentions(model).values())[1].register_forward_hook(fail)
    with pytest.raises(Interruption), watch(model):
        model(**given)
    hook.remove()
    assert state(model) == before
    with watch(model) as record:
        model(**given)
    assert len(record.calls) == 1


def test_a_pass_that_fails_is_followed_by_one_of_its_own():
    model = made("llama")
    with watch(model) as record:
        model(tokens(7), use_cache=False)
        with pytest.raises(IndexError):
            model(torch.full((1, 5), 31))
        model(tokens(11), use_cache=False)
    assert [call["decoder.0.self"].keys for call in record.calls if "decoder.0.self" in call] == [7, 11]


@torch.no_grad()
def test_watches_can_be_nested():
    model, given = made("bert"), inputs("bert")
    with watch(model) as outer:
        with watch(model, layers="encoder.1.self") as inner:
            model(**given)
        model(**given)
    assert inner.names == ["encoder.1.self"]
    assert [call.names for call in outer.calls] == [FAMILIES["bert"].names] * 2
    assert torch.equal(inner["encoder.1.self"].map, outer.calls[1]["encoder.1.self"].map)


@torch.no_grad()
def test_watches_may_leave_in_any_order():
    model, given = made("llama"), inputs("llama")
    first, second = watch(model), watch(model)
    one, other = first.__enter__(), second.__enter__()
    model(**given)
    first.__exit__(None, None, None)
    model(**given)
    second.__exit__(None, None, None)
    assert len(one.calls) == 1
    assert len(other.calls) == 2
    assert state(model)[2] == ["_local_mapping"]


@torch.no_grad()
def test_threads_are_kept_apart():
    model, texts = made("llama"), [tokens(7), tokens(11), tokens(13)]
    barrier = threading.Barrier(3)

    def run(text: Tensor) -> None:
        barrier.wait()
        for _ in range(3):
            model(text, use_cache=False)

    with watch(model) as record:
        threads = [threading.Thread(target=torch.no_grad()(run), args=(text,)) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(call["decoder.1.self"].keys for call in record.calls) == [7] * 3 + [11] * 3 + [13] * 3
    for call in record.calls:
        text = call.ids["tokens"]
        weights = eager_weights(model, {"input_ids": text}, FAMILIES["llama"].names)
        assert_sees(call["decoder.1.self"], weights["decoder.1.self"])


@torch.no_grad()
def test_other_threads_that_generate_are_ignored_by_a_watch_of_its_own_thread():
    model, barrier = made("llama"), threading.Barrier(2)

    def generate() -> None:
        barrier.wait()
        model.generate(tokens(5), max_new_tokens=7, num_beams=2, do_sample=False, pad_token_id=0)

    with watch(model, own_thread=True) as record:
        other = threading.Thread(target=generate)
        other.start()
        barrier.wait()
        for _ in range(3):
            model(tokens(11), use_cache=False)
        other.join()
    assert [call["decoder.1.self"].keys for call in record.calls] == [11] * 3
    with watch(model) as alone:
        model(tokens(11), use_cache=False)
    assert all(torch.equal(call["decoder.0.self"].map, alone["decoder.0.self"].map) for call in record.calls)


@torch.no_grad()
def test_another_model_of_the_same_family_is_not_seen():
    model, other = made("bert"), shaken(transformers.BertModel(transformers.BertConfig(**BERT)))
    with watch(model) as record:
        model(**inputs("bert"))
        other(tokens(13))
    assert [call["encoder.0.self"].keys for call in record.calls] == [11]


@torch.no_grad()
def test_a_copy_made_while_it_is_watched_is_not():
    model, given = made("llama"), inputs("llama")
    with watch(model) as record:
        other = copy.deepcopy(model)
        model(**given)
        wanted = model(**given).logits
        assert torch.equal(other(**given).logits, wanted)
    assert len(record.calls) == 2
    assert torch.equal(other(**given).logits, wanted)


def save_and_load(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    assert b"clearhead" not in file.getvalue()
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickle_and_load(model: nn.Module) -> nn.Module:
    data = pickle.dumps(model)
    assert b"clearhead" not in data
    return pickle.loads(data)


@torch.no_grad()
@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickle_and_load, save_and_load])
def test_a_copy_made_in_use_has_nothing_of_the_lens_and_can_be_watched_itself(copied):
    model, given = FAMILIES["llama"].make(), inputs("llama")
    model.model.layers[0].register_forward_hook(note_run)
    wanted, before, table = model(**given).logits, state(model), dict(copyreg.dispatch_table)
    with ablate(model, {"decoder.0.self": [1]}), hide(model, {"tokens": [2]}), watch(model):
        model(**given)
        other = copied(model)
    assert copyreg.dispatch_table == table
    assert state(other) == before, "something of the lens is in the copy, or of the user is not"
    assert torch.equal(other(**given).logits, wanted)
    with watch(other) as record:
        other(**given)
    assert record.names == FAMILIES["llama"].names
    assert state(other) == before


@torch.no_grad()
def test_a_model_inside_any_other_can_be_watched():
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert, self.head = made("bert"), nn.Linear(21, 2)

        def forward(self, text: Tensor) -> Any:
            return self.head(self.bert(text).pooler_output)

    with watch(model := Classifier()) as record:
        model(tokens())
    assert record.names == FAMILIES["bert"].names


@torch.no_grad()
def test_a_part_of_a_model_can_be_called_by_itself():
    model = made("marian")
    with watch(model) as record:
        hidden = model.get_encoder()(tokens()).last_hidden_state
        model.get_decoder()(input_ids=tokens(7), encoder_hidden_states=hidden, use_cache=False)
    names = [name for call in record.calls for name in call.names]
    assert names == FAMILIES["marian"].names


@torch.no_grad()
def test_the_fused_kernel_stays_in_use():
    model = shaken(transformers.LlamaModel(transformers.LlamaConfig(**{**vars_of("llama"), "num_key_value_heads": 6})))
    with torch.profiler.profile() as unwatched:
        model(tokens(), use_cache=False)
    with watch(model), torch.profiler.profile() as watched:
        model(tokens(), use_cache=False)
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    counts = [sum(event.name == fused for event in profile.events()) for profile in (unwatched, watched)]
    assert counts == [2, 2]


def vars_of(family: str) -> dict[str, Any]:
    return {name: value for name, value in made(family).config.to_dict().items() if name != "model_type"}


@torch.no_grad()
def test_no_mask_is_made_where_the_model_makes_none():
    model, masks = made("llama"), []

    def note(
        attend: Any, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        masks.append(mask)
        return attend(module, q, k, v, mask, *args, **kwargs)

    with watch(model) as record, wrapped_attention(model, note):
        model(tokens(), use_cache=False)
    assert masks == [None, None]
    weights = eager_weights(model, {"input_ids": tokens()}, FAMILIES["llama"].names)
    assert_sees(record["decoder.0.self"], weights["decoder.0.self"])


def test_gradients_are_the_same_and_recomputed_layers_are_seen_once():
    model, given = made("llama"), inputs("llama")
    model.gradient_checkpointing_enable()
    model.train()
    try:
        model(**given, labels=given["input_ids"]).loss.backward()
        wanted = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        with watch(model) as record:
            model(**given, labels=given["input_ids"]).loss.backward()
        assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), wanted, strict=True))
    finally:
        model.zero_grad()
        model.eval()
        model.gradient_checkpointing_disable()
    assert len(record.calls) == 1
    assert record["decoder.0.self"].entropy.shape == (3, 6, 11)


@torch.no_grad()
def test_packed_texts_do_not_see_each_other():
    model = made("llama")
    starts = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]])
    given = {"input_ids": tokens()[:1], "position_ids": starts, "use_cache": False}
    with watch(model) as record:
        model(**given)
    for name, weights in eager_weights(model, given, FAMILIES["llama"].names).items():
        assert_sees(record[name], weights)
    assert record["decoder.0.self"].map[0, :, 4:, :4].abs().max() == 0


@torch.no_grad()
def test_a_mask_of_ones_own_is_seen_as_it_is():
    model, mask = made("llama"), torch.rand(3, 1, 11, 11, generator=torch.Generator().manual_seed(0)) < 0.5
    mask |= torch.eye(11, dtype=torch.bool)
    with watch(model) as record:
        model(tokens(), attention_mask=mask, use_cache=False)
    added = torch.zeros(3, 1, 11, 11).masked_fill(~mask, torch.finfo(torch.float32).min)
    given = {"input_ids": tokens(), "attention_mask": added}
    for name, weights in eager_weights(model, given, FAMILIES["llama"].names).items():
        assert_sees(record[name], weights)


@torch.no_grad()
def test_layers_that_share_their_weights_are_distinguished():
    config = transformers.AlbertConfig(**{**BERT, "embedding_size": 13, "num_hidden_layers": 3})
    model = shaken(transformers.AlbertModel(config))
    names = ["encoder.0.self", "encoder.0.self:2", "encoder.0.self:3"]
    with watch(model) as record:
        model(tokens())
    assert record.names == names
    for name, weights in eager_weights(model, {"input_ids": tokens()}, names).items():
        assert_sees(record[name], weights)


@torch.no_grad()
def test_wraps_go_around_the_models_own_function_and_its_result_is_used():
    model, given, order = made("bert"), inputs("bert"), []

    def noted(name: str) -> Any:
        def wrap(attend: Any, *args: Any, **kwargs: Any) -> Any:
            order.append(name)
            out, weights = attend(*args, **kwargs)
            return out * 2, weights

        return wrap

    before = model(**given).last_hidden_state
    with wrapped_attention(model, noted("outer")), wrapped_attention(model, noted("inner")):
        assert not torch.equal(model(**given).last_hidden_state, before)
    assert order == ["outer", "inner"] * 2
    assert torch.equal(model(**given).last_hidden_state, before)


REFUSED = {
    "BloomModel": transformers.BloomConfig(vocab_size=31, hidden_size=21, n_head=3, n_layer=2),
    "DebertaModel": transformers.DebertaConfig(**BERT),
    "GPTJModel": transformers.GPTJConfig(vocab_size=31, n_embd=24, n_head=3, n_layer=2, rotary_dim=4),
    "XLNetModel": transformers.XLNetConfig(vocab_size=31, d_model=21, n_head=3, n_layer=2, d_inner=37),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_attends_by_itself_is_refused_with_the_way_out(name):
    model = getattr(transformers, name)(REFUSED[name])
    with pytest.raises(LensError, match=rf"{name} computes its attention itself.*Attention\).*clearhead.measure"):
        watch(model).__enter__()


def test_a_model_without_attention_is_refused():
    config = transformers.FNetConfig(vocab_size=31, hidden_size=21, num_hidden_layers=1, intermediate_size=37)
    with pytest.raises(LensError, match="FNetModel holds no attention that can be watched"):
        watch(transformers.FNetModel(config)).__enter__()


def _siglip() -> Any:
    sizes = {"hidden_size": 21, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 37}
    config = transformers.SiglipVisionConfig(**sizes, image_size=15, patch_size=5)
    return transformers.SiglipVisionModel(config).eval()


@torch.no_grad()
def test_attentions_that_cannot_be_recorded_are_named():
    model = _siglip()
    with (
        pytest.warns(UserWarning, match=r"not all attentions of SiglipVisionModel.*head.attention"),
        watch(model) as record,
    ):
        model(**{name: value.float() for name, value in inputs("vit").items()})
    assert record.names == ["encoder.0.self", "encoder.1.self"]


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:not all attentions")
def test_a_run_without_any_watchable_attention_is_an_error():
    model, given = _siglip(), {name: value.float() for name, value in inputs("vit").items()}
    layers, model.encoder.layers = model.encoder.layers, nn.ModuleList()
    model.spare = layers
    with pytest.raises(LensError, match=r"ran, but none of its 2 attentions .* called"), watch(model):
        model(**given)


def test_names_that_are_not_there_are_refused_with_the_nearest():
    with pytest.raises(LensError, match=r"'decoder.2.crow'.*'decoder.2.cross'"):
        watch(made("marian"), layers="decoder.2.crow").__enter__()
    with pytest.raises(LensError, match="has heads 0 to 2, not 3"):
        watch(made("bert"), heads=[3]).__enter__()


def test_a_list_of_layers_is_refused_since_it_is_never_called():
    model = made("mistral")
    with pytest.raises(LensError, match=r"a ModuleList is never called itself.*layers="), watch(model.model.layers):
        raise AssertionError("it was let in")
    both = nn.ModuleList([model, made("bert")])
    with torch.no_grad(), watch(both) as record:
        both[1](**inputs("bert"))
    assert len(record.calls) == 1


@torch.no_grad()
@pytest.mark.parametrize("keep", ["none", "statistics"])
def test_a_step_of_generate_that_raises_marks_its_call_and_counts_in_no_statistics(keep):
    model, options = made("llama"), {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    warning = r"^1 forward pass .*\(MemoryError: none left\).*statistics"
    with watch_failing(model, 3, MemoryError("none left"), warning, keep=keep) as record:
        with contextlib.suppress(MemoryError):
            model.generate(tokens(7), **options)
        model.generate(tokens(11), **options)
    assert {int(one.queries[0]) for one in record.statistics().values()} == {3 * (11 + 4)}
    if keep == "none":
        assert [call.interrupted for call in record.calls] == ["MemoryError: none left", None]
        assert [call["decoder.0.self"].keys for call in record.calls] == [9, 15]


@torch.no_grad()
@pytest.mark.parametrize("keep", ["none", "statistics"])
def test_an_interrupted_generate_does_not_go_on_with_the_encoder_of_the_next_text(keep):
    model, options = made("bart"), {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    with watch_failing(model.model, 5, InterruptionByUser(), r"^1 forward pass", keep=keep) as record:
        for length in (5, 7, 11):
            with contextlib.suppress(InterruptionByUser):
                model.generate(tokens(length), **options)
    counts = {name: int(found.queries[0]) for name, found in record.statistics().items()}
    assert counts["encoder.0.self"] == counts["encoder.1.self"] == 3 * (5 + 11)
    assert counts["decoder.0.self"] == counts["decoder.1.cross"] == 3 * (3 + 3)
    if keep == "none":
        assert [call.interrupted is None for call in record.calls] == [True, False, True]


@torch.no_grad()
@pytest.mark.parametrize("error", [MemoryError(), InterruptionByUser()], ids=repr)
def test_a_loop_that_goes_on_with_a_cropped_cache_after_an_exception_begins_a_call(error):
    model, text, cache, end = made("llama"), tokens(13), transformers.DynamicCache(), 7
    with watch_failing(model, 4, error, r"record.calls\[0\]$") as record:
        model(text[:, :end], past_key_values=cache)
        while end < 13:
            try:
                model(text[:, end : end + 1], past_key_values=cache)
                end += 1
            except type(error):
                cache.layers[0].crop(-1)
    assert [call.interrupted is None for call in record.calls] == [False, True]
    assert record.calls[1]["decoder.1.self"].queries.tolist() == [9, 10, 11, 12]
    weights = eager_weights(model, {"input_ids": text}, FAMILIES["llama"].names)
    assert_sees(record.calls[1]["decoder.1.self"], weights["decoder.1.self"][:, :, 9:], first=9)
