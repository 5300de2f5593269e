"""What the suite measures, against what, and what should come of it. Pure.

Owns the list of probes with their sizes, and the list of figures. The targets are ratios within one run wherever a
reference exists, since absolute times differ between machines by more than any change of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proctor.bench.figures import Bound, Figure, Source, Unit
from proctor.bench.running import Probe

_HERE = "proctor.bench.supervisor"
_BARE_FORK = str(Path(__file__).with_name("bare_fork.py"))
_CHILDREN = 2
_PAUSE = 0.05

DISTRIBUTIONS = ("proctor", "trio", "anyio", "durable-workflow", "trio-parallel", "pebble", "loky")

PEERS = {
    "anyio": "anyio.to_process",
    "trio_parallel": "trio-parallel",
    "executor": "ProcessPoolExecutor (forkserver)",
    "pebble": "pebble",
    "loky": "loky",
}
"""Peers of the reused child: the stem of their probes, and how they are called in the report."""

_PACKAGES = {"anyio": "anyio", "trio_parallel": "trio_parallel", "pebble": "pebble", "loky": "loky"}
_TO_BEAT = ("anyio", "trio_parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much one round measures: numbers of calls, and seconds for rates."""

    warm_calls: int = 2000
    warmup: int = 200
    paced_calls: int = 40
    fresh_calls: int = 200
    callback_calls: int = 3
    seconds: float = 1.0
    stops: int = 40
    kills: int = 8
    payload_bytes: int = 50_000_000
    payload_calls: int = 4


FULL = Scale()
QUICK = Scale(
    warm_calls=300,
    warmup=50,
    paced_calls=10,
    fresh_calls=30,
    callback_calls=1,
    seconds=0.2,
    stops=6,
    kills=2,
    payload_calls=1,
)
DEFAULT_ROUNDS = 5
QUICK_ROUNDS = 1


def probes(scale: Scale, *, peers: bool) -> list[Probe]:
    """Give the probes of one round, what belongs together side by side."""
    warm = {"calls": scale.warm_calls, "warmup": scale.warmup}
    paced = {"calls": scale.paced_calls, "warmup": 3, "pause": _PAUSE}
    rate = {"seconds": scale.seconds, "children": _CHILDREN}
    payload = {"size": scale.payload_bytes, "calls": scale.payload_calls}
    own = f"{_HERE}.own"
    found = [
        Probe(name="reuse", target=f"{own}:latency", parameters={"isolation": "reuse", **warm}),
        Probe(name="socketpair", target=f"{_HERE}.floors:latency", parameters=warm),
        Probe(name="fresh_paced", target=f"{own}:latency", parameters={"isolation": "fresh", **paced}),
        Probe(name="socketpair_paced", target=f"{_HERE}.floors:latency", parameters=paced),
        Probe(name="fresh_rate", target=f"{own}:rate", parameters={"isolation": "fresh", **rate}),
        Probe(name="fork_loop_rate", target=f"{_HERE}.floors:fork_rate", parameters={"seconds": scale.seconds}),
        Probe(name="bare_fork_rate", target=_BARE_FORK, parameters={"seconds": 2 * scale.seconds}),
        Probe(name="reuse_rate", target=f"{own}:rate", parameters={"isolation": "reuse", **rate}),
        Probe(name="socketpair_rate", target=f"{_HERE}.floors:rate", parameters=rate),
        Probe(
            name="fresh",
            target=f"{own}:latency",
            parameters={"isolation": "fresh", "calls": scale.fresh_calls, "warmup": 5},
        ),
        Probe(
            name="durable_workflow",
            target=f"{_HERE}.peers:durable_workflow_latency",
            parameters={"calls": scale.callback_calls},
            needs="durable_workflow",
        ),
        Probe(name="stops", target=f"{own}:stops", parameters={"attempts": scale.stops}, seeded=True),
        Probe(name="idle_memory", target=f"{own}:idle_memory", parameters={"ballast": False}),
        Probe(name="idle_memory_ballast", target=f"{own}:idle_memory", parameters={"ballast": True}),
        Probe(name="orphans", target=f"{_HERE}.deaths:orphans", parameters={"kills": scale.kills}, seeded=True),
        Probe(name="payload_reuse", target=f"{own}:payload", parameters={"isolation": "reuse", **payload}),
        Probe(name="payload_executor", target=f"{_HERE}.peers:executor_payload", parameters=payload),
        Probe(name="payload_fresh", target=f"{own}:payload", parameters={"isolation": "fresh", **payload}),
    ]
    if peers:
        for stem in PEERS:
            target, needs = f"{_HERE}.peers:{stem}", _PACKAGES.get(stem)
            found.append(Probe(name=f"{stem}", target=f"{target}_latency", parameters=warm, needs=needs))
            found.append(
                Probe(
                    name=f"{stem}_rate",
                    target=f"{target}_rate",
                    parameters={"seconds": scale.seconds},
                    needs=needs,
                )
            )
    return found


def figures(*, peers: bool) -> list[Figure]:
    """Give the lines of the report, in their order."""
    found = [*_round_trips(), *_rates(), *_stops(), *_memory(), *_orphans(), *_payloads()]
    if peers:
        found += [figure for stem, name in PEERS.items() for figure in _peer(stem, name)]
    return found


