"""Compiles the kernels for Hopper where there is no GPU, and prints what each one needs: run by test_kernel.py.

Triton's interpreter lets pass what its compiler does not: a variable that changes its shape in a loop, for one.
"""

import contextlib

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from clearhead import Bias, Mask
from clearhead.attention.call import check_call
from clearhead.lens.measures.definition import MeasureJob
from clearhead.lens.measures.kernels import kernel_tensors, launch
from clearhead.lens.measures.measure_dispatch import plan_job


class Hopper:
    """As much of a driver as compiling takes."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def jobs() -> dict[str, MeasureJob]:
    def job(
        dtype: torch.dtype, tokens: int, d: int, mask: Mask | None, given: bool, options: dict, **asked
    ) -> MeasureJob:
        q, k = (torch.empty(1, heads, tokens, d, dtype=dtype) for heads in (2, 1))
        logsumexp = torch.empty(1, 2, tokens) if given else None
        return plan_job(check_call(q, k, None, mask, **options), logsumexp=logsumexp, **asked)

    many = (Mask.causal() | Mask.prefix(3)) & Mask.documents(torch.arange(1031) // 97) & Mask.padding([7], side="left")
    options = {"bias": Bias.alibi(2), "softcap": 9.0, "sinks": torch.zeros(2)}
    spans = {"prompt": slice(0, 97), "rest": slice(97, None)}
    return {
        "the fastest": job(torch.bfloat16, 4096, 128, Mask.causal(), True, {}, spans=spans),
        "everything": job(torch.float32, 1031, 13, many, False, options, top=11, spans=spans),
        "bare": job(torch.bfloat16, 4096, 64, Mask.causal(), True, {}, top=0, received=False),
    }


def main() -> None:
    driver.set_active(Hopper())
    compile_or_launch, compiled = JITFunction.run, []

    def compile_only(self, *arguments, grid, warmup, **options):
        compiled.append(compile_or_launch(self, *arguments, grid=grid, warmup=True, **options))

    JITFunction.run = compile_only
    kernel_tensors.has_tensor_memory_access = lambda device: True
    torch.cuda.device_of = lambda tensor: contextlib.nullcontext()
    for name, job in jobs().items():
        compiled.clear()
        launch.run(job)
        for one in compiled:
            code = one.asm["ptx"]
            uses = [word for word in ("wgmma", "cp.async.bulk.tensor") if word in code]
            print(name, one.metadata.name, one.metadata.shared, *uses, sep="; ", flush=True)


if __name__ == "__main__":
    main()
