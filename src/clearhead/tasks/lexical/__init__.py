"""Models of n-grams, of words or characters, and logistic regression; all in PyTorch alone."""
