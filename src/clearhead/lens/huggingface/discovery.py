"""The attention modules of a Hugging Face model: which there are, their names, head counts and output projections.

A module counts if its code gets its function from the attention interface of transformers. Names such as
"encoder.0.self", "decoder.3.cross" or "vision.encoder.0.self" come from module paths alone, without a list of families.
In "model.decoder.layers.3.encoder_attn" the number is the layer, "decoder" the stack, and "encoder_attn" means
cross-attention. The rest is dropped as long as names stay distinct.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import nn

from clearhead.attention import MultiHeadAttention
from clearhead.errors import LensError
from clearhead.lens.attention_names import CROSS, strip_wrappers
from clearhead.lens.capture.watch_settings import AttentionShape, read_itemsize
from clearhead.lens.huggingface.interposition import calls_interface, keeps_keys

# Attention in name only: they hold, cut or pool what another module attends.
PARTS = ("Output", "Mask", "Projection", "MLP", "Bias", "Layer", "Block", "Encoder", "Decoder", "Model", "Gate", "Norm")
REMEDY = (
    "Models that call ALL_ATTENTION_FUNCTIONS.get_interface can be watched (BERT, GPT-2, Llama, T5, ViT and some 340 "
    "families more), and clearhead's own; elsewhere, take q and k with a forward hook and pass them to "
    "clearhead.measure(q, k, mask)"
)


def find_attending_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that attend through the interface, by path."""
    return {path: module for path, module in model.named_modules() if calls_interface(module)}


def find_unseen_modules(model: nn.Module, attending: Iterable[nn.Module]) -> dict[str, nn.Module]:
    """Modules that seem to attend without the interface, by path: judged by class name, or by where they are.

    What is called "attn" or "attention" in one layer is suspect if its namesakes in other layers attend.
    """
    outers = set(attending)
    inside, named = {id(inner) for outer in outers for inner in outer.modules()}, dict(model.named_modules())
    patterns = {_replace_numbers(path) for path, module in named.items() if module in outers}
    suspects = {
        path: module
        for path, module in named.items()
        if _seems_attentive(module) or (_replace_numbers(path) in patterns and _is_called_attention(path, module))
    }
    alike = inside | {id(module) for module in suspects.values()}
    return {
        path: module
        for path, module in suspects.items()
        if id(module) not in inside and not any(id(inner) in alike for inner in module.modules() if inner is not module)
    }


def explain_missing_interface(model: nn.Module) -> str:
    """Why a model without modules that attend through the interface cannot be watched."""
    name, others = type(model).__name__, find_unseen_modules(model, [])
    if not others:
        return (
            f"{name} holds no attention that can be watched: neither clearhead's MultiHeadAttention nor a module that "
            "calls Hugging Face's attention interface"
        )
    return (
        f"{name} computes its attention itself, without Hugging Face's attention interface, so it cannot be "
        f"recorded: {describe_modules(others)}. {REMEDY}"
    )


def describe_modules(modules: dict[str, nn.Module]) -> str:
    """The first three modules by path and class, and the total count."""
    shown = [f"{path or 'itself'} ({type(module).__name__})" for path, module in list(modules.items())[:3]]
    return ", ".join(shown) + (f", … ({len(modules)} in all)" if len(modules) > 3 else "")


def _seems_attentive(module: nn.Module) -> bool:
    name = type(module).__name__
    if isinstance(module, nn.MultiheadAttention):
        return True
    return (
        (("Attention" in name and not name.endswith(PARTS)) or name.endswith("AttnBlock"))
        and not isinstance(module, MultiHeadAttention)
        and any(True for _ in module.parameters())
    )


def _replace_numbers(path: str) -> str:
    """The path with "#" for every layer number: equal for the same part of other layers."""
    return ".".join("#" if part.isdigit() else part for part in path.split("."))


def _is_called_attention(path: str, module: nn.Module) -> bool:
    named = re.search("attn|attention", path.rpartition(".")[2], re.IGNORECASE)
    return named is not None and any(True for _ in module.parameters())


# Words without information: common names of submodules.
PLAIN = {"model", "models", "transformer", "layers", "layer", "blocks", "block", "h", "backbone", "base_model"}
SIDES = re.compile(r"^(?:.+_)?(encoder|decoder)(?:_transformer|_model)?$")
TOWER = re.compile(r"_(?:model|tower|encoder|decoder|transformer|backbone|embed|embeddings)$")
SENSES = {"text", "language", "vision", "visual", "image", "audio", "speech", "video", "qformer"}


class AttentionInfo(NamedTuple):
    """Static facts about an attention module."""

    name: str
    cross: bool
    grows: bool  # with a cache, if there is one
    joint: bool  # whether one softmax goes over its own text, and after that over the encoder's
    out: nn.Module | None  # the projection that merges its heads


