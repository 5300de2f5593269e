"""`kill_test`: rounds of every scenario at random instants, from one seed, and the report of what they found."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from proctor.errors import UsageError
from proctor.harness.processes import left_over, new_mark
from proctor.harness.scenarios import SCENARIOS, measure
from proctor.harness.subject import Subject

_LONGEST_SPAN = 2.0


@dataclass(frozen=True, slots=True)
class Round:
    """One kill. `delay` is the instant of it, in seconds after the attempt began."""

    scenario: str
    number: int
    delay: float
    happened: str
    broken: tuple[str, ...]


@dataclass(slots=True)
class KillReport:
    """What a kill test found. The same `seed` draws the same instants; `undisturbed` is what the handler does alone."""

    seed: int
    handler: str
    undisturbed: str = ""
    span: float = 0.0
    rounds: list[Round] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """Every promise that did not hold, with its scenario and round."""
        return [f"{one.scenario} #{one.number}: {promise}" for one in self.rounds for promise in one.broken]

    def as_json(self) -> dict[str, Any]:
        """Give the report as a JSON object."""
        return {**asdict(self), "broken": self.broken}


async def kill_test(
    subject: Subject,
    scenarios: Sequence[str] = (),
    *,
    rounds: int = 5,
    seed: int | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> KillReport:
    """Kill around `subject` at random instants: `rounds` kills of each of `scenarios` (default: of all).

    The instants are drawn over the time that the handler takes undisturbed, and a little beyond, at most 2 s. After
    each kill the process table is asked whether anything is left. Raises UsageError.
    """
    chosen = tuple(scenarios) or tuple(SCENARIOS)
    unknown = [name for name in chosen if name not in SCENARIOS]
    if unknown:
        raise UsageError(f"there is no scenario {unknown[0]!r}; there are: {', '.join(SCENARIOS)}")
    if rounds < 1:
        raise UsageError(f"a kill test has at least one round, not {rounds}")
    assert subject.definition  # a handler that does not exist is refused before anything runs
    report = KillReport(random.randrange(1 << 32) if seed is None else seed, subject.handler)
    mark = new_mark()
    report.undisturbed, took = await measure(subject, mark)
    left = await left_over(mark, within=2.0)
    if left:
        report.rounds.append(Round("undisturbed", 0, 0.0, report.undisturbed, (f"nothing is left: {'; '.join(left)}",)))
    report.span = min(_LONGEST_SPAN, took * 1.1)
    for name in chosen:
        # Each scenario draws from a generator of its own, so that a subset of them draws the same instants.
        draw = random.Random(f"{report.seed} {name}")
        for number in range(1, rounds + 1):
            delay = draw.uniform(0.0, report.span)
            finding = await SCENARIOS[name](subject, delay, new_mark())
            done = Round(name, number, delay, finding.happened, tuple(finding.broken))
            report.rounds.append(done)
            if on_round is not None:
                on_round(done)
    return report
