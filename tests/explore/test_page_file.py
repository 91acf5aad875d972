"""Single: one file with everything in it, and nothing in it that does anything but show."""

import base64
import hashlib
import html
import json
import re
from typing import Any

import pytest
import torch

from clearhead import Mask
from clearhead.errors import RecordError
from clearhead.explore import Scene, page_file, show_record, write_page
from clearhead.explore.page_file import bundle_modules, render_page
from clearhead.lens.record.call_metadata import CallMetadata
from tests.explore.decoding import decode_tensor, from_text
from tests.explore.records import drawn, translator, weights_of, writer

BLOCK = re.compile(r'<script type="application/octet-stream" id="(data-\d+)">([^<]*)</script>')
HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "\u202e\u200f",
    "\ud800",
    "x" * 10_000,
    "]]>&lt;\u2028\u2029",
    "\0\r\n",
]


def read(text: str) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
    """The scene and the numbers of a page, as a browser would find them."""
    raw = re.search(r'<script type="application/json" id="scene">(.*?)</script>', text, re.S)
    assert raw is not None
    scene = json.loads(raw[1])
    blocks = dict(BLOCK.findall(text))
    numbers = {
        name: {
            kind: decode_tensor(from_text(blocks[layout["id"]], layout["coding"]), layout)
            for kind, layout in kinds.items()
        }
        for name, kinds in scene["data"].items()
    }
    tensors = {name: {k: torch.from_numpy(v.copy()) for k, v in kinds.items()} for name, kinds in numbers.items()}
    return scene, tensors


def test_every_weight_of_a_short_text_is_in_the_file():
    record = translator()
    scene, numbers = read(render_page(Scene(record)))
    assert scene["exact"]
    assert not scene["notes"]
    assert list(numbers) == record.names
    for name, found in numbers.items():
        assert (found["weights"] - weights_of(record[name])).abs().max() < 1e-5  # finer than it must be: there is room
        torch.testing.assert_close(found["norms"], record[name].norms[0])
        assert found["thumbs"].shape == (3, 24, 24)
        assert "map" not in found


def test_weights_of_128_tokens_are_within_half_a_thousandth_in_three_megabytes():
    record = drawn(128, layers=12, heads=12, d=64)
    text = render_page(Scene(record))
    _, numbers = read(text)
    for name, found in numbers.items():
        assert (found["weights"] - weights_of(record[name])).abs().max() <= 0.0005 + 1e-6
    assert len(text.encode()) < 3_000_000


def test_weights_of_512_tokens_are_within_half_a_thousandth_in_fifteen_megabytes(monkeypatch):
    record = drawn(512, layers=1, heads=12, d=64)
    monkeypatch.setattr(page_file, "BASE64_BYTES", 100_000)  # as if all twelve layers were there
    monkeypatch.setattr(page_file, "PRECISION_BYTES", 100_000)
    text = render_page(Scene(record))
    scene, numbers = read(text)
    assert scene["data"]["encoder.0.self"]["weights"]["coding"] == "seven"
    found = numbers["encoder.0.self"]["weights"]
    assert (found - weights_of(record["encoder.0.self"])).abs().max() <= 0.0005 + 1e-6
    code = len(render_page(Scene(drawn(2, heads=1))).encode())
    assert code + 12 * (len(text.encode()) - code) < 15_000_000


