"""What all tests share: shapes checked at every call, few but repeatable examples, and the devices there are.

`CLEARHEAD_CHECK_SHAPES=0` switches the shape checks off, for what they do not survive: torch.compile, and
tests marked `unchecked` that pass wrong input on purpose to see clearhead's own words about it.
"""

import gc
import importlib.util
import os
import signal
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest
import torch

CHECK_SHAPES = os.environ.get("CLEARHEAD_CHECK_SHAPES") != "0"

if CHECK_SHAPES:
    if importlib.util.find_spec("beartype") is None:
        raise pytest.UsageError(
            "the tests check shapes with beartype, which is not installed; "
            "install it, or run them unchecked with CLEARHEAD_CHECK_SHAPES=0"
        )
    from jaxtyping import install_import_hook

    install_import_hook("clearhead", "beartype.beartype")

# In the background of a shell (`make test &`, nohup) Ctrl-C is ignored, and so it would be in every process of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Test tensors are small: a second thread costs more in waiting than it brings, the more so on a busy machine.
torch.set_num_threads(1)

# No deadline: the first call of an operator is slow, and machines are shared.
hypothesis.settings.register_profile("default", max_examples=30, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("soak", max_examples=500, deadline=None, print_blob=True)
hypothesis.settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    # Not ours: beartype checks one item of a list, chosen at random, and hypothesis notices while it draws masks.
    config.addinivalue_line("filterwarnings", "ignore:Do not use the `random` module inside strategies")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m unchecked` only files that contain the word are imported."""
    if config.option.markexpr != "unchecked" or not collection_path.match("test_*.py"):
        return None
    return True if "unchecked" not in collection_path.read_text(encoding="utf-8") else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports make a million objects that stay: the garbage collector looks at none of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="wants CLEARHEAD_CHECK_SHAPES=0: shape checks would answer first")
    for item in items:
        if CHECK_SHAPES and item.get_closest_marker("unchecked"):
            item.add_marker(skip)


@pytest.fixture(scope="session", params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request: pytest.FixtureRequest) -> str:
    return request.param
