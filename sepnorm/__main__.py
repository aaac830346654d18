"""``python -m sepnorm`` and the ``sepnorm`` command."""

import sys


def main() -> None:
    """Runs the command line, or says what it needs where the package was installed without it."""
    try:
        from sepnorm.commands.app import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"Error: the sepnorm command needs {error.name}: pip install 'sepnorm[report]'.")
    run()


if __name__ == "__main__":
    main()
