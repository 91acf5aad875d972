"""inference_view: own module objects over the same weights; nothing on the original changes."""

import torch
from torch import nn

from clearhead import Decoder, ModelConfig, ablate, watch
from clearhead.model.inference_view import inference_view


def small() -> Decoder:
    torch.manual_seed(0)
    return Decoder(ModelConfig.named("tiny", vocabulary=11, width=12, heads=3, feedforward=13, dropout=0.5))


TOKENS = torch.tensor([[1, 2, 3, 4, 5]])


def test_it_computes_the_same_in_evaluation_mode_while_the_original_trains():
    model = small()
    view = inference_view(model)
    assert model.training
    assert not any(part.training for part in view.modules())
    assert torch.equal(view(TOKENS), view(TOKENS))
    assert torch.equal(view(TOKENS), model.eval()(TOKENS))


def test_weights_are_shared_also_those_that_are_replaced_later():
    model = small()
    view = inference_view(model)
    assert list(map(id, view.parameters())) == list(map(id, model.parameters()))
    model.vocabulary.words.weight = nn.Parameter(torch.zeros(11, 12))
    assert view.vocabulary.words.weight is model.vocabulary.words.weight


def test_a_module_that_is_used_twice_is_cloned_once():
    shared = nn.Linear(3, 3)
    view = inference_view(nn.Sequential(shared, nn.ReLU(), shared))
    assert view[0] is view[2]
    assert view[0] is not shared


def test_what_is_hooked_or_set_later_stays_on_its_own_side():
    model, calls = small(), []
    model.decoder.register_forward_hook(lambda *_: calls.append("before"))
    view = inference_view(model)
    model.decoder.register_forward_hook(lambda *_: calls.append("on the original"))
    view.decoder.register_forward_hook(lambda *_: calls.append("on the view"))
    view(TOKENS)
    assert calls == ["before", "on the view"]
    view.decoder.layers[0].self_attention.observer = calls.append
    assert model.decoder.layers[0].self_attention.observer is None


def test_a_watch_hears_views_that_are_made_within_it():
    model = small().eval()
    with watch(model) as record:
        inference_view(model)(TOKENS)
    with watch(model) as usual:
        model(TOKENS)
    assert torch.equal(record["decoder.1.self"].map, usual["decoder.1.self"].map)
    assert record.calls[0].ids["tokens"].tolist() == TOKENS.tolist()


def test_heads_that_are_switched_off_are_off_in_views_made_then():
    model = small().eval()
    with ablate(model, {"decoder.0.self": [1]}):
        view = inference_view(model)
        quiet = model(TOKENS)
    assert torch.equal(view(TOKENS), quiet)
    assert not torch.equal(model(TOKENS), quiet)


def test_compiled_parts_run_as_plain_python():
    def refuse(*_: object) -> None:
        raise AssertionError("this would have been compiled")

    model = small().eval()
    wanted = model(TOKENS)
    model.decoder.layers[0].compile(backend=refuse)
    model.decoder.layers[1] = torch.compile(model.decoder.layers[1], backend=refuse)
    assert torch.equal(inference_view(model)(TOKENS), wanted)
    assert torch.equal(inference_view(torch.compile(model, backend=refuse))(TOKENS), wanted)
