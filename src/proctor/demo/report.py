"""Telling a demo: one line as each thing happens, and a report a person can read at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def progress_line(event: Mapping[str, Any]) -> str | None:
    """Give the line to show while the demo runs, or None for an event that is not worth one."""
    if event.get("event") != "attempt_ended":
        return None
    stop = event.get("stop")
    return f"  {_attempt(event):34} {_outcome(event):28} {_seconds(event)}" + (f"  {_stopped(stop)}" if stop else "")


def report_lines(told: Mapping[str, Any]) -> list[str]:
    """Give the report of a finished demo; `told` is the object that ``--json`` prints."""
    lines = ["", "Attempts"]
    lines += [f"  {_attempt(one):34} {_outcome(one):28} {_seconds(one)}" for one in told["attempts"]]
    lines += ["", "Kills, each with its proof"]
    for one in told["attempts"]:
        if one["stop"] is not None:
            lines += _proof_lines(one)
    lines += ["", "Result"]
    result = told["result"]
    if isinstance(result, Mapping):
        match = result["match"]
        lines += [
            f"  {result['files']} files digested and compressed: {result['bytes']:,} -> {result['compressed']:,} bytes",
            f"  the line that could not be matched the dangerous way was matched the {match['way']} way: "
            f"{match['path']}, {_place(match['line'])}",
            f"  the handler that resists: {result['stubborn']}; the one that fails once: {result['flaky']}",
        ]
    else:
        lines.append(f"  {result}")
    leftovers = told["leftover_processes"]
    lines += [
        "",
        f"Processes left behind: {leftovers}" + ("" if leftovers == 0 else "   <- a defect; please report it"),
        f"Took {told['duration_ms'] / 1000:.1f} s.",
        f"The history of run '{told['workflow_id']}' lies in {told['history_file']}",
        f"and in the database: proctor server --db {told['database']}",
        f"                     proctor history {told['workflow_id']}",
    ]
    return lines


def _place(line_number: int) -> str:
    return f"line {line_number}" if line_number else "which has no line long enough: its digest"


def _proof_lines(one: Mapping[str, Any]) -> list[str]:
    stop = one["stop"]
    steps = " -> ".join(step["step"] for step in stop["steps"])
    ended = (
        f"signal {stop['signal']}{', sent by us' if stop['sent_by_us'] else ''}"
        if stop["signal"] is not None
        else f"exit {stop['exit_code']}"
    )
    lines = [
        f"  {_attempt(one)}: {stop['reason'].replace('_', ' ')}",
        f"    pid {stop['pid']} (started at tick {stop['started_at']}), {ended}; {stop['evidence']} after "
        f"{stop['stop_ms']:.0f} ms; steps: {steps}",
    ]
    if stop["descendants_killed"]:
        pids = ", ".join(str(below["pid"]) for below in stop["descendants_killed"])
        lines.append(f"    killed below it, too: {pids}")
    if stop["last_stack_line"]:
        lines.append(f"    it was stuck at: {stop['last_stack_line']}")
    return lines


def _attempt(one: Mapping[str, Any]) -> str:
    return f"{one['activity']} attempt {one['attempt']}"


def _outcome(one: Mapping[str, Any]) -> str:
    kind = one.get("timeout_kind")
    return f"{one['outcome']} ({kind})" if kind else str(one["outcome"])


def _seconds(one: Mapping[str, Any]) -> str:
    return f"{one['duration_ms'] / 1000:7.3f} s"


def _stopped(stop: Mapping[str, Any]) -> str:
    below = len(stop["descendants_killed"])
    more = f" and {below} below it" if below else ""
    return f"pid {stop['pid']}{more} gone"
