"""The server of `clearhead look`: what a page asks it about a text, and what the model does without heads and words."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from recordings.commands import clean
from recordings.recording import Items
from recordings.trainings import Training
from recordings.values import digest

TEXT_NAMES = ("id", "scene")  # keys of texts, which are numbered or named at random
WAIT = 600  # seconds for a response


def record_pages(folder: Path, trainings: Sequence[Training]) -> Items:
    """What the server answers for the look of each model; models that were not trained are left out."""
    for training in trainings:
        if training.look and (not training.recipe or (folder / training.name / "model").exists()):
            yield f"{training.name}: live page", ask_server(folder, training)


def ask_server(folder: Path, training: Training) -> dict[str, Any]:
    command = [sys.executable, "-m", "clearhead", "look", training.name, training.look]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    try:
        return {name: _clean(value, folder) for name, value in _Page(address).ask().items()}
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


class _Page:
    """A browser's requests."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self) -> dict[str, Any]:
        scene = self.get("scene.json")
        found: dict[str, Any] = {"scene": scene, "effects": self.get("effects")}
        names = [attention["name"] for attention in scene["attentions"]]
        for attention in (scene["attentions"][0], scene["attentions"][-1]):
            name = attention["name"]
            found[name] = self.ask_about(name, *attention["counts"], *attention["first"])
        off = [{"name": names[0], "heads": [0]}, {"name": names[-1], "heads": [0, 1]}]
        text = scene["attentions"][0]["keys"]
        for title, content in {
            "without heads": {"off": off},
            "without a word": {"hide": {text: [1]}},
            "without both": {"off": off, "hide": {text: [0, 2]}},
            "without a head that is not there": {"off": [{"name": names[0], "heads": [99]}]},
        }.items():
            found[title] = self.post("ablate", content)
        if scene["continues"]:
            found["continued"] = self.post("continue", {"place": 1, "choice": 1})
            found["continued at the end"] = self.post("continue", {"place": 999, "choice": 0})
            found["opened"] = self.post("continue", {"place": 1, "choice": 2, "open": True})
        if scene["takes"] == "text":
            found["another text"] = self.post("look", {"text": "We saw two red birds. 我们看见了鸟。"})
            found["no text"] = self.post("look", {"text": " "})
        return found

    def ask_about(self, name: str, queries: int, keys: int, first_query: int, first_key: int) -> dict[str, Any]:
        ends = {"q0": first_query, "q1": first_query + queries, "k0": first_key, "k1": first_key + keys}
        return {
            "thumbs": self.get("thumbs", name=name),
            "map": self.get("map", name=name, head=1),
            "window": self.get("window", name=name, head=1, **ends, height=1, width=1),
            "blocks": self.get("window", name=name, head=0, **ends, height=3, width=2),
            "row": self.get("row", name=name, head=0, query=first_query + queries - 1),
            "column": self.get("column", name=name, head=0, key=first_key),
        }

    def get(self, request: str, /, **query: Any) -> Any:
        return _send(Request(f"{self.address}{request}?{urlencode(query)}"))

    def post(self, request: str, content: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json", "Origin": self.address.rsplit("/", 2)[0]}
        return _send(Request(f"{self.address}{request}", data=json.dumps(content).encode(), headers=headers))


def _send(request: Request) -> Any:
    """JSON; of numbers their header and a digest; of a refusal its code and message."""
    try:
        with urlopen(request, timeout=WAIT) as response:
            content = response.read()
    except HTTPError as error:
        return {"refused": error.code, "message": error.read().decode("utf-8", "replace")}
    try:
        return json.loads(content)
    except ValueError:
        header, _, numbers = content.partition(b"\n")
        return {"header": json.loads(header), "numbers": f"{len(numbers)} bytes, {digest(numbers)}"}


def _clean(value: Any, folder: Path) -> Any:
    """A response without names of texts, and paths of this machine."""
    if isinstance(value, dict):
        return {key: _clean(inside, folder) for key, inside in value.items() if key not in TEXT_NAMES}
    if isinstance(value, list):
        return [_clean(inside, folder) for inside in value]
    return clean(value, folder) if isinstance(value, str) else value
