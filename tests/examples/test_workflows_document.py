"""Every piece of code in docs/workflows.md is run: its workflows live through a simulated run, task by task."""

from __future__ import annotations

import random
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from core.simulated_server import SimulatedServer
from portable_files import conclude, definitions, plain
from proctor.core.replay import Commands, LocalCall

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "workflows.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
ARGUMENTS: dict[str, list[Any]] = {
    "order": ["book", 5],
    "careful": ["book"],
    "trip": [["Rome", "Oslo"]],
    "purchase": ["book"],
    "subscription": ["Ada"],
    "tidy": ["/tmp/x"],
}


def load() -> types.ModuleType:
    module = types.ModuleType("workflows_document")
    sys.modules[module.__name__] = module
    exec(compile("from __future__ import annotations\n" + "\n".join(BLOCKS), "docs/workflows.md", "exec"), vars(module))
    return module


WORKFLOWS = definitions(load())


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_workflow_of_the_document_runs_to_its_end(name: str) -> None:
    for seed in range(6):
        server = SimulatedServer(random.Random(seed).choice)
        server.start(name)
        for _ in range(40):
            decision = conclude(WORKFLOWS[name], server.events, ARGUMENTS.get(name, []), queue="q")
            assert isinstance(decision, (Commands, LocalCall))
            server.complete(plain(decision))
            if server.closed:
                break
            if name == "feed" and server.messages < 3:
                server.message()
            elif name == "approval":
                server.advance({"approve": ["Ada"]}, {"note": ["x"]})
            else:
                server.advance({}, {})
        assert server.closed, server.events[-1]


def test_the_document_has_a_workflow_for_each_of_its_subjects() -> None:
    assert len(BLOCKS) == len(WORKFLOWS) >= 9
