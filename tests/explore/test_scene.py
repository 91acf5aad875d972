"""Scene: what a page is told of a record."""

import dataclasses
import json
import math

import pytest
import torch

import clearhead
from clearhead import Mask, Record
from clearhead.errors import RecordError
from clearhead.explore import Axis, Scene, from_weights
from clearhead.explore.head_summaries import measure_agreement, summarise_heads
from clearhead.explore.token_axis import encode_png_url
from clearhead.lens.record.attention_views import Forward, Sight
from clearhead.lens.record.call_metadata import CallMetadata
from tests.explore.records import drawn, translator, weights_of, writer
from tests.explore.test_attention_map import sight_of


def test_a_translator_has_three_axes_and_its_attentions_say_which():
    record = translator()
    record.calls[0].about = CallMetadata(model="toy", text="so", writes=["▁so", "</s>"] + ["▁x"] * 5, input="…")
    scene = Scene(record).to_json()
    assert scene["title"] == "toy"
    assert {name: len(axis["tokens"]) for name, axis in scene["axes"].items()} == {
        "source": 11,
        "target": 7,
        "written": 7,
    }
    sides = {one["name"]: (one["queries"], one["keys"]) for one in scene["attentions"]}
    assert sides["encoder.1.self"] == ("source", "source")
    assert sides["decoder.0.self"] == ("target", "target")
    assert sides["decoder.1.cross"] == ("written", "source")
    cross = next(one for one in scene["attentions"] if one["name"] == "decoder.1.cross")
    assert (cross["part"], cross["layer"], cross["kind"]) == ("decoder", 1, "cross")
    assert (cross["counts"], cross["blocks"], cross["first"]) == ([7, 11], [1, 1], [0, 0])
    assert scene["axes"]["written"]["shown"][:2] == ["so", "⟨/s⟩"]
    assert scene["axes"]["source"]["shown"][:2] == ["w0", "w1"]
    assert scene["output"]["axis"] == "written"
    assert scene["output"]["shift"] == 0
    assert scene["start"]["name"].endswith("cross")
    assert scene["exact"]


def peaking(keys: list[list[int]], width: int = 11) -> Sight:
    """A cross-attention of which only is known at which of `width` keys its heads look most."""
    places = torch.tensor([keys])
    nothing, top = torch.zeros(places.shape), torch.zeros(*places.shape, 1)
    names = ("logsumexp", "entropy", "distance", "first")
    return Sight(
        **dict.fromkeys(names, nothing),
        peak=nothing + 0.7,
        peak_key=places,
        top_keys=top.long(),
        top_weights=top,
        received=torch.zeros(1, len(keys), width),
        map=torch.zeros(1, len(keys), 0, 0),
        visible=torch.full((1, 1, places.shape[2]), width),
        seen_by=torch.full((1, 1, width), places.shape[2]),
        cross=True,
        heads=tuple(range(len(keys))),
        queries=torch.arange(places.shape[2]),
    )


def test_heads_in_step_look_at_the_same_key_at_the_same_time():
    """Two heads walk together. One is a step behind, and meets them where they stay; one looks where nobody does."""
    sight = peaking([[0, 1, 2, 2], [0, 1, 2, 2], [0, 0, 1, 2], [9, 9, 9, 9]])
    # Of three looks of others at key 0 two are in the first row; of two at key 1 one in the second; and so on.
    first = (2 / 3 + 1 / 2 + 1 / 3 + 2 / 3) / 4
    behind = (2 / 2 + 0 / 2 + 0 / 2 + 2 / 4) / 4
    assert measure_agreement([sight], [0])[0] == pytest.approx([first, first, behind, 0])
    parted = [
        peaking([[0, 1, 2, 2], [0, 0, 1, 2]]),
        peaking([[0, 1, 2, 2], [9] * 4]),
    ]
    assert measure_agreement(parted, [0, 0]) == [pytest.approx([first, behind]), pytest.approx([first, 0])]


def test_a_head_is_in_step_with_itself_and_queries_that_see_nothing_do_not_count():
    assert measure_agreement([peaking([[0, 1, 2]])], [0]) == [[1.0]]
    blind = peaking([[0, -1, 2], [0, -1, 2]])
    assert measure_agreement([blind], [0]) == [pytest.approx([1.0, 1.0])]
    assert measure_agreement([peaking([[-1, -1]] * 2)], [0]) == [[0.0, 0.0]]
    assert measure_agreement([], []) == []


