"""A Hugging Face Llama whose weights are written by hand, so that the role of every head is known beforehand.

Its vectors have room for three codes: which token stands here, which one came before it, and which one should come
next. Rotary positions turn some features of a head quickly from token to token, others slowly: with a base of 10¹⁶ the
slow half turns by a thousandth over 100,000 tokens. So the quick ones compare places, and the slow ones codes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

WORDS, START, NEWLINE = 257, 256, 10  # all bytes, and a token that begins the text
WIDTH, CODE, HEAD, HEADS = 104, 32, 64, 4
TOKEN, BEFORE, NEXT = slice(0, 32), slice(32, 64), slice(64, 96)  # where a vector says what
IS_START, IS_NEWLINE = 96, 97
LAYERS = [["previous", "first", "itself", "delimiter"], ["induction", "duplicate", "local", "broad"]]
BASE = 1e16
PAIRS = HEAD // 2  # Llama turns feature n together with feature n + 32, by BASE^(−n/32) a token
SLOW = [*range(16, PAIRS), *range(16 + PAIRS, HEAD)]
SHARP = 25.0  # how much better what is looked for fits, in nats, so that it gets nearly all of the weight


def hand_built() -> LlamaForCausalLM:
    """Two layers of four heads. It reads bytes, and expects what came after the last token like this one."""
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        head_dim=HEAD,
        intermediate_size=8,  # its feed-forward layers do nothing
        num_hidden_layers=len(LAYERS),
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        attention_bias=True,
        max_position_embeddings=2**17,
        rope_parameters={"rope_type": "default", "rope_theta": BASE},
    )
    model = LlamaForCausalLM(config).requires_grad_(False).eval()
    for name, parameter in model.named_parameters():
        parameter.fill_(1.0 if "norm" in name else 0.0)
    code = nn.functional.normalize(torch.randn(WORDS, CODE, generator=torch.Generator().manual_seed(1)), dim=1)
    words = model.model.embed_tokens.weight
    words[:, TOKEN], words[START, IS_START], words[NEWLINE, IS_NEWLINE] = code, 1.0, 1.0
    model.lm_head.weight[:, NEXT] = code
    for number, (layer, names) in enumerate(zip(model.model.layers, LAYERS, strict=True)):
        # The norm before an attention makes every vector as long as √WIDTH; here it has one code, or two.
        length = (WIDTH / (number + 1)) ** 0.5
        for head, name in enumerate(names):
            write(name, layer.self_attn, slice(head * HEAD, (head + 1) * HEAD), length)
    return model


def write(name: str, attention: nn.Module, rows: slice, length: float) -> None:
    """One head into the rows that are its own; a code arrives as long as `length`."""
    of_q, of_k, of_v, of_out = (getattr(attention, f"{part}_proj") for part in "qkvo")
    q, k = torch.zeros(HEAD, WIDTH), torch.zeros(HEAD, WIDTH)
    factor = HEAD**0.5  # what scores are divided by
    codes = factor * 3 * SHARP / length**2 * torch.eye(CODE)
    if name in ("previous", "itself"):
        of_q.bias[rows], of_k.bias[rows] = places(1 if name == "previous" else 0, SHARP * factor)
    elif name == "local":
        of_q.bias[rows], of_k.bias[rows] = places(1, 1.0 * factor, far=30 * factor)
    elif name in ("first", "delimiter"):
        of_q.bias[rows.start + SLOW[0]] = SHARP * factor
        k[SLOW[0], IS_START if name == "first" else IS_NEWLINE] = 2 / length
    elif name == "induction":
        q[SLOW, TOKEN], k[SLOW, BEFORE] = codes, torch.eye(CODE)
    elif name == "duplicate":  # the same token, but not the one that stands here
        q[SLOW, TOKEN], k[SLOW, TOKEN] = codes, torch.eye(CODE)
        of_q.bias[rows], of_k.bias[rows] = places(0, -2 * factor)
    of_q.weight[rows], of_k.weight[rows] = q, k
    if name in ("previous", "induction"):  # they hand on the token that they see
        of_v.weight[rows.start : rows.start + CODE, TOKEN] = torch.eye(CODE) / length
        of_out.weight[BEFORE if name == "previous" else NEXT, rows.start : rows.start + CODE] = torch.eye(CODE)


def places(back: int, quick: float, far: float | None = None) -> tuple[Tensor, Tensor]:
    """Features of every query and every key that fit best where the key stands `back` tokens before the query.

    `far` is how much the less quick features count, that tell far from near.
    """
    turns = BASE ** (-torch.arange(8) / PAIRS)
    q, k = torch.zeros(HEAD), torch.zeros(HEAD)
    q[:8] = torch.where(torch.arange(8) < 3, quick, quick if far is None else far)
    k[:8], k[PAIRS : PAIRS + 8] = torch.cos(back * turns), torch.sin(back * turns)
    return q, k
