"""The model of speech: padding changes nothing, positions count, sizes are refused."""

import pytest
import torch

from clearhead import ModelConfig
from clearhead.errors import ConfigError, ShapeError
from clearhead.model import Sound, SpeechModel
from clearhead.model.speech_model import SoundFrontEnd, count_positions

SIZES = {"vocabulary": 11, "width": 24, "heads": 3}


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_padding_changes_nothing(stride: int) -> None:
    torch.manual_seed(1)
    model = SpeechModel(ModelConfig.named("tiny", **SIZES, sound=Sound(23, stride=stride))).eval()
    sound = torch.randn(1, 37, 23)
    padded = torch.cat([sound, torch.full((1, 30, 23), 7.0)], dim=1)
    with torch.no_grad():
        alone, lengths = model.encode_sound(sound, torch.tensor([37]))
        beside, other = model.encode_sound(padded, torch.tensor([37]))
    assert lengths.tolist() == other.tolist() == [count_positions(37, stride)] == [alone.shape[1]]
    torch.testing.assert_close(beside[:, : alone.shape[1]], alone, atol=1e-5, rtol=1e-5)


def test_probabilities_of_ctc_sum_to_one() -> None:
    model = SpeechModel(ModelConfig.named("tiny", **SIZES, sound=Sound(23))).eval()
    context, _ = model.encode_sound(torch.randn(2, 19, 23), torch.tensor([19, 7]))
    torch.testing.assert_close(model.ctc_log_probs(context).exp().sum(-1), torch.ones(2, 5))


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs sound"):
        SoundFrontEnd(ModelConfig.named("tiny", vocabulary=11))
    with pytest.raises(ConfigError, match="conv_stride must be"):
        Sound(23, stride=3)
    with pytest.raises(ConfigError, match="odd"):
        Sound(23, kernel=4)
    with pytest.raises(ShapeError, match="frames, 23"):
        SoundFrontEnd(ModelConfig.named("tiny", **SIZES, sound=Sound(23)))(torch.randn(1, 9, 11), torch.tensor([9]))
