"""Record: what a watch measured, its exact windows, and its file."""
