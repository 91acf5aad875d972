"""The task language-model: documents packed into rows, continuations of prompts, losses of documents of any length."""
