"""Hidden tokens: hide(model, {"source": [3, 4]}) masks the keys of tokens in every layer that reads their text.

What the model answers without a word says more about what it needs than where its heads look. It is no proof either: a
model was never trained on texts with holes, and the words around a hidden one may tell what it was.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor, nn

from clearhead.attention.hidden_keys import HiddenKeys
from clearhead.attention.masks import Mask
from clearhead.errors import LensError
from clearhead.lens.analysis.ablation import count_heads
from clearhead.lens.attention_names import check_key, find_attentions, select_layers, to_python_number
from clearhead.lens.capture.attachments import Attachments, clean_copies
from clearhead.lens.huggingface.arguments import HIDING_VALUE, classify_function
from clearhead.lens.huggingface.cache_positions import (
    ForwardPass,
    find_cache,
    list_outputs,
    read_layer_number,
    read_layer_states,
)
from clearhead.lens.huggingface.discovery import AttentionInfo, describe_attentions, reads_both_texts
from clearhead.lens.huggingface.discovery import find_attentions as find_huggingface_attentions
from clearhead.lens.huggingface.interposition import AttentionFunction, Result, wrap_modules
from clearhead.lens.measures.selections import is_whole, read_slice

TEXTS = ("source", "target", "tokens")
TokenChoice = Mapping[Any, int | slice | Collection[Any] | Tensor]  # by text, or by name, pattern or number


@contextmanager
def hide(model: nn.Module, tokens: TokenChoice) -> Iterator[None]:
    """Within it no query sees the keys of these tokens, in any layer that reads their text.

    Tokens are named by text and position. An encoder-decoder has two texts: "source", which the encoder and the
    cross-attention read, and "target", which the decoder reads. Every other model has one, "tokens". One attention can
    be named, too, or several by a pattern such as "decoder.*.cross". Positions count the tokens that go in, from 0,
    padding included. They are numbers or a slice, as in Python's indexing. Negative ones count from the end of the text
    in the first pass of a cache. A slice without end goes on while the text grows. A number that no pass reached is
    refused at the end; a slice is cut.

    It is the same as a mask, `Mask.hidden`, over these keys: a query that sees nothing gets zeros. The token is not
    removed: what reads its hidden state without attention still gets it (a mean over all tokens, a tag, CTC).

    For our models with every backend, compiled or not, in training, with a cache, with beams; for Hugging Face's with
    the attention "sdpa" or "eager", not compiled. Several add up. It holds for every thread that uses the model, and
    for no copy of it. To see what heads do meanwhile, enter `hide` before `watch`.

    >>> from clearhead.attention import MultiHeadAttention
    >>> attention = MultiHeadAttention(width=6, heads=2, bias=False)
    >>> with hide(attention, {"tokens": slice(0, 3)}):
    ...     attention(torch.ones(1, 3, 6)).abs().max().item()
    0.0
    """
    if not isinstance(tokens, Mapping):
        raise LensError(f'tokens must be a dict from texts to positions, such as {{"source": [3]}}, got {tokens!r:.80}')
    count_heads(model)  # refuses a model without attention
    ours = find_attentions(model)
    modules: Mapping[str, nn.Module] = ours or find_huggingface_attentions(model)
    pairs: list[tuple[nn.Module, HiddenKeys]] = []
    for wanted, positions in tokens.items():
        numbers, others = _read_positions(wanted, positions)
        readers = [modules[name] for name in _find_readers(wanted, modules)]
        if ours and wanted == "source":  # what copies from the source attends to it, too
            attentions = set(ours.values())
            readers += [part for part in model.modules() if hasattr(part, "hidden_keys") and part not in attentions]
        pairs += [(module, HiddenKeys(str(wanted), _put_beside(module, numbers), others)) for module in readers]
    with _own_keys.using(pairs) if ours else _hide_huggingface_keys(model, pairs):
        yield
    _refuse_unreached([hidden for _, hidden in pairs])


def _find_readers(wanted: Any, modules: Mapping[str, nn.Module]) -> list[str]:
    """The attentions whose keys belong to a text, or that have this name, pattern or number."""
    check_key(wanted)
    if wanted not in TEXTS:
        return select_layers(wanted, list(modules))
    if both := [name for name, module in modules.items() if reads_both_texts(module)]:
        raise LensError(
            f"{both[0]!r} attends to target and source in one softmax, so {wanted!r} has no keys of its own there: "
            f"hide keys of an attention by its name, such as {{{both[0]!r}: [1]}}; the source's follow the target's"
        )
    crossing = {name for name in modules if name.split(".")[-1] == "cross"}
    sources = crossing | {name for name in modules if "encoder" in name.split(".")}
    if not crossing:
        texts = dict.fromkeys(modules, "tokens")
    else:
        texts = {name: "source" if name in sources else "target" for name in modules}
    if wanted not in texts.values():
        read = " and ".join(f"{text!r}" for text in TEXTS if text in texts.values())
        raise LensError(f"this model does not read a text {wanted!r}; it reads {read}")
    return [name for name, text in texts.items() if text == wanted]


def _read_positions(wanted: Any, positions: Any) -> tuple[list[int], tuple[int | slice, ...]]:
    """Positions that count from the start, in order; and the others: numbers from the end, and slices."""
    number = to_python_number(positions)
    parts = [number] if isinstance(number, (int, slice)) else number
    if isinstance(parts, (str, bytes, Mapping)) or not isinstance(parts, Collection):
        raise LensError(
            f"the positions of {wanted!r} must be a list of numbers such as [0, 2], or a slice such as slice(2, 5), "
            f"got {positions!r:.80}"
        )
    numbers, others = set[int](), list[int | slice]()
    for part in map(to_python_number, parts):
        if isinstance(part, slice):
            checked = read_slice(part)
            if checked is None or (checked.step is not None and checked.step < 1):
                raise LensError(f"a slice of {wanted!r} must have whole numbers and a positive step, got {part!r}")
            others.append(checked)
        elif not is_whole(part):
            raise LensError(f"the positions of {wanted!r} must be whole numbers or slices, got {part!r:.80}")
        elif part < 0:
            others.append(part)
        else:
            numbers.add(part)
    return sorted(numbers), tuple(others)


def _put_beside(module: nn.Module, numbers: list[int]) -> Int[Tensor, " positions"]:
    """The numbers as a tensor on the device of a module."""
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    with torch.inference_mode(False):  # an inference tensor could not be used outside
        return torch.tensor(numbers, dtype=torch.long, device=device)


def _refuse_unreached(hidden: list[HiddenKeys]) -> None:
    """Raises LensError for a position from the start that no pass reached, if any pass is known."""
    reached: dict[str, int] = {}
    for keys in hidden:
        reached[keys.text] = max(reached.get(keys.text, 0), keys.reached)
    for keys in hidden:
        last, tokens = int(keys.positions.max()) if len(keys.positions) else -1, reached[keys.text]
        if 0 < tokens <= last:
            raise LensError(
                f"there was no token {last} of {keys.text!r} to hide: the longest text had {tokens}, numbered from 0; "
                f"for tokens that may come, use a slice such as slice({last}, {last + 1})"
            )


def _set_own_keys(module: nn.Module, hidden: tuple[HiddenKeys, ...]) -> None:
    vars(module)["hidden_keys"] = hidden or None


_own_keys = Attachments[nn.Module, HiddenKeys](_set_own_keys)

HIDDEN = "_clearhead_hidden_keys"  # attribute of a module: the positions that no query sees


class HiddenState:
    """What hides keys of a Hugging Face module."""

    def __init__(self, hidden: tuple[HiddenKeys, ...], passes: CachePasses, info: AttentionInfo) -> None:
        self.hidden, self.passes, self.info = hidden, passes, info

    def find_visible(self, module: nn.Module, queries: int, keys: int) -> Tensor:
        """Which of these keys are not hidden: (keys,). A cache that slides hands over only the last ones."""
        current = self.passes.current(module)
        where = current.locate(read_layer_number(module), queries, keys, self.info)
        tokens = where.first_key + where.keys
        places = torch.arange(where.first_key, where.first_key + keys, device=self.hidden[0].positions.device)
        end = tokens
        if self.info.grows and not self.info.cross and any(text.others for text in self.hidden):
            end = self.passes.find_end(current, tokens, self.hidden[0].text)
        hidden = torch.zeros_like(places, dtype=torch.bool)
        for text in self.hidden:
            text.reached = max(text.reached, tokens)
            hidden |= text.find(places, end)
        return ~hidden


class CachePasses:
    """What the cache of a Hugging Face model held at the beginning of the forward pass that is under way."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self._ends: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # tokens of the first pass, by cache

    def current(self, module: nn.Module) -> ForwardPass:
        current: ForwardPass | None = getattr(self._thread, "current", None)
        return ForwardPass(module) if current is None else current

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, whole: bool) -> None:
        """For a forward pre-hook: a model inside another one may be given the cache of that one."""
        cache = find_cache([*args, *kwargs.values()])
        if cache is not None:
            self._thread.current = ForwardPass(module, cache, read_layer_states(cache))
        elif whole:
            self._thread.current = None
        if whole:
            self._thread.tokens = None

    def end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """For a forward hook of the whole model: its output may have a cache that the model made in this pass."""
        cache, tokens = find_cache(list_outputs(output)), getattr(self._thread, "tokens", None)
        if cache is not None and tokens is not None:
            self._ends[cache] = tokens

    def find_end(self, current: ForwardPass, tokens: int, text: str) -> int:
        """How many tokens went in with the first pass of the cache, of the `tokens` that are there now."""
        if not current.length:
            self._thread.tokens = tokens
            if current.cache is not None:
                self._ends[current.cache] = tokens
        elif current.cache not in self._ends:
            raise LensError(
                f"positions of {text!r} that count from its end need its first pass inside `hide`: the cache already "
                f"held {current.length} tokens; count from 0, or enter `hide` before"
            )
        return tokens if current.cache is None else self._ends[current.cache]


