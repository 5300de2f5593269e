"""Handlers are loaded and judged in a real child before anything is registered."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from handlers import awkward
from proctor import activity
from proctor.activity import ActivityDefinition
from proctor.client import Client
from proctor.errors import HandlersRefused, UsageError
from proctor.registering import check_handlers
from proctor.server import ServerOptions, serve
from proctor.worker import Worker
from proctor_supervisor import StopPolicy, SupervisorOptions, open_supervisor
from running import worker_handlers, workflows

OPTIONS = SupervisorOptions(children=2, stop=StopPolicy(notice_grace=0.05, raise_grace=0.05))


def definitions(**functions: Callable[..., Any]) -> dict[str, ActivityDefinition]:
    return {name: ActivityDefinition(name, function, False) for name, function in functions.items()}


async def refusal(options: SupervisorOptions = OPTIONS, **functions: Callable[..., Any]) -> HandlersRefused:
    async with open_supervisor(options) as supervisor:
        with pytest.raises(HandlersRefused) as caught:
            await check_handlers(supervisor, definitions(**functions))
    return caught.value


async def test_good_handlers_of_every_kind_pass() -> None:
    @activity.defn(name="local")
    def local(path: str) -> str:
        return path

    async with open_supervisor(OPTIONS) as supervisor:
        await check_handlers(
            supervisor,
            {
                **{name.name: name for name in map(activity.definition_of, worker_handlers.ALL)},
                **definitions(plain=awkward.plain, bound=awkward.method_of(3), local=local, lambda_=lambda path: path),
            },
        )


async def test_every_refusal_is_told_at_once_with_handler_thing_and_remedy() -> None:
    with socket.socket() as peer:
        refused = await refusal(
            lock=awkward.closure_over(threading.Lock()),
            peer=awkward.closure_over(peer),
            order=awkward.takes_an_order,
            fine=awkward.plain,
        )

    assert [(one.activity, one.thing) for one in refused.refusals] == [
        ("lock", "a lock (lock) in variable 'value' of its closure"),
        ("peer", "an open socket in variable 'value' of its closure"),
        ("order", "parameter 'order' of type handlers.awkward.Order"),
    ]
    for one in refused.refusals:
        assert f"handler '{one.activity}' ({one.where})" in str(refused)
        assert one.remedy in str(refused)


async def test_what_cannot_travel_is_named() -> None:
    held = sys._getframe()
    refused = await refusal(odd=lambda path: (path, held))

    (one,) = refused.refusals
    assert one.thing == "a frame in variable 'held' of its closure"
    assert "cannot travel" in one.why


async def test_a_module_that_only_the_worker_can_import_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(
        "import os\nif os.environ.get('PROCTOR_TEST_HERE') != '1': raise ImportError('no licence in this process')\n"
        "def handler(path: str) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PROCTOR_TEST_HERE", "1")
    import only_here  # type: ignore[import-not-found]

    options = SupervisorOptions(children=1, withhold=("PROCTOR_TEST_HERE",))
    refused = await refusal(options, here=only_here.handler)

    (one,) = refused.refusals
    assert one.thing == "module 'only_here'"
    assert "no licence in this process" in one.why
    del sys.modules["only_here"]


async def test_a_handler_whose_import_kills_its_child_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os\nif os.environ.get('PROCTOR_TEST_HERE') != '1': os._exit(3)\ndef handler() -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PROCTOR_TEST_HERE", "1")
    import deadly  # type: ignore[import-not-found]

    refused = await refusal(SupervisorOptions(children=1, withhold=("PROCTOR_TEST_HERE",)), here=deadly.handler)

    assert refused.refusals[0].thing == "module 'deadly'"
    del sys.modules["deadly"]


async def test_a_preloaded_module_that_starts_a_thread_is_refused_with_its_handler() -> None:
    from handlers import starts_thread

    refused = await refusal(
        SupervisorOptions(children=1, preload=["handlers.starts_thread"]), slow=starts_thread.handler
    )

    (one,) = refused.refusals
    assert "thread" in one.thing
    assert "'handlers.starts_thread'" in one.thing
    assert "leave the module out of `preload`" in one.remedy


async def test_a_refused_worker_never_registers() -> None:
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve, ServerOptions())
            handler = activity.defn(name="locked")(awkward.closure_over(threading.Lock()))
            told: list[dict[str, Any]] = []
            worker = Worker(
                Client(url),
                task_queue="q",
                workflows=workflows.ALL,
                activities=[handler],
                supervisor=OPTIONS,
                on_event=told.append,
            )
            with pytest.raises(UsageError, match=r"handler 'locked' .*a lock .*inside the handler"):
                await worker.run()
            assert told == []
            nursery.cancel_scope.cancel()


async def test_a_strict_worker_names_the_handlers_of_an_unsafe_module() -> None:
    from handlers import starts_thread

    handler = activity.defn(name="slow")(starts_thread.handler)
    worker = Worker(
        Client("http://127.0.0.1:9"),
        task_queue="q",
        workflows=workflows.ALL,
        activities=[handler],
        supervisor=SupervisorOptions(children=1, strict=True, preload=["handlers.starts_thread"]),
    )
    with trio.fail_after(30), pytest.raises(UsageError, match=r"for handler 'slow': .*thread"):
        await worker.run()
