"""``await`` is only another spelling: each workflow concludes as its generator twin does, over every prefix."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.test_replay_fuzz import recorded
from portable_files import conclude, definitions, load
from proctor.core.replay import Commands
from proctor.errors import NonDeterminismError

GENERATORS = definitions(load("commands"))
COROUTINES = definitions(load("awaiting"))


def without_fingerprints(decision: Any) -> str:
    commands = decision.commands if isinstance(decision, Commands) else ()
    for command in commands:
        command.pop("condition_definition_fingerprint", None)  # of the lambda, which stands in another function
        command.pop("exception_class", None)
    return repr(decision)


@pytest.mark.parametrize("name", sorted(COROUTINES))
def test_a_coroutine_concludes_as_its_generator_twin(name: str) -> None:
    for seed in range(8):
        history = [
            {**event, "payload": {key: value for key, value in event["payload"].items() if "fingerprint" not in key}}
            for event in json.loads(recorded(name, seed))
        ]
        for length in range(2, len(history) + 1):
            outcomes = []
            for definition in (GENERATORS[name], COROUTINES[name]):
                try:
                    outcomes.append(without_fingerprints(conclude(definition, history[:length], [], queue="q")))
                except NonDeterminismError as exc:  # an unkeyed wait that was opened twice needs its fingerprint
                    outcomes.append(str(exc))
            assert outcomes[0] == outcomes[1]
