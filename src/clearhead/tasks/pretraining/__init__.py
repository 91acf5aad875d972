"""Pre-training on texts alone: masked words, denoising, or the next token."""
