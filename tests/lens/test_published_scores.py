"""The numbers of papers, against their formulas on the weights of eager attention."""

import pytest
import torch
from examples.published_scores import (
    eviction_scores,
    instruction_focus,
    laplacian_eigenvalues,
    lookback_ratios,
    retrieval_scores,
)

from clearhead import watch
from clearhead.errors import RecordError
from tests.lens import huggingface_zoo as zoo
from tests.lens.seen_calls import built, tokens

PROMPT, NEW = zoo.TOKENS, 6
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
FAMILIES = ["llama", "gpt-oss", "bart"]


def eager(family: str) -> dict[str, torch.Tensor]:
    given = zoo.inputs(family)
    return zoo.eager_weights(zoo.made(family), given, zoo.FAMILIES[family].names)


def decoders(family: str) -> list[str]:
    return [name for name in zoo.FAMILIES[family].names if name.startswith("decoder") and name.endswith("self")]


@pytest.mark.parametrize("family", ["llama", "gpt-oss"])
def test_lookback_ratios_of_a_generation(family):
    """Chuang et al. 2024, equation 1: at step t the query is the token written at t − 1."""
    model = zoo.made(family)
    spans = {"prompt": slice(0, PROMPT), "generated": slice(PROMPT, None)}
    config = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    with watch(model, spans=spans, queries=slice(-1, None), pixels=0, top=0) as record:
        text = model.generate(zoo.tokens(), attention_mask=torch.ones_like(zoo.tokens()), **config)
    weights = zoo.eager_weights(model, {"input_ids": text[:, :-1]}, zoo.FAMILIES[family].names)
    found = lookback_ratios(record, PROMPT)
    assert list(found) == decoders(family)
    for name, ratios in found.items():
        assert ratios.shape == (3, weights[name].shape[1], NEW - 1)
        for step in range(1, NEW):
            row = weights[name][:, :, PROMPT + step - 1]
            visible = row[..., : PROMPT + step] > 0
            context = row[..., :PROMPT].sum(-1) / visible[..., :PROMPT].sum(-1).clamp(min=1)
            new = row[..., PROMPT : PROMPT + step].sum(-1) / visible[..., PROMPT:].sum(-1).clamp(min=1)
            torch.testing.assert_close(ratios[..., step - 1], context / (context + new), **CLOSE)
            if bool(visible.all()):
                context, new = row[..., :PROMPT].mean(-1), row[..., PROMPT : PROMPT + step].mean(-1)
                torch.testing.assert_close(ratios[..., step - 1], context / (context + new), **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_instruction_focus_of_the_last_token(family):
    """Hung et al. 2024: the sum of weights on the instruction, also divided by that on both, as a mean over heads."""
    model, weights = zoo.made(family), eager(family)
    spans = {"instruction": slice(1, 4), "data": slice(4, -2)}
    with watch(model, spans=spans, queries=[-1, 3], pixels=0, top=0) as record:
        model(**zoo.inputs(family))
    names = decoders(family)
    rows = torch.stack([weights[name][:, :, -1] for name in names], 1)  # samples, layers, heads, keys
    keys = rows.shape[-1]
    on_instruction, on_data = rows[..., 1:4].sum(-1), rows[..., 4 : keys - 2].sum(-1)
    torch.testing.assert_close(instruction_focus(record, "instruction"), on_instruction.mean((1, 2)), **CLOSE)
    shares = on_instruction / (on_instruction + on_data + 1e-8)
    chosen = {names[0]: [1, 0], names[1]: [1]}
    wanted = (shares[:, 0, 1] + shares[:, 0, 0] + shares[:, 1, 1]) / 3
    torch.testing.assert_close(instruction_focus(record, "instruction", "data", heads=chosen), wanted, **CLOSE)
    early = torch.stack([weights[name][:, :, 3, 1:4].sum(-1) for name in names], 1).mean((1, 2))
    torch.testing.assert_close(instruction_focus(record, "instruction", query=3), early, **CLOSE)


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_laplacian_eigenvalues(family):
    """Binkowski et al. 2025: the eigenvalues of D − A, with D the sums over columns by the number of later tokens."""
    model, weights = zoo.made(family), eager(family)
    with watch(model, itself=True, pixels=0, top=0) as record:
        model(**zoo.inputs(family))
    for name, values in laplacian_eigenvalues(record).items():
        own = weights[name].double()
        degree = own.sum(2) / torch.arange(own.shape[2], 0, -1)
        laplacian = torch.diag_embed(degree) - own
        torch.testing.assert_close(values.double(), laplacian.diagonal(dim1=2, dim2=3), rtol=2e-5, atol=2e-6)
        eigenvalues = torch.linalg.eigvals(laplacian).real.sort(dim=-1, descending=True).values[..., :4]
        torch.testing.assert_close(
            laplacian_eigenvalues(record, largest=4)[name].double(), eigenvalues, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_eviction_scores(family):
    """kvpress's ObservedAttention: sums over queries, by the number of tokens from the key on, mean over its heads."""
    model, weights = zoo.made(family), eager(family)
    with watch(model, pixels=0, top=0) as record:
        model(**zoo.inputs(family))
    for name, scores in eviction_scores(record).items():
        own = weights[name]
        samples, _, _, keys = own.shape
        wanted = own.sum(2) / torch.arange(keys, 0, -1)
        wanted = wanted.view(samples, scores.shape[1], -1, keys).mean(2)
        assert scores.shape[1] == getattr(model.config, "num_key_value_heads", own.shape[1])
        torch.testing.assert_close(scores, wanted, **CLOSE)


def test_eviction_scores_of_some_heads_and_queries():
    model = zoo.made("llama")
    sharing = model.config.num_attention_heads // model.config.num_key_value_heads
    assert sharing > 1
    with watch(model, heads=[0, sharing], queries=slice(-3, None)) as record:
        model(**zoo.inputs("llama"))
    weights = eager("llama")["decoder.1.self"][:, [0, sharing], -3:]
    votes = torch.tensor([3] * (zoo.TOKENS - 2) + [2, 1])
    torch.testing.assert_close(eviction_scores(record)["decoder.1.self"], weights.sum(2) / votes, **CLOSE)


def test_what_a_record_lacks_is_named():
    model = built("Decoder", "modern")
    with watch(model, spans={"prompt": slice(0, 3)}, queries=slice(-2, None), pixels=1) as record:
        model(tokens(2, 7))
    with pytest.raises(RecordError, match=r"no span is called 'instruction'; there are 'prompt': spans="):
        instruction_focus(record, "instruction")
    with pytest.raises(RecordError, match="none of the heads of"):
        instruction_focus(record, "prompt", heads={"decoder.7.self": [0]})
    with pytest.raises(RecordError, match="some of its queries only"):
        laplacian_eigenvalues(record)
    with pytest.raises(RecordError, match=r"slice\(3, None\)"):
        lookback_ratios(record, 3)
    reader = built("Encoder")
    with watch(reader) as record:
        reader(tokens(2, 7))
    with pytest.raises(RecordError, match="no self-attention of a decoder was recorded"):
        eviction_scores(record)


@pytest.mark.parametrize("family", ["llama", "gpt-oss"])
def test_retrieval_scores_of_a_needle_that_is_repeated(family):
    """Wu et al. 2024: |g ∩ k| / |k|, g the tokens that a head copies from the needle, k those of the needle."""
    model, needle = zoo.made(family), slice(3, 8)
    start = zoo.tokens()
    text = torch.cat([start, start[:, needle]], 1)
    first = start.shape[1] - 1  # the query from which the first token of the answer is predicted
    with watch(model, queries=slice(first, None), pixels=0, top=0) as record:
        model(text)
    weights = zoo.eager_weights(model, {"input_ids": text}, zoo.FAMILIES[family].names)
    found = retrieval_scores(record, needle)
    assert list(found) == decoders(family)
    for name, scores in found.items():
        for sample in range(len(text)):
            for head in range(scores.shape[1]):
                copied = set()
                for query in range(first, text.shape[1] - 1):
                    key = int(weights[name][sample, head, query].argmax())
                    if 3 <= key < 8 and text[sample, key] == text[sample, query + 1]:
                        copied.add(key)
                assert scores[sample, head].item() == pytest.approx(len(copied) / 5)
    assert any(bool((scores > 0).any()) for scores in found.values())


def test_a_needle_outside_of_the_text_is_refused():
    model = zoo.made("gpt2")
    with watch(model) as record:
        model(zoo.tokens())
    with pytest.raises(RecordError, match=r"needle must be a slice of the \d+ tokens"):
        retrieval_scores(record, slice(500, 600))
    with watch(model) as record:
        model(inputs_embeds=torch.randn(1, 4, model.config.hidden_size))
    with pytest.raises(RecordError, match="token ids"):
        retrieval_scores(record, slice(0, 2))
