"""One competitor's training step in a process of its own: a line in, one step, its loss out.

    python benchmarks/peers/train_step.py joeynmt '{"layers": 6, "width": 512, "vocabulary": 12000, "dropout": 0.1}'

Forward, backward, clipping and AdamW on one fixed batch, each model with the loss of its own trainer. Only what the
competitor needs is imported, so that each may live in its own environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

UNK, PAD, START, END = 0, 1, 2, 3
PAIRS, SMOOTHING = 64, 0.1
Loss = Callable[[], Tensor]  # a target token's mean


def batch(vocabulary: int) -> tuple[Tensor, Tensor]:
    """Source with its end, target with start and end. Lengths spread as in text: log-normal, about 24 on average."""
    generator = torch.Generator().manual_seed(7)
    sources = torch.randn(PAIRS, generator=generator).mul(0.4).exp().mul(22).round().clamp(4, 60).long()
    targets = torch.randn(PAIRS, generator=generator).mul(0.15).exp().mul(sources).round().clamp(4, 60).long()
    return rows(sources, vocabulary, generator, []), rows(targets, vocabulary, generator, [START])


def rows(lengths: Tensor, vocabulary: int, generator: torch.Generator, first: list[int]) -> Tensor:
    words = [torch.randint(END + 1, vocabulary, (n,), generator=generator).tolist() for n in lengths.tolist()]
    lists = [[*first, *line, END] for line in words]
    longest = max(map(len, lists))
    return torch.tensor([line + [PAD] * (longest - len(line)) for line in lists])


def tokens(vocabulary: int) -> int:
    """Words with their end, of both sides, pads not counted."""
    source, target = batch(vocabulary)
    return int((source != PAD).sum() + (target[:, 1:] != PAD).sum())


def joeynmt(size: dict[str, Any], source: Tensor, target: Tensor) -> tuple[nn.Module, Loss]:
    from joeynmt.batch import Batch
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    specials = {"unk": UNK, "pad": PAD, "bos": START, "eos": END}
    names = {f"{name}_token": f"<{name}>" for name in specials} | {f"{name}_id": i for name, i in specials.items()}
    words = [str(number) for number in range(END + 1, size["vocabulary"])]
    vocabulary = Vocabulary(words, SimpleNamespace(**names, sep_token=None, lang_tags=[]))
    side = {
        "type": "transformer",
        "num_layers": size["layers"],
        "num_heads": 8,
        "embeddings": {"embedding_dim": size["width"], "scale": True, "dropout": size["dropout"]},
        "hidden_size": size["width"],
        "ff_size": 4 * size["width"],
        "dropout": size["dropout"],
        "layer_norm": "post",
        "activation": "relu",
    }
    model = build_model(
        {"encoder": side, "decoder": dict(side), "tied_embeddings": True, "tied_softmax": True}, vocabulary, vocabulary
    )
    model.loss_function = ("crossentropy", SMOOTHING)
    lengths, order = (source != PAD).sum(1), torch.arange(len(source))

    def loss() -> Tensor:
        pairs = Batch(source, lengths, None, target, None, order, torch.device("cpu"), PAD, END)
        pairs.sort_by_src_length()
        total, *_ = model(return_type="loss", **vars(pairs))
        return pairs.normalize(total, "tokens")

    return model, loss


def marian(size: dict[str, Any], source: Tensor, target: Tensor) -> tuple[nn.Module, Loss]:
    from transformers import MarianConfig, MarianMTModel

    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {"layers": size["layers"], "attention_heads": 8, "ffn_dim": 4 * size["width"]}.items()
    }
    config = MarianConfig(
        vocab_size=size["vocabulary"],
        d_model=size["width"],
        **sides,
        activation_function="relu",
        dropout=size["dropout"],
        attention_dropout=size["dropout"],
        activation_dropout=size["dropout"],
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=START,
        attn_implementation="sdpa",
    )
    model = MarianMTModel(config)
    read, written = target[:, :-1], target[:, 1:].flatten()

    def loss() -> Tensor:
        seen = (source != PAD).long()
        logits = model(input_ids=source, attention_mask=seen, decoder_input_ids=read, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), written, ignore_index=PAD, label_smoothing=SMOOTHING)

    return model, loss


def clearhead(size: dict[str, Any], source: Tensor, target: Tensor) -> tuple[nn.Module, Loss]:
    from clearhead import EncoderDecoder, Mask, ModelConfig
    from clearhead.tasks.losses import UNCOUNTED, token_loss

    changes = {name: size[name] for name in ("layers", "width", "dropout", "vocabulary")}
    model = EncoderDecoder(ModelConfig.named("classic", **changes, feedforward=4 * size["width"]))
    read, written = target[:, :-1], target[:, 1:].masked_fill(target[:, 1:] == PAD, UNCOUNTED)
    lengths, count = (source != PAD).sum(1), int((written != UNCOUNTED).sum())

    def loss() -> Tensor:
        hidden = model(source, read, Mask.padding(lengths))
        return token_loss(model.vocabulary, hidden, written, SMOOTHING) / count

    return model, loss


def step(model: nn.Module, loss: Loss) -> Callable[[], float]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.98), fused=True)

    def run() -> float:
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return value.item()

    return run


def version(name: str) -> str:
    from importlib.metadata import version

    package = {"marian": "transformers"}.get(name, name)
    return f"{package} {version(package)}"


def main() -> None:
    name, size = sys.argv[1], json.loads(sys.argv[2])
    torch.manual_seed(1)
    torch.set_num_threads(size.get("threads", 2))
    answers, sys.stdout = sys.stdout, sys.stderr  # nobody else may speak to the one who counts
    model, loss = {"joeynmt": joeynmt, "marian": marian, "clearhead": clearhead}[name](size, *batch(size["vocabulary"]))
    run = step(model.train(), loss)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    about = {"parameters": parameters, "version": version(name), "torch": torch.__version__}
    print(json.dumps(about), file=answers, flush=True)
    for _ in sys.stdin:
        print(run(), file=answers, flush=True)


if __name__ == "__main__":
    main()
