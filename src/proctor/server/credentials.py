"""Who may do what: bearer tokens with roles, and the file that holds them.

A token opens the planes of its roles (transport.md §1): `worker` the worker plane, `operator` and `admin` the control
plane, `admin` alone what manages workers and faults. Tokens are compared in constant time and never shown.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from proctor.errors import UsageError
from proctor.server.rules.refusal import Refusal

ROLES = ("worker", "operator", "admin")

# The roles that open a plane; registration and discovery answer to any of them.
_PLANES: Mapping[str, frozenset[str]] = {
    "worker": frozenset({"worker"}),
    "control": frozenset({"operator", "admin"}),
    "admin": frozenset({"admin"}),
    "register": frozenset(ROLES),
    "discovery": frozenset(ROLES),
}
_REGISTERING = "worker"  # the plane that must be open for a worker without a token to register
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token and its roles."""

    secret: str = field(repr=False)
    roles: frozenset[str]

    def __post_init__(self) -> None:
        """Raise UsageError for what no client can send; the token itself is not repeated."""
        if not _TOKEN.fullmatch(self.secret) or len(self.secret) > _LONGEST:
            raise UsageError(
                f"a bearer token holds 1 to {_LONGEST} letters, digits and -._~+/, with = at the end only; this one of "
                f"{len(self.secret)} characters does not"
            )


class Credentials:
    """The tokens that a server asks for. A plane that no token opens asks for none, but takes no unknown one either."""

    def __init__(self, *tokens: Token, worker: str | None = None, control: str | None = None) -> None:
        given = [(worker, _PLANES["worker"]), (control, _PLANES["control"])]
        self._tokens = (*tokens, *(Token(secret, roles) for secret, roles in given if secret is not None))
        held = frozenset(role for token in self._tokens for role in token.roles)
        self._open = frozenset(
            role for roles in (_PLANES["worker"], _PLANES["control"]) if not roles & held for role in roles
        )

    def check(self, headers: Mapping[str, str], *, plane: str) -> None:
        """Raise 401 without a known token, 403 with one whose role does not open the plane."""
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        given = rest.strip().encode() if scheme.lower() == "bearer" else b""
        own: set[str] = set()
        for token in self._tokens:
            if hmac.compare_digest(given, token.secret.encode()):
                own |= token.roles
        roles = own | (self._open & _PLANES[_REGISTERING] if plane == "register" else self._open)
        if not roles or (given and self._tokens and not own):
            raise Refusal(401, "unauthorized", "this server needs a bearer token, and this one is not known")
        if not roles & _PLANES[plane]:
            needed = " or ".join(sorted(_PLANES[plane]))
            raise Refusal(403, "forbidden", f"this needs a token with the role {needed}")


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Read a file of tokens: a role and a token a line, separated by blanks; ``#`` begins a comment.

    One token may have several lines, and so several roles. Raises UsageError with the number of the line, and for a
    file that would leave a plane open to everybody.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise UsageError(f"the tokens in {path} cannot be read: {reason}") from exc
    roles: dict[str, set[str]] = {}
    for number, words in _lines(text):
        if len(words) != 2 or words[0] not in ROLES:
            raise UsageError(
                f"{path}, line {number}: a line is a role ({', '.join(ROLES)}) and a token, separated by a blank"
            )
        try:
            Token(words[1], frozenset())
        except UsageError as exc:
            raise UsageError(f"{path}, line {number}: {exc}") from None
        roles.setdefault(words[1], set()).add(words[0])
    held = {role for given in roles.values() for role in given}
    for plane in ("worker", "control"):
        if not held & _PLANES[plane]:
            needed = " or ".join(sorted(_PLANES[plane]))
            raise UsageError(
                f"{path} has no token with the role {needed}, so the {plane} plane would be open to everybody. Add one."
            )
    return tuple(Token(secret, frozenset(given)) for secret, given in roles.items())


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            yield number, words


def is_readable_by_others(path: Path) -> bool:
    """Whether a file of secrets may be read by users it does not belong to."""
    return bool(os.stat(path).st_mode & 0o077)
