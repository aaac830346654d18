"""Comparisons: runs in folders, arms x seeds, launchers, and paired statistics."""
