"""The commands `look` and `figures`, which show the attention of every head."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.cli.options import Answer, Base, Device, Text, Threads
from clearhead.cli.program import flush_output, import_torch, print_output, read_text
from clearhead.errors import ConfigError
from clearhead.formatting import escape_control, format_bytes, print_message

SUBJECT = typer.Argument(
    metavar="MODEL|RECORD", help="A model's folder or name, a Hugging Face folder, a record's file."
)


def look(
    subject: Annotated[str, SUBJECT],
    text: Text = None,
    answer: Answer = None,
    out: Annotated[Path | None, typer.Option(help="Write a self-contained HTML file.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
    heads: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:0,3", help="For long texts: store every weight of these heads."),
    ] = None,
    part: Annotated[
        int | None,
        typer.Option(
            min=1, help="Write only this part of a text or record of several parts.", show_default="all that fit"
        ),
    ] = None,
    without: Annotated[
        bool, typer.Option("--without", help="Also store the output with each head switched off; slow.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The server's port.", show_default="any")] = 0,
    base: Base = None,
    device: Device = "auto",
    threads: Threads = None,
    **options: Any,
) -> None:
    """See what every head looks at: a page from a server on this machine, or with --out as one file.

    The page holds the text. The server answers on this machine alone, under an address that nobody can guess.
    """
    if out is None and (heads or part is not None or without):
        raise ConfigError("--heads, --part and --without are for --out: the server's page has all of them")
    import_torch(threads)
    from clearhead.explore import open_record, subjects
    from clearhead.explore.page_file import check_page_path

    if out is not None:
        check_page_path(out)  # before the model is loaded
    text = read_text(text)
    opened = subjects.open_subject(subject, text, answer=answer, device=device, base=base, **options)
    if out is not None:
        written = subjects.write_subject(opened, out, part=part, heads=heads or [], without=without)
        kind = "text" if opened.live is None else opened.live.input_kind
        print_message(f"clearhead: wrote {written} ({format_bytes(written.stat().st_size)}); it contains your {kind}")
        if show:
            _open_browser(written.resolve().as_uri())
        return
    with open_record(opened.record, title=opened.title, live=opened.live, port=port, browser=False) as server:
        print_output(server.url)
        flush_output()
        print_message("clearhead: open this address in a browser on this machine; Ctrl-C ends it")
        if show:
            _open_browser(server.url, remote=f"ssh -L {server.port}:127.0.0.1:{server.port} THIS_MACHINE")
        with suppress(KeyboardInterrupt):
            server.wait()


def figures(
    subject: Annotated[str | None, SUBJECT] = None,
    text: Text = None,
    out: Annotated[Path, typer.Option(help="The folder of the figures.")] = Path("figures"),
    kind: Annotated[str, typer.Option("--format", metavar="png|svg|pdf", help="File format.")] = "png",
    heads: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:0,3", help="Draw these heads large, not those chosen automatically."),
    ] = None,
    answer: Answer = None,
    lesson: Annotated[
        bool, typer.Option("--lesson", help="Draw teaching figures: softmax saturation, positions, cost.")
    ] = False,
    dark: Annotated[bool, typer.Option("--dark", help="Use a dark background.")] = False,
    base: Base = None,
    device: Device = "auto",
    threads: Threads = None,
    **options: Any,
) -> None:
    """Draw what every head looks at, and print a line for each file: its name, and what it shows."""
    if lesson == (subject is not None):
        raise ConfigError("give a MODEL and an INPUT, or a RECORD, or --lesson for figures that need none of them")
    import_torch(threads)
    from clearhead.explore import subjects
    from clearhead.explore.figures import figure_set

    figure_set.check_figure_folder(out, kind)
    if subject is None:
        planned = figure_set.list_lesson_figures()
    else:
        text = read_text(text)
        opened = subjects.open_subject(subject, text, answer=answer, device=device, base=base, keep="none", **options)
        for note in dict.fromkeys(note for call in opened.record.calls for note in call.about.notes or []):
            print_message(f"clearhead: {note}")
        planned = figure_set.list_record_figures(opened.record, heads or [], name=opened.title)
    for path, description in figure_set.write_figures(planned, out, kind, dark=dark):
        print_output(f"{escape_control(str(path), keep='')}\t{description}")
        flush_output()


def _open_browser(address: str, *, remote: str | None = None) -> None:
    """Opens the address, or says what to do where there is no screen or no browser; `remote` forwards a server."""
    import webbrowser

    from clearhead.explore import has_screen

    if has_screen() and webbrowser.open(address):  # without a screen, a browser of text would take over the terminal
        return
    elsewhere = f"; on another machine, run {remote} there and open the same address" if remote else ""
    print_message(f"clearhead: no browser was found here: open {address}{elsewhere}")
