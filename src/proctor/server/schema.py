"""The tables of the database file, its identity and its version; changing a table means a new version.

Rows are stored as JSON in `body`; the other columns exist only to be searched by. Instants in columns are integer
microseconds since 1970, so that they sort and compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

APPLICATION_ID = 0x50524354  # "PRCT" in the file header: the file is ours
SCHEMA_VERSION = 4

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# The bytes of payloads that are kept outside of requests and history, once for each namespace and content. One that no
# run refers to yet is forgotten at `forget_at`.
_EXTERNAL_PAYLOADS = (
    """CREATE TABLE external_payload (
        namespace TEXT NOT NULL, sha256 TEXT NOT NULL, reference_id TEXT NOT NULL UNIQUE, forget_at INTEGER,
        content BLOB NOT NULL, PRIMARY KEY (namespace, sha256))""",
    "CREATE INDEX external_payload_due ON external_payload (forget_at) WHERE forget_at IS NOT NULL",
)

_WORKER_SESSIONS = (
    # `ends_at` is the earlier of the two instants at which a held session ends by itself.
    """CREATE TABLE worker_session (
        namespace TEXT NOT NULL, session_id TEXT NOT NULL, status TEXT NOT NULL, lease_owner TEXT NOT NULL,
        lease_expires_at INTEGER NOT NULL, ends_at INTEGER NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (namespace, session_id)) WITHOUT ROWID""",
    "CREATE INDEX worker_session_held ON worker_session (namespace, lease_owner) WHERE status = 'active'",
    "CREATE INDEX worker_session_end ON worker_session (ends_at) WHERE status = 'active'",
)

_UPDATES = (
    """CREATE TABLE workflow_update (
        update_id TEXT PRIMARY KEY, run_id TEXT NOT NULL, open INTEGER NOT NULL, body BLOB NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX workflow_update_open ON workflow_update (run_id) WHERE open = 1",
)

