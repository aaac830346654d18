"""The tables and figures of the paper, and our own studies, each by name."""
