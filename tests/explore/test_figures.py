"""Figures: what is drawn is what was measured, whatever the tokens are, in all three formats."""

import re
import warnings
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from matplotlib.typing import ColorType
from torch import Tensor

from clearhead import Decoder, Encoder, EncoderDecoder, Mask, ModelConfig, Record, attention_weights, load, watch
from clearhead.errors import ConfigError, RecordError, ShapeError
from clearhead.explore import figures
from clearhead.explore.figures import figure_set, label_text, style, weight_grid
from clearhead.explore.head_summaries import ROLE_COLOURS
from clearhead.lens.analysis.roles import HeadRoles
from tests.test_cli import run

ROOT = Path(__file__).parents[2]
CHINESE = ["人工", "智能", "正在", "改变", "世界"]
HOSTILE = [
    "",
    "\n",
    "\t",
    " ",
    "$x^2$",
    "$",
    "$\\frac{",
    "a" * 10_000,
    "人" * 1000,
    "\ud800",
    "שלום",
    "\u200f\u202e",
    "\U0001faf8",
    "</script><img src=x onerror=alert(1)>",
    "\u0301",
    "e\u0301" * 40,
    "_",
    "\x00\x1b[31m",
    "\ufffe",
]


@pytest.fixture(autouse=True)
def nothing_changes():
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before


@pytest.fixture(scope="module")
def translation() -> Record:
    """What a small translator sees of 7 and 5 tokens, of which the second sample has 4; with 3 heads."""
    torch.manual_seed(0)
    config = ModelConfig.named("tiny", vocabulary=29, source_vocabulary=31, width=12, heads=3, layers=2)
    model = EncoderDecoder(config).eval()
    source, target = torch.arange(14).view(2, 7) + 3, torch.arange(10).view(2, 5) + 3
    with torch.no_grad(), watch(model, keep="qk") as record:
        model(source, target, Mask.padding(torch.tensor([7, 4])))
    return record.label(
        source=lambda number: (TOKENS["source"] * 2)[number - 3],
        target=lambda number: (TOKENS["target"] * 2)[number - 3],
    )


TOKENS = {"source": list("abcdefg"), "target": ["<s>", *CHINESE[:4]]}


def weights(*shape: int, sharp: float = 2.0, causal: bool = False) -> Tensor:
    scores = torch.randn(*shape, generator=torch.Generator().manual_seed(1)) * sharp
    hidden = torch.ones(shape[-2:], dtype=torch.bool).triu(1) & causal
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def drawn(axes: Axes) -> np.ndarray:
    """The numbers that an axes shows as colours."""
    shown = axes.images[0] if axes.images else axes.collections[0]
    return np.asarray(shown.get_array()).reshape(*np.asarray(shown.get_array()).shape[-2:])


def words(texts: Sequence[Text]) -> list[str]:
    return [text.get_text() for text in texts]


def notes(figure: Figure) -> str:
    return " ".join(words(figure.texts)) + " ".join(text.get_text() for text in (figure._supxlabel,) if text)


# Heat maps


def test_cells_have_the_colours_and_numbers_of_their_weights():
    given = weights(5, 3)
    figure = figures.head_map(given, queries=CHINESE, keys=["x", "yes", "z"])
    axes = figure.axes[0]
    assert np.array_equal(drawn(axes), given.double().numpy())
    assert words(axes.texts) == [f"{one:.2f}" for one in given.flatten()]
    assert words(axes.get_yticklabels()) == CHINESE
    assert words(axes.get_xticklabels()) == ["x", "yes", "z"]


def test_a_hidden_token_has_weight_0():
    q = torch.randn(1, 1, 5, 4, generator=torch.Generator().manual_seed(2))
    given = attention_weights(q, q, Mask.padding(torch.tensor([3])) & Mask.causal())[0, 0]
    said = np.array(words(figures.head_map(given, keys=[*"abc", "<pad>", "<pad>"]).axes[0].texts)).reshape(5, 5)
    assert (said[:, 3:] == "0").all()
    assert (said[0, 1:] == "0").all()
    assert said[0, 0] == "1.00"