def describe_attentions(model: nn.Module, with_out: Sequence[str] = ()) -> dict[nn.Module, AttentionInfo]:
    """Every attention of a model with its facts; those named in `with_out` with their output projection."""
    attending = find_attending_modules(model)
    paths = {module: path for path, module in attending.items()}
    named = _name_attentions(attending)
    outs = {named[name]: _find_output_projection(model, name, paths[named[name]]) for name in with_out}
    alone = not any("decoder" in name.split(".") for name in named)
    infos = {}
    for name, module in named.items():
        grows = "decoder" in name.split(".") or bool(getattr(module, "is_causal", False))
        grows = grows or (alone and keeps_keys(module))
        cross = is_cross(paths[module], module)
        infos[module] = AttentionInfo(name, cross, grows, reads_both_texts(module), outs.get(module))
    return infos


def reads_both_texts(module: nn.Module) -> bool:
    """Whether a decoder's keys are those of its own text, followed by the encoder's, as T5Gemma2 has them."""
    kind: Any = type(module)
    return "merged_attention_mask" in inspect.signature(kind.forward).parameters


class PathParts(NamedTuple):
    """The parts of a module path from which the name of an attention is made."""

    path: str
    towers: tuple[str, ...]
    stack: str
    numbers: tuple[str, ...]
    leaf: str
    cross: bool

    def name(self, towers: Sequence[str], *, leaf: bool = False) -> str:
        if not self.numbers:
            return self.path or "attention"
        kind = self.leaf if leaf else "cross" if self.cross else "self"
        return ".".join([*towers, self.stack, *self.numbers, kind])


def find_attentions(model: nn.Module) -> dict[str, nn.Module]:
    """Every attention of a Hugging Face model by name, in module order; {} if there is none."""
    return _name_attentions(find_attending_modules(model))


