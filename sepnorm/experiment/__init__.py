"""Arms and seeds: runs in folders, launchers, and paired statistics."""
