"""What the heads of a Llama do over a long document: 100,000 tokens on a GPU, 8,000 on a CPU, in seconds.

    python examples/long_document.py                                   # a small Llama whose heads are built by hand
    python examples/long_document.py --model FOLDER --text book.txt    # a real one, from a local folder

Nothing is downloaded. The weights of such a text, 100,000 × 100,000 for each head, are never built: the model runs with
its own fused attention, and what is measured beside it takes memory in proportion to the text.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor, nn

from clearhead import ablate
from clearhead.lens import HeadRoles, head_roles
from hand_built import LAYERS, NEWLINE, START, hand_built

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = {"cpu": 8_000, "cuda": 100_000}


def document(path: Path | None) -> str:
    """A text: this repository's own pages, unless a file is named."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path is None else [path]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def repeated(numbers: list[int], length: int) -> Tensor:
    """`length` of these numbers; a text that is too short begins again."""
    return torch.tensor((numbers * -(-length // len(numbers)))[:length])


def by_hand(text: str, length: int, device: str) -> tuple[nn.Module, Tensor, dict[str, Any]]:
    model = hand_built().to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    tokens = torch.cat([torch.tensor([START]), repeated(list(text.encode()), length - 1)])
    return model, tokens[None], {"delimiters": [NEWLINE], "vocabulary": 256}


def from_folder(folder: Path, text: str, length: int, device: str) -> tuple[nn.Module, Tensor, dict[str, Any]]:
    """A model and its tokenizer from a local folder, and the text as its tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype).to(device).eval()
    room = getattr(model.config, "max_position_embeddings", None) or length
    if room < length:
        print(f"   It has {room:,} positions, so the text is cut to as many tokens.")
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    numbers = tokenizer.encode(text, add_special_tokens=False)
    tokens = torch.tensor(start + repeated(numbers, min(room, length) - len(start)).tolist())
    signs = {tokenizer.encode(sign, add_special_tokens=False)[-1] for sign in ("\n", ".", ",")}
    return model, tokens[None], {"delimiters": [*signs, *tokenizer.all_special_ids]}


def peak_memory(device: str) -> float:
    """In MiB: what was taken on the GPU, or by the process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    import resource  # which Windows does not have

    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return taken / 2**20 if sys.platform == "darwin" else taken / 2**10


def report(roles: HeadRoles, tokens: int, seconds: float, device: str) -> None:
    weights = len(roles) * tokens**2 * (2 if device == "cuda" else 4) / 2**30
    print("\n   " + str(roles).replace("\n", "\n   "))
    where = "on the GPU" if device == "cuda" else "of this process, Python and its libraries included"
    print(f"\n   {seconds:.1f} s for {tokens:,} tokens and {len(roles)} heads, and then repeated random ones")
    print(f"   {peak_memory(device):,.0f} MiB at most {where}; the weights alone would take {weights:,.1f} GiB\n")


def copied(model: nn.Module) -> float:
    """How much of a random text the model foresees when it comes a second time."""
    once = torch.randperm(256, generator=torch.Generator().manual_seed(7))[:100]
    twice = torch.cat([torch.tensor([START]), once, once]).to(model.device)
    with torch.no_grad():
        expected = model(input_ids=twice[None]).logits[0, 101:-1].argmax(-1)
    return float((expected == twice[102:]).float().mean())


def without_heads(model: nn.Module) -> None:
    """What a head does is seen when it is switched off."""
    print("   Of a random text that comes twice it foresees, the second time:")
    print(f"     {copied(model):4.0%} with all heads")
    for name, head, why in (
        ("decoder.1.self", 0, "the induction head, which finds what came next"),
        ("decoder.0.self", 0, "the previous-token head, without which that finds nothing"),
        ("decoder.1.self", 1, "the duplicate head, which only looks"),
    ):
        with ablate(model, {name: [head]}):
            print(f"     {copied(model):4.0%} without {why}")


def main(arguments: list[str] | None = None) -> int:
    """0 if all went well; 1 if the heads built by hand were not found for what they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a folder with a Hugging Face model and its tokenizer")
    parser.add_argument("--text", type=Path, help="a text file; else this repository's own pages")
    parser.add_argument("--tokens", type=int, help="how many; a text that is too short begins again")
    parser.add_argument("--device", choices=list(LENGTHS), default="cuda" if torch.cuda.is_available() else "cpu")
    settings = parser.parse_args(arguments)
    length = settings.tokens or LENGTHS[settings.device]
    text = document(settings.text)
    if settings.model is None:
        print(f"A Llama of {sum(map(len, LAYERS))} heads built by hand reads {length:,} bytes\n")
        model, tokens, options = by_hand(text, length, settings.device)
    else:
        print(f"{settings.model} reads {length:,} tokens\n")
        model, tokens, options = from_folder(settings.model, text, length, settings.device)
    began = time.monotonic()
    roles = head_roles(model, tokens, **options)
    report(roles, tokens.shape[1], time.monotonic() - began, settings.device)
    if settings.model is not None:
        return 0
    without_heads(model)
    roles_found, built = [head.role for head in roles], [name for layer in LAYERS for name in layer]
    if roles_found != built:
        print(f"   Built were {', '.join(built)}; found were {', '.join(roles_found)}.", file=sys.stderr)
        return 1
    print("\n   Every head was found to be what it was built to be.")
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    sys.exit(main())
