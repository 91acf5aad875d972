"""Prints, as JSON, by how many bytes memory grew while each attention ran: in a process of its own, for a clean peak.

On a CPU it is the resident set, and all run forward and backward with 7,168 tokens, where a square of booleans stands
out with 51 MB: 65,536² scores would take minutes. The two quickest run with 32,768. On a GPU all run with 65,536.
"""

import sys
from collections.abc import Callable

import torch

from clearhead import Bias, Mask, attend
from clearhead.attention.backends import tiled
from tests.metering import report

LONG_ON_GPU, LONG, SHORT, D = 65_536, 32_768, 7_168, 8


def case(tokens: int, mask: Mask | None = None, backward: bool = True, d_v: int = D, **options) -> Callable[[], None]:
    def run() -> None:
        q, k, v = (torch.randn(1, 1, tokens, d, device=device, requires_grad=backward) for d in (D, D, d_v))
        out = attend(q, k, v, None if mask is None else mask.to(device), **options)
        if backward:
            out.sum().backward()

    return run


def cases(tokens: int, backward: bool) -> dict[str, Callable[[], None]]:
    found = {}
    for side in ("left", "right"):
        for queries in (False, True):
            mask = Mask.causal() & Mask.padding([tokens - 99], side=side, queries=queries)
            found[f"causal, {side} padding{', no pad queries' * queries}"] = case(tokens, mask, backward)
    found["padding"] = case(tokens, Mask.padding([tokens - 99]), backward)
    found["wide values"] = case(tokens, Mask.causal(), backward, d_v=D + 3)
    found["window"] = case(tokens, Mask.window(200), backward)
    return found


def slow_cases(tokens: int) -> dict[str, Callable[[], None]]:
    slopes = torch.tensor([0.1], device=device, requires_grad=True)
    table = torch.zeros(2 * 50 + 1, 1, device=device, requires_grad=True)
    return {
        "alibi": case(tokens, Mask.causal(), bias=Bias.alibi(1).to(device)),
        "learned alibi": case(tokens, Mask.causal(), bias=Bias.alibi(slopes)),
        "learned relative bias": case(tokens, Mask.causal(), bias=Bias.relative(table, 50)),
        "softcap": case(tokens, Mask.causal(), softcap=20.0),
        "sinks": case(tokens, Mask.causal(), sinks=torch.zeros(1, device=device)),
    }


def main() -> None:
    if device == "cuda":
        tokens = LONG_ON_GPU
        runs = {(name, tokens): run for name, run in (cases(tokens, True) | slow_cases(tokens)).items()}
    else:
        tiled.TILE_SCORES = 2**18  # so that what O(n) memory needs is small against a square of booleans
        runs = {(name, SHORT): run for name, run in (cases(SHORT, True) | slow_cases(SHORT)).items()}
        runs |= {("causal, left padding", LONG): cases(LONG, False)["causal, left padding"]}
        runs |= {("window", LONG): cases(LONG, True)["window"]}
    for warm_up in (case(64), *slow_cases(64).values()):  # PyTorch itself takes memory at the first call
        warm_up()
    runs[("the reference", SHORT // 2)] = case(SHORT // 2, backend="reference")
    report(runs, device)


if __name__ == "__main__":
    device = sys.argv[1]
    torch.set_num_threads(1)  # beside other work, more threads wait for each other
    main()