def test_a_tensor_may_have_heads_and_samples():
    given = weights(2, 3, 5, 7)
    for head in (0, 2):
        figure = figures.head_map(given, head, sample=1)
        assert np.array_equal(drawn(figure.axes[0]), given[1, head].double().numpy())
    figure = figures.head_map(given, sample=1)
    assert np.allclose(drawn(figure.axes[0]), given[1].mean(0).numpy())


@pytest.mark.parametrize(
    ("count", "numbers", "labelled"), [(20, 400, True), (21, 0, True), (80, 0, True), (83, 0, False)]
)
def test_numbers_up_to_20_tokens_and_labels_up_to_80(count, numbers, labelled):
    axes = figures.head_map(weights(count, count), keys=[f"▁w{place}" for place in range(count)]).axes[0]
    assert len(axes.texts) == numbers
    assert (words(axes.get_xticklabels())[:2] == ["w0", "w1"]) is labelled
    assert len(axes.get_yticks()) == count if labelled else len(axes.get_yticks()) < 20


def test_a_long_text_is_drawn_in_blocks():
    given = weights(2000, 1500, causal=False, sharp=5)
    figure = figures.head_map(given)
    sums = given.double().numpy().reshape(500, 4, 500, 3).mean(1).sum(-1)  # blocks of 4 queries and 3 keys
    assert np.allclose(drawn(figure.axes[0]), sums, atol=1e-12)
    assert np.allclose(drawn(figure.axes[0]).sum(1), 1)
    assert "4 × 3 tokens" in notes(figure)
    places = figure.axes[0].get_xticks()
    said = [int(word.replace(",", "")) for word in words(figure.axes[0].get_xticklabels())]
    assert np.allclose((places + 0.5) * 3, np.array(said) + 0.5)
    assert said[0] == 0
    assert said[1] % 50 == 0


def test_the_last_block_may_be_short():
    given = weights(1033, 7)
    rows = drawn(figures.head_map(given).axes[0])
    assert rows.shape == (345, 7)
    assert np.allclose(rows[-1], given[1032].double())  # 1033 = 344 · 3 + 1
    assert np.allclose(rows[0], given[:3].double().mean(0))


def test_a_sight_is_drawn_as_it_was_measured(translation):
    sight = translation["decoder.1.cross"]
    for sample, head in ((0, 0), (1, 2)):
        shown = drawn(figures.head_map(sight, head, sample=sample).axes[0])
        assert np.allclose(shown, sight.weights(sample, head).double(), atol=1e-6)
    assert shown[:, 4:].max() == 0  # the pads of the second sample


def test_a_sight_of_few_pixels_is_drawn_as_they_are_and_exactly_where_q_and_k_are_kept():
    torch.manual_seed(3)
    model = Decoder(ModelConfig.named("tiny", vocabulary=29, width=12, heads=3, layers=1)).eval()
    tokens = torch.randint(0, 29, (1, 23))
    seen = {}
    for keep in ("none", "qk"):
        with torch.no_grad(), watch(model, pixels=5, keep=keep) as record:
            model(tokens)
        seen[keep] = record["decoder.0.self"]
    exact = seen["qk"].weights(0, 1).double()
    assert np.allclose(drawn(figures.head_map(seen["qk"], 1).axes[0]), exact)
    coarse = drawn(figures.head_map(seen["none"], 1).axes[0])
    assert np.allclose(coarse[0, 0], exact[:5, :5].sum() / 5, atol=1e-6)
    assert np.allclose(coarse[4, 2], exact[20:, 10:15].sum() / 3, atol=1e-6)  # the last rows are 3


