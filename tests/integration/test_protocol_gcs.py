"""docs/protocol-gcs.md keeps its word: its examples run as they stand, and what curl does and what
`ClusterMutex` does are the same locks."""

from __future__ import annotations

import doctest
import re
from collections.abc import Callable, Iterator

import pytest

from lockclient import ClusterMutex, LockLost
from lockclient.model.removal import Removal
from lockclient.stores.gcs.location import GcsLocation
from lockclient.stores.gcs.store import GcsStore
from tests.contract.following import loaded
from tests.support.bucket.server import BucketServer
from tests.support.documents import codes
from tests.support.locks import has, held, read
from tests.support.processes import needed, run_to_end

NAME = "nightly-report"
A = "aaaaaaaa-0000-4000-8000-000000000001"
CUT = "-- 8< --"

WORDS, *EXAMPLES = codes("protocol-gcs.md", "sh")
PRINTED = codes("protocol-gcs.md", "text")
DEFINED = "\n".join(re.findall(r"^\w+\(\) \{.*?\}$", "\n".join(EXAMPLES), re.MULTILINE | re.DOTALL))


@pytest.fixture
def store(server: BucketServer) -> Iterator[GcsStore]:
    opened = GcsStore(GcsLocation(server.bucket.name, "of/us/"))
    yield opened
    opened.close()


@pytest.fixture
def shell(server: BucketServer) -> Callable[..., str]:
    needed("curl")
    env = {"BUCKET": server.bucket.name, "PREFIX": "of/us/", "TOKEN": "secret"}

    def run(*parts: str) -> str:
        script = "\n".join(["set -eu", WORDS, *parts])
        done = run_to_end("sh", typed=script, env=env)
        assert done.stderr == "", done.stdout
        return done.stdout

    return run


def test_the_examples_print_the_shown_output(shell: Callable[..., str], store: GcsStore) -> None:
    assert len(EXAMPLES) == len(PRINTED) == 5
    printed = shell(*(f"{example}\necho '{CUT}'" for example in EXAMPLES)).split(f"{CUT}\n")
    checker = doctest.OutputChecker()
    for example, said, expected in zip(EXAMPLES, printed[:-1], PRINTED, strict=True):
        assert checker.check_output(expected, said, doctest.ELLIPSIS), f"{example}\n{said}"
    found = read(store, NAME, A)
    assert found.holder is None
    assert found.removal is not None
    assert (found.removal.removed_by, found.removal.why) == ("ann", "It hangs.")
    (change,) = loaded(store, "removed")  # as lists have it
    listed = Removal.listed(NAME, A, change.value or b"")
    assert (listed.removed_by, listed.why, listed.holder.hostname) == ("ann", "It hangs.", "web-1")
    with ClusterMutex(NAME, store=store):  # over the trace
        pass


def test_a_lock_of_curl_s_is_a_lock(shell: Callable[..., str], store: GcsStore) -> None:
    assert shell(DEFINED, "take $A ifGenerationMatch=0") == "200\n"
    holder = held(store, NAME)
    assert (holder.uuid, holder.hostname, holder.reason) == (A, "web-1", "totals")
    assert (holder.expected_runtime, holder.auto_unlock_after) == (300, 900)
    assert not holder.faults()
    assert not holder.undecided()
    assert not ClusterMutex(NAME, store=store).acquire(blocking=False)
    assert shell(DEFINED, 'release "$(look | field generation)" 1') == "204\n"
    assert ClusterMutex(NAME, store=store).acquire(blocking=False)


def test_curl_respects_a_lock_of_the_library(shell: Callable[..., str], store: GcsStore) -> None:
    mutex = ClusterMutex(NAME, store=store)
    mutex.acquire()
    assert shell(DEFINED, "take $A ifGenerationMatch=0", "look | field uuid").split() == [
        "412",
        mutex.uuid,
    ]
    push = 'patch "$(version "$(look | field generation)" 1)" "$(stamps)"'
    assert shell(DEFINED, push) == "200\n"
    mutex.alive(force=True)
    why = (
        r"{\"removed_at\":1767225600,\"removed_by\":\"ann\",\"how\":\"force-unlock\",\"why\":\"x\"}"
    )
    removal = f"""patch "$(version "$(look | field generation)" 3)" '"removing":"{why}"'"""
    assert shell(DEFINED, removal) == "200\n"
    with pytest.raises(LockLost) as lost:
        mutex.alive(force=True)
    assert lost.value.removal is not None
    assert lost.value.removal.removed_by == "ann"
    assert has(store, NAME) is None
