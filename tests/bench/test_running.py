"""Probes run in order, a broken one is told and ends nothing, and no process outlives its probe."""

from __future__ import annotations

import json
import os
import uuid

import pytest

from processes import MARK, await_none
from proctor.bench.running import Probe, take


def _quiet(_: str) -> None:
    pass


def _giving(name: str, value: float) -> Probe:
    return Probe(name=name, target="builtins:dict", parameters={"s": [value]})


async def test_every_second_round_goes_backwards() -> None:
    shown: list[str] = []

    taken = await take([_giving("a", 1.0), _giving("b", 2.0)], rounds=2, seed=1, show=shown.append)

    assert shown == ["round 1/2: a", "round 1/2: b", "round 2/2: b", "round 2/2: a"]
    assert taken.readings == {"a": [{"s": [1.0]}] * 2, "b": [{"s": [2.0]}] * 2}
    assert taken.troubles == []
    assert taken.left_behind == {}


async def test_a_seeded_probe_gets_another_seed_in_each_round() -> None:
    probe = Probe(name="a", target="builtins:dict", seeded=True)

    taken = await take([probe], rounds=2, seed=40, show=_quiet)

    assert json.dumps(taken.readings) == '{"a": [{"seed": 40}, {"seed": 41}]}'


async def test_a_broken_probe_is_told_and_the_others_go_on() -> None:
    broken = Probe(name="broken", target="os:_exit", parameters={"status": 3})

    taken = await take([broken, _giving("a", 1.0)], rounds=1, seed=1, show=_quiet)

    assert taken.readings == {"broken": [None], "a": [{"s": [1.0]}]}
    (trouble,) = taken.troubles
    assert (trouble.probe, trouble.round, trouble.broken) == ("broken", 1, True)
    assert "exit status 3" in trouble.reason


async def test_the_reason_of_a_broken_probe_is_its_own_message() -> None:
    probe = Probe(name="a", target="decimal:Decimal", parameters={"value": "nonsense"})

    taken = await take([probe], rounds=1, seed=1, show=_quiet)

    assert "InvalidOperation" in taken.troubles[0].reason


async def test_a_probe_without_its_package_is_left_out_and_not_broken() -> None:
    probe = Probe(name="a", target="builtins:dict", needs="no_such_package_anywhere")

    taken = await take([probe], rounds=2, seed=1, show=_quiet)

    assert taken.readings == {"a": [None, None]}
    assert [(one.round, one.broken) for one in taken.troubles] == [(0, False)]


async def test_a_probe_that_never_ends_is_killed_and_broken() -> None:
    probe = Probe(name="a", target="signal:pause", patience=0.5)

    taken = await take([probe], rounds=1, seed=1, show=_quiet)

    assert taken.readings == {"a": [None]}
    assert "within 0.5 s" in taken.troubles[0].reason


async def test_what_a_probe_leaves_behind_is_killed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setitem(os.environ, MARK, mark)
    probe = Probe(name="a", target="subprocess:Popen", parameters={"args": ["sleep", "987"], "start_new_session": True})

    taken = await take([probe], rounds=1, seed=1, show=_quiet)

    assert taken.left_behind == {"a": ["sleep 987"]}
    assert await_none(mark, within=0) == []
