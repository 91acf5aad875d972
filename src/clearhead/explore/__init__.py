"""The explorer: the page that shows every attention weight of a record, as a file or from a local server; figures."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.explore.given_weights import from_weights
from clearhead.explore.scene import Scene
from clearhead.explore.token_axis import Axis

if TYPE_CHECKING:
    from clearhead.explore.live_model import LiveModel
    from clearhead.explore.server import Server
    from clearhead.lens.record.attention_record import Record

__all__ = ["Axis", "Scene", "from_weights", "open_record", "show_record", "write_page"]


def open_record(
    record: Record,
    *,
    title: str | None = None,
    axes: Mapping[str, Axis] | None = None,
    live: LiveModel | None = None,
    port: int = 0,
    browser: bool | None = None,
) -> Server:
    """Starts a server on this machine for the page of a record with all its weights; `Record.open` calls this.

    `browser` opens the page; by default if there is a screen. The server runs until it is closed or Python ends.
    """
    from clearhead.explore.page_requests import PageRequests
    from clearhead.explore.server import Server

    server = Server(PageRequests(record, title=title, axes=axes, live=live), port=port)
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
    """Writes the page of a record as one file without dependencies; it contains the text that the model read.

    Up to 512 tokens and 120 million weights it has every weight within ±0.0005; else maps and top keys, and the weights
    of `heads`.
    From a record of several texts it takes one `view`, or by default as many as fit. An existing page is replaced; any
    other file is refused.
    """
    from clearhead.explore.page_file import check_page_path, select_other_views, write_scenes

    path, scene = Path(path), Scene(record, view or 0, title=title, axes=axes)
    check_page_path(path)
    others = select_other_views(scene) if view is None else []
    return write_scenes([scene, *others], path, heads=heads)


def show_record(record: Record, *, height: int = 640) -> str:
    """The page of a record as HTML for a notebook; `Record._repr_html_` calls this."""
    from clearhead.explore.page_file import render_notebook

    return render_notebook(Scene(record), height)


def has_screen() -> bool:
    """Whether a browser can be shown on this machine."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