_passes: WeakKeyDictionary[nn.Module, CachePasses] = WeakKeyDictionary()  # one for all that is hidden in a model


def _set_interposed_keys(module: nn.Module, states: tuple[HiddenState, ...]) -> None:
    if states:
        hidden = tuple(keys for state in states for keys in state.hidden)
        vars(module)[HIDDEN] = HiddenState(hidden, states[-1].passes, states[-1].info)
    else:
        del vars(module)[HIDDEN]


_interposed_keys = Attachments[nn.Module, HiddenState](_set_interposed_keys)


@contextmanager
def _hide_huggingface_keys(model: nn.Module, pairs: list[tuple[nn.Module, HiddenKeys]]) -> Iterator[None]:
    from transformers import PreTrainedModel

    infos, passes = describe_attentions(model), _passes.setdefault(model, CachePasses())
    states = [(module, HiddenState((keys,), passes, infos[module])) for module, keys in pairs]
    with ExitStack() as stack:
        for part in {model, *(part for part in model.modules() if isinstance(part, PreTrainedModel))}:
            begin = functools.partial(passes.begin, whole=part is model)
            stack.callback(part.register_forward_pre_hook(begin, with_kwargs=True).remove)
        stack.callback(model.register_forward_hook(passes.end).remove)
        stack.enter_context(clean_copies(model.modules()))
        stack.enter_context(_interposed_keys.using(states))
        stack.enter_context(wrap_modules([module for module, _ in pairs], hide_interposed_keys, outermost=True))
        yield


def hide_interposed_keys(
    attend: AttentionFunction, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, *args: Any, **kwargs: Any
) -> Result:
    """Attention wrapper that masks the hidden keys of a module."""
    hidden: HiddenState | None = getattr(module, HIDDEN, None)
    if hidden is None:  # restored by another thread just now
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
        seeing = mask.any(-1, keepdim=True)
        if kind == "eager":
            mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, torch.finfo(q.dtype).min)
    else:
        seeing = (mask > HIDING_VALUE).any(-1, keepdim=True)
    out, weights = attend(module, q, k, v, mask, *args, **kwargs)
    return out.masked_fill(~seeing.transpose(1, 2), 0.0), weights  # of a query that sees nothing
