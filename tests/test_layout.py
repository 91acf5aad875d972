"""The layout of DESIGN.md, read from the source: imports point one way, and names say what is inside."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "clearhead"

# What each part of the package may import, besides itself. DESIGN.md, "How data flows".
MODEL = {"errors", "formatting", "storage", "attention", "model"}
TASKS = MODEL | {"text", "images", "audio", "decode", "tasks"}
TOP = TASKS | {"lens", "train", "adapter_folder", "model_folder", "predictor", "shipped"}
MAY_IMPORT = {
    "errors": set(),
    "formatting": set(),
    "storage": {"errors", "formatting"},
    "attention": {"errors", "formatting", "storage"},
    "lens": {"errors", "formatting", "storage", "attention"},
    "model": {"errors", "formatting", "storage", "attention"},
    "text": MODEL,
    "images": MODEL,
    "audio": MODEL,
    "decode": MODEL,
    "tasks": MODEL | {"text", "images", "audio", "decode"},
    "train": TASKS | {"lens", "adapter_folder", "model_folder", "shipped"},
    "shipped": {"errors", "formatting"},
    "adapter_folder": MODEL | {"shipped"},
    "model_folder": TASKS | {"lens", "shipped", "adapter_folder"},
    "predictor": TASKS | {"lens", "model_folder", "shipped"},
    "explore": TOP,
    "serve": TOP,
    "export": TOP,
    "cli": TOP | {"explore", "serve", "export"},
    "__main__": {"cli"},
}
HEAVY = (
    *("transformers", "matplotlib", "rich", "typer", "pydantic", "fastapi", "tokenizers", "PIL", "soundfile"),
    *("numba", "pandas", "sklearn"),
)


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = ("clearhead", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(code: str, module: str, is_package: bool = False) -> set[str]:
    """The modules of clearhead that this code imports, wherever in it; `from a import b` gives a.b too."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found |= {origin} | {f"{origin}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "clearhead"}


def part_of(module: str) -> str | None:
    """The second name: clearhead.attention.masks is of `attention`; None for clearhead itself."""
    return module.split(".")[1] if "." in module else None


def wrong_imports(code: str, module: str, is_package: bool = False) -> list[str]:
    part = part_of(module)
    if part is None:
        return []  # clearhead/__init__.py gathers the public names of all
    known = {name: part_of(name) for name in imports(code, module, is_package)}
    return sorted(
        f"{module} imports {name}"
        for name, other in known.items()
        if other != part and (other is None or other in MAY_IMPORT) and other not in MAY_IMPORT[part]
    )


def test_every_part_of_the_package_is_known():
    parts = {part_of(module_of(path)) for path in files()} - {None}
    assert parts <= set(MAY_IMPORT), (
        f"{sorted(parts - set(MAY_IMPORT))} not in DESIGN.md's layout: add it there, and here what it may import"
    )


@pytest.mark.parametrize("path", files(), ids=module_of)
def test_imports_point_one_way(path):
    assert not wrong_imports(path.read_text(), module_of(path), path.name == "__init__.py")


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ("from clearhead.lens.capture import collector", "clearhead.attention.masks"),
        ("from clearhead import lens", "clearhead.attention.masks"),
        ("def late():\n    import clearhead.model.layers", "clearhead.attention.masks"),
        ("from ..model import layers", "clearhead.attention.masks"),
        ("from clearhead import attend", "clearhead.model.layers"),  # the whole package, by its front door
    ],
)
def test_a_wrong_import_is_noticed(code, module):
    assert wrong_imports(code, module)


def test_a_right_import_is_not():
    assert not wrong_imports("from clearhead.attention import Mask\nfrom . import config", "clearhead.model.layers")


def test_fast_backends_never_import_the_reference():
    for path in (SOURCE / "attention" / "backends").glob("*.py"):
        if path.name != "choice.py":  # where it is chosen from
            assert "clearhead.attention.reference" not in imports(path.read_text(), module_of(path))


def test_no_module_is_named_after_nothing():
    names = {path.stem for path in files()} | {path.parent.name for path in files()}
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc"}


def test_importing_clearhead_brings_nothing_that_only_extras_install():
    code = f"import clearhead, sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()


def missing_imports(code: str) -> list[str]:
    """The names that this code imports from modules of clearhead, and that these do not define."""
    missing = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clearhead."):
            defined = defined_names(node.module or "")
            missing += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in defined]
    return missing


def defined_names(module: str) -> set[str]:
    """What a module defines or imports, and the modules in a package; empty if there is no such file."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names = {entry.stem for entry in path.iterdir()} if path.is_dir() else set()
    for node in ast.walk(ast.parse(file.read_text())) if file.exists() else ():
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and path.is_dir() and isinstance(node.value, str):
            names.add(node.value)  # a package that imports lazily lists its names
    return names


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_what_is_not_tested_imports_names_that_exist(folder):
    scripts = sorted((SOURCE.parents[1] / folder).rglob("*.py"))
    assert scripts
    assert not {script.name: names for script in scripts if (names := missing_imports(script.read_text()))}


def test_an_import_of_what_is_gone_is_noticed():
    assert missing_imports("from clearhead.attention.masks import Mask, No") == ["clearhead.attention.masks.No"]
    assert missing_imports("def late():\n    from clearhead.nothing import all") == ["clearhead.nothing.all"]
