"""A malicious client with the rights to write locks: ENDPOINT, SECONDS, SEED.

It writes below `locks/`, `queue/` and `withdrawn/`, as `clustermutex setup-auth` lets any client
do, and waits for each answer and a moment longer, so that it and not etcd is the limit. At its end
it prints what it has done. What it does follows from the seed.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from urllib.parse import quote

import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from lockclient.model.clocks import Deadline
from lockclient.model.holder import SUBKEYS
from lockclient.stores.etcd.errors import ErrorKind
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.failover import WireError
from lockclient.stores.etcd.wire.rpc_methods import TXN

FOLDERS = ("locks", "queue", "withdrawn")
LARGE = b"x" * 1_400_000
"""Nearly all that etcd takes as a value."""
LARGE_EVERY_S = len(LARGE) / 4_000_000
"""Seconds between two large values, so that etcd's disk is not the limit."""
EXAMPLES = 10
"""Of what is fuzzed in a row, and acts after it."""
REST = 0.3
"""Seconds of rest for each second of waiting for an answer."""
BURIED = ("honest-5", "honest-15", "honest-60")
"""Locks of others, below whose names it puts what nobody reads."""

# ---------------------------------------------------------------- what is fuzzed

texts = st.one_of(
    st.text(max_size=300),
    st.text("\0\x1b\x9b🔒\u200b\u202e\u3000é\ufeff", max_size=300),
    st.sampled_from(["x" * 65_000, "🔒" * 16_000]),
)
numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -0.0, 1e308, 10**4000, 253402300799, 253402300800, 2**63, True]),
)
jsons = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=10,
)
facts = st.sampled_from(
    [
        *("pid", "thread", "reason", "identity", "process", "client", "locked_at", "format"),
        *("expected_runtime", "auto_unlock_after", "backtrace"),
    ]
)
values = st.one_of(
    st.binary(max_size=200),
    texts.map(lambda text: text.encode(errors="replace")),
    numbers.map(lambda number: repr(number).encode()),
    (st.dictionaries(facts, jsons) | jsons).map(lambda said: json.dumps(said).encode()),
    st.sampled_from([b"", b"NaN", b"\xef\xbb\xbf{}", b"[" * 60_000, b'{"a":' * 12_000]),
)
names = st.one_of(
    st.text(min_size=1, max_size=60).map(lambda name: quote(name, safe="")),
    st.sampled_from(["a", ".", "..", "a%2Fb", "a%2fb", "%", "%zz", "", "x" * 256, "n" * 20_000]),
    st.text("/.%", max_size=8),
)
keys = st.one_of(
    st.tuples(st.sampled_from(FOLDERS), names, st.sampled_from(SUBKEYS) | st.text(max_size=12)).map(
        lambda key: "/".join(key).encode(errors="replace")
    ),
    st.binary(max_size=60).map(lambda rest: b"locks/" + rest),
    st.binary(max_size=60).map(lambda rest: b"queue/a/" + rest),
)
Step = Mapping[bytes, bytes | None]
"""What one transaction writes, or deletes."""


