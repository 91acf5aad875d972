"""Heads switched off, against models whose part of W_O is zero."""

import copy

import pytest
import torch
from torch import Tensor, nn

from clearhead import Decoder, EncoderDecoder, KeyValueCache, Mask, ModelConfig, MultiHeadAttention
from clearhead.decode import Writer, beam
from clearhead.errors import LensError
from clearhead.lens.analysis.ablation import ablate, count_heads, head_effects
from clearhead.lens.analysis.roles import HeadRole
from tests.decode.models import END, KINDS, START, sources, translator

CHOSEN = {"encoder.1.self": [5], "decoder.0.self": [0, 3], "decoder.1.cross": [2, 4]}
WORDS = {"start": START, "end": END, "max_length": 6}


def without(model: nn.Module, heads: dict[str, list[int]]) -> nn.Module:
    """A copy in which the slices of W_O that belong to these heads are zero, and nothing else is changed."""
    copied = copy.deepcopy(model)
    for name, numbers in heads.items():
        stack, layer, kind = name.split(".")
        attention = getattr(getattr(copied, stack).layers[int(layer)], f"{kind}_attention")
        with torch.no_grad():
            for head in numbers:
                d = attention.value_head_dim
                attention.to_out.weight[:, head * d : (head + 1) * d] = 0
    return copied


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_as_if_their_part_of_the_output_map_were_zero(kind):
    model, (source, lengths) = translator(kind, torch.float32).eval(), sources(5)
    target = source.flip(1)
    with torch.no_grad():
        whole, want = (
            model(source, target, Mask.padding(lengths)),
            without(model, CHOSEN)(source, target, Mask.padding(lengths)),
        )
        with ablate(model, CHOSEN):
            found = model(source, target, Mask.padding(lengths))
        after = model(source, target, Mask.padding(lengths))
    assert torch.equal(found, want)
    assert not torch.equal(found, whole)
    assert torch.equal(after, whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # in float32 the writer has a quick way of its own
def test_beams_and_their_cache_are_written_without_them(dtype):
    model, (source, lengths) = translator("classic", dtype).eval(), sources(5)
    whole = beam(Writer.translating(model, source, lengths), beams=3, **WORDS)
    want = beam(Writer.translating(without(model, CHOSEN), source, lengths), beams=3, **WORDS)
    with ablate(model, CHOSEN):
        found = beam(Writer.translating(model, source, lengths), beams=3, **WORDS)
    assert found == want != whole


def test_a_writer_that_has_begun_goes_on_without_them():
    model, (source, lengths) = translator("classic", torch.float32).eval(), sources(3)
    writer, other = Writer.translating(model, source, lengths), Writer.translating(model, source, lengths)
    writer.begin(START), other.begin(START)
    with ablate(model, CHOSEN):
        found = writer.advance(torch.tensor([7, 8, 9]))
    assert not torch.equal(found, other.advance(torch.tensor([7, 8, 9])))


def test_steps_with_a_cache_give_what_one_pass_gives():
    torch.manual_seed(2)
    model = Decoder(ModelConfig.named("tiny", vocabulary=11, width=24, heads=3)).eval().double()
    tokens = torch.randint(11, (2, 7))
    with torch.no_grad(), ablate(model, {"decoder.0.self": [1], "decoder.1.self": [0, 2]}):
        whole, cache = model(tokens), KeyValueCache()
        steps = torch.cat([model(tokens[:, n : n + 1], cache=cache) for n in range(7)], 1)
    torch.testing.assert_close(steps, whole)


def test_gradients_are_those_of_a_model_without_them():
    model, (source, _) = translator().eval(), sources(3)
    other = without(model, CHOSEN)
    with ablate(model, CHOSEN):
        model(source, source)[..., 3:].square().sum().backward()
    other(source, source)[..., 3:].square().sum().backward()
    values = dict(other.named_parameters())
    for name, parameter in model.named_parameters():
        if "to_out.weight" not in name:  # there what is zero has a gradient, and what is ablated has none
            assert torch.equal(parameter.grad, values[name].grad), name
    ablated = model.decoder.layers[0].self_attention.to_out.weight.grad
    assert not ablated[:, :4].any()
    assert ablated[:, 4:8].any()


def test_a_head_that_gives_no_numbers_can_be_switched_off():
    attention, x = MultiHeadAttention(6, 2), torch.randn(1, 3, 6)
    with torch.no_grad():
        attention.projections()[2][3:] = torch.inf
        assert attention(x).isnan().any()
        with ablate(attention, {"attention": [1]}):
            assert attention(x).isfinite().all()


def test_nested_ones_add_up_and_are_undone_one_by_one():
    model, (source, _) = translator().eval(), sources(3)
    one, two = {"encoder.0.self": [1]}, {"encoder.0.self": [4], "decoder.1.cross": [0]}
    both = {"encoder.0.self": [1, 4], "decoder.1.cross": [0]}
    with torch.no_grad():
        want_one, want_both = without(model, one)(source, source), without(model, both)(source, source)
        with ablate(model, one):
            with ablate(model, two):
                assert torch.equal(model(source, source), want_both)
            assert torch.equal(model(source, source), want_one)


def test_two_that_leave_in_any_order_leave_nothing_behind():
    """As two threads may."""
    model, (source, _) = translator().eval(), sources(3)
    one, two = ablate(model, {"encoder.0.self": [1]}), ablate(model, {"encoder.0.self": [1, 4]})
    with torch.no_grad():
        whole, want = model(source, source), without(model, {"encoder.0.self": [1, 4]})(source, source)
        one.__enter__(), two.__enter__()
        one.__exit__(None, None, None)
        assert torch.equal(model(source, source), want)
        two.__exit__(None, None, None)
        assert torch.equal(model(source, source), whole)


def test_it_is_undone_after_an_exception():
    model = translator()
    with pytest.raises(KeyError), ablate(model, CHOSEN):
        raise KeyError
    assert all(part.ablated_heads is None for part in model.modules() if isinstance(part, MultiHeadAttention))
    with pytest.raises(LensError), ablate(model, {"encoder.0.self": [1], "encoder.9.self": [0]}):
        pass
    assert all(part.ablated_heads is None for part in model.modules() if isinstance(part, MultiHeadAttention))


def test_it_leaves_nothing_in_the_state():
    model = translator()
    names = list(model.state_dict())
    with ablate(model, CHOSEN):
        assert list(model.state_dict()) == names


@pytest.mark.unchecked
def test_a_compiled_model_notices_when_they_go_and_when_they_come_back():
    torch.manual_seed(3)
    model = Decoder(ModelConfig.named("tiny", vocabulary=11, width=24, heads=3, layers=1)).eval()
    tokens, one, two = torch.randint(11, (2, 7)), {"decoder.0.self": [0, 1]}, {"decoder.0.self": [2]}
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        before = compiled(tokens)
        with ablate(compiled, one):
            found = compiled(tokens)
        with ablate(model, two):
            other = compiled(tokens)
        after = compiled(tokens)
        torch.testing.assert_close(found, without(model, one)(tokens))
        torch.testing.assert_close(other, without(model, two)(tokens))
    assert torch.equal(before, after)
    assert not torch.equal(before, found)


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        ({"decoder.0.crss": [0]}, r"no attention .* 'decoder.0.crss'; did you mean 'decoder.0.cross'\?"),
        ({"x": [0]}, r"there are encoder.0.self, encoder.1.self, decoder.0.self"),
        ({"encoder.0.self": [6]}, "'encoder.0.self' has heads 0 to 5, not 6"),
        ({"encoder.0.self": [-7]}, "heads 0 to 5, not -7"),
        ({"encoder.0.self": slice("a", None)}, r"slice\('a', None, None\)"),
        ({"encoder.0.self": [True]}, "heads 0 to 5, not True"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(heads, words):
    with pytest.raises(LensError, match=words), ablate(translator(), heads):
        pass


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "heads",
    [
        {"encoder.0.self": 1.0},
        {"encoder.0.self": "12"},
        ["encoder.0.self"],
        "encoder.0.self",
        ["encoder.0.self", "encoder.1.self"],
        [("encoder.0.self", 1, 2)],
        3,
    ],
)
def test_what_names_no_heads_is_refused(heads):
    with pytest.raises(LensError, match="such as"), ablate(translator(), heads):
        pass


@pytest.mark.unchecked
def test_a_pair_as_a_key_of_a_dict_is_refused_with_the_remedy():
    refused = pytest.raises(LensError, match=r"\('decoder.0.self', 1\) is no key.* \[\('decoder.0.self', 1\)\]")
    with refused, ablate(translator(), {("decoder.0.self", 1): [1]}):
        pass


def test_a_model_without_attention_is_refused():
    with pytest.raises(LensError, match="cannot be watched: it contains no clearhead"), ablate(nn.Linear(3, 2), {}):
        pass


def test_effects_are_those_of_zeroed_weights():
    model, (source, _) = translator().eval(), sources(3)

    def loss(of: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(of.logits(of(source, source)).flatten(0, 1), source.flatten())

    names, told = ["decoder.1.cross", "encoder.0.self"], []
    effects = head_effects(model, lambda: loss(model), names, progress=lambda *done: told.append(done))
    assert list(effects) == names
    assert told == [(done, 12) for done in range(1, 13)]
    with torch.no_grad():
        whole = loss(model).item()
        for name, found in effects.items():
            want = [loss(without(model, {name: [head]})).item() - whole for head in range(6)]
            assert found.tolist() == want
        together = loss(without(model, CHOSEN)).item()
        with ablate(model, CHOSEN):
            assert loss(model).item() == together


def test_all_attentions_are_tried_unless_some_are_named():
    model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=7, width=6, heads=2, layers=1)).eval()
    tokens = torch.tensor([[1, 2]])
    effects = head_effects(model, lambda: model(tokens, tokens).square().sum())
    assert count_heads(model) == {"encoder.0.self": 2, "decoder.0.self": 2, "decoder.0.cross": 2}
    assert {name: len(effect) for name, effect in effects.items()} == count_heads(model)
    assert list(head_effects(model, lambda: model(tokens, tokens).square().sum(), "decoder.*")) == [
        "decoder.0.self",
        "decoder.0.cross",
    ]


