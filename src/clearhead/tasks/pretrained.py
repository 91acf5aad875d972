"""Trained weights that a run starts from (`[train] init_from`), and which of them another model takes over."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.errors import ConfigError
from clearhead.model import ModelConfig
from clearhead.model.config import PARTS
from clearhead.text import Tokenizer

STACKS = ("encoder", "decoder")
TRUNK = (*STACKS, "vocabulary", "source_vocabulary", "pooler")  # the rest of a model depends on the labels
# What a task whose model has only such layers can start from, and the objective that pre-trains one.
STARTS = {"encoder": ("an encoder such as BERT", "masked"), "decoder": ("a language model such as GPT-2", "next")}
ROWS = ("vocabulary.words.weight", "vocabulary.output.weight", "vocabulary.bias")  # a row for each token


class Transfer(NamedTuple):
    """Which parameters of a model came from trained weights, which are new, which weights were left; with sizes."""

    taken: dict[str, int]
    new: dict[str, int]
    left: dict[str, int]


@dataclass(frozen=True)
class Pretrained:
    """A trained model to start from: its weights by the names of our parameters, its configuration and tokenizer."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    tensors: Mapping[str, Tensor]
    labels: Sequence[str] = ()  # of its output head, if it has one

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks of layers that it has: "encoder", "decoder" or both."""
        return tuple(stack for stack in STACKS if any(name.startswith(f"{stack}.layers.") for name in self.tensors))

    def adapt_config(self, stacks: Sequence[str], *, predicts_tokens: bool, parts: Collection[str] = ()) -> ModelConfig:
        """Its configuration for a model with these stacks and parts, which may be others than its own.

        A decoder alone has as many layers as its decoder had. Scores over the vocabulary are taken over where the
        same stack gives them; a model without them needs none of their parts.
        """
        config, trained = self.config, self.stacks
        changes: dict[str, object] = {part: None for part in PARTS if part not in parts}
        decoder_layers = config.layers if config.decoder_layers is None else config.decoder_layers
        if tuple(stacks) == ("decoder",):
            changes |= {"decoder_layers": None, "cross_attention": False}
            changes["layers"] = decoder_layers if "decoder" in trained else config.layers
        elif "decoder" in stacks and "decoder" in trained:
            changes["decoder_layers"] = decoder_layers
        elif "decoder" not in stacks:
            changes["decoder_layers"] = None
        if len(stacks) == 1:
            changes["copying"] = False
        if not predicts_tokens or stacks[-1] != trained[-1]:
            changes |= {"logits_bias": False, "logits_transform": False, "tie_embeddings": True}
        return config.change(**changes)

    @torch.no_grad()
    def fill(self, model: nn.Module, labels: Sequence[str] = ()) -> Transfer:
        """Copies every tensor whose name and shape the model has; its output head only if the labels are the same."""
        taken, new = dict[str, int](), dict[str, int]()
        same = list(labels) == list(self.labels)
        for name, parameter in model.named_parameters():
            tensor, trunk = self.tensors.get(name), name.split(".")[0] in TRUNK
            if tensor is None or (not trunk and (not same or tensor.shape != parameter.shape)):
                new[name] = parameter.numel()
                continue
            if name in ROWS and len(tensor) > len(parameter) == self.tokenizer.size:
                tensor = tensor[: len(parameter)]  # the checkpoint has more rows than its tokenizer has tokens
            if tensor.shape != parameter.shape:
                raise ConfigError(self._explain_shape(name, tensor, parameter))
            parameter.copy_(tensor)
            taken[name] = parameter.numel()
        if not any(".layers." in name for name in taken):
            raise ConfigError(self._explain_stacks([stack for stack in STACKS if hasattr(model, stack)]))
        left = {name: tensor.numel() for name, tensor in self.tensors.items() if name not in taken}
        return Transfer(taken, new, left)

    def _explain_stacks(self, wanted: Sequence[str]) -> str:
        has, needs = " and ".join(self.stacks) or "no", " and ".join(wanted)
        start, objective = STARTS[wanted[0]]
        return (
            f"train.init_from: {self.folder} has {has} layers only, and this task needs {needs} layers; start from "
            f'{start}, or from a model of task = "pretraining" with objective = "{objective}" or "denoise"'
        )

    def _explain_shape(self, name: str, tensor: Tensor, parameter: Tensor) -> str:
        shapes = f"{tuple(tensor.shape)} in {self.folder} and {tuple(parameter.shape)} here"
        return (
            f"train.init_from: {name} has shape {shapes}; leave the sizes out of [model] (--set model={{}} empties it)"
        )
