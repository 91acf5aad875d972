"""The kernels: what Triton runs. They are imported at the first use only; `clearhead.lens.kernel` is their front door."""
