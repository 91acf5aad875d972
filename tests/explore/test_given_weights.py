"""from_weights: weights from elsewhere are shown like those that were watched."""

import numpy as np
import pytest
import torch

from clearhead import attention_weights, measure
from clearhead.attention import Mask
from clearhead.errors import DataError
from clearhead.explore import Scene, from_weights, open_record, write_page
from tests.explore.records import MEASURES

TOKENS = [f"w{n}" for n in range(11)]


def softmaxed(mask: Mask | None = None, rows: int = 11) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    q, k = torch.randn(1, 3, rows, 5), torch.randn(1, 3, 11, 5)
    return q, k, attention_weights(q, k, mask)


@pytest.mark.parametrize("mask", [None, Mask.causal()])
def test_the_measures_are_those_of_the_definition(mask):
    q, k, weights = softmaxed(mask)
    expected = measure(q, k, mask, pixels=11, top=8)
    sight = from_weights(weights[0], TOKENS)["encoder.0.self" if mask is None else "decoder.0.self"]
    for name in MEASURES:
        if name != "logsumexp":  # of scores, which are not known
            torch.testing.assert_close(getattr(sight, name), getattr(expected, name), atol=2e-6, rtol=1e-5)


def test_all_forms_of_weights_give_the_same():
    _, _, weights = softmaxed()
    forms = [
        weights,  # layers, heads, …
        weights[0].numpy(),
        weights.double(),
        (weights,),  # outputs.attentions
        [weights[0].half()],
        np.asarray(weights),
    ]
    for form in forms:
        found = from_weights(form, TOKENS)["encoder.0.self"].map[0]
        torch.testing.assert_close(found, weights[0], atol=5e-4, rtol=0)
    assert from_weights([weights, weights], TOKENS).names == ["encoder.0.self", "encoder.1.self"]


def test_weights_that_are_written_to_later_are_shown_as_they_were():
    _, _, weights = softmaxed()
    before, array = weights[0].clone(), weights[0].numpy()
    records = [from_weights(given, TOKENS) for given in (weights, array, [weights])]
    array[:] = 0.0
    assert all(torch.equal(record["encoder.0.self"].map[0], before) for record in records)


@pytest.mark.parametrize(
    ("weights", "tokens", "says"),
    [
        (torch.ones(3, 4), TOKENS, "got (3, 4)"),
        (torch.full((1, 2, 2), 0.5), ["one"], "2 × 2 weights need as many tokens, got 1 and 1"),
        (torch.full((1, 2, 3), 0.3), ["one", "two"], "give the pair"),
        (torch.randn(1, 5, 5) * 9, TOKENS[:5], "apply the softmax"),
        (torch.zeros(1, 2, 2001), (["a", "b"], ["c"] * 2001), "at most 2,000 tokens"),
        ([torch.ones(2, 3, 5, 5)], TOKENS[:5], "of one text"),
        ([], [], "got nothing"),
        (torch.full((1, 1, 1), 1.0012), ["a"], "got a weight of 1.0012 and a sum of 1.0012 in layer 0"),
        (torch.ones(2, 3, 3), [*"abc"], "a sum of 3 in layer 0"),
        ((None, None), [*"abc"], "got NoneType; load the model with attn_implementation='eager'"),
        ("weights", [*"abc"], "got str"),
        (torch.eye(3)[None], None, "tokens are a list of texts, or the pair (queries, keys), got None"),
        (torch.eye(3)[None], "abc", "got 'abc'"),
    ],
)
def test_what_does_not_fit_is_refused(weights, tokens, says):
    with pytest.raises(DataError) as refusal:
        from_weights(weights, tokens)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_pair_of_tokens_may_be_a_list():
    assert from_weights(torch.full((1, 2, 3), 0.3), [["v", "w"], ["x", "y", "z"]]).names == ["decoder.0.cross"]


def test_they_are_shown_in_the_browser_as_file_server_and_cross_attention(watched, tmp_path):
    _, _, weights = softmaxed(rows=7)
    weights[0, 1, 2] = torch.nan
    record = from_weights(weights, (["v" * (n + 1) for n in range(7)], TOKENS))
    assert Scene(record).to_json()["attentions"][0]["name"] == "decoder.0.cross"
    page = write_page(record, tmp_path / "given.html").as_uri()
    with open_record(record, browser=False) as opened:
        for url in (page, opened.url):
            watched.open(url, "at=decoder.0.cross/1&pins=target:5")
            rows = [row.split("\t") for row in watched.page.locator("#keys tbody tr").all_inner_texts()]
            assert float(rows[0][1]) == pytest.approx(weights[0, 1, 5].max().item(), abs=0.0006)
            assert rows[0][0] == TOKENS[int(weights[0, 1, 5].argmax())]
            watched.until("#resolution", "not finite numbers")
        watched.settle()  # nothing may be under way when the server closes
    assert "<iframe" in record._repr_html_()


def test_an_encoder_opens_on_the_head_that_says_most():
    """Not on one that looks everywhere alike, at itself or at the first token, but on one that pairs tokens."""
    n = 11
    paired = torch.eye(n)[torch.randperm(n, generator=torch.Generator().manual_seed(4))] * 0.8 + 0.2 / n
    even, itself = torch.full((n, n), 1 / n), torch.eye(n)
    first = torch.zeros(n, n).index_fill(1, torch.tensor([0]), 1.0)
    weights = torch.stack([torch.stack([first, even, itself]), torch.stack([itself, paired, even])])
    assert Scene(from_weights(weights, TOKENS)).to_json()["start"] == {"name": "encoder.1.self", "head": 1}
    assert Scene(from_weights(weights[:1], TOKENS)).to_json()["start"]["name"] == "encoder.0.self"


def test_a_figure_shows_itself_in_a_notebook():
    from clearhead.explore.figures import head_map

    _, _, weights = softmaxed()
    picture = head_map(from_weights(weights, TOKENS)["encoder.0.self"], 1)._repr_png_()
    assert picture.startswith(b"\x89PNG")
