"""Bundles ES modules into one script, since browsers refuse module imports from file://.

Each module becomes a function that returns its exports, in the order of their dependencies. Named imports and exports
at the beginning of a line are supported; anything else raises ValueError. Indentation and most comments are left out.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

IMPORT = re.compile(
    r"^import\s+(?:(\{[^}]*\}|\*\s+as\s+\w+)\s+from\s+)?\"(\.{1,2}/[\w./-]+)\";[^\S\n]*(?://.*)?$", re.M
)
EXPORT = re.compile(r"^export\s+(?=(?:async\s+function|function|class|const|let)\b\s*\*?\s*(\w+))", re.M)
EXPORT_LIST = re.compile(r"^export\s+\{([^}]*)\};[^\S\n]*$", re.M)
UNSUPPORTED = re.compile(r"^(?:import|export)\b.*|\bimport\s*\(.*|\bimport\.meta\b.*|^await\b.*", re.M)

COMMENT = re.compile(r"^[^\S\n]*(?://[^\n]*|/\*\*.*?\*/[^\S\n]*)\n", re.M | re.S)
# At the end of a line only where no string can be open: a quote after the slashes might close one.
LAST_COMMENT = re.compile(r"[^\S\n]+//[^\n\"'`]*$", re.M)
INDENTATION = re.compile(r"^\s+", re.M)


def bundle_modules(folder: Path, entry: str) -> str:
    """One script with the module `entry` and everything that it imports, safe inside a script element."""
    order: list[str] = []
    _add_imports(folder, entry, order, [])
    numbers = {name: f"module{number}" for number, name in enumerate(order)}
    parts = [f"const {numbers[name]} = (() => {{\n{_convert_module(folder, name, numbers)}}})();" for name in order]
    script = '(() => {\n"use strict";\n' + "\n".join(parts) + "\n})();\n"
    return re.sub(r"<(?=/script|!--)", r"\\x3c", script, flags=re.I)


def _add_imports(folder: Path, name: str, order: list[str], above: list[str]) -> None:
    """Adds the modules that a module imports to the order, each once, and then itself."""
    if name in above:
        raise ValueError(f"modules that import each other cannot be bundled: {' → '.join([*above, name])}")
    if name in order:
        return
    for found in IMPORT.finditer((folder / name).read_text(encoding="utf-8")):
        _add_imports(folder, _resolve(name, found[2]), order, [*above, name])
    order.append(name)


def _resolve(name: str, imported: str) -> str:
    """The path of an imported module relative to the folder of the entry.

    >>> _resolve("panes/tips.js", "../data/tokens.js")
    'data/tokens.js'
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), imported))


def _convert_module(folder: Path, name: str, numbers: dict[str, str]) -> str:
    code = (folder / name).read_text(encoding="utf-8")
    exports: dict[str, str] = {}

    def convert_import(found: re.Match[str]) -> str:
        what, module = found[1], numbers[_resolve(name, found[2])]
        if what is None:
            return ""
        if what.startswith("*"):
            return f"const {what.split()[-1]} = {module};"
        names = re.sub(r"(\w+)\s+as\s+(\w+)", r"\1: \2", what)
        return f"const {names} = {module};"

    def collect_list(found: re.Match[str]) -> str:
        for one in filter(None, (part.strip() for part in found[1].split(","))):
            own, _, public = one.partition(" as ")
            exports[(public or own).strip()] = own.strip()
        return ""

    def collect_declaration(found: re.Match[str]) -> str:
        exports[found[1]] = found[1]
        return ""

    code = EXPORT.sub(collect_declaration, EXPORT_LIST.sub(collect_list, IMPORT.sub(convert_import, code)))
    if unsupported := UNSUPPORTED.search(code):
        raise ValueError(f"{name}: cannot be bundled: {unsupported[0][:80]!r}")
    if any(line.count("`") % 2 for line in code.splitlines()):
        raise ValueError(f"{name}: cannot be bundled: a template literal of several lines would lose its indentation")
    code = INDENTATION.sub("", LAST_COMMENT.sub("", COMMENT.sub("", code)))
    given = ", ".join(public if public == own else f"{public}: {own}" for public, own in exports.items())
    return f"{code.rstrip()}\nreturn {{ {given} }};\n"
