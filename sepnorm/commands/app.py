"""The ``sepnorm`` command: a file a verb. What a verb needs is imported when it runs, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from sepnorm._version import __version__
from sepnorm.commands.compare import compare
from sepnorm.commands.convert import convert
from sepnorm.commands.diagnose import diagnose
from sepnorm.commands.embed import embed
from sepnorm.commands.evaluate import evaluate
from sepnorm.commands.export import export
from sepnorm.commands.heal import heal
from sepnorm.commands.presets import presets
from sepnorm.commands.pretrain import pretrain
from sepnorm.commands.studies import reproduce, study
from sepnorm.report.terminal import say

app = typer.Typer(
    help="Separate normalisation of [CLS] and tokens: is my model's [CLS] collapsed, and what would separate norms do?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for verb in (compare, pretrain, evaluate, embed, diagnose, heal, convert, export, reproduce, study, presets):
    app.command()(verb)


def _print_version(asked: bool) -> None:
    if asked:
        say(f"sepnorm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """What comes before a verb."""


def main() -> None:
    """Runs the command; an error of ours is one sentence, not a traceback."""
    from sepnorm.errors import InterruptedRunError, SepNormError, as_notes, is_of_memory, one_line

    # Threads that spin for long while they wait make small operations up to a hundred times slower on a machine that others use
    # too; threads that never spin are half as fast on one that is idle. A short spin is good on both.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    _mend_channels()
    as_notes()
    try:
        app()
    except InterruptedRunError as stop:
        say(f"Stopped: {stop}", error=True)
        sys.exit(130)
    except SepNormError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        say("Interrupted.", error=True)
        sys.exit(130)
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed, and this command needs it: pip install 'sepnorm[all]'.")
    except UnicodeError as error:  # of libraries that take names of files for text
        _fail(
            f"a name cannot be written as text here ({one_line(error)}): rename the file or folder, or set LC_ALL=C.UTF-8."
        )
    except BrokenPipeError:  # whoever read what we print, as head does, has enough; what is saved is saved
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}.")
    except (MemoryError, RuntimeError) as error:
        if not is_of_memory(error):
            raise
        _fail(
            f"memory ran out ({one_line(error)}): take a smaller batch (--batch-size, or --set batch_size=N), or fewer samples."
        )


def _mend_channels() -> None:
    """Lets a command print wherever it is started: with channels that are closed, or that know ASCII alone."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which no file of ours must get
    for name in ("stdout", "stderr"):
        channel: Any = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if hasattr(channel, "reconfigure"):
            channel.reconfigure(errors="backslashreplace")
        setattr(sys, name, channel)


def _fail(message: str) -> None:
    say(f"Error: {' '.join(message.splitlines())}", error=True)  # names that were typed may have lines
    sys.exit(1)
