"""Compiles the lens's kernel for Hopper where there is no GPU: `python -m tests.lens.compiling` prints what came out.

Triton asks a driver which GPU it is for; here one that has none answers. Nothing is launched.
"""

from __future__ import annotations

import contextlib

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from clearhead import Mask
from clearhead.attention.inputs import checked
from clearhead.lens import kernel
from clearhead.lens.kernels import placing
from clearhead.lens.measuring import planned


class Hopper:
    """As much of a driver as it takes to compile."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0

    def get_active_torch_device(self):
        return torch.device("cpu")

    def map_python_to_cpp_type(self, name):
        return name


def compiled(mask=None, tokens=4096, width=128, top=0):
    """What came of the kernel for Hopper, for a job; the others are left out, they are tried in the interpreter."""
    found = []

    def only_compiled(self, *arguments, grid, warmup, **constants):
        if self.__module__.endswith(".hopper"):
            found.append(original(self, *arguments, grid=grid, warmup=True, **constants))

    original, JITFunction.run = JITFunction.run, only_compiled
    try:
        q = torch.zeros(1, 4, tokens, width, dtype=torch.bfloat16)
        kernel.run(planned(checked(q, q[:, :2], None, mask), top=top, logsumexp=torch.zeros(1, 4, tokens)))
    finally:
        JITFunction.run = original
    (one,) = found
    return one


if __name__ == "__main__":
    driver.set_active(Hopper())
    placing.copies_tiles = kernel.has_warpgroups = lambda device: True
    torch.cuda.device_of = lambda tensor: contextlib.nullcontext()
    for case in ({"mask": Mask.causal()}, {"mask": Mask.window(99), "tokens": 5003}, {"width": 64, "top": 8}):
        one = compiled(**case)
        print(one.metadata.shared, one.asm["ptx"].count("wgmma.mma_async"), one.asm["ptx"].count("shfl.sync"))
