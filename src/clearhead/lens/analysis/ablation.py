"""Switching heads off: ablate(model, {"decoder.3.cross": [2, 5]}), and what each head does for a result.

Where a head looks is not why a model answers. What changes when it is switched off comes nearer to that (Michel et al.
2019, "Are Sixteen Heads Really Better than One?"; Voita et al. 2019). It is no proof either: other heads may take over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention import MultiHeadAttention
from clearhead.errors import LensError
from clearhead.lens.analysis.muting import muting
from clearhead.lens.attention_names import attentions, check_heads, check_name

Number = float | Tensor
Heads = Mapping[str, Collection[int] | Tensor]


@contextmanager
def ablate(model: nn.Module, heads: Heads) -> Iterator[None]:
    """Within it these heads add nothing: their part of what W_O is applied to is zero. Its bias stays.

    Of a model that norms its heads together before W_O (BitNet, DiffLlama) it is zero before that norm.

    For our models and Hugging Face's, compiled or not, in training, with a cache, with beams. Several add up. It holds
    for every thread that uses the model, and for no copy of it. A backward pass that recomputes layers (checkpointing)
    belongs inside, too.

    >>> attention = MultiHeadAttention(width=6, heads=2, bias=False)
    >>> with ablate(attention, {"attention": [0, 1]}):
    ...     attention(torch.ones(1, 3, 6)).abs().max().item()
    0.0
    """
    if not isinstance(heads, Mapping):
        raise LensError(f'say which heads of which attention, such as {{"encoder.0.self": [2, 5]}}, got {heads!r}')
    counts, ours = head_counts(model), attentions(model)
    chosen = {}
    for name, numbers in heads.items():
        check_name(name, counts)
        chosen[name] = torch.zeros(counts[name], dtype=torch.bool)
        chosen[name][check_heads(name, numbers, counts[name])] = True
    with muting({ours[name]: one for name, one in chosen.items()}, _put) if ours else _muted_theirs(model, chosen):
        yield


def head_effects(
    model: nn.Module,
    run: Callable[[], Number],
    names: Sequence[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Float[Tensor, " heads"]]:
    """By how much a number changes when a head is switched off, one after the other: of each attention, one a head.

    `run` uses the model and returns the number: a loss (heads that matter have positive effects), or the
    log-probability of a certain output (there negative ones). Nothing else may change from run to run: put the model
    into eval mode, and fix what is drawn. `progress` is told how many of how many heads are done.

    >>> attention = MultiHeadAttention(width=6, heads=2, bias=False)
    >>> effects = head_effects(attention, lambda: attention(torch.ones(1, 3, 6)).sum())
    >>> effects["attention"].shape
    torch.Size([2])
    """
    counts = head_counts(model)
    chosen = list(counts) if names is None else list(names)
    for name in chosen:
        check_name(name, counts)
    before, done, total = _repeatable(run), 0, sum(counts[name] for name in chosen)
    effects = {name: torch.zeros(counts[name], dtype=torch.float64) for name in chosen}
    for name in chosen:
        for head in range(counts[name]):
            with ablate(model, {name: [head]}):
                effects[name][head] = _number(run) - before
            done += 1
            if progress is not None:
                progress(done, total)
    return effects


def effect(model: nn.Module, run: Callable[[], Number], heads: Heads) -> float:
    """By how much a number changes when these heads are switched off together: not the sum of their own effects."""
    before = _repeatable(run)
    with ablate(model, heads):
        return _number(run) - before


def head_counts(model: nn.Module) -> dict[str, int]:
    """How many heads each attention of a model has."""
    ours = {name: attention.heads for name, attention in attentions(model).items()}
    if ours:
        return ours
    from clearhead.lens import huggingface

    return huggingface.head_counts(model)


@torch.no_grad()
def _number(run: Callable[[], Number]) -> float:
    value = run()
    if isinstance(value, Tensor) and value.numel() != 1:
        raise LensError(
            f"run() must return one number, got a tensor of shape {tuple(value.shape)}; take its mean or sum"
        )
    try:
        return float(value)
    except (TypeError, ValueError):
        raise LensError(f"run() must return one number, got {value!r:.60}") from None


def _repeatable(run: Callable[[], Number]) -> float:
    once, again = _number(run), _number(run)
    if not abs(once - again) <= 1e-3 * abs(once) + 1e-6:
        raise LensError(
            f"run() gave {once:.6g} and then {again:.6g} without any change; "
            "put the model into eval mode (no dropout), and let run() use the same inputs every time"
        )
    return once


def _put(attention: nn.Module, heads: Tensor | None) -> None:
    assert isinstance(attention, MultiHeadAttention)
    attention.muted = None if heads is None else heads.view(-1, 1, 1)


def _muted_theirs(model: nn.Module, heads: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    from clearhead.lens.huggingface import attentions as theirs
    from clearhead.lens.huggingface.muting import muted

    modules = theirs(model)
    return muted({modules[name]: one for name, one in heads.items()})
