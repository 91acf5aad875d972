"""What comes with the package, by name: corpora to train on, recipes to train with, trained models; and a font."""

from __future__ import annotations

from pathlib import Path

from clearhead.errors import ConfigError
from clearhead.formatting import suggest_name

HERE = Path(__file__).parent
CORPORA, RECIPES, MODELS = HERE / "corpora", HERE / "recipes", HERE / "models"
FONT = HERE / "fonts" / "clearhead-cjk.ttf"  # has Chinese characters; its family is `Clearhead CJK`
TABLE, TEXT, RECIPE = ".tsv.gz", ".txt.gz", ".toml"
PREFIX = "shipped:"  # before a name that could also be that of a file or folder


def corpora() -> list[str]:
    """The names of the shipped corpora, such as `tatoeba-zh-en.dev`."""
    return sorted(path.name.removesuffix(kind) for kind in (TABLE, TEXT) for path in CORPORA.glob(f"*{kind}"))


def recipes() -> list[str]:
    return sorted(path.name.removesuffix(RECIPE) for path in RECIPES.glob(f"*{RECIPE}"))


def models() -> list[str]:
    return sorted(path.parent.name for path in MODELS.glob("*/config.json"))


def corpus(name: str) -> Path:
    """The file of a corpus: `tatoeba-zh-en.train` has Chinese, English and attribution, separated by tabs."""
    if name not in (names := corpora()):
        raise ConfigError(f"no shipped corpus is called {name!r}; {suggest_name(name, names)}")
    table = CORPORA / f"{name}{TABLE}"
    return table if table.exists() else CORPORA / f"{name}{TEXT}"


def recipe(name: str) -> Path | None:
    """The file of a recipe; None if there is none of this name."""
    return RECIPES / f"{name}{RECIPE}" if name in recipes() else None


def model(name: str) -> Path | None:
    """The folder of a trained model; None if there is none of this name."""
    return MODELS / name if name in models() else None
