"""The inputs of head_roles: token ids as a tensor, as a pair of source and target, or as the dict of a tokenizer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.attention_names import unwrap_model

NAMES = {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}  # token ids, and their masks
RUN = "run=, a function that calls the model"


class TextInputs(NamedTuple):
    """Token ids of each text, (batch, tokens), and which are no padding; without masks, none is padding."""

    texts: tuple[Tensor, ...] = ()
    real: tuple[Tensor, ...] = ()

    def without_padding(self) -> list[TextInputs]:
        """The texts without padding, batched by length."""
        if not self.real:
            return [self] if self.texts else []
        groups: dict[tuple[int, ...], list[int]] = {}
        for sample in range(len(self.texts[0])):
            groups.setdefault(tuple(int(mask[sample].sum()) for mask in self.real), []).append(sample)
        found = [
            TextInputs(
                tuple(
                    torch.stack([text[one][mask[one]] for one in samples])
                    for text, mask in zip(self.texts, self.real, strict=True)
                )
            )
            for sizes, samples in groups.items()
            if min(sizes)
        ]
        if not found:
            raise LensError("there are no tokens in inputs besides padding")
        return found


def read_inputs(inputs: Any, pad: int | None, check: bool) -> TextInputs:
    """Texts and masks of what head_roles was given; LensError for what are no token ids, if `check`."""
    masks: tuple[Any, ...] = ()
    if isinstance(inputs, Mapping):
        texts, masks = _read_dict(inputs)
    else:
        texts = () if inputs is None else inputs if isinstance(inputs, tuple) else (inputs,)
    if check or masks:
        _check_texts(texts)
    if pad is None and not any(mask is not None for mask in masks):
        return TextInputs(texts)
    real = tuple(torch.ones_like(text, dtype=torch.bool) if pad is None else text != pad for text in texts)
    for text, own, mask in zip(texts, real, masks, strict=False):
        if mask is not None:
            if not isinstance(mask, Tensor) or mask.shape != text.shape:
                got = tuple(mask.shape) if isinstance(mask, Tensor) else repr(mask)[:60]
                raise LensError(f"a mask of padding must be shaped as its token ids, {tuple(text.shape)}, got {got}")
            own &= mask.to(text.device).bool()
    return TextInputs(texts, () if all(bool(own.all()) for own in real) else real)


def _read_dict(inputs: Mapping[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The texts of a dict of model inputs, and the mask of each or None."""
    if "input_ids" not in inputs:
        raise LensError(f"a dict of inputs needs input_ids, got {', '.join(inputs) or 'nothing'}; else pass {RUN}")
    for name, value in inputs.items():
        plain = name == "token_type_ids" and isinstance(value, Tensor) and not value.any()  # what the model assumes
        if name not in (*NAMES, *NAMES.values()) and not plain:
            raise LensError(
                f"head_roles reads {', '.join([*NAMES, *NAMES.values()])} of a dict of inputs, not {name!r}; "
                f"leave it out, or pass {RUN} with it"
            )
    names = [name for name in NAMES if name in inputs]
    return tuple(inputs[name] for name in names), tuple(inputs.get(NAMES[name]) for name in names)


def _check_texts(texts: tuple[Any, ...]) -> None:
    for text in texts:
        if not isinstance(text, Tensor) or text.dtype not in (torch.int32, torch.int64) or text.ndim != 2:
            got = f"{text.dtype} of shape {tuple(text.shape)}" if isinstance(text, Tensor) else repr(text)[:60]
            raise LensError(
                "inputs must be token ids shaped (batch, tokens), for an encoder-decoder a tuple (source, target), or "
                f"what a tokenizer gives with return_tensors='pt'; got {got}. For other inputs pass {RUN}"
            )
        if not text.numel():
            raise LensError(f"there are no tokens in inputs of shape {tuple(text.shape)}")


def check_text_count(model: nn.Module, texts: tuple[Tensor, ...]) -> None:
    """Raises LensError if the model reads no tokens, or another number of texts."""
    model = unwrap_model(model)
    if not isinstance(model, nn.Module):  # which `watch` refuses
        return
    names = inspect.signature(model.forward).parameters
    both = {"source", "target"} <= names.keys() or (
        "decoder_input_ids" in names and getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    )
    if both and len(texts) != 2:
        raise LensError(
            f"{type(model).__name__} reads a source and a target; give both as inputs=(source, target), or as "
            "input_ids and decoder_input_ids of a dict"
        )
    if not both and len(texts) != 1 and {"input_ids", "tokens"} & names.keys():  # a wrapper's forward may not say
        raise LensError(f"{type(model).__name__} reads one text, got {len(texts)}")
    if hasattr(model, "config") and "pixel_values" in names and "input_ids" not in names:
        raise LensError(f"{type(model).__name__} reads no token ids; pass {RUN}")