def test_a_long_text_has_maps_and_top_keys_and_says_so():
    limits = page_file.Limits(100, 100, 32, 100_000)
    record = drawn(301, heads=3, mask=Mask.causal())
    scene, numbers = read(render_page(Scene(record), heads={"encoder.0.self": [2]}, limits=limits))
    seen, found, weights = record["encoder.0.self"], numbers["encoder.0.self"], weights_of(record["encoder.0.self"])
    assert not scene["exact"]
    assert scene["notes"] == [{"say": "chosenOnly", "pixels": 32, "chosen": 1}]
    assert [head["exact"] for head in scene["attentions"][0]["heads"]] == [False, False, True]
    assert scene["data"]["encoder.0.self"]["weights"]["heads"] == [2]
    assert (found["weights"][0] - weights[2]).abs().max() <= 0.0005 + 1e-6
    high, wide = scene["attentions"][0]["blocks"]
    assert found["map"].shape == (3, -(-301 // high), -(-301 // wide))
    assert (found["map"][1, 5, 3] - weights[1, 5 * high : 6 * high, 3 * wide : 4 * wide].sum()).abs() < high / 4000
    assert torch.equal(found["top_keys"].long() - 1, seen.top_keys[0].long())
    torch.testing.assert_close(found["top_weights"], seen.top_weights[0], atol=6e-5, rtol=0)
    torch.testing.assert_close(found["received"], weights.sum(1), atol=1e-4, rtol=1e-4)


def test_very_many_heads_have_small_maps_and_their_number_is_told():
    record, told = drawn(7, heads=5, layers=3, pixels=7), []
    limits = page_file.Limits(512, 40, 6, 1000, short_weights=15 * 49 - 1, cells=15 * 4 + 3)
    scene, numbers = read(render_page(Scene(record), limits=limits, progress=told.append))
    assert told == [5, 5, 5]
    assert scene["notes"] == [{"say": "mapsOnly", "pixels": 2, "chosen": 0}]
    assert numbers["encoder.2.self"]["map"].shape == (5, 2, 2)
    scene, numbers = read(render_page(Scene(record), limits=limits._replace(short_weights=15 * 49)))
    assert numbers["encoder.2.self"]["weights"].shape == (5, 7, 7)


def test_a_text_that_is_far_too_long_is_cut_to_fewer_top_keys_and_then_none():
    record = drawn(61, heads=3, pixels=16)
    for entries, top in ((10_000, 8), (61 * 3 * 2, 2), (61 * 3 - 1, 0)):
        _, numbers = read(render_page(Scene(record), limits=page_file.Limits(10, 10, 8, entries)))
        found = numbers["encoder.0.self"]
        assert (found["top_keys"].shape[2] if "top_keys" in found else 0) == top
        assert ("received" in found) == (top > 0)
        assert found["map"].shape == (3, 8, 8)


def test_a_file_holds_as_many_texts_as_there_is_room_for(tmp_path):
    record = writer(7, batch=3, keep="qk")
    text = write_page(record, tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'id="(scene[^"]*)"', text) == ["scene", "scene-1", "scene-2"]
    scene, _ = read(text)
    assert scene["views"] == ["1", "2", "3"]
    assert scene["notes"] == []
    one = write_page(record, tmp_path / "page.html", view=1).read_text(encoding="utf-8")
    assert read(one)[0]["views"] == ["2"]
    assert read(one)[0]["notes"] == [{"say": "someViews", "held": 1, "views": 3}]
    cells = 7 * 7 * 3 * 2
    limits = [page_file.Limits(512, times * cells, 8, 1) for times in (0, 2, 9)]
    assert [len(page_file.select_other_views(Scene(record, 1), one)) for one in limits] == [0, 1, 2]


def test_exact_weights_need_q_and_k():
    record = drawn(301, keep=False, pixels=32)
    scene, _ = read(render_page(Scene(record)))
    assert not scene["exact"]
    with pytest.raises(RecordError, match="watch with keep='qk'"):
        render_page(Scene(record), heads={"encoder.0.self": [0]})
    with pytest.raises(RecordError, match="not 5"):
        render_page(Scene(record), heads={"encoder.0.self": [5]})


def test_hostile_tokens_stay_inside_the_json(tmp_path):
    record = drawn(len(HOSTILE), texts=HOSTILE)
    record.calls[0].about = CallMetadata(text=HOSTILE[0], model=HOSTILE[1], notes=[HOSTILE[0]], input=HOSTILE[0])
    text = write_page(record, tmp_path / "page.html").read_text(encoding="utf-8")
    scene, _ = read(text)
    assert scene["axes"]["tokens"]["tokens"] == HOSTILE
    assert scene["output"]["text"] == HOSTILE[0]
    assert "<img" not in text.replace('"<img', "")
    plain = render_page(Scene(drawn(len(HOSTILE), texts=["x"] * len(HOSTILE))))
    assert re.findall(r"<[a-zA-Z!/][^ >]*", text) == re.findall(r"<[a-zA-Z!/][^ >]*", plain)


def test_the_policy_names_the_one_script_and_the_one_style():
    text = render_page(Scene(translator()))
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert policy is not None
    assert text.index("Content-Security-Policy") < text.index("<style>") < text.index("<script>")
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        assert len(inside) == 1
        digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy[1]
    assert 'src="' not in re.sub(r"<script>.*?</script>", "", text, flags=re.S)


def test_the_file_names_no_other_host():
    text = re.sub(BLOCK, "", render_page(Scene(translator())))
    hosts = set(re.findall(r"https?://([^/\"'`\s]+)", text))
    assert hosts <= {"www.w3.org"}  # the name of SVG, which nobody fetches


def test_what_is_shown_first_comes_first():
    scene, _ = read(text := render_page(Scene(translator())))
    order = [found[0] for found in BLOCK.findall(text)]
    first = {layout["id"] for layout in scene["data"][scene["start"]["name"]].values()}
    assert set(order[: len(first)]) == first
    assert text.index('id="scene"') < text.index("<script>") < text.index(f'id="{order[0]}">')


def test_a_notebook_shows_a_record_in_a_frame_that_can_do_nothing_else():
    record = drawn(len(HOSTILE), texts=HOSTILE)
    shown = record._repr_html_()
    assert shown == show_record(record)
    frame = re.fullmatch(
        r'<p class="clearhead-untrusted">[^<]*</p><style>[^<]*</style>'
        r'<iframe sandbox="allow-scripts allow-downloads" srcdoc="([^"]*)"[^<]*></iframe>',
        shown,
        re.S,
    )
    assert frame is not None
    assert read(html.unescape(frame[1]))[0]["axes"]["tokens"]["tokens"] == HOSTILE


def test_modules_are_joined_in_the_order_in_which_they_need_each_other(tmp_path):
    (tmp_path / "app.js").write_text(
        'import { one, two } from "./parts.js";\nimport {\n  last,\n} from "./last.js";\n'
        'document.title = one() + two + last; // "</script>"\n'
    )
    (tmp_path / "parts.js").write_text(
        'import { seven } from "./deep.js";\nexport function one() {\n  return seven;\n}\nexport const two = 2;\n'
    )
    (tmp_path / "deep.js").write_text("export const seven = 7;\n")
    (tmp_path / "last.js").write_text("export let last = 1;\n")
    script = bundle_modules(tmp_path, "app.js")
    assert "</script" not in script
    assert not re.search(r"^(import|export)\b", script, re.M)
    order = [script.index(mark) for mark in ("seven = 7", "function one", "let last", "document.title")]
    assert order == sorted(order)
    assert "const { one, two } = module1;" in script
    assert "return { one, two };" in script
