"""Sentences: training data, embeddings, and what these are worth."""