def test_a_record_that_knows_its_tokens_labels_them():
    torch.manual_seed(3)
    model = Encoder(ModelConfig.named("tiny", vocabulary=29, width=12, heads=3, layers=1)).eval()
    with torch.no_grad(), watch(model) as record:
        model(torch.tensor([[3, 7, 5]]))
    record.label(lambda number: f"▁t{number}")
    axes = figures.head_map(record["encoder.0.self"], 0).axes[0]
    assert words(axes.get_xticklabels()) == words(axes.get_yticklabels()) == ["t3", "t7", "t5"]


def test_every_head_has_its_panel():
    given = weights(5, 7, 11)
    figure = figures.head_grid(given, captions={3: "previous"})
    panels = figure.axes[:5]
    for head, axes in enumerate(panels):
        assert np.array_equal(drawn(axes), given[head].double().numpy())
    assert [axes.get_title() for axes in panels] == ["head 0", "head 1", "head 2", "head 3 · previous", "head 4"]
    assert len({axes.collections[0].norm for axes in panels}) == 1, "on one scale"


def frames(axes: Axes) -> list[tuple[float, float]]:
    """Row and column of every frame."""
    found = [one for one in axes.patches if isinstance(one, Rectangle)]
    return [(one.get_y() + 0.5, one.get_x() + 0.5) for one in found]


def test_labels_that_do_not_fit_are_turned_and_chinese_is_stacked():
    axes = figures.head_map(weights(30, 30), keys=["人", "人工", "W", "we", "word", "."] * 5).axes[0]
    found = [(text.get_text(), text.get_rotation()) for text in axes.get_xticklabels()[:6]]
    assert found == [("人", 0), ("人\n工", 0), ("W", 0), ("we", 0), ("word", 90), (".", 0)]
    assert {text.get_rotation() for text in axes.get_yticklabels()} == {0}


def test_the_strongest_cell_of_each_target_token_is_framed():
    given = torch.tensor([[0.1, 0.9, 0.0], [0.0, 0.0, 0.0], [0.5, 0.0, 0.5]])
    assert frames(figures.alignment(given).axes[0]) == [(0, 1), (2, 0)]


def test_rows_of_an_alignment_are_what_the_head_looks_for():
    """Head 0 looks at the source of what is written, head 1 at that of what has been read."""
    torch.manual_seed(4)
    model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=29, width=8, heads=2, layers=1)).eval()
    with torch.no_grad(), watch(model) as record:
        model(torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6, 7]]))
    record.label(lambda number: {3: "我", 4: "走", 5: "。", 1: "<s>", 6: "go", 7: "."}[number])
    forward = record.calls[0]
    forward.about.writes = ["go", ".", "</s>"]
    sight = forward["decoder.0.cross"]
    sight.map[0, 0] = torch.tensor([[0.0, 1, 0], [0, 0, 1], [0, 0, 1]])
    sight.map[0, 1] = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert words(figures.alignment(sight, 0).axes[0].get_yticklabels()) == ["go", ".", "⟨/s⟩"]
    assert words(figures.alignment(sight, 1).axes[0].get_yticklabels()) == ["⟨s⟩", "go", "."]


def test_a_decoders_rows_are_what_it_writes_or_what_it_has_read():
    read, wrote = ["<s>", "go", "."], ["go", ".", "</s>"]
    torch.manual_seed(4)
    model = EncoderDecoder(ModelConfig.named("tiny", vocabulary=29, width=8, heads=2, layers=1)).eval()
    with torch.no_grad(), watch(model) as record:
        model(torch.tensor([[3, 4, 5, 3]]), torch.tensor([[1, 6, 7]]))
    record.label(lambda number: {3: "我", 4: "走", 5: "。", 1: "<s>", 6: "go", 7: "."}[number])
    forward = record.calls[0]

    def rows(name: str) -> tuple[list[str], str]:
        axes = figures.head_map(forward[name], 0).axes[0]
        return words(axes.get_yticklabels()), axes.get_ylabel()

    assert rows("decoder.0.cross") == (
        label_text.make_labels(read),
        "query: has just been read",
    )  # nobody knows what was written
    forward.about.writes = wrote
    assert rows("decoder.0.cross") == (label_text.make_labels(wrote), "query: is being written")
    assert rows("decoder.0.self") == (label_text.make_labels(read), "query: looks")
    assert rows("encoder.0.self")[0] == ["我", "走", "。", "我"]
    grid = figures.head_grid(forward["decoder.0.cross"])
    assert words(grid.axes[0].get_yticklabels()) == label_text.make_labels(wrote)


