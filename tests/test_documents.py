"""What the documents say is true: their Python runs, their links lead somewhere, translations are in step."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from clearhead import shipped
from clearhead.tasks import TASKS
from clearhead.train.recipe import check_recipe, recipe_class

ROOT = Path(__file__).resolve().parent.parent
TRANSLATED = [("README.md", "README.zh-CN.md"), ("docs/explorer.md", "docs/explorer.zh-CN.md")]
DOCUMENTS = [*TRANSLATED[0], "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
DOCUMENTS += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))


class Block(NamedTuple):
    kind: str
    text: str
    follows: bool  # nothing but white space between it and the block before


def blocks(document: str) -> list[Block]:
    found, end = [], 0
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", document, re.MULTILINE | re.DOTALL):
        found.append(Block(match[1], match[2], bool(found) and not document[end : match.start()].strip()))
        end = match.end()
    return found


def run_python(document: str) -> None:
    """Runs all Python blocks in one namespace; a text block right after one is what it prints."""
    names: dict[str, object] = {"__name__": "document"}
    printed = ""
    torch.manual_seed(0)
    for kind, text, follows in blocks(document):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, "document", "exec"), names)
            printed = out.getvalue()
        elif kind == "text" and follows:
            assert printed == text, f"the document shows\n{text}\nbut its code prints\n{printed}"


def prose(document: str) -> str:
    return re.sub(r"^```.*?^```$", "", document, flags=re.MULTILINE | re.DOTALL)


def headings(document: str) -> list[int]:
    return [len(match[1]) for match in re.finditer(r"^(#+) ", prose(document), re.MULTILINE)]


def links(document: str) -> list[str]:
    return re.findall(r"(?:\]\(|src=\")([^)\"\s]+)", prose(document))


def code_in_prose(document: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", prose(document)))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.unchecked  # as users run it; one block shows clearhead's own words about wrong input
@pytest.mark.parametrize("name", DOCUMENTS)
def test_python_in_a_document_runs_and_prints_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_python(read(name))


def test_a_document_that_is_wrong_is_noticed() -> None:
    run_python("```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError, match="prints"):
        run_python("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    with pytest.raises(NameError):
        run_python("```python\nsmile\n```\n")
    run_python("```python\nprint(1 + 1)\n```\nElsewhere:\n```text\n3\n```\n")  # no claim about the code


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_to_files_lead_somewhere(name: str) -> None:
    for link in links(read(name)):
        if not link.startswith(("https://", "#")):
            assert ((ROOT / name).parent / link.split("#")[0]).exists(), f"{name} links to {link}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_in_documents_are_targets_of_the_makefile(name: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    text = read(name)
    shell = "\n".join(block.text for block in blocks(text) if block.kind == "sh")
    called = re.findall(r"^make ([a-z]+)", shell, re.MULTILINE) + re.findall(r"`make ([a-z]+)`", text)
    assert set(called) <= targets


@pytest.mark.parametrize("names", TRANSLATED)
def test_a_document_and_its_translation_are_in_step(names: tuple[str, str]) -> None:
    english, chinese = (read(name) for name in names)
    assert headings(english) == headings(chinese)
    assert blocks(english) == blocks(chinese)
    assert code_in_prose(english) == code_in_prose(chinese)
    # each links to the other, and else they link to the same in the same order, or to its translation
    both = [[link.replace(".zh-CN.md", ".md") for link in links(document)] for document in (english, chinese)]
    assert both[0] == both[1]
    assert Path(names[1]).name in links(english)
    assert Path(names[0]).name in links(chinese)
    assert english.count("\n\n") == chinese.count("\n\n")  # paragraph by paragraph


@pytest.mark.parametrize("name", DOCUMENTS)
def test_recipes_in_documents_are_recipes(name: str) -> None:
    for block in blocks(read(name)):
        if block.kind == "toml":
            check_recipe(tomllib.loads(block.text), name)


@pytest.mark.parametrize("task", TASKS)
def test_the_guide_explains_every_key_of_a_recipe(task: str) -> None:
    explained = code_in_prose(read("docs/training.md"))
    assert task in explained
    for name, field in recipe_class(TASKS[task].recipe).model_fields.items():
        inside = getattr(field.annotation, "model_fields", {})
        assert {name} <= explained or f"[{name}]" in explained, name
        assert set(inside) <= explained, f"of [{name}] the guide leaves out {set(inside) - explained}"


def test_recipes_and_models_named_in_commands_are_shipped() -> None:
    known = {*shipped.recipes(), *shipped.models()}
    for name in DOCUMENTS:
        shell = "\n".join(block.text for block in blocks(read(name)) if block.kind == "sh")
        called = re.findall(r"clearhead (?:train|predict|evaluate) ([\w-]+)(?=\s)", shell)
        assert set(called) <= known, f"{name} calls for {set(called) - known}"


def test_files_named_in_the_architecture_exist() -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|js))`", read("docs/architecture.md")))
    assert len(named) > 50
    missing = [name for name in named if not any((ROOT / base / name).exists() for base in ("src/clearhead", "."))]
    assert not missing


def test_pictures_are_small() -> None:
    for path in (ROOT / "docs" / "images").iterdir():
        assert path.stat().st_size < 200_000, path.name
