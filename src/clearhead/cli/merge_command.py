"""The command `merge`: an adapter and its base model become one model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.options import Base, Model
from clearhead.cli.output import print_message
from clearhead.cli.startup import import_torch


def merge(
    model: Model,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The new model's folder.")],
    base: Base = None,
) -> None:
    """Merge a LoRA adapter into its base model: the new folder is a whole model and needs no other."""
    import_torch(None)
    from clearhead.model_folder import ModelFolder
    from clearhead.model_folder import merge as merge_folder
    from clearhead.predictor import find_model

    merge_folder(find_model(model), out, base=base)
    example = ModelFolder.open(out).processor().inputs.example
    print_message(f"wrote {out}; try it: clearhead predict {out} {example}")