@pytest.mark.unchecked
def test_what_cannot_be_drawn_is_refused(translation):
    with pytest.raises(ShapeError, match=r"got \(4,\)"):
        figures.head_map(torch.ones(4))
    with pytest.raises(ShapeError, match="2 tokens are given for 3 keys"):
        figures.head_map(weights(5, 3), keys=["a", "b"])
    with pytest.raises(ShapeError, match="3 heads, numbered from 0; there is no 3"):
        figures.head_map(weights(3, 5, 5), 3)
    with pytest.raises(ShapeError, match="nothing to draw: 0 queries, 5 keys"):
        figures.head_map(torch.ones(0, 5))
    with pytest.raises(RecordError, match=r"heads \[0, 1, 2\], not 7"):
        figures.head_map(translation["encoder.0.self"], 7)
    with pytest.raises(ShapeError, match="no heads"):
        figures.head_grid(weights(0, 5, 5))
    with pytest.raises(ShapeError, match="no heads"):
        figures.head_atlas({})
    with pytest.raises(ConfigError, match="coloured by 'size'"):
        figures.head_atlas(translation, "size")
    with pytest.raises(ConfigError, match="theme 'blue'"), figures.theme("blue"):
        pass
    with pytest.raises(RecordError, match="2 calls"):
        figures.head_atlas(Record.merge([translation, translation]), "role")


# The atlas


def test_the_atlas_has_the_mean_of_a_measure_over_queries_that_see(translation):
    figure = figures.head_atlas(translation, "entropy")
    assert [axes.get_title(loc="left") for axes in figure.axes[:3]] == ["encoder self", "decoder self", "decoder cross"]
    sight = translation["encoder.1.self"]
    seeing = torch.tensor([True] * 7 + [True] * 4 + [False] * 3).view(2, 1, 7).expand(2, 3, 7)
    for head in range(3):
        mean = sight.entropy[:, head][seeing[:, head]].mean()
        assert words(figure.axes[0].texts)[3 + head] == f"{mean:.2f}"
    colour = figure.axes[0].patches[3].get_facecolor()
    assert colour != figure.axes[0].patches[4].get_facecolor()
    assert words(figures.head_atlas(translation, "distance").axes[2].texts) == ["–"] * 6


def test_the_atlas_has_roles_and_numbers_of_ones_own():
    scores = {"previous": 0.93}, {"first": 0.81}, {"broad": 0.1}
    figure = figures.head_atlas(HeadRoles([("decoder.0.self", head, one) for head, one in enumerate(scores)]))
    assert words(figure.axes[0].texts) == ["previous\n0.93", "first\n0.81"]
    assert words(figure.legends[0].get_texts()) == ["previous  1", "first  1", "none of these  1"]
    colours = [patch.get_facecolor() for patch in figure.axes[0].patches]
    assert colours == [patch.get_facecolor() for patch in figure.legends[0].get_patches()]
    assert len(set(colours)) == 3
    own = figures.head_atlas({"encoder.0.self": torch.tensor([-2.0, 0.0, 1.0])}, "effect on the loss")
    assert words(own.axes[0].texts) == ["-2.00", "0.00", "1.00"]
    assert own.axes[-1].get_ylabel() == "effect on the loss"
    assert (own.axes[-1].get_ylim()) == (-2, 2)


