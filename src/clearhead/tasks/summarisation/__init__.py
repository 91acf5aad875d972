"""Summarisation: a text to a shorter text that says what matters in it."""