STATEMENTS = (
    """CREATE TABLE run (
        run_id TEXT PRIMARY KEY, namespace TEXT NOT NULL, workflow_id TEXT NOT NULL, run_number INTEGER NOT NULL,
        workflow_type TEXT NOT NULL, bucket TEXT NOT NULL, due_at INTEGER, body BLOB NOT NULL,
        UNIQUE (namespace, workflow_id, run_number)) WITHOUT ROWID""",
    "CREATE INDEX run_due ON run (due_at) WHERE due_at IS NOT NULL",
    "CREATE INDEX run_listing ON run (namespace, run_id)",
    "CREATE TABLE run_payload (run_id TEXT PRIMARY KEY, input TEXT, output TEXT) WITHOUT ROWID",
    """CREATE TABLE task (
        task_id TEXT PRIMARY KEY, run_id TEXT NOT NULL, namespace TEXT NOT NULL, task_queue TEXT NOT NULL,
        workflow_type TEXT NOT NULL, status TEXT NOT NULL, lease_owner TEXT, due_at INTEGER,
        body BLOB NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX task_open ON task (run_id) WHERE status IN ('ready', 'leased')",
    "CREATE INDEX task_ready ON task (namespace, task_queue, due_at, task_id) WHERE status = 'ready'",
    "CREATE INDEX task_due ON task (status, due_at) WHERE status IN ('ready', 'leased')",
    "CREATE INDEX task_owner ON task (namespace, lease_owner) WHERE status = 'leased'",
    """CREATE TABLE execution (
        execution_id TEXT PRIMARY KEY, run_id TEXT NOT NULL, sequence INTEGER NOT NULL, open INTEGER NOT NULL,
        body BLOB NOT NULL, UNIQUE (run_id, sequence)) WITHOUT ROWID""",
    "CREATE INDEX execution_open ON execution (run_id) WHERE open = 1",
    """CREATE TABLE attempt (
        attempt_id TEXT PRIMARY KEY, execution_id TEXT NOT NULL, task_id TEXT NOT NULL, nonce TEXT NOT NULL,
        body BLOB NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX attempt_nonce ON attempt (execution_id, nonce)",
    "CREATE INDEX attempt_task ON attempt (task_id)",
    """CREATE TABLE step (
        run_id TEXT NOT NULL, sequence INTEGER NOT NULL, open INTEGER NOT NULL, due_at INTEGER, body BLOB NOT NULL,
        PRIMARY KEY (run_id, sequence)) WITHOUT ROWID""",
    "CREATE INDEX step_open ON step (run_id) WHERE open = 1",
    "CREATE INDEX step_due ON step (due_at) WHERE due_at IS NOT NULL",
    # The attempts of queued activities, past ones included: a late report must find out what became of its own.
    """CREATE TABLE activity_task (
        task_id TEXT PRIMARY KEY, run_id TEXT NOT NULL, sequence INTEGER NOT NULL, attempt_id TEXT NOT NULL,
        namespace TEXT NOT NULL, task_queue TEXT NOT NULL, activity_type TEXT NOT NULL, status TEXT NOT NULL,
        available_at INTEGER NOT NULL, lease_owner TEXT, poll_request_id TEXT) WITHOUT ROWID""",
    "CREATE INDEX activity_task_ready ON activity_task (namespace, task_queue, available_at) WHERE status = 'ready'",
    "CREATE INDEX activity_task_owner ON activity_task (namespace, lease_owner) WHERE status = 'running'",
    "CREATE INDEX activity_task_run ON activity_task (run_id, sequence) WHERE status IN ('ready', 'running')",
    """CREATE TABLE command (
        namespace TEXT NOT NULL, workflow_id TEXT NOT NULL, request_id TEXT NOT NULL, kind TEXT NOT NULL,
        fingerprint TEXT NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (namespace, workflow_id, request_id)) WITHOUT ROWID""",
    """CREATE TABLE event (
        run_id TEXT NOT NULL, sequence INTEGER NOT NULL, id TEXT NOT NULL, event_type TEXT NOT NULL,
        task_id TEXT, command_id TEXT, recorded_at INTEGER NOT NULL, payload BLOB NOT NULL,
        PRIMARY KEY (run_id, sequence)) WITHOUT ROWID""",
    """CREATE TABLE registration (
        namespace TEXT NOT NULL, worker_id TEXT NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (namespace, worker_id)) WITHOUT ROWID""",
    """CREATE TABLE incarnation (
        token TEXT PRIMARY KEY, forget_at INTEGER, body BLOB NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX incarnation_due ON incarnation (forget_at) WHERE forget_at IS NOT NULL",
    """CREATE TABLE poll (
        namespace TEXT NOT NULL, worker_id TEXT NOT NULL, task_queue TEXT NOT NULL, request_id TEXT NOT NULL,
        task_kinds TEXT NOT NULL, task_id TEXT NOT NULL, epoch INTEGER NOT NULL,
        PRIMARY KEY (namespace, worker_id, task_queue, request_id)) WITHOUT ROWID""",
    "CREATE INDEX poll_task ON poll (task_id)",
    *_EXTERNAL_PAYLOADS,
    *_WORKER_SESSIONS,
    *_UPDATES,
)

# What ends with the process: in the temporary database of the one connection, which is never in the file.
TEMPORARY_STATEMENTS = tuple(
    statement
    for table in ("query_task", "update_validation")
    for statement in (
        f"""CREATE TEMPORARY TABLE {table} (
        question_id TEXT PRIMARY KEY, namespace TEXT NOT NULL, task_queue TEXT NOT NULL, workflow_type TEXT NOT NULL,
        status TEXT NOT NULL, lease_owner TEXT, due_at INTEGER NOT NULL, body BLOB NOT NULL) WITHOUT ROWID""",
        f"CREATE INDEX temp.{table}_queue ON {table} (namespace, task_queue, question_id) WHERE status = 'pending'",
        f"CREATE INDEX temp.{table}_due ON {table} (due_at)",
    )
)
UPGRADES: Mapping[int, tuple[str, ...]] = {1: _EXTERNAL_PAYLOADS, 2: _WORKER_SESSIONS, 3: _UPDATES}
"""What leads a file of a version to the next one."""


def tables(statements: Iterable[str]) -> set[str]:
    """Give the names of the tables that statements make."""
    return {statement.split()[2] for statement in statements if statement.startswith("CREATE TABLE")}


def to_micros(instant: datetime) -> int:
    """Give an instant as the integer that columns hold."""
    return (instant - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Give the instant behind a column."""
    return _EPOCH + timedelta(microseconds=micros)