def test_the_atlas_finds_roles_in_a_record(translation):
    figure = figures.head_atlas(translation, "role")
    assert sum(int(word.split()[-1]) for word in words(figure.legends[0].get_texts())) == 18


# Labels


@pytest.mark.parametrize("kind", style.FORMATS)
def test_no_token_breaks_a_figure(kind, tmp_path):
    tokens = [*HOSTILE, "plain", "人"]
    count = len(tokens)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = figures.head_map(weights(count, count), keys=tokens, title="".join(tokens))
        path = figures.save(figure, tmp_path / f"map.{kind}")
        if kind == "svg":
            ElementTree.parse(path)
    said = words(figure.axes[0].get_yticklabels())
    assert len(said) == count
    assert all(0 < len(one) <= 24 and one.isprintable() for one in said)
    assert said[:7] == ["∅", "⏎", "⇥", "␣", "$x^2$", "$", "$\\frac{"]
    assert said[9:13] == ["U+D800", "שלום", "U+200F U+202E", "U+1FAF8"]
    assert not any(text.get_parse_math() for text in figure.findobj(Text) if "$" in text.get_text())


def test_long_words_are_shortened_in_the_middle():
    assert label_text.make_drawable("Rindfleischetikettierung") == "Rindfleisc…ung"
    assert label_text.make_drawable("人工智能正在改变我们的世界") == "人工智能正…界"
    assert label_text.make_labels(["▁Rindfleischetikettierung", "sgesetz"])[1] == "·sgesetz"


