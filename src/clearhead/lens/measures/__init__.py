"""The measures of one attention: their definition, and the ways to compute them without the square of weights."""
