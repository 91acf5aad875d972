"""Small models to write with: random ones with strong opinions, and one that has learned to turn words around."""

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead import Decoder, EncoderDecoder, Mask, ModelConfig

PAD, START, END = 0, 1, 2
VOCABULARY = 41
SMALL = {"width": 24, "heads": 6, "layers": 2, "feedforward": 37, "dropout": 0.3}

# Every way in which places are told apart; each meets the cache, the beams and the padding in its own manner.
KINDS = {
    "classic": {"norm_first": False},
    "modern": {"positions": "rotary", "kv_heads": 2, "norm": "rms", "activation": "swiglu", "bias": False},
    "learned": {"positions": "learned", "max_length": 31},
    "alibi": {"positions": "alibi"},
    "relative": {"positions": "relative"},
    "window": {"positions": "rotary", "window": 3},
    "none": {"positions": "none", "tie_embeddings": False, "temperature": "learned"},
}


def decided(model):
    """Random weights hardly prefer any word to another; with these it matters what was written before."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "vocabulary" in name or "table" in name:
                weight.mul_(4 if model.config.scale_embeddings else 60)
            elif weight.ndim == 2:
                weight.mul_(1.7)
    return model


def translator(kind: str = "classic", dtype: torch.dtype = torch.float64, seed: int = 0) -> EncoderDecoder:
    torch.manual_seed(seed)
    return decided(EncoderDecoder(ModelConfig.named("tiny", vocabulary=VOCABULARY, **SMALL | KINDS[kind]))).to(dtype)


def continuer(kind: str = "classic", dtype: torch.dtype = torch.float64, seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    return decided(Decoder(ModelConfig.named("tiny", vocabulary=VOCABULARY, **SMALL | KINDS[kind]))).to(dtype)


def sources(rows: int, longest: int = 7, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Rows of words of different lengths, and these lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (rows,), generator=generator)
    lengths[0] = longest
    words = torch.randint(3, VOCABULARY, (rows, longest), generator=generator)
    return words.where(torch.arange(longest) < lengths[:, None], PAD), lengths


def trained_translator() -> EncoderDecoder:
    """Trained for some seconds to write the source backwards: mostly sure, sometimes wrong, and it ends."""
    torch.manual_seed(5)
    config = ModelConfig.named(
        "classic", vocabulary=VOCABULARY, width=32, heads=4, layers=1, feedforward=64, dropout=0.0
    )
    model = EncoderDecoder(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=6e-3, fused=True)
    for step in range(300):
        source, lengths = sources(64, seed=step)
        target = torch.full((64, 8), PAD)
        for row, length in enumerate(lengths.tolist()):
            target[row, : length + 1] = torch.cat([source[row, :length].flip(0), torch.tensor([END])])
        read = F.pad(target[:, :-1], (1, 0), value=START)
        logits = model.logits(model(source, read, Mask.padding(lengths)))
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=0.1)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return model.eval()