def _round_trips() -> Sequence[Figure]:
    return (
        _trip("reuse_p50", "1 no-op, reused child, p50", "reuse", "socketpair", "socketpair", Bound("<=", 1.3)),
        _trip("reuse_p99", "1 no-op, reused child, p99", "reuse", "socketpair", "socketpair", None, share=0.99),
        _trip(
            "fresh_paced_p50",
            "2 no-op, fresh child, every 50 ms, to its result, p50",
            "fresh_paced",
            "socketpair_paced",
            "socketpair, every 50 ms",
            Bound("<=", 3.0),
            series="answer",
        ),
        _trip(
            "fresh_paced_reaped_p50",
            "2 the same, to the return of run: reaped",
            "fresh_paced",
            "socketpair_paced",
            "socketpair, every 50 ms",
            None,
        ),
    )


def _trip(
    key: str,
    title: str,
    probe: str,
    reference: str,
    against: str,
    bound: Bound | None,
    share: float = 0.5,
    series: str = "round_trip",
) -> Figure:
    return Figure(
        key=key,
        title=title,
        unit=Unit.SECONDS,
        measured=Source(probe, series, share),
        reference=Source(reference, "round_trip", share),
        against=against,
        bound=bound,
    )


def _rates() -> Sequence[Figure]:
    return (
        Figure(
            key="fresh_rate",
            title="3 fresh attempts, 2 children",
            unit=Unit.PER_SECOND,
            measured=Source("fresh_rate", "per_second"),
            reference=Source("fork_loop_rate", "per_second"),
            against="fork and wait in a program with Trio",
            bound=Bound(">=", 0.9),
        ),
        Figure(
            key="fresh_rate_bare",
            title="3 the same",
            unit=Unit.PER_SECOND,
            measured=Source("fresh_rate", "per_second"),
            reference=Source("bare_fork_rate", "per_second"),
            against="fork and wait in an empty interpreter, two in flight",
        ),
        Figure(
            key="reuse_rate",
            title="4 reused-child attempts, 2 children",
            unit=Unit.PER_SECOND,
            measured=Source("reuse_rate", "per_second"),
            reference=Source("socketpair_rate", "per_second"),
            against="2 socketpairs",
            bound=Bound(">=", 0.7),
        ),
        Figure(
            key="fresh_speedup",
            title="5 no-op, fresh child, back to back, p50",
            unit=Unit.SECONDS,
            measured=Source("fresh", "round_trip"),
            reference=Source("durable_workflow", "round_trip"),
            against="official SDK's callback process",
            speedup=True,
            bound=Bound(">=", 300.0),
        ),
    )


def _stops() -> Sequence[Figure]:
    return (
        _pooled("stop_p50", "6 stop of a GIL-holding call, to proof, p50", Source("stops", "to_proof"), 0.003),
        _pooled("stop_p99", "6 stop of a GIL-holding call, to proof, p99", Source("stops", "to_proof", 0.99), 0.010),
        _pooled("stop_return_p50", "6 the same, to the return of run, p50", Source("stops", "to_return"), None),
        _pooled("stop_return_p99", "6 the same, to the return of run, p99", Source("stops", "to_return", 0.99), None),
    )


def _orphans() -> Sequence[Figure]:
    return (
        _pooled("orphans_p50", "8 owner SIGKILLed, all gone, p50", Source("orphans", "gone"), None),
        _pooled("orphans_p99", "8 owner SIGKILLed, all gone, p99", Source("orphans", "gone", 0.99), 0.050),
        _pooled("orphans_look_p50", "8 of which the look at the process table, p50", Source("orphans", "look"), None),
    )


def _pooled(key: str, title: str, source: Source, limit: float | None) -> Figure:
    bound = None if limit is None else Bound("<=", limit, "measured")
    return Figure(key=key, title=title, unit=Unit.SECONDS, measured=source, bound=bound, pooled=True)


def _memory() -> Sequence[Figure]:
    def private(key: str, title: str, probe: str, limit: float) -> Figure:
        bound = Bound("<=", limit, "measured")
        return Figure(key=key, title=title, unit=Unit.BYTES, measured=Source(probe, "private"), bound=bound)

    return (
        private("idle_private", "7 private memory of an idle child", "idle_memory", 1.5e6),
        private("idle_private_ballast", "7 the same, 100 MB preloaded", "idle_memory_ballast", 2.5e6),
    )


def _payloads() -> Sequence[Figure]:
    executor = PEERS["executor"]
    return (
        _trip(
            "payload_reuse_p50",
            "9 50 MB there and back, reused child, p50",
            "payload_reuse",
            "payload_executor",
            executor,
            Bound("<=", 0.75),
        ),
        _trip(
            "payload_fresh_p50",
            "9 50 MB there and back, fresh child, p50",
            "payload_fresh",
            "payload_executor",
            executor,
            None,
        ),
    )


def _peer(stem: str, name: str) -> Sequence[Figure]:
    bound = Bound("<", 1.0) if stem in _TO_BEAT else None
    return (
        _trip(f"peer_{stem}_p50", "1 no-op, reused child, p50", "reuse", stem, name, bound),
        _trip(f"peer_{stem}_p99", "1 no-op, reused child, p99", "reuse", stem, name, None, share=0.99),
        Figure(
            key=f"peer_{stem}_rate",
            title="4 reused-child attempts, 2 children",
            unit=Unit.PER_SECOND,
            measured=Source("reuse_rate", "per_second"),
            reference=Source(f"{stem}_rate", "per_second"),
            against=name,
        ),
    )
