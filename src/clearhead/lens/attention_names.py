"""Names of attentions, such as "encoder.0.self" and "decoder.3.cross", and the selection of layers and heads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from clearhead.attention import MultiHeadAttention
from clearhead.errors import LensError
from clearhead.formatting import suggest_name

Layers = str | int | Collection[str | int] | None
Heads = int | Collection[int] | Tensor | None

WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module")  # of torch.compile, DistributedDataParallel, FSDP


def find_attentions(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Every MultiHeadAttention of a model by its name, in the order in which it holds them.

    One that is not in a layer of ours goes by its path; a bare one is called "attention".

    >>> list(find_attentions(nn.ModuleDict({"mixer": MultiHeadAttention(6, 2)})))
    ['mixer']
    """
    attentions = {}
    for path, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            attentions[path if shorten_path(path) in attentions else shorten_path(path)] = module
    return attentions


def shorten_path(path: str) -> str:
    """The short attention name for a module path.

    >>> shorten_path("_orig_mod.decoder.layers.3.cross_attention"), shorten_path("")
    ('decoder.3.cross', 'attention')
    """
    return re.sub(r"(^|\.)layers\.(\d+)\.(self|cross)_attention$", r"\1\2.\3", strip_wrappers(path)) or "attention"


def strip_wrappers(path: str) -> str:
    """A module path without those of wrappers."""
    return ".".join(part for part in path.split(".") if part not in WRAPPERS)


def unwrap_model(model: Any) -> Any:
    """The model without wrappers of torch.compile, DDP or FSDP."""
    inner = next((getattr(model, name) for name in WRAPPERS if isinstance(getattr(model, name, None), nn.Module)), None)
    return model if inner is None else unwrap_model(inner)


CROSS = re.compile(r"cross|\bx_attn|encoder_attn|encoder_attention|encoder_decoder|enc_?dec|src_attn", re.IGNORECASE)
PATH = re.compile(r"attn|attention|layer|block|\bh\.\d", re.IGNORECASE)  # of a module, rather than a name


def check_name(name: Any, existing: Iterable[str]) -> None:
    """Raises LensError for an unknown attention name, with the nearest match."""
    names = list(existing)
    if name not in names:
        raise LensError(f"no attention of this model is called {name!r}; {suggest_attention(name, names)}")


def suggest_attention(name: Any, names: Sequence[str]) -> str:
    """The name of the attention that is meant, or else the first names of all.

    >>> suggest_attention("model.layers.1.self_attn", ["decoder.0.self", "decoder.1.self"])
    "did you mean 'decoder.1.self'?"
    >>> suggest_attention(0, ["encoder.0.self", "decoder.0.self"])
    'layer 0 has encoder.0.self, decoder.0.self'
    """
    meant = find_by_path(name, names) if isinstance(name, str) and PATH.search(name) else None
    if meant is not None:
        return f"did you mean {meant!r}?"
    number = to_python_number(name)
    layer = find_layer(number, names) if isinstance(number, int) else []
    if layer:
        return f"did you mean {layer[0]!r}?" if len(layer) == 1 else f"layer {number} has {', '.join(layer)}"
    more = f", … ({len(names)} in all)" if len(names) > 6 else ""
    return suggest_name(name, names, f"there are {', '.join(names[:6]) or 'none'}{more}")


def find_by_path(path: str, names: Sequence[str]) -> str | None:
    """The name of the attention at the path of a module, "model.layers.0.self_attn"; None if several may be meant."""
    parts = path.lower().split(".")
    numbers = [part for part in parts if part.isdigit()]
    kind = "cross" if CROSS.search(parts[-1]) else "self"
    ratings = {}
    for name in names:
        *words, last = (part for part in name.lower().split(".") if not part.isdigit())
        layer = [part for part in name.split(".") if part.isdigit()]
        if layer and layer == numbers[: len(layer)]:
            shared = sum(any(word in part for part in parts) for word in words)
            ratings[name] = (last == kind, shared, len(layer))
    best = [name for name, rating in ratings.items() if rating == max(ratings.values())]
    return best[0] if len(best) == 1 else None


