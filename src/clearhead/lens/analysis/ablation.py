"""Head ablation: ablate(model, {"decoder.3.cross": [2, 5]}), and the effect of each head on a result.

Where a head looks is not why a model answers. What changes when it is switched off comes nearer to that (Michel et al.
2019, "Are Sixteen Heads Really Better than One?"; Voita et al. 2019). It is no proof either: other heads may take over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention import MultiHeadAttention
from clearhead.errors import LensError
from clearhead.lens import attention_names, huggingface
from clearhead.lens.analysis.roles import HeadRole
from clearhead.lens.capture.attachments import Attachments
from clearhead.lens.capture.watch_context import find_target
from clearhead.lens.huggingface.interposition import AttentionFunction, Result, wrap_modules

Number = float | Tensor
HeadNumbers = int | slice | Collection[int] | Tensor | None
HeadChoice = Mapping[Any, HeadNumbers] | HeadRole | Iterable[Any]  # attentions are named, or given by pattern or number


@contextmanager
def ablate(model: nn.Module, heads: HeadChoice) -> Iterator[None]:
    """Within it these heads contribute nothing: their part of the input of W_O is zero. The bias of W_O stays.

    As in `watch`, attentions are chosen by name, by a pattern such as "decoder.*.cross", or by the number of the layer.
    Heads are chosen by number (from the end if negative), by a slice, or all of them by None. A list of pairs such as
    [("decoder.0.self", 1)] chooses single heads; `roles.of("induction")` returns such a list.

    Of a model that norms its heads together before W_O (BitNet, DiffLlama) it is zero before that norm.

    For our models and Hugging Face's, compiled or not, in training, with a cache, with beams. Several add up. It holds
    for every thread that uses the model, and for no copy of it. A backward pass that recomputes layers (checkpointing)
    belongs inside, too.

    >>> attention = MultiHeadAttention(width=6, heads=2, bias=False)
    >>> with ablate(attention, {"attention": [0, 1]}):
    ...     attention(torch.ones(1, 3, 6)).abs().max().item()
    0.0
    """
    counts, ours = count_heads(model), attention_names.find_attentions(model)
    ablated: dict[str, Tensor] = {}
    for wanted, numbers in _list_choices(heads):
        for name in attention_names.select_layers(wanted, list(counts)):
            of_attention = ablated.setdefault(name, torch.zeros(counts[name], dtype=torch.bool))
            of_attention[_select_heads(name, numbers, counts[name])] = True
    if ours:
        with _own_heads.using([(ours[name], heads_of) for name, heads_of in ablated.items()]):
            yield
        return
    modules = huggingface.find_attentions(model)
    pairs = [(modules[name], heads_of) for name, heads_of in ablated.items()]
    with _interposed_heads.using(pairs), wrap_modules([module for module, _ in pairs], zero_heads):
        yield


def _list_choices(heads: Any) -> list[tuple[str | int, Any]]:
    """Pairs of an attention and its heads."""
    if isinstance(heads, Mapping):
        for name in heads:
            if isinstance(name, tuple) and _is_pair(name):
                raise LensError(f"{name!r} is no key of a dict; one head is written as a list of pairs, [{name!r}]")
            attention_names.check_key(name)
        return list(heads.items())
    single = isinstance(heads, (HeadRole, str)) or not isinstance(heads, Iterable)
    choices = [heads] if single or (isinstance(heads, tuple) and _is_pair(heads)) else heads
    pairs = [(choice.name, choice.head) if isinstance(choice, HeadRole) else choice for choice in choices]
    if strange := [pair for pair in pairs if not _is_pair(pair)]:
        raise LensError(
            'heads must be a dict from attention names to head numbers, such as {"encoder.0.self": [2, 5]}, or a list '
            f'of pairs, such as [("encoder.0.self", 2)], got {strange[0]!r:.80}'
        )
    return pairs


def _is_pair(value: Any) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    return isinstance(value[0], (str, int)) and not isinstance(value[1], str)


def _select_heads(name: str, numbers: Any, count: int) -> list[int]:
    """Head numbers from 0 on, as Python's indexing has them; LensError for one out of range."""
    heads = attention_names.to_python_number(numbers)
    if heads is None:
        return list(range(count))
    if isinstance(heads, slice):
        try:
            return list(range(count)[heads])
        except (TypeError, ValueError):
            raise LensError(f"the heads of {name!r} must be a slice of whole numbers, got {heads!r}") from None
    return attention_names.check_heads(name, [heads] if isinstance(heads, int) else heads, count, negative=True)


