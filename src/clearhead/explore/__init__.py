"""Looking: figures, a page on which every weight can be read, and the local server behind it."""
