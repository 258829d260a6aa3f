"""docs/guide.md, Coming from another lock: the examples run as printed, on a real etcd."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from lockclient import default_store
from lockclient.model.clocks import Deadline
from lockclient.stores.service_store import ServiceStore
from tests.support.documents import blocks

PROGRAMS = blocks("guide.md#coming-from-another-lock", "python")
SECTIONS = dict.fromkeys(program.section for program in PROGRAMS)


@pytest.mark.parametrize("section", SECTIONS)
def test_before_and_after(
    section: str, store: ServiceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = (program.code for program in PROGRAMS if program.section == section)
    compile(before, section, "exec")
    monkeypatch.setattr(default_store, "_default_store", store)
    # Their client would connect to etcd's default port; `setup` is tried elsewhere with a real one.
    monkeypatch.setitem(sys.modules, "etcd3", SimpleNamespace(client=lambda: None))
    monkeypatch.setattr(default_store, "set_default", lambda *_: None)
    done: list[str] = []

    def work(*_: object) -> None:
        done.extend(store.names("", 9, Deadline.after(20)))

    exec(
        compile(after, section, "exec"),
        {"rebuild": work, "report": work, "work": work, "items": [1, 2]},
    )
    assert set(done) == {"rebuild" if section.startswith("`threading") else "report"}
    assert store.names("", 9, Deadline.after(20)) == []
