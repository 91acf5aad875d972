"""What the heads of the shipped translator do: true of its weights, and worth knowing."""

import pytest
import torch

import clearhead
import clearhead.shipped as shipped
from clearhead.lens import watch
from clearhead.lens.analysis.ablation import ablate
from clearhead.lens.analysis.norms import coverage
from clearhead.lens.analysis.role_measurement import head_roles


@pytest.fixture(scope="module")
def translator():
    return clearhead.load("zh-en", device="cpu")


@pytest.fixture(scope="module")
def texts(translator):
    """Sentences and their translations as padded token numbers, with start and end."""
    processor = translator.processor
    rows = [row.values for row in processor.read(shipped.corpus("tatoeba-zh-en.dev"))][:16]
    source = [[*processor.source.encode(row[0]), processor.source.end] for row in rows]
    target = [[processor.target.start, *processor.target.encode(row[1]), processor.target.end] for row in rows]
    return tuple(
        torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in side], batch_first=True)
        for side in (source, target)
    )


def test_three_heads_of_its_encoder_look_at_neighbours(translator, texts):
    roles = head_roles(translator.model, texts, pad=0, layers=["encoder.1.self", "encoder.2.self"])
    assert [(one.name, one.head) for one in roles.of("previous")] == [("encoder.1.self", 5), ("encoder.2.self", 5)]
    assert (roles.of("next")[0].name, roles.of("next")[0].head) == ("encoder.1.self", 4)
    assert min(roles.best("previous").score, roles.best("next").score) > 0.9
    assert roles.best("induction").scores["induction"] < 0.2, "nothing repeats itself in short sentences"


def test_its_cross_attention_covers_most_of_the_source_but_for_a_head_on_its_end(translator, texts):
    source, target = (text[:1][text[:1] > 0][None] for text in texts)
    with torch.no_grad(), watch(translator.model, layers="decoder.*.cross", pixels=0, top=1) as record:
        translator.model(source, target)
    narrow = [(name, head) for name in record.names for head in range(8) if coverage(record[name])[0, head] < 0.5]
    assert narrow == [("decoder.1.cross", 3)]
    assert record["decoder.1.cross"].received[0, 3, -2:].sum() > 0.5 * target.shape[1], "the full stop, and the end"


def test_it_cannot_translate_without_cross_attention_but_without_any_one_head(translator, texts):
    """Michel et al. 2019: most heads can be removed one by one."""
    source, target = (text[:1][text[:1] > 0][None] for text in texts)
    model = translator.model

    @torch.no_grad()
    def loss() -> float:
        logits = model.logits(model(source, target[:, :-1]))
        return torch.nn.functional.cross_entropy(logits[0], target[0, 1:]).item()

    whole = loss()
    with ablate(model, {f"decoder.{layer}.cross": range(8) for layer in range(3)}):
        assert loss() - whole > 2.0
    with ablate(model, {"decoder.2.cross": [5]}):
        assert abs(loss() - whole) < 0.5
