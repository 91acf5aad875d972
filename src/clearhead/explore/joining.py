"""Joining: ES modules as one script, since browsers refuse imports from file://.

Each module becomes a function that returns what it exports, in the order in which they need each other. That is enough
for named imports and exports, each at the beginning of a line; what is not understood is refused, never dropped.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

IMPORT = re.compile(
    r"^import\s+(?:(\{[^}]*\}|\*\s+as\s+\w+)\s+from\s+)?\"(\.{1,2}/[\w./-]+)\";[^\S\n]*(?://.*)?$", re.M
)
EXPORT = re.compile(r"^export\s+(?=(?:async\s+function|function|class|const|let)\b\s*\*?\s*(\w+))", re.M)
LIST = re.compile(r"^export\s+\{([^}]*)\};[^\S\n]*$", re.M)
LEFT = re.compile(r"^(?:import|export)\b.*|\bimport\s*\(.*|\bimport\.meta\b.*|^await\b.*", re.M)


def joined(folder: Path, entry: str) -> str:
    """One script that does what the module `entry` and all that it imports do.

    A tag that would end the script early is broken up, as are comments of HTML.
    """
    order: list[str] = []
    for name in _ordered(folder, entry, []):
        if name not in order:
            order.append(name)
    numbers = {name: f"module{number}" for number, name in enumerate(order)}
    parts = [f"const {numbers[name]} = (() => {{\n{_body(folder, name, numbers)}}})();" for name in order]
    script = '(() => {\n"use strict";\n' + "\n".join(parts) + "\n})();\n"
    return re.sub(r"<(?=/script|!--)", r"\\x3c", script, flags=re.I)


def _ordered(folder: Path, name: str, above: list[str]) -> Iterator[str]:
    """What a module imports, and then itself."""
    if name in above:
        raise ValueError(f"modules that import each other cannot be joined: {' → '.join([*above, name])}")
    for found in IMPORT.finditer((folder / name).read_text(encoding="utf-8")):
        yield from _ordered(folder, _resolve(name, found[2]), [*above, name])
    yield name


def _resolve(name: str, imported: str) -> str:
    """The path, from the folder of the entry, of what a module imports by a path from its own.

    >>> _resolve("panes/tips.js", "../data/tokens.js")
    'data/tokens.js'
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), imported))


def _body(folder: Path, name: str, numbers: dict[str, str]) -> str:
    code = (folder / name).read_text(encoding="utf-8")
    exports: dict[str, str] = {}

    def taken(found: re.Match[str]) -> str:
        what, module = found[1], numbers[_resolve(name, found[2])]
        if what is None:
            return ""
        if what.startswith("*"):
            return f"const {what.split()[-1]} = {module};"
        names = re.sub(r"(\w+)\s+as\s+(\w+)", r"\1: \2", what)
        return f"const {names} = {module};"

    def listed(found: re.Match[str]) -> str:
        for one in filter(None, (part.strip() for part in found[1].split(","))):
            own, _, public = one.partition(" as ")
            exports[(public or own).strip()] = own.strip()
        return ""

    def declared(found: re.Match[str]) -> str:
        exports[found[1]] = found[1]
        return ""

    code = EXPORT.sub(declared, LIST.sub(listed, IMPORT.sub(taken, code)))
    if left := LEFT.search(code):
        raise ValueError(f"{name}: cannot be joined: {left[0][:80]!r}")
    given = ", ".join(public if public == own else f"{public}: {own}" for public, own in exports.items())
    return f"{code.rstrip()}\nreturn {{ {given} }};\n"
