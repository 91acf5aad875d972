"""Tagging: finds the named entities of a text."""
