"""Patch embeddings against an unfold, positions of rows and columns against float64, in encoders of both kinds."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from clearhead.attention import AxialRotary, Rotary
from clearhead.errors import CheckpointError, ConfigError, ShapeError
from clearhead.model import Encoder, EncoderDecoder, ModelConfig, PatchEmbedding, Patches
from clearhead.model.huggingface import to_huggingface

BATCH, SIZE, ROWS, COLUMNS, WIDTH = 2, 5, 3, 7, 24


def config_of(patch_positions="learned", **changes) -> ModelConfig:
    sizes = {"width": WIDTH, "heads": 2, "layers": 2, "feedforward": 31, "dropout": 0.0}
    grid = Patches(SIZE, ROWS, COLUMNS, positions=patch_positions)
    return ModelConfig.named("tiny", vocabulary=11, patches=grid, **{**sizes, **changes})


def random_pictures() -> torch.Tensor:
    return torch.rand(BATCH, 3, ROWS * SIZE, COLUMNS * SIZE)


def test_patches_are_cut_row_by_row_and_projected():
    patches, pictures = PatchEmbedding(config_of(patch_positions="rotary")), random_pictures()
    vectors = patches(pictures)
    assert vectors.shape == (BATCH, ROWS * COLUMNS, WIDTH)
    pixels = F.unfold(pictures, SIZE, stride=SIZE).transpose(1, 2)
    expected = pixels @ patches.projection.weight.T + patches.projection.bias
    assert torch.allclose(vectors, expected, atol=1e-6)
    by_hand = pictures[1, :, 2 * SIZE : 3 * SIZE, 4 * SIZE : 5 * SIZE].reshape(-1)
    assert torch.allclose(vectors[1, 2 * COLUMNS + 4], patches.projection(by_hand), atol=1e-6)


def test_learned_positions_are_a_row_and_a_column():
    patches = PatchEmbedding(config_of())
    vectors = patches(torch.zeros(1, 3, ROWS * SIZE, COLUMNS * SIZE))
    for patch in range(ROWS * COLUMNS):
        row, column = divmod(patch, COLUMNS)
        expected = patches.row_positions.weight[row] + patches.column_positions.weight[column]
        assert torch.allclose(vectors[0, patch], expected + patches.projection.bias)


@pytest.mark.parametrize("size", [(3, 15, 34), (3, 35, 15), (1, 15, 35)])
def test_pictures_of_another_size_are_refused(size):
    with pytest.raises(ShapeError, match=r"pictures must be \(batch, 3, 15, 35\), got \(2, "):
        PatchEmbedding(config_of())(torch.rand(2, *size))


def test_a_grid_is_given_whole():
    with pytest.raises(ConfigError, match="patches has size, but no rows; does this model have patches"):
        ModelConfig.named("tiny", vocabulary=11, patches={"size": 4})
    with pytest.raises(ConfigError, match="needs patches"):
        PatchEmbedding(ModelConfig.named("tiny", vocabulary=11))
    with pytest.raises(ConfigError, match="patch_positions must be one of learned, rotary"):
        config_of(patch_positions="none")
    assert ModelConfig.from_dict(config_of().to_dict()) == config_of()


def test_rotary_scores_depend_on_rows_and_columns_between_patches_only():
    rotary = AxialRotary(8, columns=COLUMNS)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    positions = torch.arange(ROWS * COLUMNS)
    turns = rotary(positions, torch.float64)
    tokens = len(positions)
    queries, keys = (rotary.turn(x.expand(1, 1, tokens, 8), turns)[0, 0] for x in (q, k))
    scores = queries @ keys.T
    found: dict[tuple[int, int], float] = {}
    for one in range(tokens):
        for other in range(tokens):
            offset = other // COLUMNS - one // COLUMNS, other % COLUMNS - one % COLUMNS
            assert abs(found.setdefault(offset, scores[one, other].item()) - scores[one, other].item()) < 1e-12
    distinct = sorted(found.values())
    assert min(b - a for a, b in pairwise(distinct)) > 1e-9
    assert len(found) == (2 * ROWS - 1) * (2 * COLUMNS - 1)


def test_rotary_rows_and_columns_are_those_of_one_axis():
    rotary, line = AxialRotary(12, columns=COLUMNS, base=50.0), Rotary(6, base=50.0)
    cos, sin = rotary(torch.tensor([0, 6, 7, 20]), torch.float64)
    rows, columns = line(torch.tensor([0, 0, 1, 2]), torch.float64), line(torch.tensor([0, 6, 0, 6]), torch.float64)
    assert torch.equal(cos, torch.cat([rows[0], columns[0]], dim=-1))
    assert torch.equal(sin, torch.cat([rows[1], columns[1]], dim=-1))
    batched = rotary(torch.tensor([[0, 6], [7, 20]]), torch.float64)[0]
    assert batched.shape == (2, 1, 2, 6)
    assert torch.equal(batched[1, 0], cos[2:])


def test_rotary_grids_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="head_dim must be divisible by 4, got 6"):
        AxialRotary(6, columns=2)
    with pytest.raises(ConfigError, match="head_dim must be divisible by 4"):
        Encoder(config_of(heads=4, patch_positions="rotary"))


@pytest.mark.parametrize("patch_positions", ["learned", "rotary"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"])
def test_encoders_take_patches_with_no_positions_but_those_of_the_grid(patch_positions, positions):
    """What the encoder adds itself: nothing, or rotations by row and column; so a shuffle changes nothing, or much."""
    config = config_of(positions=positions, patch_positions=patch_positions)
    encoder = Encoder(config).eval()
    kinds = {type(layer.self_attention.positions) for layer in encoder.encoder.layers}
    assert kinds == {AxialRotary if patch_positions == "rotary" else type(None)}
    vectors = torch.randn(1, ROWS * COLUMNS, WIDTH)
    hidden = encoder(vectors=vectors)
    order = torch.randperm(ROWS * COLUMNS, generator=torch.Generator().manual_seed(1))
    shuffled = encoder(vectors=vectors[:, order])
    assert torch.allclose(shuffled, hidden[:, order], atol=1e-5) == (patch_positions == "learned")
    if patch_positions == "rotary":  # the places given with the vectors
        assert torch.allclose(encoder(vectors=vectors[:, order], positions=order), hidden[:, order], atol=1e-5)


def test_a_rotary_encoder_gives_the_same_for_a_grid_that_is_moved():
    encoder = Encoder(config_of(patch_positions="rotary")).double().eval()
    vectors, places = torch.randn(1, 4, WIDTH).double(), torch.tensor([0, 1, COLUMNS, COLUMNS + 1])
    moved = encoder(vectors=vectors, positions=places + COLUMNS + 3)  # one row and three columns
    assert torch.allclose(encoder(vectors=vectors, positions=places), moved, atol=1e-12)
    wrapped = encoder(vectors=vectors, positions=torch.arange(4))
    assert not torch.allclose(wrapped, moved, atol=1e-3)


def test_the_decoder_of_a_picture_keeps_its_own_positions():
    model = EncoderDecoder(config_of(positions="sinusoidal")).eval()
    assert model.encoder.positions is None
    assert type(model.decoder.positions).__name__ == "Sinusoidal"
    assert type(EncoderDecoder(config_of(positions="rotary")).decoder.positions) is Rotary
    context = model.encode(vectors=PatchEmbedding(model.config)(random_pictures()))
    hidden = model.decode(torch.tensor([[1, 2], [3, 4]]), context)
    assert hidden.shape == (BATCH, 2, WIDTH)


def test_tokens_for_an_encoder_of_pictures_are_refused():
    for encode in (Encoder(config_of()), EncoderDecoder(config_of()).encode):
        with pytest.raises(ShapeError, match=r"takes pictures, not tokens"):
            encode(torch.tensor([[1, 2, 3]]))
    with pytest.raises(ShapeError, match="no effect in a model with learned patch positions"):
        Encoder(config_of())(vectors=torch.randn(1, 2, WIDTH), positions=torch.arange(2))


def test_gradients_reach_every_parameter():
    patches = PatchEmbedding(config_of())
    encoder = Encoder(config_of())
    encoder(vectors=patches(random_pictures())).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in patches.parameters())


def test_an_encoder_of_pictures_is_not_written_as_bert(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot express .*size=5"):
        to_huggingface(Encoder(config_of()), tmp_path / "model")


@pytest.mark.parametrize("patch_positions", ["learned", "rotary"])
def test_each_patch_knows_where_a_bright_one_is(patch_positions):
    """The first hidden state differs with the place of one bright patch; without positions it could not."""
    config = config_of(patch_positions=patch_positions)
    patches, encoder = PatchEmbedding(config).double(), Encoder(config).double().eval()
    pictures = torch.zeros(ROWS * COLUMNS, 3, ROWS * SIZE, COLUMNS * SIZE).double()
    for patch, picture in enumerate(pictures):
        top, left = patch // COLUMNS * SIZE, patch % COLUMNS * SIZE
        picture[:, top : top + SIZE, left : left + SIZE] = 1

    def nearest() -> float:
        first = encoder(vectors=patches(pictures))[1:, 0]
        return torch.pdist(first).min().item()

    assert nearest() > 1e-6
    if patch_positions == "learned":
        torch.nn.init.zeros_(patches.row_positions.weight)
        torch.nn.init.zeros_(patches.column_positions.weight)
        assert nearest() < 1e-12


def test_convolutions_give_as_many_patches_as_a_projection_and_no_picture_depends_on_another():
    grid = Patches(4, rows=2, columns=3, convolutions=2)
    config = ModelConfig.named("tiny", vocabulary=11, width=24, heads=3, patches=grid)
    patches = PatchEmbedding(config)
    pictures = torch.rand(5, 3, 8, 12)
    whole = patches(pictures)
    assert whole.shape == (5, 6, 24)
    assert torch.allclose(patches(pictures[1:2]), whole[1:2], atol=1e-6)
    whole.sum().backward()
    assert all(parameter.grad is not None for parameter in patches.parameters())


def test_convolutions_need_patches_whose_size_is_a_power_of_two():
    with pytest.raises(ConfigError, match="power of two, got 6"):
        Patches(6, rows=2, columns=3, convolutions=1)