def _name_attentions(attending: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The same modules by name instead of by path."""
    modules = {strip_wrappers(path): module for path, module in attending.items()}
    parts = [
        _split_path(path, module, positions)
        for (path, module), positions in zip(modules.items(), _find_distinguishing_numbers(modules), strict=True)
    ]
    names = [part.name(()) for part in parts]
    senses = [[word for word in part.towers if word in SENSES] for part in parts]
    if len({tuple(words) for words in senses}) > 1:
        names = [part.name(words) for part, words in zip(parts, senses, strict=True)]
    names = _make_distinct(parts, names, [part.name(part.towers) for part in parts])
    names = _make_distinct(parts, names, [part.name(part.towers, leaf=True) for part in parts])
    names = _make_distinct(parts, names, [part.path for part in parts])
    return dict(zip(names, modules.values(), strict=True))


def is_cross(path: str, module: nn.Module) -> bool:
    """Whether this is cross-attention, judged by module path, class name and attributes."""
    leaf = re.split(r"\.\d+\.", f".{path}")[-1]
    return bool(
        CROSS.search(leaf) or "CrossAttention" in type(module).__name__ or getattr(module, "is_cross_attention", False)
    )


def _find_distinguishing_numbers(paths: Iterable[str]) -> list[list[int]]:
    """For each path, which of its numbers distinguish layers: T5's "block.3.layer.1" has one, Swin's two."""
    split = [path.split(".") for path in paths]
    patterns = [tuple("#" if part.isdigit() else part for part in parts) for parts in split]
    values: dict[tuple[tuple[str, ...], int], set[str]] = {}
    for parts, pattern in zip(split, patterns, strict=True):
        for position, part in enumerate(parts):
            if part.isdigit():
                values.setdefault((pattern, position), set()).add(part)
    distinguishing = []
    for pattern in patterns:
        numbers = [position for position, part in enumerate(pattern) if part == "#"]
        several = [position for position in numbers if len(values[pattern, position]) > 1]
        distinguishing.append(several or numbers[:1])
    return distinguishing


def _split_path(path: str, module: nn.Module, numbers: list[int]) -> PathParts:
    """The parts of a path; `numbers` are the positions of those that distinguish layers."""
    parts = path.split(".")
    if not numbers:
        return PathParts(path, (), "", (), path, is_cross(path, module))
    before = [part for part in parts[: numbers[-1]] if not part.isdigit()]
    leaf = ".".join(part for part in parts[numbers[-1] + 1 :] if not part.isdigit())
    cross, sides = is_cross(path, module), [match[1] for part in before if (match := SIDES.match(part))]
    stack = sides[0] if sides else "decoder" if cross or _is_causal(module) else "encoder"
    towers = [TOWER.sub("", part) for part in before if part not in PLAIN and part not in ("encoder", "decoder")]
    apart = tuple(word for n, word in enumerate(towers) if towers[n - 1 : n] != [word])
    return PathParts(path, apart, stack, tuple(parts[position] for position in numbers), leaf, cross)


def _is_causal(module: nn.Module) -> bool:
    """Whether a module is causal: by `is_causal`, or else if it uses a cache."""
    config = getattr(module, "config", None)
    keeps = getattr(config, "use_cache", False) and getattr(module, "layer_idx", None) is not None
    return bool(getattr(module, "is_causal", keeps))


def _make_distinct(parts: list[PathParts], names: list[str], longer: list[str]) -> list[str]:
    """Replaces names by longer ones in every stack that has a duplicate."""
    counts = Counter(names)
    stacks = [(part.towers, part.stack, part.leaf, part.cross) for part in parts]
    taken = {stack for stack, name in zip(stacks, names, strict=True) if counts[name] > 1}
    return [long if stack in taken else name for stack, name, long in zip(stacks, names, longer, strict=True)]


# Of q and k: with latent attention (DeepSeek), `head_dim` is another.
WIDTHS = ("qk_head_dim", "head_dim", "attention_head_dim", "attention_head_size", "key_value_proj_dim", "d_kv")
COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_q_heads", "heads", "groups")

# Families whose output projection is applied to the merged heads directly; "^" is the module around the attention.
# Others have gates or norms in between, so they are not guessed. tests/lens/test_huggingface_norms.py has the proof.
MERGED_BY = {
    "o_proj": (
        "Llama Mistral Mixtral Ministral3 Qwen2 Qwen2Moe Qwen3 Qwen3Moe Gemma Gemma2 Gemma3 GptOss Phi3 Olmo Olmo2 "
        "Olmo3 StableLm Starcoder2 Cohere Cohere2 Granite GraniteMoe Helium SmolLM3 Glm Glm4 DeepseekV2 DeepseekV3 "
        "NomicBert ViT DeiT Beit Dinov2 DINOv3ViT"
    ),
    "out_proj": "Bart MBart Marian Pegasus M2M100 Blenderbot Whisper OPT BioGpt CLIP Siglip Wav2Vec2 Hubert",
    "o": "T5 MT5 UMT5",
    "c_proj": "GPT2 GPTBigCode",
    "dense": "GPTNeoX Phi Albert",
    "out_lin": "DistilBert",
    "Wo": "ModernBert",
    "^output.dense": "Bert Roberta Electra Camembert XLMRoberta LayoutLM",
}
SUFFIXES = ("Attention", "SelfAttention", "CrossAttention")
PROJECTIONS = {
    f"{name}{suffix}": path for path, names in MERGED_BY.items() for name in names.split() for suffix in SUFFIXES
}


def read_shapes(model: nn.Module) -> dict[str, AttentionShape]:
    """The sizes of each attention by name; {} for a model of another library, LensError for one without any."""
    named = find_attentions(model)
    if not named and hasattr(getattr(model, "config", None), "_attn_implementation"):
        raise LensError(explain_missing_interface(model))
    return {name: _read_shape(model, module) for name, module in named.items()}


def _read_shape(model: nn.Module, module: nn.Module) -> AttentionShape:
    """The sizes of an attention, from its attributes, its config, or the config of the model."""
    heads, configs = count_module_heads(module), (getattr(module, "config", None), getattr(model, "config", None))

    def read(*names: str) -> int:
        sizes = (_read_integer(source, name) for source in (module, *configs) for name in names)
        return next((size for size in sizes if size > 0), 0)

    groups = _read_integer(module, "num_key_value_groups")
    kv_heads = heads // groups if groups else read("num_key_value_heads", "num_kv_heads") or heads
    head_dim = read(*WIDTHS) or max(1, (read("hidden_size", "d_model", "embed_dim") or 64 * heads) // heads)
    return AttentionShape(heads, min(max(1, kv_heads), heads), head_dim, read_itemsize(model))


def count_module_heads(module: nn.Module) -> int:
    """The number of heads of a module, from its attributes or its config."""
    sources: tuple[Any, ...] = (module, getattr(module, "config", None))
    counts = (_read_integer(source, name) for source in sources for name in COUNTS)
    return next((count for count in counts if count > 0), 1)


def _read_integer(source: Any, name: str) -> int:
    """An integer attribute of a module or config; 0 if there is none."""
    try:
        value = getattr(source, name, 0)
    except Exception:  # a config whose layers differ has an error of its own, which is no AttributeError
        return 0
    return value if isinstance(value, int) else 0


def _find_output_projection(model: nn.Module, name: str, path: str) -> nn.Module:
    """The module that merges the heads of an attention; LensError for a family where that is not known."""
    module = model.get_submodule(path)
    projection = PROJECTIONS.get(type(module).__name__)
    if projection is None:
        raise LensError(
            f"norms=True needs the output projection of {name!r}, which is not known for {type(module).__name__}; "
            f"supported are {', '.join(' '.join(MERGED_BY.values()).split())}"
        )
    around = model.get_submodule(path.rpartition(".")[0]) if projection.startswith("^") else module
    try:
        return around.get_submodule(projection.removeprefix("^"))
    except AttributeError:
        raise LensError(
            f"norms=True needs the output projection of {name!r}, which is not in the watched {type(model).__name__}; "
            "watch the model that it belongs to, and choose the attention with layers="
        ) from None
