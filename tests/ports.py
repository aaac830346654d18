"""Ports by which processes find each other."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A port that nobody listens on, and that nobody gets by chance before it is used.

    The system hands out ports from 32768 on to whoever asks for any; those below are left alone.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
