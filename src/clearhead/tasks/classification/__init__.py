"""Classification: predicts the label of a text or of a pair of texts, or several labels."""
