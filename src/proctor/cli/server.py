"""``proctor server``."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click
import trio

from proctor.cli.lifetime import on_stop_request
from proctor.cli.options import TOKEN_VARIABLE, log_to_stderr, until_eof_option
from proctor.server import ServerOptions, serve
from proctor.server.credentials import ROLES, Token, is_readable_by_others, read_tokens
from proctor.server.polling import CAPACITY
from proctor.server.rules.quotas import RESOURCES, Quotas


def _read_quotas(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> Quotas:
    numbers: dict[str, int] = {}
    for text in given:
        name, _, number = text.partition("=")
        if name not in RESOURCES or not (number.isascii() and number.isdigit() and len(number) <= 9):
            raise click.BadParameter(f"{text!r} is not one of {', '.join(RESOURCES)}, = and a number from 0")
        numbers[name] = int(number)
    return Quotas(**numbers)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 picks a free one."
)
@click.option(
    "--db",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("proctor.db"),
    show_default=True,
    help="Database file; made when it does not exist.",
)
@click.option(
    "--protocol",
    type=click.Choice(["1.18", "1.19", "1.20"]),
    default="1.20",
    show_default=True,
    help="Worker protocol to advertise and enforce.",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=0, max=86400, min_open=True),
    default=10.0,
    show_default=True,
    help="How long a workflow task is leased; a dead worker's tasks are free after that.",
)
@click.option(
    "--faults",
    is_flag=True,
    help="For kill tests: let /faults end leases, advance the clock and refuse admission.",
)
@click.option(
    "--external-threshold",
    type=click.IntRange(min=0),
    default=262_144,
    show_default=True,
    metavar="BYTES",
    help="Clients store payloads larger than this beside history, in the same file; 0 offers no such storage.",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    default=("default",),
    show_default=True,
    metavar="NAME",
    help="Namespace to serve; may be given several times, the first one is the default.",
)
@click.option(
    "--tokens",
    "tokens_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of bearer tokens: a line is a role (worker, operator or admin) and a token.",
)
@click.option(
    "--long-polls",
    type=click.IntRange(min=0),
    default=CAPACITY,
    show_default=True,
    help="How many polls of workers, and how many for queries, are held at a time.",
)
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="NAME=NUMBER",
    callback=_read_quotas,
    help=f"What each namespace may have at most; may be given several times. Names: {', '.join(RESOURCES)}.",
)
@until_eof_option
def server(
    host: str,
    port: int,
    db: Path,
    protocol: str,
    lease_seconds: float,
    *,
    faults: bool,
    external_threshold: int,
    namespaces: tuple[str, ...],
    tokens_file: Path | None,
    long_polls: int,
    quotas: Quotas,
    until_eof: bool,
) -> None:
    """Run the embedded development server: one file of SQLite, nothing lost at SIGKILL.

    Prints "listening on http://HOST:PORT" once it answers. Where DURABLE_WORKFLOW_AUTH_TOKEN is set, every request
    must carry that token, or one from the file of --tokens. For production use the Durable Workflow server.
    """
    log_to_stderr()
    tokens = () if tokens_file is None else read_tokens(tokens_file)
    if tokens_file is not None and is_readable_by_others(tokens_file):
        click.echo(f"warning: {tokens_file} may be read by others; chmod 600 {tokens_file}", err=True)
    if shared := os.environ.get(TOKEN_VARIABLE):
        tokens = (*tokens, Token(shared, frozenset(ROLES)))
    options = ServerOptions(
        host=host,
        port=port,
        database=db,
        protocol=protocol,
        workflow_task_lease_seconds=lease_seconds,
        namespaces=namespaces,
        tokens=tokens,
        long_polls=long_polls,
        quotas=quotas,
        faults=faults,
        external_threshold_bytes=external_threshold or None,
    )
    trio.run(_serve, options, until_eof)


async def _serve(options: ServerOptions, until_eof: bool) -> None:
    async with trio.open_nursery() as nursery:
        stop = nursery.cancel_scope.cancel
        await nursery.start(partial(on_stop_request, stop, stop, until_eof=until_eof))
        url = await nursery.start(serve, options)
        click.echo(f"listening on {url}")
