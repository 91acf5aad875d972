"""Triton kernels of the measures, imported at first use; `launch` is the host side."""
