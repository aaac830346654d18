"""The tables and figures of the paper, and what it did not study, each by its name."""
