"""What a user hands us: tables, texts, images and vectors, one reader a format."""
