"""torch.compile: the whole graph, and not once for every length."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from clearhead import Decoder, Encoder, EncoderDecoder, Mask, ModelConfig

pytestmark = pytest.mark.unchecked  # the shape-checking hook breaks graphs
LENGTHS = (7, 11, 13, 17)


def config(name: str, **changes) -> ModelConfig:
    small = {"width": 24, "heads": 6, "layers": 1, "feedforward": 37, "dropout": 0.0}
    return ModelConfig.named(name, vocabulary=53, **{**small, **changes})


SHAPES = {
    "classic": ("classic", {}),
    "modern": ("modern", {"kv_heads": 2}),
    "learned": ("tiny", {"positions": "learned"}),
    "alibi": ("tiny", {"positions": "alibi"}),
    "relative": ("tiny", {"positions": "relative"}),
    "window": ("modern", {"window": 5}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_one_graph_serves_every_length(shape):
    torch._dynamo.reset()
    name, changes = SHAPES[shape]
    model = EncoderDecoder(config(name, **changes))
    # The graph of the backward pass takes longest, and is the same matter for every shape.
    counter = CompileCounterWithBackend("aot_eager" if shape == "modern" else "eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for n in LENGTHS:
        source, target = torch.randint(0, 53, (3, n)), torch.randint(0, 53, (3, n + 2))
        lengths = torch.tensor([n, n - 1, 0])
        arguments = (source, target, Mask.padding(lengths), Mask.padding(lengths + 2))
        got, want = compiled(*arguments), model(*arguments)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        got.square().sum().backward()
    assert counter.frame_count <= 2, f"compiled {counter.frame_count} times for {len(LENGTHS)} lengths"


def test_lengths_become_dynamic_by_themselves():
    """Without dynamic=True PyTorch compiles once for the first length, once more for all others."""
    torch._dynamo.reset()
    model = Decoder(config("modern", kv_heads=2))
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for n in LENGTHS:
        text = torch.randint(0, 53, (3, n))
        torch.testing.assert_close(compiled(text), model(text), rtol=1e-5, atol=1e-5)
    assert counter.frame_count <= 3


def test_inductor_gives_the_same_numbers():
    torch._dynamo.reset()
    model = Encoder(config("classic", layers=1)).eval()
    text, mask = torch.randint(0, 53, (2, 11)), Mask.padding(torch.tensor([11, 3]))
    with torch.no_grad():
        got = torch.compile(model, fullgraph=True)(text, mask=mask)
        torch.testing.assert_close(got, model(text, mask=mask), rtol=1e-5, atol=1e-5)
