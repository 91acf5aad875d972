"""Heads of Hugging Face models switched off, against models whose part of W_O is zero."""

import copy
from typing import Any

import pytest
import torch

from clearhead.errors import LensError
from clearhead.lens import watch
from clearhead.lens.analysis.ablation import ablate, count_heads, head_effects
from clearhead.lens.analysis.norms import read_weight
from clearhead.lens.huggingface.discovery import describe_attentions
from tests.lens.huggingface_zoo import inputs, made, tokens

SOME = ["bert", "gpt2", "llama", "gemma2", "gpt-oss", "t5", "marian", "whisper", "vit", "clip"]


def without(model: Any, heads: dict[str, list[int]]) -> Any:
    """A copy in which the slices of W_O that belong to these heads are zero, and nothing else is changed."""
    copied = copy.deepcopy(model)
    counts = count_heads(copied)
    infos = describe_attentions(copied, tuple(heads)).values()
    modules = dict(zip(heads, (info.out for info in infos if info.out is not None), strict=True))
    with torch.no_grad():
        for name, projection in modules.items():
            weight = read_weight(projection)
            d = weight.shape[1] // counts[name]
            for head in heads[name]:
                weight[:, head * d : (head + 1) * d] = 0
    return copied


def run(model: Any, family: str) -> torch.Tensor:
    with torch.no_grad():
        output = model(**inputs(family))
    return output[0] if isinstance(output[0], torch.Tensor) else output.last_hidden_state


def chosen(model: Any) -> dict[str, list[int]]:
    """Some heads of all attentions but one."""
    return {name: [*range(n % 2, count - 1)] for n, (name, count) in enumerate(count_heads(model).items()) if n != 1}


@pytest.mark.parametrize("family", SOME)
def test_it_is_as_if_their_part_of_the_output_map_were_zero(family):
    model = made(family)
    whole, want = run(model, family), run(without(model, chosen(model)), family)
    with ablate(model, chosen(model)):
        found = run(model, family)
    assert torch.equal(found, want)
    assert not torch.equal(found, whole)
    assert torch.equal(run(model, family), whole)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_it_holds_for_every_attention_function(attention):
    model = made("llama", attention)
    with ablate(model, chosen(model)):
        found = run(model, "llama")
    assert torch.equal(found, run(without(model, chosen(model)), "llama"))


@pytest.mark.parametrize("family", ["llama", "marian"])
def test_beams_are_generated_without_them(family):
    def written(of: Any) -> tuple[torch.Tensor, torch.Tensor]:
        options = {"num_beams": 3, "max_new_tokens": 7, "return_dict_in_generate": True, "output_scores": True}
        made = of.generate(tokens(), do_sample=False, **options)
        return made.sequences, made.sequences_scores

    model = made(family)
    heads = chosen(model)
    with ablate(model, heads):
        found, scores = written(model)
    want, want_scores = written(without(model, heads))
    assert torch.equal(found, want)
    assert torch.equal(scores, want_scores)
    assert not torch.equal(scores, written(model)[1])


def test_nested_ones_add_up_and_are_undone_one_by_one():
    model = made("gpt2")
    one, both = {"decoder.0.self": [2]}, {"decoder.0.self": [0, 2], "decoder.1.self": [1]}
    with ablate(model, one):
        with ablate(model, {"decoder.0.self": [0], "decoder.1.self": [1]}):
            assert torch.equal(run(model, "gpt2"), run(without(model, both), "gpt2"))
        assert torch.equal(run(model, "gpt2"), run(without(model, one), "gpt2"))


def test_it_is_undone_after_an_exception():
    model = made("gpt2")
    before = {name: set(vars(part)) for name, part in model.named_modules()}
    with pytest.raises(KeyError), ablate(model, {"decoder.0.self": [2]}):
        raise KeyError
    assert {name: set(vars(part)) for name, part in model.named_modules()} == before


def test_what_is_switched_off_can_be_watched():
    """The heads of the first layer are seen as ever; those above look at something else."""
    model = made("llama")
    with watch(model) as usual:
        run(model, "llama")
    with ablate(model, {"decoder.0.self": [1]}), watch(model) as record:
        run(model, "llama")
    assert torch.equal(record["decoder.0.self"].entropy, usual["decoder.0.self"].entropy)
    assert not torch.equal(record["decoder.1.self"].entropy, usual["decoder.1.self"].entropy)


def test_effects_are_those_of_zeroed_weights():
    model = made("marian")

    def likelihood(of: Any) -> torch.Tensor:
        return of(input_ids=tokens(), decoder_input_ids=tokens(7)).logits.log_softmax(-1)[..., 5].mean()

    names = ["encoder.0.self", "decoder.2.cross"]
    effects = head_effects(model, lambda: likelihood(model), names)
    with torch.no_grad():
        whole = likelihood(model).item()
        for name in names:
            want = [
                likelihood(without(model, {name: [head]})).item() - whole for head in range(count_heads(model)[name])
            ]
            assert effects[name].tolist() == want
        several = {"encoder.0.self": [0, 1], "decoder.2.cross": [1]}
        together = likelihood(without(model, several)).item()
        with ablate(model, several):
            assert likelihood(model).item() == together


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        ({"decoder.0.slef": [0]}, "did you mean 'decoder.0.self'"),
        ({"decoder.1.self": [3]}, "heads 0 to 2, not 3"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(heads, words):
    with pytest.raises(LensError, match=words), ablate(made("gpt2"), heads):
        pass


@pytest.mark.unchecked
def test_a_compiled_model_notices_when_they_go_and_when_they_come_back():
    model = made("llama")
    compiled = torch.compile(model, backend="eager")
    one, two = {"decoder.0.self": [0, 1]}, {"decoder.0.self": [2]}
    before = run(compiled, "llama")
    with ablate(model, one):
        found = run(compiled, "llama")
    with ablate(model, two):
        other = run(compiled, "llama")
    torch.testing.assert_close(found, run(without(model, one), "llama"))
    torch.testing.assert_close(other, run(without(model, two), "llama"))
    assert torch.equal(before, run(compiled, "llama"))
    assert not torch.equal(before, found)


def test_a_copy_has_all_its_heads_whoever_else_is_watched():
    model = made("llama")
    whole = run(model, "llama")
    with ablate(model, chosen(model)):
        copied = copy.deepcopy(model)
        found = run(model, "llama")
        assert torch.equal(run(copied, "llama"), whole)
    with ablate(copied, chosen(copied)):
        assert torch.equal(run(copied, "llama"), found)
    assert torch.equal(run(copied, "llama"), whole)
