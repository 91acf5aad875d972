"""The measures of one attention: their definition, and implementations that never build the queries × keys matrix."""
