"""Walks through the code: which files a reader opens to follow one command, and how often she comes back to one.

    python tests/walks.py           # prints a table
    python tests/walks.py watch     # prints one walk, file by file, with the functions of each visit

A walk runs the command and notes every function of clearhead at its first call. A move to a file that was open before
is a return. Code that runs at import is left out, and so are the foundations, because a reader knows what `attend`,
`Tokenizer.encode` or `write_json` does without opening them. The counts in brackets include the foundations.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import clearhead

SOURCE = Path(clearhead.__file__).parent
FOUNDATIONS = ("attention/", "model/", "text/", "storage/", "shipped/", "errors.py", "formatting.py")


class Walk(NamedTuple):
    """The visits of one walk, in order: a file, and the functions that were called there for the first time."""

    visits: list[tuple[str, list[str]]]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.visits))

    @property
    def returns(self) -> int:
        return len(self.visits) - len(self.files)

    def without(self, folders: tuple[str, ...]) -> Walk:
        """The same walk by a reader who opens no file of these folders."""
        visits: list[tuple[str, list[str]]] = []
        for file, functions in self.visits:
            if visits and visits[-1][0] == file:
                visits[-1][1].extend(functions)
            elif not file.startswith(folders):
                visits.append((file, list(functions)))
        return Walk(visits)


def follow(action: Callable[[], object]) -> Walk:
    """The walk through the functions that `action` calls, in all threads that it starts."""
    visits: list[tuple[str, list[str]]] = []
    seen = set[CodeType]()
    prefix = f"{SOURCE}/"

    def trace(frame: FrameType, _event: str, _: Any) -> None:
        code = frame.f_code
        if code in seen or not code.co_filename.startswith(prefix):
            return
        if code.co_name.startswith("<") or _runs_at_import(frame):  # a comprehension is part of its function
            return
        seen.add(code)
        file = code.co_filename.removeprefix(prefix)
        if not visits or visits[-1][0] != file:
            visits.append((file, []))
        visits[-1][1].append(code.co_qualname)

    # A tracer that returns None is told of calls only; a profiler also of each return and each C function.
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    return Walk(visits)


def _runs_at_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__", "").startswith("clearhead"):
            return True
        frame = frame.f_back
    return False


def run_command(*arguments: str) -> None:
    from clearhead.cli import main

    silent = io.StringIO()
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent), contextlib.suppress(SystemExit):
        main(list(arguments))


@contextlib.contextmanager
def walks() -> Iterator[dict[str, Callable[[], object]]]:
    """The four commands whose walks are measured, by name."""
    with tempfile.TemporaryDirectory() as folder:
        page, run = f"{folder}/page.html", f"{folder}/run"
        yield {
            "predict": lambda: run_command("predict", "zh-en", "你好。"),
            "train": lambda: run_command("train", "classify-tiny", "--out", run, "--set", "train.steps=4"),
            "watch": watch_llama,
            "look": lambda: run_command("look", "zh-en", "我爱你。", "--out", page),
        }


def watch_llama() -> None:
    """A small Llama generates five tokens under `watch`; then a measure and exact weights are read."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=61, num_key_value_heads=2, **sizes)).eval()
    with clearhead.watch(model, keep="qk") as record:
        model.generate(torch.arange(17)[None], max_new_tokens=5, do_sample=False, eos_token_id=None)
    sight = record["decoder.0.self"]
    assert sight.entropy.shape == (1, 4, 21)
    assert sight.weights(batch=0, head=2, queries=slice(0, 5), keys=slice(0, 3)).shape == (5, 3)


if __name__ == "__main__":
    with walks() as actions:
        for name in sys.argv[1:] or actions:
            whole = follow(actions[name])
            walk = whole.without(FOUNDATIONS)
            print(
                f"{name}: {len(walk.files)} files, {walk.returns} returns"
                f" (with the foundations {len(whole.files)} and {whole.returns})"
            )
            if len(sys.argv) > 1:
                for file, functions in walk.visits:
                    print(f"  {file}: {', '.join(functions)}")