@pytest.mark.parametrize(
    ("text", "meanings"),
    [
        ("人工智能正在改变我们的世界。", {"changing": "改变", "our": "我们的", "world": "世界"}),
        ("他昨天没有去学校，因为他病了。", {"go": "去", "school": "学校", "yesterday": "昨天", "because": "因为"}),
        ("如果明天下雨，我们就待在家里看电影。", {"If": "如果", "tomorrow": "明天", "we": "我们", "stay": "待"}),
        ("这本书是我的老师去年送给我的。", {"book": "这本书", "teacher": "老师", "gave": "送", "year": "年"}),
        ("你能告诉我火车站在哪里吗？", {"you": "你能", "tell": "告诉我", "where": "哪里", "train": "火车"}),
    ],
)
def test_a_translation_opens_on_a_head_that_follows_the_word_written(text, meanings):
    """One that follows the word read would find them a row later."""
    record = clearhead.load("zh-en").look(text)
    scene = Scene(record).to_json()
    name, head = scene["start"]["name"], scene["start"]["head"]
    source, written = (scene["axes"][axis]["shown"] for axis in ("source", "written"))
    looks = [source[key] for key in record[name].peak_key[0, head].tolist()]
    found, later = (
        sum(looks[written.index(word) + rows] == meaning for word, meaning in meanings.items()) for rows in (0, 1)
    )
    said = f"{name} head {head} looks at {looks} while {written} is written"
    assert found >= 3, said
    assert later <= 1, said
    assert looks[-1] == "⟨/s⟩", said


def test_what_a_decoder_reads_and_what_it_writes_stand_at_the_same_places():
    record = translator(layers=["decoder.0.cross"])
    record.calls[0].about = CallMetadata(text="so", writes=["▁so", "</s>"])
    axes = Scene(record).to_json()["axes"]  # nothing that was watched has the target's tokens as keys
    assert list(axes) == ["target", "written", "source"]
    assert (axes["written"]["reads"], axes["target"]["shown"][1]) == ("target", "w1")
    assert axes["written"]["shown"] == ["so", "⟨/s⟩", "…", "…", "…", "…", "…"]
    record = writer(3, keep="qk")
    record.calls[0].about = CallMetadata(writes=["▁b", "▁c", ""], next=[None, None, None])
    scene = Scene(record).to_json()
    assert scene["axes"]["written"]["reads"] == "tokens"
    assert scene["axes"]["written"]["shown"] == ["b", "c", "…"]
    assert scene["attentions"][0]["queries"] == "tokens"
    assert scene["output"]["axis"] == "tokens"


def test_what_only_reads_has_no_output():
    record = drawn(5)
    record.calls[0].about = CallMetadata(model="bert", text="", input="…")
    assert Scene(record).to_json()["output"] is None


def test_a_scene_is_json_and_holds_no_number_that_is_none():
    record = drawn(7, mask=Mask.hidden(torch.ones(7, 7, dtype=torch.bool)))  # nobody sees anything
    scene = json.loads(json.dumps(Scene(record).to_json(), allow_nan=False))
    assert scene["attentions"][0]["heads"][0]["entropy"] is None
    assert scene["axes"]["tokens"]["unknown"]
    assert scene["axes"]["tokens"]["shown"][3] == "3"


def test_heads_are_told_of_by_the_means_of_their_queries():
    seen = drawn(31, heads=3, mask=Mask.causal())["encoder.0.self"]
    one = summarise_heads(seen, 0)[2]
    weights = weights_of(seen)[2].double()
    apart = (torch.arange(31)[:, None] - torch.arange(31)).abs()
    assert one["number"] == 2
    assert one["entropy"] == pytest.approx(float(torch.special.entr(weights).sum(-1).mean()), rel=1e-4)
    assert one["distance"] == pytest.approx(float((weights * apart).sum(-1).mean()), rel=1e-4)
    assert one["sink"] == pytest.approx(float(weights[:, 0].mean()), rel=1e-4)
    assert one["peak"] == pytest.approx(float(weights.amax(-1).mean()), rel=1e-4)