def head_effects(
    model: nn.Module,
    run: Callable[[], Number],
    names: attention_names.Layers = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Float[Tensor, " heads"]]:
    """The change of a number when each head is switched off in turn: one tensor (heads,) per attention.

    `names` are attentions, patterns or numbers of layers, as for `watch`; None is all.
    `run` uses the model and returns the number: a loss (heads that matter have positive effects), or the
    log-probability of a certain output (there negative ones). Nothing else may change from run to run: put the model
    into eval mode, and fix random seeds. `progress(done, total)` is called after each head.

    >>> attention = MultiHeadAttention(width=6, heads=2, bias=False)
    >>> effects = head_effects(attention, lambda: attention(torch.ones(1, 3, 6)).sum())
    >>> effects["attention"].shape
    torch.Size([2])
    """
    counts = count_heads(model)
    wanted = [None] if names is None else [names] if isinstance(names, (str, int)) else names
    watched = list(
        dict.fromkeys(name for layers in wanted for name in attention_names.select_layers(layers, list(counts)))
    )
    before = _run_repeatably(run)
    effects = {name: torch.zeros(counts[name], dtype=torch.float64) for name in watched}
    heads = [(name, head) for name in watched for head in range(counts[name])]
    for done, (name, head) in enumerate(heads, 1):
        with ablate(model, {name: [head]}):
            effects[name][head] = _run_to_number(run) - before
        if progress is not None:
            progress(done, len(heads))
    return effects


def count_heads(model: nn.Module) -> dict[str, int]:
    shapes, _ = find_target(model)
    return {name: shape.heads for name, shape in shapes.items()}


@torch.no_grad()
def _run_to_number(run: Callable[[], Number]) -> float:
    value = run()
    if isinstance(value, Tensor) and value.numel() != 1:
        raise LensError(
            f"run() must return one number, got a tensor of shape {tuple(value.shape)}; take its mean or sum"
        )
    try:
        return float(value)
    except (TypeError, ValueError):
        raise LensError(f"run() must return one number, got {value!r:.60}") from None


def _run_repeatably(run: Callable[[], Number]) -> float:
    once, again = _run_to_number(run), _run_to_number(run)
    if not math.isfinite(once):
        raise LensError(f"run() gave {once}: the effect of a head on it is not a number")
    if not abs(once - again) <= 1e-3 * abs(once) + 1e-6:
        raise LensError(
            f"run() gave {once:.6g} and then {again:.6g} without any change; "
            "put the model into eval mode (no dropout), and let run() use the same inputs every time"
        )
    return once


def _join_heads(module: nn.Module, heads: Sequence[Tensor]) -> Tensor:
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    return reduce(torch.logical_or, heads).to(device)


def _ablate_own(attention: MultiHeadAttention, heads: tuple[Tensor, ...]) -> None:
    attention.ablated_heads = _join_heads(attention, heads).view(-1, 1, 1) if heads else None


_own_heads = Attachments[MultiHeadAttention, Tensor](_ablate_own)


ABLATED = "_clearhead_ablated"  # attribute of a Hugging Face module: its ablated heads


def _ablate_interposed(module: nn.Module, heads: tuple[Tensor, ...]) -> None:
    if heads:
        vars(module)[ABLATED] = _join_heads(module, heads)[:, None]
    else:
        del vars(module)[ABLATED]


_interposed_heads = Attachments[nn.Module, Tensor](_ablate_interposed)


def zero_heads(
    attend: AttentionFunction, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, *args: Any, **kwargs: Any
) -> Result:
    """Attention wrapper that zeroes the ablated heads; one function for all heads, so it is compiled once."""
    out, weights = attend(module, q, k, v, mask, *args, **kwargs)
    ablated: Tensor | None = getattr(module, ABLATED, None)
    if ablated is None:  # restored by another thread just now
        return out, weights
    if out.ndim != 4 or out.shape[2] != len(ablated):
        raise LensError(
            f"the attention function of {type(module).__name__} gave {tuple(out.shape)}, where (batch, queries, "
            f"{len(ablated)} heads, features) was expected; its heads cannot be switched off"
        )
    return out.masked_fill(ablated, 0.0), weights
