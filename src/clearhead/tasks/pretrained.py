"""Trained weights that a run starts from: `[train] init_from`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.errors import ConfigError
from clearhead.formatting import format_count
from clearhead.model import ModelConfig

if TYPE_CHECKING:
    from clearhead.text import Tokenizer

HEAD = "to_labels."  # parameters with a row for each label
SHOWN = 4  # names of tensors in a message


class Transfer(NamedTuple):
    """Which parameters of a model came from trained weights, which are new, and which weights were left over."""

    taken: list[str]
    new: list[str]
    left: list[str]

    def __str__(self) -> str:
        lines = [f"{format_count(len(self.taken), 'tensor')} taken"]
        lines += [f"{what}: {_list_names(names)}" for what, names in (("new", self.new), ("left", self.left)) if names]
        return "; ".join(lines)


@dataclass(frozen=True)
class Pretrained:
    """A trained model to start from: its weights by the names of our parameters, its configuration and tokenizer."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    tensors: Mapping[str, Tensor]
    labels: Sequence[str] = ()  # of its output head, if it has one

    @torch.no_grad()
    def fill(self, model: nn.Module, labels: Sequence[str] = ()) -> Transfer:
        """Copies every tensor whose name and shape the model has; its output head only if the labels are the same."""
        taken, new = list[str](), list[str]()
        for name, parameter in model.named_parameters():
            tensor = self.tensors.get(name)
            if tensor is None or (name.startswith(HEAD) and list(labels) != list(self.labels)):
                new.append(name)
                continue
            if tensor.shape != parameter.shape:
                raise ConfigError(
                    f"train.init_from: {name} has shape {tuple(tensor.shape)} in {self.folder} and "
                    f"{tuple(parameter.shape)} here; leave the sizes out of [model]"
                )
            parameter.copy_(tensor)
            taken.append(name)
        if not any(".layers." in name for name in taken):
            raise ConfigError(
                f"train.init_from: no layer of {self.folder} fits this model; choose weights of the same architecture"
            )
        return Transfer(taken, new, [name for name in self.tensors if name not in set(taken)])


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
