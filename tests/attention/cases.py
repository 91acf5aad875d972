"""Attentions to try: hypothesis draws sizes, masks and options; every size that can differ is a different prime."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis.strategies as st
import torch
from torch import Tensor

from clearhead import Bias, Mask, attend, attention_weights
from clearhead.attention.biases import t5_buckets

HEADS = [(3, 3), (6, 3), (5, 1)]  # of queries and of keys: each its own, shared by two, one for all
QUERIES, KEYS = [1, 7, 37], [1, 23, 131]
WIDTH, VALUE_WIDTHS = 13, [13, 11, 17]


@dataclass(frozen=True)
class Case:
    """One attention: `tensors` holds q, k, v and whatever option may want a gradient, by name."""

    tensors: dict[str, Tensor]
    mask: Mask | None = None
    bias: Bias | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        q, k = self.tensors["q"], self.tensors["k"]
        return (*q.shape[:3], k.shape[2])

    def to(self, dtype: torch.dtype, device: str = "cpu", parameters: torch.dtype | None = None) -> Case:
        """The same numbers in other tensors, which want gradients; options may be of another dtype than q, k, v."""
        tensors = {
            name: tensor.detach().to(device, dtype if name in "qkv" else parameters or dtype).requires_grad_()
            for name, tensor in self.tensors.items()
        }
        return replace(self, tensors=tensors, mask=None if self.mask is None else self.mask.to(device))

    def arguments(self) -> dict[str, Any]:
        named = {**self.options, **self.tensors, "mask": self.mask}
        if self.bias is not None:
            named["bias"] = self.bias.replace(named["bias"])
        return named

    def attend(self, backend: str, **more: Any) -> Tensor:
        return attend(**self.arguments(), **more, backend=backend)

    def weights(self) -> Tensor:
        arguments = self.arguments()
        del arguments["v"]
        return attention_weights(**arguments)

    def gradients(self, out: Tensor, of_out: Tensor) -> dict[str, Tensor]:
        with torch.autograd.set_detect_anomaly(True):  # a NaN on the way that a later zero hides is wrong too
            found = torch.autograd.grad(out, list(self.tensors.values()), of_out.to(out), allow_unused=True)
        return {
            name: torch.zeros_like(tensor) if gradient is None else gradient
            for (name, tensor), gradient in zip(self.tensors.items(), found, strict=True)
        }

    def uncancelled(self, of_out: Tensor) -> dict[str, Tensor]:
        """What each gradient would be if none of the terms in its sum cancelled: roundings are relative to that."""
        tensors = {name: t.detach().abs().requires_grad_() for name, t in self.tensors.items()}
        given, of_out = replace(self, tensors=tensors).arguments(), of_out.double().abs()
        k, v = (given[name].repeat_interleave(self.sizes[1] // given[name].shape[1], dim=1) for name in "kv")
        scale, bias = torch.as_tensor(given.get("scale", 1.0)).to(k).abs().reshape(-1, 1, 1), given.get("bias", 0.0)
        scores = given["q"] @ k.mT * scale + (bias.dense(*self.sizes[2:]).abs() if isinstance(bias, Bias) else bias)
        # exp makes the absolute error of a score the relative error of a weight: the larger, the shakier
        shaky = 1 + scores.detach().masked_fill(~self.visible(), 0.0).amax(-1, keepdim=True)
        weights = self.weights().detach() * shaky
        of_scores = weights * (of_out @ v.detach().mT)
        outputs, flows = [scores, weights @ v], [of_scores, of_out]
        if "sinks" in given:
            outputs.append(given["sinks"] * 1)
            flows.append(of_scores.sum((0, 2, 3)))
        found = torch.autograd.grad(outputs, list(tensors.values()), flows)
        return dict(zip(tensors, found, strict=True))

    def visible(self) -> Tensor:
        """Who may look at whom, from the dense mask and the dense bias alone."""
        queries, keys = self.sizes[2:]
        seen = torch.ones(self.sizes, dtype=torch.bool, device=self.tensors["q"].device)
        if self.mask is not None:
            seen = seen & self.mask.dense(queries, keys, seen.device)
        bias = self.arguments().get("bias")
        if isinstance(bias, Bias):
            bias = bias.dense(queries, keys)
        return seen if bias is None else seen & (bias > -torch.inf)

    def __repr__(self) -> str:
        shapes = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        return f"Case({shapes}, mask={self.mask!r}, bias={self.bias!r}, {self.options})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would print every number


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


seeds = st.integers(0, 2**20)


def many_lengths(samples: int, keys: int) -> st.SearchStrategy[Tensor]:
    return st.lists(st.integers(0, keys), min_size=samples, max_size=samples).map(torch.tensor)


@st.composite
def simple_masks(draw: st.DrawFn, batch: int, heads: int, queries: int, keys: int) -> Mask:
    """One mask of any kind, such as it may be that some queries, or whole samples, see nothing."""
    offset = draw(st.sampled_from([None, 0, -2, 3]))
    lengths = draw(many_lengths(draw(st.sampled_from([1, batch])), keys))
    reach = st.none() | st.integers(0, keys)
    kind = draw(st.sampled_from(["causal", "window", "padding", "prefix", "documents", "visible", "hidden"]))
    match kind:
        case "causal":
            return Mask.causal(offset)
        case "window":
            return Mask.window(draw(reach), draw(reach), offset)
        case "padding":
            return Mask.padding(lengths, side=draw(st.sampled_from(["left", "right"])), queries=draw(st.booleans()))
        case "prefix":
            return Mask.prefix(lengths)
        case "documents":
            ids = random(draw(seeds), draw(st.sampled_from([1, batch])), keys).long().sort().values
            given = queries > keys or draw(st.booleans())
            query_ids = random(draw(seeds), draw(st.sampled_from([1, batch])), queries).long().sort().values
            return Mask.documents(ids, query_ids if given else None)
    shape = [draw(st.sampled_from([1, size])) for size in (batch, heads, queries, keys)]
    seen = random(draw(seeds), *shape) > draw(st.sampled_from([-1.0, 1.5]))
    seen[0, 0, 0] &= draw(st.booleans())  # perhaps a query that sees nothing
    return Mask.visible(seen) if kind == "visible" else Mask.hidden(~seen)


def masks(batch: int, heads: int, queries: int, keys: int) -> st.SearchStrategy[Mask]:
    """Any mask, and any two or three of them combined."""
    one = simple_masks(batch, heads, queries, keys)
    sides = st.sampled_from(["left", "right"])
    padding = st.builds(Mask.padding, many_lengths(batch, keys), side=sides, queries=st.booleans())
    causal = st.sampled_from([Mask.causal(), Mask.causal(0), Mask.window(5)])
    return st.one_of(
        one,
        st.builds(lambda a, b: a & b, causal, padding),  # what models use most
        st.builds(lambda a, b: a & b, one, one),
        st.builds(lambda a, b: a | b, one, one),
        st.builds(lambda a, b, c: (a | b) & c, one, one, one),
        st.builds(lambda a, b, c: (a & b) | c, one, one, one),
    )


@st.composite
def biases(draw: st.DrawFn, batch: int, heads: int, queries: int, keys: int) -> tuple[Tensor, Bias | None]:
    """A tensor that may want a gradient, and the bias it belongs to; None if the tensor is the bias."""
    kind, offset = draw(st.sampled_from(["tensor", "alibi", "clipped", "t5"])), draw(st.sampled_from([None, 0, 4]))
    if kind == "alibi":
        slopes = random(draw(seeds), draw(st.sampled_from([1, heads]))).abs()
        return slopes, Bias.alibi(slopes, offset)
    if kind == "clipped":
        table = random(draw(seeds), 2 * 5 + 1, draw(st.sampled_from([1, heads])))
        return table, Bias.relative(table, 5, offset)
    if kind == "t5":
        table = random(draw(seeds), 8, heads)
        return table, Bias.relative(table, t5_buckets(8, 20, both_ways=draw(st.booleans())), offset)
    shape = [draw(st.sampled_from([1, size])) for size in (batch, heads, queries, keys)]
    bias = random(draw(seeds), *shape)
    if draw(st.booleans()):
        bias[random(draw(seeds), *shape) > 1.0] = -torch.inf
        bias[0, 0, 0] = -torch.inf  # a row that sees nothing
    axes = 4 if shape[0] > 1 else 3 if shape[1] > 1 else 2
    return bias.view(shape[4 - axes :]), None


@st.composite
def cases(draw: st.DrawFn, softcap: bool = True) -> Case:
    """Any attention that the contract allows, in float64."""
    batch, (heads, kv_heads) = 2, draw(st.sampled_from(HEADS))
    queries = draw(st.sampled_from(QUERIES))
    keys = draw(st.sampled_from([queries, *KEYS]))
    seed, strength = draw(seeds), draw(st.sampled_from([0.3, 1.0, 3.0]))
    tensors = {
        "q": random(seed, batch, heads, queries, WIDTH) * strength,
        "k": random(seed + 1, batch, kv_heads, keys, WIDTH),
        "v": random(seed + 2, batch, kv_heads, keys, draw(st.sampled_from(VALUE_WIDTHS))),
    }
    options: dict[str, Any] = {}
    match draw(st.sampled_from(["default", "number", "scalar", "per head"])):
        case "number":
            options["scale"] = draw(st.sampled_from([0.0, 0.2, -0.3]))
        case "scalar":
            tensors["scale"] = random(seed + 3, 1)[0] / 4
        case "per head":
            tensors["scale"] = random(seed + 3, heads) / 4
    if softcap and draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([1.5, 30.0]))
    if draw(st.booleans()):
        tensors["sinks"] = random(seed + 4, heads) * 2
    mask = draw(st.none() | masks(batch, heads, queries, keys))
    bias = None
    if draw(st.booleans()):
        tensors["bias"], bias = draw(biases(batch, heads, queries, keys))
    return Case(tensors, mask, bias, options)
