"""The command's entry: the list of subcommands, and how any failure becomes one paragraph and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import NoReturn

import click

from proctor.cli import failures
from proctor.version import __version__

# Subcommand -> (module, attribute, line of help). Each module is imported only when its command is used: a child that
# starts `proctor` should not pay for a server it does not run.
_COMMANDS = {
    "demo": ("proctor.cli.demo", "demo", "Run a real workflow whose stuck handlers are killed, and show the proofs."),
    "server": ("proctor.cli.server", "server", "Run the embedded development server."),
    "worker": ("proctor.cli.worker", "worker", "Run the workflows and activities that modules register."),
    "start": ("proctor.cli.runs", "start", "Start a run."),
    "cancel": ("proctor.cli.runs", "cancel", "Close a run as cancelled."),
    "signal": ("proctor.cli.runs", "signal", "Send a signal to a run."),
    "query": ("proctor.cli.runs", "query", "Ask the workflow code of a run."),
    "update": ("proctor.cli.runs", "update", "Send an update to a run, and wait for its answer."),
    "list": ("proctor.cli.runs", "list_", "List runs."),
    "describe": ("proctor.cli.runs", "describe", "Show one run."),
    "history": ("proctor.cli.runs", "history", "Show or save the history of a run."),
    "replay": ("proctor.cli.replay", "replay", "Replay a saved history against workflow code, without a server."),
    "kill-test": (
        "proctor.cli.kill_test",
        "command",
        "Kill around a handler at random instants; nothing must be left.",
    ),
    "bench": ("proctor.cli.bench", "bench", "Measure Proctor on this machine, against floors and peers."),
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


@click.command(cls=_Commands)
@click.version_option(__version__, prog_name="proctor")
def cli() -> None:
    """Durable workflows whose handlers run in supervised child processes: a stop is physical, and proven.

    Exit codes: 0 ok, 1 the work failed, 2 usage or unreadable input, 3 refused by negotiation, 4 nondeterminism.
    """


def _replace_closed_streams() -> None:
    """Have an output, if only to nowhere, when the caller closed ours: ``proctor demo >&-``."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open until the end
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def main() -> NoReturn:
    """Run the command and exit with its code; no traceback without --debug."""
    debug = "--debug" in sys.argv[1:] or bool(os.environ.get("PROCTOR_DEBUG"))
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    _replace_closed_streams()
    try:
        code = cli.main(args=arguments, prog_name="proctor", standalone_mode=False) or 0
        sys.stdout.flush()
    except click.ClickException as exc:
        exc.show()
        code = exc.exit_code
    except click.exceptions.Exit as exc:
        code = exc.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        print("proctor: interrupted", file=sys.stderr)
        code = failures.INTERRUPTED
    except BaseException as exc:  # noqa: BLE001 - the outermost place: every failure becomes a paragraph and a code
        if failures.is_reader_gone(exc):
            # `proctor history … | head`: nobody is there to be told.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(failures.FAILED)
        told = failures.explain(exc)
        if debug:
            traceback.print_exception(exc)
        print(f"proctor: {told.text}", file=sys.stderr)
        code = told.code
    sys.exit(code)
