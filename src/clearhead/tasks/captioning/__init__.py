"""Captioning: pictures to short texts, scored by BLEU, chrF and exact matches."""
