"""Our own models with random weights under `watch`: shapes, positions, caches, beams; records, tables, pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import clearhead
from clearhead import Decoder, Encoder, EncoderDecoder, Mask, ModelConfig, Record, Writer, watch
from recordings.models import describe_page
from recordings.random_models import VOCABULARY, draw_tokens, draw_weights
from recordings.recording import Items
from recordings.records import describe_record
from recordings.values import describe_file, to_plain

SIZES = {"vocabulary": VOCABULARY, "width": 24, "heads": 4, "layers": 2, "feedforward": 40}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": ("tiny", {}),
    "modern": ("modern", {}),
    "classic": ("classic", {}),
    "ALiBi": ("tiny", {"positions": "alibi"}),
    "relative": ("tiny", {"positions": "relative"}),
    "learned": ("tiny", {"positions": "learned", "max_length": 64}),
    "window": ("tiny", {"window": 5}),
    "learned temperature": ("tiny", {"temperature": "learned", "kv_heads": 2, "head_dim": 10, "value_head_dim": 7}),
}
TOKENS, LENGTHS = 19, [19, 13]


def make_model(kind: type[Any], shape: str = "tiny", **changes: Any) -> Any:
    return draw_weights(kind(ModelConfig.named(shape, **{**SIZES, **changes})))


def record_shape(_: Path, name: str) -> Items:
    """An encoder, a decoder and both together: what they compute and what a watch sees."""
    shape, changes = SHAPES[name]
    found: dict[str, Any] = {}
    with torch.no_grad():
        for kind in (Encoder, Decoder, EncoderDecoder):
            model = make_model(kind, shape, **changes)
            tokens = (draw_tokens(TOKENS), draw_tokens(11)) if kind is EncoderDecoder else (draw_tokens(TOKENS),)
            masks = {"source_mask" if kind is EncoderDecoder else "mask": Mask.padding(LENGTHS)}
            with watch(model, keep="qk", norms=True, pixels=7, top=3) as record:
                hidden = model(*tokens, **masks)
            found[kind.__name__] = {
                "weights": to_plain(model.state_dict()),
                "hidden": to_plain(hidden),
                "logits": to_plain(model.logits(hidden)),
                "record": describe_record(record),
                "rollout": to_plain(clearhead.rollout(record, 4)),
            }
    yield f"our models, {name}", found


def record_selections(_: Path) -> Items:
    """The options of `watch`, and what is built on records."""
    model, tokens = make_model(EncoderDecoder), (draw_tokens(TOKENS), draw_tokens(11))
    options: dict[str, dict[str, Any]] = {
        "defaults": {},
        "some queries": {"queries": [0, 3, -1], "spans": {"first": slice(0, 4), "rest": slice(4, None)}},
        "some heads": {"heads": [1, 3], "layers": "*.cross", "itself": True},
        "a quarter of the rows": {"rows": 1 / 4, "keep": "qk"},
        "statistics": {"keep": "statistics"},
    }
    found: dict[str, Any] = {}
    with torch.no_grad():
        for title, own in options.items():
            with watch(model, **own) as record:
                model(*tokens, source_mask=Mask.padding(LENGTHS))
            found[title] = describe_record(record)
        found["roles"] = to_plain(list(clearhead.head_roles(model, (draw_tokens(40), draw_tokens(30)), delimiters={7})))
        found["effects"] = to_plain(clearhead.head_effects(model, lambda: model(*tokens).double().sum()))
        with clearhead.ablate(model, {"encoder.0.self": [1], "decoder.*.cross": [0, 2]}):
            found["ablated"] = to_plain(model(*tokens))
        with clearhead.hide(model, {"source": [2, 5], "target": [1]}):
            found["hidden"] = to_plain(model(*tokens))
    yield "our models, options of watch", found


def record_writing(_: Path) -> Items:
    """Searches and samples, watched and not."""
    model = make_model(EncoderDecoder, positions="relative")
    rules = {"start": 1, "end": 2, "max_length": 9}
    ways: dict[str, Callable[[Writer], Any]] = {
        "greedy": lambda writer: clearhead.greedy(writer, **rules),
        "beam": lambda writer: clearhead.beam(writer, beams=3, best=2, length_penalty=0.7, **rules),
        "sample": lambda writer: clearhead.sample(
            writer, temperature=0.9, top_k=20, generator=torch.Generator().manual_seed(3), **rules
        ),
        "greedy after a prefix": lambda writer: clearhead.greedy(
            writer, prefix=[[4, 5], [6]], no_repeat_ngram=2, **rules
        ),
    }
    found: dict[str, Any] = {}
    for title, write in ways.items():
        with watch(model, keep="qk", top=3, pixels=7) as record:
            written = write(Writer.translating(model, draw_tokens(TOKENS), LENGTHS))
        found[title] = {"written": to_plain(written), "record": describe_record(record)}
    alone = Writer.translating(model, draw_tokens(TOKENS)[:1], LENGTHS[:1])
    yield "our models, writing", found | {"stream": list(clearhead.stream(alone, **rules))}


def record_files(folder: Path) -> Items:
    """A record's file, tables, sums and differences, and its page."""
    model, records = make_model(Decoder, "modern"), []
    for seed in (2, 3):
        with torch.no_grad(), watch(model, keep="qk", norms=True, spans={"first": slice(0, 5)}) as record:
            model(draw_tokens(TOKENS, seed), mask=Mask.padding(LENGTHS))
        records.append(record.label(lambda number: f"</{number}>"))
    one, other = records
    one.save(folder / "model.record")
    page = clearhead.write_page(one, folder / "model.html", view=1, title="A title")
    found = {
        "record": describe_record(one),
        "file": describe_file(folder / "model.record", folder),
        "merged": to_plain(Record.merge(records).statistics()),
        "differences": [str(change) for change in Record.compare(one, other)],
        "heads": to_plain(one.to_numpy("head")),
        "shown": repr(one),
        "page": describe_page(page),
    }
    yield "our models, files", found


def read_files(_: Path, before: Path) -> Items:
    """The record of an old recording."""
    yield "our models, files/record", describe_record(Record.load(before / "model.record"))
