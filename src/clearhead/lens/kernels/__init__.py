"""The kernels that Triton runs, imported at their first use only; `clearhead.lens.kernel` is their front door."""