def test_chinese_is_drawn_with_a_font_that_has_it(tmp_path):
    assert all(label_text.has_glyph(letter) for letter in "人工智能的龍ア")
    path = figures.save(figures.head_map(weights(5, 5), keys=CHINESE), tmp_path / "chinese.svg")
    texts = [element.text for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    assert set(CHINESE) <= set(texts)
    family = re.search(r"font-family: ([^;\"]*)", path.read_text(encoding="utf-8"))
    assert family is not None
    assert label_text.list_families()[1] in family[1]


def test_without_a_chinese_font_tokens_are_told_apart_by_their_numbers(monkeypatch):
    monkeypatch.setattr(label_text, "list_families", lambda: (label_text.LATIN,))
    figure = figures.head_map(weights(2, 2), keys=["人", "工"])
    assert words(figure.axes[0].get_xticklabels()) == ["U+4EBA", "U+5DE5"]
    assert "No installed font has some characters" in notes(figure)
    assert "Noto Sans CJK" in notes(figure)
    figure.draw_without_rendering()


def test_the_shipped_font_is_used_where_the_machine_has_none(monkeypatch):
    label_text.list_families.cache_clear()
    monkeypatch.setattr(label_text, "CHINESE", ())
    try:
        assert label_text.list_families()[:2] == (label_text.LATIN, "Clearhead CJK")
    finally:
        label_text.list_families.cache_clear()


# How figures look


def boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    """The texts that are drawn, and where."""
    figure.draw_without_rendering()
    outside = {label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in unseen(axis)}
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    return [(text.get_text(), text.get_window_extent()) for text in texts if text not in outside]


def unseen(axis: XAxis | YAxis) -> list[Text]:
    """Labels beyond the ends of an axis, which matplotlib keeps and does not draw."""
    if not axis.axes.axison:
        return [label for tick in axis.get_major_ticks() for label in (tick.label1, tick.label2)]
    low, high = sorted(axis.get_view_interval())
    gone = [tick for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]
    return [label for tick in gone for label in (tick.label1, tick.label2)]


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that share more than a hair."""
    pairs = combinations(boxes(figure), 2)
    return [
        (one, other)
        for (one, a), (other, b) in pairs
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1.5
    ]


def test_an_overlap_is_noticed():
    figure = Figure()
    figure.text(0.5, 0.5, "one")
    figure.text(0.51, 0.5, "two")
    assert overlaps(figure) == [("one", "two")]


def test_nothing_overlaps(translation):
    long = [f"▁longish{place}" for place in range(30)]
    made = {
        "map": figures.head_map(weights(30, 30), keys=long, title="long " * 30),
        "numbers": figures.head_map(weights(17, 17), keys=[*CHINESE, *long[:12]]),
        "one": figures.head_map(torch.ones(1, 1), keys=["x"], title="one token, one head"),
        "wide": figures.head_map(weights(3, 300)),
        "grid": figures.head_grid(weights(8, 9, 10), keys=long[:10], queries=long[:9], captions={1: "delimiter"}),
        "words": figures.head_grid(weights(8, 4, 4), captions=dict.fromkeys(range(8), "delimiter")),
        "short words": figures.head_map(weights(42, 42), keys=["▁so", "▁he", "▁W", "人", "▁.", "▁yesterday"] * 7),
        "roles": figures.head_atlas(translation, "role", title="roles of the heads of a small translator"),
    }
    assert {name: overlaps(figure) for name, figure in made.items()} == {name: [] for name in made}


@pytest.mark.parametrize("name", style.THEMES)
def test_scales_can_be_read_without_colour(name):
    theme = style.THEMES[name]
    lightness = [np.dot(to_rgb(theme.sequential(step / 50)), (0.2126, 0.7152, 0.0722)) for step in range(51)]
    steps = np.diff(lightness)
    assert (steps < 0).all() or (steps > 0).all()
    assert abs(lightness[-1] - lightness[0]) > 0.7


@pytest.mark.parametrize("name", style.THEMES)
def test_words_can_be_read_on_every_colour(name):
    theme = style.THEMES[name]
    roles = [colours[theme.dark] for colours in ROLE_COLOURS.values()]
    grounds = [*(theme.sequential(step / 50) for step in range(51)), *roles]
    assert min(contrast_ratio(style.choose_text_colour(ground), ground) for ground in grounds) > 4
    assert min(contrast_ratio(ink, theme.background) for ink in (theme.text, theme.muted, theme.highlight)) > 4.5


def contrast_ratio(first: ColorType, second: ColorType) -> float:
    """The contrast of two colours, from 1 to 21, as WCAG defines it."""
    dark, light = sorted(style.measure_luminance(colour) for colour in (first, second))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_wcag():
    assert contrast_ratio("#ffffff", "#000000") == pytest.approx(21)
    assert contrast_ratio("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


def test_dark_is_dark():
    with figures.theme("dark"):
        dark = figures.head_map(weights(3, 3))
    assert dark.get_facecolor()[:3] == to_rgb(style.DARK.background)
    assert figures.head_map(weights(3, 3)).get_facecolor()[:3] == (1, 1, 1)


def test_no_figure_touches_the_state_of_pyplot():
    for path in (ROOT / "src/clearhead/explore/figures").glob("*.py"):
        assert "pyplot" not in path.read_text(encoding="utf-8")


def test_formats_are_what_they_say_and_the_same_each_time(tmp_path):
    begins = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}
    for kind, begin in begins.items():
        paths = [tmp_path / place / f"a.{kind}" for place in ("one", "two")]
        for path in paths:
            assert figures.save(figures.head_map(weights(3, 3), keys=["人", "b", "c"]), path) == path
        assert paths[0].read_bytes().startswith(begin)
        assert paths[0].read_bytes() == paths[1].read_bytes()
    with pytest.raises(ConfigError, match=r"\.png, \.svg, \.pdf, not as 'a\.gif'"):
        figures.save(figures.head_map(weights(3, 3)), tmp_path / "a.gif")


# Sets, and the command


def test_names_are_sorted_by_kind():
    names = ["encoder.0.self", "encoder.1.self", "decoder.0.self", "decoder.0.cross", "encoder.0.self#2", "mixer"]
    assert weight_grid.group_by_kind(names) == {
        "encoder self": ["encoder.0.self", "encoder.1.self"],
        "decoder self": ["decoder.0.self"],
        "decoder cross": ["decoder.0.cross"],
        "encoder self #2": ["encoder.0.self#2"],
        "mixer": ["mixer"],
    }


def test_the_command_draws_a_translation(translation, tmp_path):
    translation.save(tmp_path / "toy.record")
    options = ["--out", tmp_path, "--heads", "decoder.1.cross:2,1", "--format", "svg"]
    done = run("figures", tmp_path / "toy.record", *options)
    assert (done.code, done.err) == (0, "")
    lines = [line.split("\t") for line in done.out.splitlines()]
    assert [Path(path).name for path, _ in lines] == [
        "alignment.svg",
        "head-decoder.1.cross-1.svg",
        "head-decoder.1.cross-2.svg",
        *[Path(path).name for path, _ in lines if "heads-" in path],
        "atlas-role.svg",
        "atlas-entropy.svg",
        "atlas-distance.svg",
    ]
    assert sum("heads-" in path for path, _ in lines) == 3
    assert all(Path(path).read_bytes().startswith(b"<?xml") for path, _ in lines)
    assert lines[2][1] == "decoder.1.cross, head 2: the weights of each token"


def test_a_set_shows_the_weights_of_the_model():
    translator = load("zh-en", device="cpu")
    record = translator.look("我在吃米饭。")
    drawings = {one.name: one for one in figure_set.list_record_figures(record, ["encoder.3.self:1"])}
    axes = drawings["head-encoder.3.self-1"].draw().axes[0]
    assert np.allclose(drawn(axes), record["encoder.3.self"].weights(0, 1), atol=1e-6)
    assert words(axes.get_xticklabels())[-1] == "⟨/s⟩"
    title = drawings["alignment"].draw().get_suptitle()
    assert "我在吃米饭。 → " in title.replace("\n", " ")
    assert title.startswith("zh-en: decoder.")


def test_parts_of_a_text_have_figures_of_their_own(translation):
    both = Record.merge([translation, translation])
    names = [one.name for one in figure_set.list_record_figures(both)]
    assert len(set(names)) == len(names)
    assert names[0] == "part-1-alignment"
    assert sum(name.startswith("part-2-") for name in names) == len(names) / 2


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_set_replaces_its_own_figures_and_no_other_files(tmp_path, kind):
    drawings = [figure_set.PlannedFigure(name, "nothing", Figure) for name in ("saturation", "positions")]
    for _ in range(2):
        assert len(list(figure_set.write_figures(drawings, tmp_path, kind))) == 2
    (tmp_path / f"saturation.{kind}").unlink()
    mine = tmp_path / f"positions.{kind}"
    mine.unlink()
    Figure().savefig(mine)
    before = mine.read_bytes()
    with pytest.raises(ConfigError, match=rf"positions\.{kind} exists and is not a clearhead figure"):
        list(figure_set.write_figures(drawings, tmp_path, kind))
    assert mine.read_bytes() == before
    assert list(tmp_path.iterdir()) == [mine], "nothing was drawn"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a MODEL and an INPUT, or a RECORD, or --lesson"),
        (["zh-en", "x", "--lesson"], "give a MODEL and an INPUT, or a RECORD, or --lesson"),
        (["zh-en"], "no INPUT was given for zh-en"),
        (["zh-en", "x", "--format", "gif"], "figures are saved as png, svg, pdf, not as 'gif'"),
        (["zh-en", "x", "--heads", "decoder.7.cross:1"], "--heads decoder.7.cross:1"),
        (["--lesson", "--out", str(ROOT / "LICENSE")], "LICENSE is a file"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, said, tmp_path):
    out = [] if "--out" in arguments else ["--out", tmp_path]
    done = run("figures", *arguments, *out, "--device", "cpu")
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
