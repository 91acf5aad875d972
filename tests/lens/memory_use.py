"""Prints, as JSON, by how many bytes memory grew while each attention was measured, in a process of its own."""

import sys
from collections.abc import Callable

import torch

from clearhead import Bias, Mask
from clearhead.lens import measure
from tests.metering import report

TOKENS, D = 12288, 8


def case(tokens: int, mask: Mask | None = None, **options) -> Callable[[], None]:
    q, k = (torch.randn(1, 1, tokens, D, device=device) for _ in range(2))
    mask = None if mask is None else mask.to(device)
    return lambda: measure(q, k, mask, **{"backend": "tiled"} | options)


def cases(tokens: int) -> dict[str, Callable[[], None]]:
    table = torch.zeros(2 * 50 + 1, 1, device=device)
    return {
        "nothing hidden": case(tokens),
        "causal, left padding": case(tokens, Mask.causal() & Mask.padding([tokens - 99], side="left")),
        "window": case(tokens, Mask.window(200)),
        "documents": case(tokens, Mask.causal() & Mask.documents(torch.arange(tokens) // 5000)),
        "alibi, sinks": case(tokens, Mask.causal(), bias=Bias.alibi(1).to(device), sinks=torch.zeros(1, device=device)),
        "relative bias, softcap": case(tokens, bias=Bias.relative(table, 50), softcap=20.0),
        "every 4th": case(tokens, Mask.causal(), every=4),
        "ties": case(tokens, Mask.causal(), scale=0.0),
    }


def main() -> None:
    runs = {(name, TOKENS): run for name, run in cases(TOKENS).items()}
    runs[("the definition", TOKENS // 4)] = case(TOKENS // 4, backend="defined")
    case(64)()  # what PyTorch itself takes at the first call
    report(runs, device)


if __name__ == "__main__":
    device = sys.argv[1]
    torch.set_num_threads(1)  # beside other work, more threads wait for each other
    main()
