"""Answers: finds the best known answer to a question, and says "I don't know" where there is none."""
