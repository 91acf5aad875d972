"""Looking: figures, a page on which every weight can be read, and the local server behind it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.explore.axes import Axis
from clearhead.explore.scene import Scene
from clearhead.storage import atomic_file

if TYPE_CHECKING:
    from clearhead.explore.live import Live
    from clearhead.explore.server import Server
    from clearhead.lens.record.attention_record import Record

__all__ = ["Axis", "Scene", "open_record", "show_record", "write_page"]


def open_record(
    record: Record,
    *,
    title: str | None = None,
    axes: Mapping[str, Axis] | None = None,
    live: Live | None = None,
    port: int = 0,
    browser: bool | None = None,
) -> Server:
    """The page of a record with all its weights, from a server on this machine; `Record.open` is this.

    With `browser` it is shown at once; None: where there is a screen. The server runs until it is closed, or Python
    ends.
    """
    from clearhead.explore.answers import Answers
    from clearhead.explore.server import Server

    server = Server(Answers(record, title=title, axes=axes, live=live), port=port)
    return server.open() if (has_screen() if browser is None else browser) else server


def write_page(
    record: Record,
    path: str | Path,
    *,
    view: int | None = None,
    title: str | None = None,
    axes: Mapping[str, Axis] | None = None,
    heads: Mapping[str, Sequence[int]] | None = None,
) -> Path:
    """Writes the page of a record as one file that needs nothing else; it holds the text that went in.

    Up to 512 tokens it has every weight within ±0.0005; for longer texts maps and top keys, and the weights of `heads`.
    Of a record of several texts it holds one `view`, or by default as many as there is room for. A page that is there
    is replaced; any other file is refused.
    """
    from clearhead.explore.single import check_page_place, page, together

    path, scene = Path(path), Scene(record, view or 0, title=title, axes=axes)
    check_page_place(path)
    others = together(scene) if view is None else []
    text = page(scene, heads=heads, others=others)
    with atomic_file(path, needs=len(text)) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="\n")
    return path


def show_record(record: Record, *, height: int = 640) -> str:
    """The page of a record as HTML for a notebook; `Record._repr_html_` is this."""
    from clearhead.explore.single import notebook

    return notebook(Scene(record), height)


def has_screen() -> bool:
    """Whether a browser could show something here."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