class Client:
    """The client, and what it has done."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._channels = Channels(EtcdLocation(endpoints=(endpoint,)))
        self._chosen = random.Random(seed)
        self._large_at = 0.0

    def run(self, seconds: float) -> None:
        """Do everything, in turns, for so long."""
        until = time.monotonic() + seconds
        for number in range(100):
            self.write({self._key("locks", BURIED[0], f"junk-{number}"): LARGE})
        acts = (
            self.wait_in_line,
            self.come_and_go,
            self.take,
            self.push,
            self.put_large,
            self.mark,
        )
        while time.monotonic() < until:
            self.fuzz()
            for act in self._chosen.choices(acts, k=EXAMPLES):
                if time.monotonic() < until:
                    act()
                    self.done[act.__name__] += 1

    def fuzz(self) -> None:
        """Write whatever there may be, under keys of any kind."""

        @hypothesis.seed(self._chosen.randrange(2**32))
        @hypothesis.settings(
            max_examples=EXAMPLES,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.dictionaries(keys, st.none() | values, min_size=1, max_size=8))
        def write(step: Step) -> None:
            self.write({b"/clustermutex/" + key: value for key, value in step.items()})
            self.done["fuzz"] += 1

        write()

    def wait_in_line(self) -> None:
        """A thousand more in one queue, which never gets shorter."""
        ticket = json.dumps({"hostname": "🔒" * 50, "reason": "r" * 300, "pid": 1}).encode()
        for _ in range(10):
            self.write({self._key("queue", "line", self._word()): ticket for _ in range(100)})

    def come_and_go(self) -> None:
        """Tickets of many queues, some of them large, there for a moment."""
        new = [self._key("queue", self._name(), self._word()) for _ in range(20)]
        self.write({key: self._word().encode() * 500 for key in new})
        self.write(dict.fromkeys(new))

    def take(self) -> None:
        """Locks of holders that say very much: held for a moment, due at once, or held for long."""
        for number in range(5):
            name, now = f"{self._name()}-{number}", time.time()
            seconds = self._chosen.choice([0.2, 1.0, 600.0])
            said = {"locked_at": now, "expected_runtime": seconds / 2, "auto_unlock_after": seconds}
            long = {fact: self._word() * 300 for fact in ("reason", "thread", "identity", "client")}
            subkeys = {
                "uuid": self._word(),
                "hostname": self._word() * 100,
                "alert_at": f"{now + seconds / 2:.3f}",
                "auto_unlock_at": f"{now + seconds:.3f}",
                "about": json.dumps({**said, **long, "backtrace": "b" * 8000}),
            }
            self.write({self._key("locks", name, key): subkeys[key].encode() for key in subkeys})
            if self._chosen.random() < 0.5:
                self.write(dict.fromkeys(self._key("locks", name, key) for key in subkeys))

    def push(self) -> None:
        """Stamps and facts of many locks at once, that fit or contradict the others."""
        now = time.time() + self._chosen.choice([0, 0, 3600, -3600])
        said = json.dumps({"reason": self._word(), "auto_unlock_after": 0.01})
        new = {"alert_at": f"{now + 1:.3f}", "auto_unlock_at": f"{now + 2:.3f}", "about": said}
        if self._chosen.random() < 0.2:
            new["uuid"] = self._word() * 1000
        held = [f"{self._name()}-{number}" for number in range(5) for _ in range(5)]
        self.write(
            {self._key("locks", name, key): new[key].encode() for name in held for key in new}
        )

    def put_large(self) -> None:
        """All that etcd takes in one value: in subkeys, known or not, in tickets, in marks."""
        folder = self._chosen.choice(FOLDERS)
        name = self._chosen.choice([*BURIED, self._name()] if folder == "locks" else [self._name()])
        known = SUBKEYS if folder == "locks" and name not in BURIED else ()
        part = self._chosen.choice([*known, *(f"large-{number}" for number in range(5))])
        if time.monotonic() > self._large_at:
            self._large_at = time.monotonic() + LARGE_EVERY_S
            self.write({self._key(folder, name, part): LARGE})

    def mark(self) -> None:
        """Tombstones."""
        self.write({self._key("withdrawn", self._name(), self._word()): b"" for _ in range(50)})

    def write(self, step: Step) -> None:
        """Write these values, or delete those of None, and rest for a part of that time."""
        txn = wire.Txn()
        for key, value in step.items():
            assert key.startswith(tuple(f"/clustermutex/{kind}/".encode() for kind in FOLDERS)), key
            if value is None:
                txn.success.add().delete.key = key
            else:
                put = txn.success.add().put
                put.key, put.value = key, value
        began = time.monotonic()
        try:
            self._channels.call(TXN, txn, Deadline.after(30))
            self.done["written"] += len(step)
        except WireError as error:  # too large for it
            if error.fault not in (ErrorKind.REFUSED, ErrorKind.NO_RIGHT, ErrorKind.TOO_LARGE):
                raise
            self.done["refused"] += 1
        time.sleep(max(0.002, REST * (time.monotonic() - began)))

    def _key(self, kind: str, name: str, part: str) -> bytes:
        return f"/clustermutex/{kind}/{name}/{part}".encode()

    def _name(self) -> str:
        return f"hostile-{self._chosen.randrange(50)}"

    def _word(self) -> str:
        return f"{self._chosen.randrange(2**64):016x}"


if __name__ == "__main__":
    client = Client(sys.argv[1], int(sys.argv[3]))
    client.run(float(sys.argv[2]))
    print(json.dumps(client.done))
