"""``python -m sepnorm`` and the ``sepnorm`` command."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Runs the command line, or says what it needs where the package was installed without it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, interrupted)
    try:
        from sepnorm.commands.app import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"Error: the sepnorm command needs {error.name}: pip install 'sepnorm[report]'.")
    run()


def interrupted(number: int, frame: FrameType | None) -> None:
    """At Ctrl-C: ends at once while something is imported, since numpy and torch drop exceptions as they start."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"Interrupted.\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
