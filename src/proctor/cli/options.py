"""Options that several subcommands share, and the environment variables they read."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
import structlog

from proctor.client import Client

_F = TypeVar("_F", bound=Callable[..., Any])

DEFAULT_SERVER = "http://127.0.0.1:8080"
TOKEN_VARIABLE = "DURABLE_WORKFLOW_AUTH_TOKEN"  # noqa: S105 - the name of a variable, not a token


def server_options(command: _F) -> _F:
    """Add --server and --namespace."""
    command = click.option(
        "--namespace",
        envvar="DURABLE_WORKFLOW_NAMESPACE",
        default="default",
        show_default=True,
        help="Namespace to work in; also from DURABLE_WORKFLOW_NAMESPACE.",
    )(command)
    return click.option(
        "--server",
        envvar="DURABLE_WORKFLOW_SERVER_URL",
        default=DEFAULT_SERVER,
        show_default=True,
        metavar="URL",
        help="Root of the server, without /api; also from DURABLE_WORKFLOW_SERVER_URL.",
    )(command)


def json_option(command: _F) -> _F:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)


def until_eof_option(command: _F) -> _F:
    """Add --until-eof, for programs that start this one and must never leave it behind."""
    return click.option(
        "--until-eof", is_flag=True, help="Also stop when standard input ends, for programs that start this one."
    )(command)


def log_to_stderr() -> None:
    """Keep stdout for what the command prints, and show what needs attention: PROCTOR_LOG=info or debug shows more."""
    level = logging.getLevelNamesMapping().get(os.environ.get("PROCTOR_LOG", "").upper(), logging.WARNING)
    # Not the values of variables, which a traceback shows by itself: they hold payloads and tokens.
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(
        processors=[*structlog.get_config()["processors"][:-1], renderer],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )


def make_client(server: str, namespace: str) -> Client:
    """Give a client for the shared options; the token comes from the environment only, never from a command line."""
    return Client(server, namespace=namespace, token=os.environ.get(TOKEN_VARIABLE) or None)
