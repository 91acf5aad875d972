"""The layout of the page's scripts, read from the source: imports point one way, and lines can be read."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "src" / "clearhead" / "explore" / "page"
FOLDERS = ("words", "data", "state", "draw", "panes")  # each may import itself and those before it; app.js imports all
COLUMNS = 120
IMPORT = re.compile(r"^import\s+(?:[^\"]*?\s+from\s+)?\"([^\"]+)\";", re.M)
JOINED = re.compile(  # what `page_file.bundle_modules` joins into one script
    r"^import \{[^}]*\} from \"\.{1,2}/[\w./-]+\";$|^export (?=(?:async function|function|class|const|let)\b)", re.M
)
NOT_JOINED = re.compile(r"^(?:import|export|await)\b.*|\bimport\s*\(.*|\bimport\.meta\b.*", re.M)
REPLACED = re.compile(r"\b(?:explorer|centre|store|source)\.\w+ = (?:async )?\(?[\w, ]*\)? =>")


def scripts() -> list[Path]:
    return sorted(PAGE.rglob("*.js"))


def name_of(path: Path) -> str:
    return path.relative_to(PAGE).as_posix()


def layer_of(module: str) -> int:
    """The place of a module's folder; app.js is above all."""
    folder = posixpath.dirname(module)
    return FOLDERS.index(folder) if folder else len(FOLDERS)


def wrong_imports(code: str, module: str) -> list[str]:
    imported = [posixpath.normpath(posixpath.join(posixpath.dirname(module), path)) for path in IMPORT.findall(code)]
    return [f"{module} imports {other}" for other in imported if layer_of(other) > layer_of(module)]


def test_every_folder_has_its_place():
    assert {posixpath.dirname(name_of(path)) for path in scripts()} == {*FOLDERS, ""}


@pytest.mark.parametrize("path", scripts(), ids=name_of)
def test_imports_of_the_page_point_one_way(path):
    assert not wrong_imports(path.read_text(encoding="utf-8"), name_of(path))


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ('import { say } from "../words/languages.js";\nimport { make } from "../draw/elements.js";', "state/store.js"),
        ('import {\n  Atlas,\n} from "../panes/head_atlas.js";', "draw/colours.js"),
        ('import "../data/tiles.js";', "words/english.js"),
        ('import { start } from "../app.js";', "panes/tour.js"),
    ],
)
def test_a_wrong_import_of_the_page_is_noticed(code, module):
    assert len(wrong_imports(code, module)) == 1


def test_scripts_use_only_imports_and_exports_that_a_page_in_one_file_joins():
    for path in scripts():
        assert not NOT_JOINED.search(JOINED.sub("", path.read_text(encoding="utf-8"))), path
    for wrong in (
        'import thing from "./a.js";',
        "export { one };",
        "export default 5;",
        'const late = await import("a");',
    ):
        assert NOT_JOINED.search(JOINED.sub("", wrong)), wrong


def test_no_script_replaces_a_method_of_another():
    """What happens is told by events of the Store."""
    assert not [name_of(path) for path in scripts() if REPLACED.search(path.read_text(encoding="utf-8"))]
    assert REPLACED.search("explorer.arrived = () => this.repaint();")


def test_lines_of_scripts_and_styles_can_be_read():
    long = [
        f"{path.name}:{number}"
        for path in [*scripts(), PAGE / "style.css", PAGE / "index.html"]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert not long
