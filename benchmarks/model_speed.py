"""A training step of our models against nn.TransformerEncoder, nn.Transformer and Hugging Face's MarianMT."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from clearhead import Encoder, EncoderDecoder, Mask, ModelConfig, Sinusoidal

from measuring import Report, compare

VOCABULARY, PAD = 8000, 0


def step(parameters: list[nn.Parameter], loss: Callable[[], Tensor], dtype: torch.dtype | None) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(parameters, lr=1e-5, fused=True)

    def run() -> None:
        with torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype, enabled=dtype is not None):
            value = loss()
        value.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return run


def encoders(device: str, dropout: float, dtype: torch.dtype | None, padded: bool) -> dict[str, Callable[[], None]]:
    x = torch.randn(16, 256, 512, device=device)
    lengths = torch.linspace(128, 256, 16, device=device).long()
    pads = torch.arange(256, device=device) >= lengths[:, None]
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(device)
    ours = Encoder(ModelConfig.named("classic", vocabulary=2, dropout=dropout)).to(device)
    mask = Mask.padding(lengths) if padded else None
    hidden = pads if padded else None
    return {
        "nn.TransformerEncoder": step(
            list(theirs.parameters()), lambda: theirs(x, src_key_padding_mask=hidden).square().mean(), dtype
        ),
        "clearhead.Encoder": step(list(ours.parameters()), lambda: ours(vectors=x, mask=mask).square().mean(), dtype),
    }


class TorchTranslator(nn.Module):
    """nn.Transformer with what it lacks: words, positions and scores."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, 512), Sinusoidal(512)
        self.body = nn.Transformer(512, 8, 6, 6, 2048, dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor, target: Tensor, pads: Tensor, target_pads: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        hidden = self.body(
            self.embedded(source),
            self.embedded(target),
            tgt_mask=causal < 0,
            src_key_padding_mask=pads,
            tgt_key_padding_mask=target_pads,
            memory_key_padding_mask=pads,
            tgt_is_causal=True,
        )
        return hidden @ self.words.weight.T

    def embedded(self, tokens: Tensor) -> Tensor:
        places = self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.dropout(self.words(tokens) * math.sqrt(512) + places)


def translators(device: str, dropout: float, dtype: torch.dtype | None, batch: int, length: int):
    generator = torch.Generator().manual_seed(7)
    source = torch.randint(1, VOCABULARY, (batch, length), generator=generator).to(device)
    target = torch.randint(1, VOCABULARY, (batch, length), generator=generator).to(device)
    lengths = torch.linspace(length // 2, length, batch, device=device).long()
    pads = torch.arange(length, device=device) >= lengths[:, None]
    source, target = source.masked_fill(pads, PAD), target.masked_fill(pads, PAD)
    ours = EncoderDecoder(ModelConfig.named("classic", vocabulary=VOCABULARY, dropout=dropout)).to(device)
    torchs = TorchTranslator(dropout).to(device)
    marian = MarianMTModel(marian_config(dropout)).to(device).train()

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), ignore_index=PAD)

    seen = Mask.padding(lengths)
    attended = (~pads).long()
    return {
        "nn.Transformer": step(list(torchs.parameters()), lambda: loss(torchs(source, target, pads, pads)), dtype),
        "MarianMT (sdpa)": step(
            [p for p in marian.parameters() if p.requires_grad],
            lambda: loss(
                marian(
                    input_ids=source,
                    attention_mask=attended,
                    decoder_input_ids=target,
                    decoder_attention_mask=attended,
                    use_cache=False,
                ).logits
            ),
            dtype,
        ),
        "clearhead.EncoderDecoder": step(
            list(ours.parameters()), lambda: loss(ours.logits(ours(source, target, seen, seen))), dtype
        ),
    }


def marian_config(dropout: float) -> MarianConfig:
    return MarianConfig(
        vocab_size=VOCABULARY,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        activation_function="relu",
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
        scale_embedding=True,
        attn_implementation="sdpa",
    )


def main() -> None:
    cuda = torch.cuda.is_available()
    device, dtype, rounds = ("cuda", torch.bfloat16, 15) if cuda else ("cpu", None, 5)
    report = Report("model_speed", "Training steps against PyTorch's and Hugging Face's models")
    for dropout in (0.0, 0.1):
        for padded in (False, True):
            name = f"encoder step, dropout {dropout}{', padded' * padded}"
            timings = compare(encoders(device, dropout, dtype, padded), rounds=rounds)
            report.add(name, "6 layers, width 512, 16×256", timings)
        batch, length = (128, 64) if cuda else (16, 64)
        timings = compare(translators(device, dropout, dtype, batch, length), rounds=rounds)
        report.add(f"translation step, dropout {dropout}", f"classic, {batch}×({length}+{length}), padded", timings)
    report.save()


if __name__ == "__main__":
    main()
