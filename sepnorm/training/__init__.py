"""One training run: its typed config, its batches, and the adapter to transformers' ``Trainer``."""
