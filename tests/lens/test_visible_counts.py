"""How many keys a query sees, against the mask itself."""

import math

import pytest
import torch

from clearhead import Bias, Mask
from clearhead.attention import reference
from clearhead.attention.call import check_call
from clearhead.lens.measures import visible_counts
from clearhead.lens.measures.visible_counts import count_visible_keys

BATCH, HEADS, QUERIES, KEYS = 3, 2, 101, 211


def masks() -> dict[str, Mask | None]:
    torch.manual_seed(0)
    ids = torch.arange(KEYS) // 43 + torch.tensor([[0], [1], [2]])
    return {
        "none": None,
        "causal": Mask.causal(),
        "causal from the start": Mask.causal(offset=0),
        "window": Mask.window(13, 7),
        "two windows": Mask.window(13, 7) & Mask.window(5, 11),
        "window and padding": Mask.window(31) & Mask.padding([3, KEYS, 167]),
        "pads that see nothing": Mask.causal() & Mask.padding([19, KEYS, 167], side="left", queries=True),
        "hidden keys": Mask.causal() & Mask.hidden(torch.rand(BATCH, 1, 1, KEYS) < 0.5),
        "documents": Mask.documents(ids),
        "documents, causal": Mask.documents(ids) & Mask.causal(),
        "prefix": Mask.causal() | Mask.prefix([4, 0, 150]),
        "any": Mask.visible(torch.rand(BATCH, HEADS, QUERIES, KEYS) < 0.5),
        "some heads": Mask.visible(torch.tensor([True, False]).view(HEADS, 1, 1)),
        "nothing": Mask.prefix(0),
    }


@pytest.mark.parametrize("rows", [range(QUERIES), range(2, QUERIES, 7), range(3, 3)])
@pytest.mark.parametrize("chunk", [13_000, 2**22])
@pytest.mark.parametrize("name", masks())
def test_the_count_is_that_of_the_dense_mask(name, chunk, rows, monkeypatch):
    monkeypatch.setattr(visible_counts, "CHUNK", chunk)
    hidden = torch.zeros(BATCH, 1, QUERIES, KEYS).masked_fill(torch.rand(BATCH, 1, QUERIES, KEYS) < 0.5, -math.inf)
    q, k = torch.zeros(BATCH, HEADS, QUERIES, 2), torch.zeros(BATCH, HEADS, KEYS, 2)
    for bias in (None, hidden, Bias.alibi(HEADS)):
        call = check_call(q, k, None, masks()[name], bias=bias)
        want = reference.scores(call)[1].expand(call.sizes).sum(-1)[:, :, list(rows)]
        assert torch.equal(count_visible_keys(call, rows).expand(want.shape), want)
