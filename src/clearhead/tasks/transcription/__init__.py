"""Transcription: recordings of speech to texts, with the times of words."""
