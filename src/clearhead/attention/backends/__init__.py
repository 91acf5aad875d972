"""Implementations of attention, one module each; `choice` picks between them."""