def find_layer(number: int, names: Iterable[str]) -> list[str]:
    """The attentions of the layer with this number."""
    return [name for name in names if re.search(rf"(^|\.){number}(\.|$)", name)]


def check_key(name: Any) -> None:
    """Raises LensError for a key of a dict that is neither the name of an attention nor a number of a layer."""
    plain = to_python_number(name)
    if isinstance(plain, bool) or not isinstance(plain, (str, int)):
        raise LensError(
            f"a key must be one name, such as 'decoder.0.self', one pattern, or the number of a layer, got {name!r:.80}"
        )


def check_heads(name: str, heads: Collection[int] | Tensor, count: int, *, negative: bool = False) -> list[int]:
    """Head indices as integers from 0 on, of which `negative` ones count from the end; LensError for one out of range.

    >>> check_heads("encoder.0.self", (2, 0, -1), count=3, negative=True)
    [2, 0, 2]
    """
    if isinstance(heads, (str, bytes, Mapping)) or not isinstance(heads, Collection):
        raise LensError(f"the heads of {name!r} must be a list of numbers such as [0, 2], got {heads!r}")
    numbers = [to_python_number(head) for head in heads]
    least = -count if negative else 0
    for head in numbers:
        if isinstance(head, bool) or not isinstance(head, int) or not least <= head < count:
            raise LensError(f"{name!r} has heads 0 to {count - 1}, not {head!r}")
    return [head % count for head in numbers]


def to_python_number(number: Any) -> Any:
    """A NumPy or PyTorch scalar as a Python number; anything else unchanged."""
    return number.item() if getattr(number, "ndim", None) == 0 else number


def to_python_numbers(numbers: Any) -> Any:
    """A NumPy array or a tensor as a list of Python numbers, a scalar as one; anything else unchanged."""
    return numbers.tolist() if hasattr(numbers, "tolist") else numbers


def select_heads(heads: int | Collection[int] | Tensor, counts: Mapping[str, int]) -> tuple[int, ...]:
    """Head indices as integers, different ones; each of these attentions, with its number of heads, must have them."""
    plain = to_python_number(heads)
    wanted = [plain] if isinstance(plain, int) else plain
    numbers = [to_python_number(head) for head in wanted] if isinstance(wanted, Collection) else []
    if not numbers or len(set(numbers)) < len(numbers):
        raise LensError(f"heads must be different numbers, such as [0, 2], or None for all, got {heads!r}")
    for name, count in counts.items():
        check_heads(name, wanted, count)
    return tuple(numbers)


def select_layers(layers: Layers, names: list[str]) -> list[str]:
    """The attention names that match names, patterns such as "decoder.*.cross", or layer numbers; None is all.

    >>> select_layers([0, "*.cross"], ["encoder.0.self", "encoder.1.self", "decoder.1.cross"])
    ['encoder.0.self', 'decoder.1.cross']
    """
    if layers is None:
        return names
    wanted = layers if isinstance(layers, Collection) and not isinstance(layers, str) else [layers]
    if not len(wanted):
        raise LensError("layers must name at least one, or be None for all, got an empty list")
    selected = set()
    for layer in map(to_python_number, wanted):
        if isinstance(layer, bool) or not isinstance(layer, (str, int)):
            raise LensError(
                f"layers are chosen by name, pattern or number, such as 'decoder.*.cross' or 3, got {layer!r}"
            )
        if isinstance(layer, int):
            matching = set(find_layer(layer, names))
        else:
            matching = {name for name in names if name == layer or fnmatchcase(name, layer)}
        if not matching:
            check_name(str(layer), names)
        selected |= matching
    return [name for name in names if name in selected]
