"""Training: one recipe, one run folder, and at its end a model folder."""

from clearhead.train.observers import Moment, Observer
from clearhead.train.recipe import Recipe, read_recipe
from clearhead.train.training_run import run_training

__all__ = ["Moment", "Observer", "Recipe", "read_recipe", "run_training"]