MASKS = {
    "none": None,
    "causal": Mask.causal(),
    "window": Mask.causal() & Mask.window(3),
    "padding": Mask.padding([19], queries=True),
    "documents": Mask.causal() & Mask.documents(torch.arange(23)[None] // 7),
    "prefix": Mask.causal() | Mask.prefix(5),
    "dense": Mask.visible(torch.rand(1, 2, 23, 23, generator=torch.Generator().manual_seed(3)) > 0.5),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_scene_counts_what_the_mask_leaves(name):
    """So that no maximum or share on the page is of tokens that nobody could see."""
    record = drawn(23, heads=2, mask=MASKS[name])
    one = Scene(record).to_json()["attentions"][0]
    mask = torch.ones(1, 1, 23, 23) if MASKS[name] is None else MASKS[name].dense(23, 23)
    mask = mask.bool().expand(1, 2, 23, 23)[0]
    for found, known in ((one["visible"], mask.sum(-1)), (one["seen_by"], mask.sum(-2))):
        heads = [[first + step * place for first, step, length in runs for place in range(length)] for runs in found]
        assert heads == (known.tolist() if name == "dense" else known[:1].tolist())
    for head, visible in zip(one["heads"], mask.sum(-1), strict=True):
        assert head["most_entropy"] == pytest.approx(float(visible[visible > 0].log().mean()), rel=1e-4)


def test_the_largest_entropy_beside_sinks_and_of_sampled_queries():
    """One or two keys beside a sink have more entropy than alone: −Σ w ln w is largest where every weight is 1/e."""
    seen = dataclasses.replace(drawn(7, mask=Mask.causal())["encoder.0.self"])
    seen.received[:, 0] *= 0.9
    most = [one["most_entropy"] for one in summarise_heads(seen, 0)]
    assert [one["whole"] for one in summarise_heads(seen, 0)] == [False, True]
    alone = sum(math.log(count) for count in range(1, 8)) / 7
    assert most == pytest.approx([alone + (1 / math.e + 2 / math.e - math.log(2)) / 7, alone], rel=1e-4)
    sampled = Scene(writer(13, rows=1 / 4, pixels=64)).to_json()["attentions"][0]
    assert sampled["visible"] == [[[4, 0, 4], [8, 0, 4], [12, 0, 4]]]
    assert sampled["seen_by"][0][0] == [12, 0, 4]


def test_a_head_without_numbers_is_named_so_and_one_without_a_role_has_no_score():
    seen = looking_at([(i * 7) % 31 for i in range(31)])
    assert (summarise_heads(seen, 0)[0]["role"], summarise_heads(seen, 0)[0]["score"]) == ("none of these", None)
    weights = torch.eye(7).repeat(3, 1, 1)
    weights[1, 3], weights[2] = torch.nan, torch.nan
    record = from_weights(weights, [*"abcdefg"])
    heads = Scene(record).to_json()["attentions"][0]["heads"]
    assert [head["role"] for head in heads] == ["itself", "no numbers", "no numbers"]
    assert [heads[place][one] for place in (1, 2) for one in ("score", "entropy", "peak")] == [None] * 6
    assert Scene(from_weights(weights[[2, 0]], [*"abcdefg"])).to_json()["start"]["head"] == 1


def looking_at(keys: list[int], cross: bool = False):
    """Attention in which query i looks at keys[i], and at little else."""
    count = len(keys) + 2 if cross else len(keys)
    k = torch.eye(count)[None, None] * 12
    return sight_of(k[:, :, keys], k, None, scale=1.0)


@pytest.mark.parametrize(
    ("keys", "role"),
    [
        ([0, *range(30)], "previous"),
        (list(range(31)), "itself"),
        ([*range(1, 31), 0], "next"),
        ([0] * 31, "first"),
        ([(i * 7) % 31 for i in range(31)], "none of these"),
    ],
)
def test_roles_are_read_from_the_top_keys(keys, role):
    assert summarise_heads(looking_at(keys), 0)[0]["role"] == role


def test_a_head_that_follows_the_translation_aligns_and_one_that_is_stuck_does_not():
    assert summarise_heads(looking_at([2, 0, 1, 4, 3, 6, 5], cross=True), 0)[0]["role"] == "alignment"
    assert summarise_heads(looking_at([6] * 5, cross=True), 0)[0]["role"] != "alignment"


def test_alignment_is_measured_over_the_keys_that_can_be_seen():
    """Padding is no part of the source: a head that looks at each of its four words once follows the translation."""
    seen = peaking([[2, 0, 1, 3]], width=4)
    padded = peaking([[2, 0, 1, 3] * 2], width=11)
    visible = torch.full((1, 1, 8), 4)
    assert summarise_heads(seen, 0)[0]["role"] == "alignment"
    assert summarise_heads(padded, 0)[0]["role"] != "alignment"
    assert summarise_heads(dataclasses.replace(padded, visible=visible), 0)[0]["role"] == "alignment"


def test_delimiters_are_known_from_the_text():
    texts = ["▁a", "▁b", ".", "▁c", "▁d", "▁e", ","]
    seen = looking_at([2, 2, 2, 6, 6, 6, 2])
    assert Axis.text(texts).find_delimiters() == [False, False, True, False, False, False, True]
    assert summarise_heads(seen, 0, Axis.text(texts).find_delimiters())[0]["role"] == "delimiter"


def test_measured_effects_are_in_the_scene():
    scene = Scene(writer(5))
    name = next(iter(scene.maps))
    scene.about.effects = {name: [0.25] * len(scene.heads[name])}
    assert scene.to_json()["attentions"][0]["heads"][0]["effect"] == 0.25


def test_every_call_and_every_sample_is_a_view():
    record = Record.merge([writer(5, batch=2), writer(7)])
    scene = Scene(record, 2)
    assert [scene.views[view] for view in range(3)] == [(0, 0), (0, 1), (1, 0)]
    assert scene.to_json()["views"] == ["1.1", "1.2", "2"]
    assert scene.to_json()["attentions"][0]["counts"] == [7, 7]
    with pytest.raises(RecordError, match="has views 0 to 2, so there is no view 3"):
        Scene(record, 3)
    with pytest.raises(RecordError, match="contains no attention"):
        Scene(Record())


def test_what_was_not_seen_is_refused_by_its_name():
    with pytest.raises(RecordError, match=r"decoder\.7\.cross"):
        Scene(translator()).find_map("decoder.7.cross")


def test_pictures_and_sounds_are_axes():
    record = drawn(1 + 3 * 5)
    picture = torch.rand(6, 10, 3)
    axis = Scene(record, axes={"tokens": Axis.image(picture, (3, 5), ["[CLS]"])}).to_json()["axes"]["tokens"]
    assert (axis["kind"], axis["grid"], axis["tokens"][:3]) == ("image", [3, 5], ["[CLS]", "0,0", "0,1"])
    assert axis["picture"].startswith("data:image/png;base64,")
    sound = Scene(record, axes={"tokens": Axis.audio(torch.randn(7, 64), 16, seconds=4.0)}).to_json()["axes"]["tokens"]
    assert (sound["kind"], sound["grid"], sound["tokens"][2]) == ("audio", [1, 16], "0.50 s")
    for wrong in (torch.rand(3, 6, 10), torch.rand(4)):
        with pytest.raises(Exception, match=r"picture|height"):
            encode_png_url(wrong)


def test_a_picture_is_a_png_that_others_can_read():
    from io import BytesIO

    from matplotlib.image import imread

    pixels = (torch.rand(5, 7, 3) * 255).round() / 255
    raw = encode_png_url(pixels).partition(",")[2]
    import base64

    found = torch.from_numpy(imread(BytesIO(base64.b64decode(raw))).copy())
    torch.testing.assert_close(found[..., :3], pixels, atol=1 / 510, rtol=0)


def test_tokens_of_unknown_number_are_shown_by_their_place():
    record = drawn(5, texts=["▁a", "▁b", "▁c", "▁d", "▁e"])
    forward = Forward(record.calls[0].sights, {"tokens": torch.tensor([[0, -1, 2, 3, 4]])})
    forward.labels = record.calls[0].labels
    tokens = Scene(Record(record.watched, [forward])).to_json()["axes"]["tokens"]["tokens"]
    assert tokens == ["▁a", "⟨1⟩", "▁c", "▁d", "▁e"]


def test_numbers_stay_finite():
    scene = Scene(translator()).to_json()
    values = [value for one in scene["attentions"] for head in one["heads"] for value in head.values()]
    assert all(math.isfinite(value) for value in values if isinstance(value, float))


def test_beams_share_what_the_encoder_saw():
    """Two inputs with three beams each: the decoder has six samples, the encoder two."""
    encoder, decoder = (sight_of(torch.randn(n, 1, 5, 3), torch.randn(n, 1, 5, 3), None) for n in (2, 6))
    decoder = dataclasses.replace(decoder, name="decoder.0.self", inputs=(0, 0, 0, 1, 1, 1))
    forward = Forward({"encoder.0.self": encoder, "decoder.0.self": decoder})
    record = Record(list(forward.names), [forward])
    assert [Scene(record, view).find_map("encoder.0.self").sample for view in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [Scene(record, view).find_map("decoder.0.self").sample for view in range(6)] == list(range(6))
    scene = Scene(record, 4)
    torch.testing.assert_close(scene.find_map("encoder.0.self").compute_weights(0), weights_of(encoder, 1)[0])
