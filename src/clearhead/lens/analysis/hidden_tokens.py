"""Hidden tokens: hide(model, {"source": [3, 4]}) masks the keys of tokens in every layer that reads their text.

What the model answers without a word says more about what it needs than where its heads look. It is no proof either: a
model was never trained on texts with holes, and the words around a hidden one may tell what it was.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from clearhead.attention.masks import Mask
from clearhead.errors import LensError
from clearhead.lens.analysis.ablation import count_heads
from clearhead.lens.attention_names import find_attentions, select_layers, to_python_number
from clearhead.lens.huggingface.arguments import HIDING_VALUE, classify_function
from clearhead.lens.huggingface.cache_positions import (
    ForwardPass,
    find_cache,
    read_layer_number,
    read_layer_states,
)
from clearhead.lens.huggingface.discovery import AttentionInfo, describe_attentions
from clearhead.lens.huggingface.interposition import (
    AttentionFunction,
    Result,
    add_wrap,
    intercept_interfaces,
    remove_wrap,
)

TEXTS = ("source", "target", "tokens")
TokenChoice = Mapping[str, int | Collection[int] | Tensor]  # positions by text, or by name or pattern of attentions


@contextmanager
def hide(model: nn.Module, tokens: TokenChoice) -> Iterator[None]:
    """Within it no query sees the keys of these tokens, in any layer that reads their text.

    Tokens are named by text and position. Of an encoder-decoder, "source" is what the encoder and the cross-attention
    read, "target" what the decoder reads; of every other model there is one text, "tokens". A single attention can be
    named, too, or several by a pattern such as "decoder.*.cross". Positions count the tokens that go in, from 0,
    padding included; with a cache those of earlier steps come first. A position that a text does not reach hides
    nothing.

    It is the same as a mask, `Mask.hidden`, over these keys: hidden from all queries, the token itself included, and a
    query that sees nothing gets zeros. The token is not removed: its own hidden state is computed on, and what reads
    hidden states without attention still gets it (a mean over all tokens, a tag, CTC, the next token after it).

    For our models with every backend, compiled or not, in training, with a cache, with beams; for Hugging Face's with
    the attention "sdpa" or "eager", not compiled. Several add up. It holds for every thread that uses the model, and
    for no copy of it. To see what heads do meanwhile, enter `hide` before `watch`.

    >>> from clearhead.attention import MultiHeadAttention
    >>> attention = MultiHeadAttention(width=6, heads=2, bias=False)
    >>> with hide(attention, {"tokens": [0, 1, 2]}):
    ...     attention(torch.ones(1, 3, 6)).abs().max().item()
    0.0
    """
    if not isinstance(tokens, Mapping):
        raise LensError(f'tokens must be a dict from texts to positions, such as {{"source": [3]}}, got {tokens!r}')
    names, ours = list(count_heads(model)), find_attentions(model)
    chosen: dict[str, frozenset[int]] = {}
    for wanted, positions in tokens.items():
        numbers = _check_positions(wanted, positions)
        for name in _find_readers(wanted, names):
            chosen[name] = chosen.get(name, frozenset()) | numbers
    if ours:
        hidden: dict[nn.Module, frozenset[int]] = {ours[name]: numbers for name, numbers in chosen.items()}
        if "source" in tokens:  # what copies from the source attends to it, too
            copying = [one for one in model.modules() if hasattr(one, "hidden_keys") and one not in set(ours.values())]
            hidden |= dict.fromkeys(copying, _check_positions("source", tokens["source"]))
    with _hide_positions(hidden, _set_own_keys) if ours else _hide_huggingface_keys(model, chosen):
        yield


def name_texts(names: Collection[str]) -> dict[str, str]:
    """Which text the keys of each attention belong to.

    >>> name_texts(["encoder.0.self", "decoder.0.self", "decoder.0.cross"])
    {'encoder.0.self': 'source', 'decoder.0.self': 'target', 'decoder.0.cross': 'source'}
    >>> name_texts(["encoder.0.self"])
    {'encoder.0.self': 'tokens'}
    """
    if not any(_is_cross(name) for name in names):
        return dict.fromkeys(names, "tokens")
    return {name: "source" if _is_cross(name) or "encoder" in name.split(".") else "target" for name in names}


def _is_cross(name: str) -> bool:
    return name.partition(":")[0].split(".")[-1] == "cross"


def _find_readers(wanted: Any, names: list[str]) -> list[str]:
    """The attentions whose keys belong to a text, or that have this name, pattern or number."""
    if wanted not in TEXTS:
        return select_layers(wanted, names)
    texts = name_texts(names)
    found = [name for name in names if texts[name] == wanted]
    if not found:
        known = " and ".join(f"{text!r}" for text in TEXTS if text in texts.values())
        raise LensError(f"this model does not read a text {wanted!r}; it reads {known}")
    return found


def _check_positions(wanted: Any, positions: Any) -> frozenset[int]:
    one = to_python_number(positions)
    given = [one] if isinstance(one, int) else one
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, (Collection, Tensor)):
        raise LensError(f"the positions of {wanted!r} must be a list of numbers such as [0, 2], got {positions!r}")
    numbers = [to_python_number(number) for number in given]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise LensError(f"the positions of {wanted!r} must be whole numbers from 0 on, got {number!r}")
    return frozenset(numbers)


_lock = threading.RLock()
_hidden: WeakKeyDictionary[nn.Module, list[frozenset[int]]] = WeakKeyDictionary()


@contextmanager
def _hide_positions(
    chosen: Mapping[nn.Module, frozenset[int]], put: Callable[[nn.Module, Tensor | None], None]
) -> Iterator[None]:
    """Within it, `put` has set on each module the union of all hidden positions; nested and threaded uses combine."""
    with _lock:
        for module, positions in chosen.items():
            _hidden.setdefault(module, []).append(positions)
            put(module, _combine(module))
    try:
        yield
    finally:
        with _lock:
            for module, positions in chosen.items():
                _hidden[module].remove(positions)
                put(module, _combine(module))


def _combine(module: nn.Module) -> Tensor | None:
    several = _hidden[module]
    if not several:
        return None
    device = next((one.device for one in module.parameters()), torch.device("cpu"))
    with torch.inference_mode(False):  # an inference tensor could not be used outside
        return torch.tensor(sorted(frozenset().union(*several)), dtype=torch.long, device=device)


def _set_own_keys(module: nn.Module, positions: Tensor | None) -> None:
    vars(module)["hidden_keys"] = positions


HIDDEN = "_clearhead_hidden_keys"  # attribute of a module: the positions that no query sees


class HiddenKeys:
    """The hidden positions of a Hugging Face module; a copied module gets None instead."""

    def __init__(self, positions: Tensor, passes: CachePasses, info: AttentionInfo) -> None:
        self.positions, self.passes, self.info = positions, passes, info

    def find_visible(self, module: nn.Module, queries: int, keys: int) -> Tensor:
        """Which of these keys are not hidden: (keys,). A cache that slides hands over only the last ones."""
        where = self.passes.current(module).locate(read_layer_number(module), queries, keys, self.info)
        places = torch.arange(where.first_key, where.first_key + keys, device=self.positions.device)
        return ~torch.isin(places, self.positions)

    def __reduce__(self) -> Any:
        return (type(None), ())


class CachePasses:
    """What the cache of a Hugging Face model held at the beginning of the forward pass that is under way."""

    def __init__(self) -> None:
        self._thread = threading.local()

    def current(self, module: nn.Module) -> ForwardPass:
        found: ForwardPass | None = getattr(self._thread, "current", None)
        return ForwardPass(module) if found is None else found

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, whole: bool) -> None:
        """For a forward pre-hook: a model inside another one may be given the cache of that one."""
        cache = find_cache([*args, *kwargs.values()])
        if cache is not None:
            self._thread.current = ForwardPass(module, cache, read_layer_states(cache))
        elif whole:
            self._thread.current = None


_passes: WeakKeyDictionary[nn.Module, CachePasses] = WeakKeyDictionary()  # one for all that is hidden in a model


@contextmanager
def _hide_huggingface_keys(model: nn.Module, chosen: Mapping[str, frozenset[int]]) -> Iterator[None]:
    from transformers import PreTrainedModel

    known = {info.name: (module, info) for module, info in describe_attentions(model).items()}
    modules = {known[name][0]: positions for name, positions in chosen.items()}
    infos, passes = dict(known.values()), _passes.setdefault(model, CachePasses())

    def put(module: nn.Module, positions: Tensor | None) -> None:
        if positions is None:
            del vars(module)[HIDDEN]
            remove_wrap(module, hide_interposed_keys)
            return
        if vars(module).get(HIDDEN) is None:
            add_wrap(module, hide_interposed_keys, outermost=True)
        vars(module)[HIDDEN] = HiddenKeys(positions, passes, infos[module])

    with ExitStack() as stack:
        for part in {model, *(one for one in model.modules() if isinstance(one, PreTrainedModel))}:
            begin = functools.partial(passes.begin, whole=part is model)
            stack.callback(part.register_forward_pre_hook(begin, with_kwargs=True).remove)
        stack.enter_context(intercept_interfaces(modules))
        stack.enter_context(_hide_positions(modules, put))
        yield


def hide_interposed_keys(
    attend: AttentionFunction, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, *args: Any, **kwargs: Any
) -> Result:
    """Attention wrapper that masks the hidden keys of a module."""
    hidden: HiddenKeys | None = getattr(module, HIDDEN, None)
    if hidden is None:  # restored by another thread just now, or a copy
        return attend(module, q, k, v, mask, *args, **kwargs)
    kind, (queries, keys) = classify_function(attend.function, attend.eager), (q.shape[2], k.shape[2])
    if kind not in ("sdpa", "eager") or not (mask is None or isinstance(mask, Tensor)):
        raise LensError(
            f"keys of {hidden.info.name!r} can be hidden with the attention 'sdpa' or 'eager', not {kind!r}; "
            "call model.set_attn_implementation('sdpa') before"
        )
    visible = hidden.find_visible(module, queries, keys).to(q.device)
    if mask is None:
        causal = kwargs.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        if kind == "sdpa" and causal and queries > 1:  # what None stands for there
            visible = visible & Mask.causal(offset=0).dense(queries, keys, q.device)[0, 0]
        mask = visible.view(1, 1, -1, keys).expand(1, 1, queries, keys)
    elif mask.dtype == torch.bool and kind == "sdpa":
        mask = mask[..., :keys] & visible
    else:
        mask = mask[..., :keys].to(q.dtype).masked_fill(~visible, torch.finfo(q.dtype).min)
    if mask.dtype == torch.bool:
        some = mask.any(-1, keepdim=True)
        if kind == "eager":
            mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, torch.finfo(q.dtype).min)
    else:
        some = (mask > HIDING_VALUE).any(-1, keepdim=True)
    out, weights = attend(module, q, k, v, mask, *args, **kwargs)
    return out.masked_fill(~some.transpose(1, 2), 0.0), weights  # of a query that sees nothing
