"""Text: sentence embeddings by SimCSE, and their evaluation."""
