"""``proctor start``, ``cancel``, ``signal``, ``query``, ``update``, ``describe``, ``history`` and ``list``."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Literal

import click
import trio

from proctor.cli.options import json_option, make_client, server_options
from proctor.core.codec import decode_value
from proctor.errors import PayloadError, UsageError


@click.command()
@click.argument("workflow")
@server_options
@click.option("--queue", required=True, help="Task queue whose workers run it.")
@click.option("--id", "workflow_id", help="Workflow id, unique; made up when absent.")
@click.option("--args", "arguments", default="[]", metavar="JSON", help="Positional arguments as a JSON list.")
@click.option("--wait", is_flag=True, help="Wait and print the result as JSON; exit 1 if the run fails.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds to wait at most, with --wait.")
@json_option
def start(
    workflow: str,
    server: str,
    namespace: str,
    queue: str,
    workflow_id: str | None,
    arguments: str,
    timeout: float | None,
    *,
    wait: bool,
    as_json: bool,
) -> None:
    """Start a run of WORKFLOW."""
    values = _parse_arguments(arguments)

    async def run() -> None:
        async with make_client(server, namespace) as client:
            handle = await client.start_workflow(workflow, values, task_queue=queue, workflow_id=workflow_id)
            if not wait:
                shown = {"workflow_id": handle.workflow_id, "run_id": handle.run_id}
                click.echo(json.dumps(shown) if as_json else f"started {handle.workflow_id} (run {handle.run_id})")
                return
            click.echo(f"started {handle.workflow_id} (run {handle.run_id})", err=True)
            with trio.move_on_after(timeout if timeout is not None else float("inf")) as patience:
                result = await handle.result()
            if patience.cancelled_caught:
                described = await client.describe(handle.workflow_id)
                raise click.ClickException(
                    f"'{handle.workflow_id}' is still {described.get('status')} after {timeout:g} s; it goes on. A run "
                    f"that stays pending waits for a worker on queue '{queue}' that registers '{workflow}'."
                )
            click.echo(json.dumps(_plain(result)))

    trio.run(run)


@click.command()
@click.argument("workflow_id", metavar="ID")
@server_options
@click.option("--reason", help="Recorded with the cancellation.")
def cancel(workflow_id: str, server: str, namespace: str, reason: str | None) -> None:
    """Close the run of ID as cancelled at once; the child of a running activity is stopped by its worker."""

    async def run() -> None:
        async with make_client(server, namespace) as client:
            await client.cancel(workflow_id, reason)
        click.echo(f"cancelled {workflow_id}")

    trio.run(run)


@click.command()
@click.argument("workflow_id", metavar="ID")
@click.argument("name")
@server_options
@click.option("--args", "arguments", default="[]", metavar="JSON", help="Its arguments as a JSON list.")
@json_option
def signal(workflow_id: str, name: str, server: str, namespace: str, arguments: str, *, as_json: bool) -> None:
    """Send the signal NAME to the current run of ID."""
    values = _parse_arguments(arguments)

    async def run() -> dict[str, Any]:
        async with make_client(server, namespace) as client:
            return await client.signal(workflow_id, name, values)

    receipt = trio.run(run)
    click.echo(json.dumps(receipt) if as_json else f"signalled {workflow_id}")


@click.command()
@click.argument("workflow_id", metavar="ID")
@click.argument("name")
@server_options
@click.option("--args", "arguments", default="[]", metavar="JSON", help="Its arguments as a JSON list.")
@json_option
def query(workflow_id: str, name: str, server: str, namespace: str, arguments: str, *, as_json: bool) -> None:
    """Ask the workflow code of ID by the query NAME, and print its answer as JSON."""
    values = _parse_arguments(arguments)

    async def run() -> Any:
        async with make_client(server, namespace) as client:
            return await client.query(workflow_id, name, values)

    click.echo(json.dumps(_plain(trio.run(run)), indent=None if as_json else 2))


@click.command()
@click.argument("workflow_id", metavar="ID")
@click.argument("name")
@server_options
@click.option("--args", "arguments", default="[]", metavar="JSON", help="Its arguments as a JSON list.")
@click.option("--wait-for", type=click.Choice(["accepted", "completed"]), default="completed", show_default=True)
@click.option("--timeout", type=click.IntRange(min=1, max=3600), help="Seconds to wait for the answer at most.")
@click.option("--request-id", help="Makes a repetition harmless: the same id is applied once.")
@json_option
def update(
    workflow_id: str,
    name: str,
    server: str,
    namespace: str,
    arguments: str,
    wait_for: Literal["accepted", "completed"],
    timeout: int | None,
    request_id: str | None,
    *,
    as_json: bool,
) -> None:
    """Send the update NAME to the current run of ID, and print what its handler answers as JSON.

    With --json the whole receipt is printed. Exit 1 when it was refused, failed, or was not answered in time.
    """
    values = _parse_arguments(arguments)

    async def run() -> dict[str, Any]:
        async with make_client(server, namespace) as client:
            return await client.update(
                workflow_id, name, values, wait_for=wait_for, wait_timeout_seconds=timeout, request_id=request_id
            )

    receipt = trio.run(run)
    answered = receipt.get("update_status") == "completed"
    if as_json:
        click.echo(json.dumps(_plain(receipt)))
    elif answered:
        click.echo(json.dumps(_plain(receipt["result"]), indent=2))
    else:
        click.echo(f"accepted {receipt.get('update_id')}", err=wait_for == "completed")
    if wait_for == "completed" and not answered:
        raise click.ClickException(
            f"the update is accepted and will be applied, but it is not answered yet; ask again with "
            f"--request-id {receipt.get('request_id')}"
        )


@click.command("list")
@server_options
@click.option("--type", "workflow_type", help="Only runs of this workflow.")
@click.option("--status", type=click.Choice(["running", "completed", "failed"]), help="Only runs that are so.")
@json_option
def list_(server: str, namespace: str, workflow_type: str | None, status: str | None, *, as_json: bool) -> None:
    """List the workflows of a namespace, one a line."""

    async def run() -> list[dict[str, Any]]:
        async with make_client(server, namespace) as client:
            return await client.list_workflows(workflow_type=workflow_type, status=status)

    found = trio.run(run)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for one in found:
        facts = [str(one.get(name)) for name in ("workflow_id", "workflow_type", "status", "started_at")]
        click.echo("  ".join(f"{fact:{width}}" for fact, width in zip(facts, (36, 20, 10, 0), strict=True)).rstrip())


@click.command()
@click.argument("workflow_id", metavar="ID")
@server_options
@json_option
def describe(workflow_id: str, server: str, namespace: str, *, as_json: bool) -> None:
    """Show the current run of ID."""

    async def run() -> dict[str, Any]:
        async with make_client(server, namespace) as client:
            return await client.describe(workflow_id)

    described = trio.run(run)
    if as_json:
        click.echo(json.dumps(described, indent=2))
        return
    for name in ("workflow_id", "run_id", "workflow_type", "status", "task_queue", "started_at", "closed_at"):
        click.echo(f"{name:14} {described.get(name)}")
    for name in ("input", "output"):
        field = described.get(f"{name}_envelope")
        if field is not None:
            click.echo(f"{name:14} {json.dumps(_decoded(field))}")


@click.command()
@click.argument("workflow_id", metavar="ID")
@server_options
@click.option("--run", "run_id", help="Run id; the current run when absent.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the history to this file as JSON.")
@json_option
def history(
    workflow_id: str, server: str, namespace: str, run_id: str | None, out: Path | None, *, as_json: bool
) -> None:
    """Show the history of ID, one event a line, or save it."""

    async def run() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with make_client(server, namespace) as client:
            described = await client.describe(workflow_id)
            return described, await client.history(workflow_id, run_id)

    described, events = trio.run(run)
    about: dict[str, Any] = {"workflow_id": workflow_id}
    if run_id in (None, described.get("run_id")):
        # What `proctor replay` needs beside the events.
        about |= {key: described.get(key) for key in ("run_id", "workflow_type", "input_envelope")}
    document = json.dumps({**about, "events": events}, indent=2)
    if out is not None:
        try:
            out.write_text(document + "\n")
        except OSError as exc:
            raise UsageError(f"the history cannot be written to '{out}': {exc.strerror}") from exc
        click.echo(f"{len(events)} events written to {out}", err=True)
    elif as_json:
        click.echo(document)
    else:
        for event in events:
            click.echo(_event_line(event))


def _event_line(event: dict[str, Any]) -> str:
    payload = event.get("payload") if isinstance(event.get("payload"), dict) else {}
    assert isinstance(payload, dict)
    facts = [
        f"{label}={payload[name]}"
        for label, name in (
            ("activity", "activity_type"),
            ("attempt", "attempt_number"),
            ("timeout", "timeout_kind"),
            ("retry", "retry_reason"),
            ("mode", "execution_mode"),
        )
        if payload.get(name) is not None
    ]
    when = event.get("timestamp") or event.get("recorded_at")
    return f"{event.get('sequence'):>5}  {when}  {event.get('event_type'):28} {' '.join(facts)}".rstrip()


def _parse_arguments(text: str) -> list[Any]:
    try:
        values = json.loads(text)
    except ValueError as exc:
        raise UsageError(f"--args is not JSON: {exc}. Give a list, such as --args '[\"file.txt\", 3]'") from exc
    if not isinstance(values, list):
        raise UsageError(f"--args must be a JSON list of positional arguments, not {type(values).__name__}")
    return values


def _decoded(field: Any) -> Any:
    try:
        return _plain(decode_value(field, None))
    except PayloadError as exc:
        return f"<unreadable: {exc.category}>"


def _plain(value: Any) -> Any:
    """Give a payload value as JSON can hold it: bytes become text in base64, marked as such."""
    if isinstance(value, bytes):
        return {"bytes_base64": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
