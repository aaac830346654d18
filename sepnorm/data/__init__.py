"""Readers of user data: tables, texts, images and embeddings, one reader for each format."""