def test_a_run_that_does_not_repeat_itself_is_refused():
    model = translator().train()
    source = sources(3)[0]
    with pytest.raises(LensError, match="eval mode"):
        head_effects(model, lambda: model(source, source)[..., 0].sum())


@pytest.mark.unchecked
def test_a_run_that_gives_several_numbers_is_refused():
    model = MultiHeadAttention(6, 2)
    with pytest.raises(LensError, match="one number"):
        head_effects(model, lambda: model(torch.ones(1, 3, 6)))
    with pytest.raises(LensError, match="one number, got 'many'"):
        head_effects(model, lambda: "many")
    with pytest.raises(LensError, match=r"run\(\) gave nan"):
        head_effects(model, lambda: float("nan"))


def test_a_copy_has_all_its_heads():
    model = MultiHeadAttention(width=6, heads=2, bias=False)
    with ablate(model, {"attention": [0, 1]}):
        copied = copy.deepcopy(model)
        assert not model(torch.ones(1, 3, 6)).any()
        assert torch.equal(copied.to_out.weight, model.to_out.weight)
    assert torch.equal(copied(torch.ones(1, 3, 6)), model(torch.ones(1, 3, 6)))


def test_heads_are_chosen_by_slices_from_the_end_by_pairs_and_by_roles():
    model, (source, _) = translator().eval(), sources(3)
    want = {"encoder.0.self": [2, 3, 5], "decoder.1.cross": [0, 1]}
    found = [HeadRole("encoder.0.self", head, "first", 0.5, {"first": 0.5}) for head in (2, 3, 5)]
    choices = [
        {"encoder.0.self": [-1, 2, -3], "decoder.1.cross": slice(None, -4)},
        {"encoder.0.self": slice(2, 4), "encoder.0.*": torch.tensor([-1]), "decoder.1.cross": slice(0, 2)},
        [("encoder.0.self", 2), ("encoder.0.self", 3), ("encoder.0.self", -1), ("decoder.1.cross", [0, 1])],
        [*found, ("decoder.1.cross", 0), ("decoder.1.cross", 1)],
    ]
    with torch.no_grad():
        expected, one = without(model, want)(source, source), without(model, {"encoder.0.self": [2]})(source, source)
        for chosen in choices:
            with ablate(model, chosen):
                assert torch.equal(model(source, source), expected)
        for single in (found[0], ("encoder.0.self", 2)):
            with ablate(model, single):
                assert torch.equal(model(source, source), one)


def test_attentions_are_chosen_by_patterns_and_numbers_as_watch_does():
    torch.manual_seed(3)
    model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=11)).eval()
    given = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])
    with torch.no_grad():
        with ablate(model, {"decoder.0.cross": [1], "decoder.1.cross": [1], "encoder.1.self": [0, 1, 2, 3]}):
            named = model(*given)
        with ablate(model, {"decoder.*.cross": 1, "encoder.1.*": None}):
            assert torch.equal(model(*given), named)
        with ablate(model, {"encoder.0.self": 2, "decoder.0.self": 2, "decoder.0.cross": [2]}):
            named = model(*given)
        with ablate(model, {0: [2]}):
            assert torch.equal(model(*given), named)
    with pytest.raises(LensError, match=r"'decoder\.\*\.crow'"), ablate(model, {"decoder.*.crow": [0]}):
        pass
