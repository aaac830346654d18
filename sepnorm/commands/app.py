"""The ``sepnorm`` command. Each verb has its own file and imports what it needs when it runs, so ``--help`` is fast."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from sepnorm._version import __version__
from sepnorm.commands.compare import compare
from sepnorm.commands.convert import convert
from sepnorm.commands.data import data
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
    help="Separate norms for [CLS] and tokens in transformers: compare, convert, diagnose and heal models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for verb in (compare, pretrain, evaluate, embed, diagnose, heal, convert, export, reproduce, study, presets, data):
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
    """Options before the verb."""


def main() -> None:
    """Runs the command line. A ``SepNormError`` is printed as one sentence, without a traceback."""
    from sepnorm.errors import InterruptedRunError, SepNormError, as_notes, is_of_memory, one_line

    # OpenMP threads that spin long while they wait slow small operations up to a hundredfold on a shared machine.
    # Threads that never spin are half as fast on an idle machine. A short spin is good on both.
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
    except SystemExit as ended:
        if ended.code == 130:  # typer ends like this, in silence, at Ctrl-C
            say("Interrupted.", error=True)
        raise
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed, and this command needs it: pip install 'sepnorm[all]'.")
    except UnicodeError as error:  # raised by libraries that treat file names as text
        _fail(
            f"a name cannot be written as text here ({one_line(error)}): rename the file or folder, or set LC_ALL=C.UTF-8."
        )
    except BrokenPipeError:  # the reader of our output, such as head, has closed the pipe; all files are saved already
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
    """Makes printing work even if a standard stream is closed or knows only ASCII."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, so that no later file gets it
    for name in ("stdout", "stderr"):
        channel: Any = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if hasattr(channel, "reconfigure"):
            channel.reconfigure(errors="backslashreplace")
        setattr(sys, name, channel)


def _fail(message: str) -> None:
    say(f"Error: {' '.join(message.splitlines())}", error=True)  # a name that the user typed may contain line breaks
    sys.exit(1)
