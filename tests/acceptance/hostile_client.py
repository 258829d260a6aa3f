"""A client that may write locks, and nothing else, and means harm: ENDPOINT, SECONDS, SEED.

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
from collections.abc import Callable
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

ROOT = "/clustermutex"
LARGE = 1_400_000
"""Bytes of a value: nearly all that etcd takes."""
BYTES_A_SECOND = 4_000_000
"""Of large values, so that etcd's disk is not the limit."""
EXAMPLES = 10
"""Of what is fuzzed in a row, and acts after it."""
REST = 0.3
"""Seconds of rest for each second of waiting for an answer."""
BURIED = ("honest-5", "honest-15", "honest-60")
"""Locks of others, below whose names it puts what nobody reads."""

# ---------------------------------------------------------------- what is fuzzed

controls = st.text(st.characters(codec="utf-8", max_codepoint=0x9F), max_size=40)
texts = st.one_of(
    controls,
    st.text(max_size=300),
    st.text("🔒\u200b\u202e\u3000é\ufeff", max_size=300),
    st.just("x" * 65_000),
    st.just("🔒" * 16_000),
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
_ABOUT = ("pid", "thread", "reason", "identity", "process", "client", "locked_at", "needs",
          "expected_runtime", "auto_unlock_after", "backtrace")  # fmt: skip
abouts = st.dictionaries(st.sampled_from(_ABOUT) | texts, jsons, max_size=12)
values = st.one_of(
    st.binary(max_size=200),
    texts.map(lambda text: text.encode(errors="replace")),
    numbers.map(lambda number: repr(number).encode()),
    (abouts | jsons).map(lambda said: json.dumps(said).encode()),
    st.sampled_from([b"", b"NaN", b'{"pid": NaN}', b"\xef\xbb\xbf{}", b"9" * 4000]),
    st.sampled_from([b"[" * 60_000, b'{"a":' * 12_000]),
)
names = st.one_of(
    st.text(min_size=1, max_size=60).map(lambda name: quote(name, safe="")),
    st.sampled_from(["a", "b", ".", "..", "a%2Fb", "a%2fb", "%", "%zz", "", "x" * 255, "x" * 256]),
    st.just("%F0%9F%94%92" * 63),
    st.text("/.%", max_size=8),
    st.just("n" * 20_000),
)
parts = st.sampled_from(SUBKEYS) | st.text("abouid/_%.", max_size=12)
keys = st.one_of(
    st.tuples(st.sampled_from(["locks", "queue", "withdrawn"]), names, parts).map(
        lambda key: "/".join(key).encode(errors="replace")
    ),
    st.binary(max_size=60).map(lambda rest: b"locks/" + rest),
    st.binary(max_size=60).map(lambda rest: b"queue/a/" + rest),
)
steps = st.dictionaries(keys, st.none() | values, min_size=1, max_size=8)
"""What one transaction writes, or deletes."""


class Client:
    """The client, and what it has done.

    Args:
        endpoint: of etcd.
        seed: of all that it chooses.
    """

    def __init__(self, endpoint: str, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._channels = Channels(EtcdLocation(endpoints=(endpoint,)))
        self._chosen = random.Random(seed)
        self._seed = seed
        self._large = b"x" * LARGE
        self._since = time.monotonic()
        self._sent = 0

    def run(self, seconds: float) -> None:
        """Do everything, in turns, for so long."""
        until = time.monotonic() + seconds
        for number in range(100):
            self.write({self._key("locks", BURIED[0], f"junk-{number}"): self._large})
        acts: list[Callable[[], None]] = [
            *(self.wait_in_line, self.come_and_go, self.take_and_release, self.push, self.take),
            *(self.put_large, self.mark, self.contradict),
        ]
        while time.monotonic() < until:
            self.fuzz()
            for act in self._chosen.choices(acts, k=EXAMPLES):
                if time.monotonic() < until:
                    act()
                    self.done[act.__name__] += 1

    # -------------------------------------------------------- acts

    def fuzz(self) -> None:
        """Write whatever there may be, under keys of any kind."""
        seed = self._chosen.randrange(2**32)

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=EXAMPLES,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(steps)
        def write(step: dict[bytes, bytes | None]) -> None:
            self.write({f"{ROOT}/".encode() + key: value for key, value in step.items()})
            self.done["fuzz"] += 1

        write()

    def wait_in_line(self) -> None:
        """A thousand more in one line, which never gets shorter."""
        ticket = json.dumps({"hostname": "🔒" * 50, "reason": "r" * 300, "pid": 1}).encode()
        for _ in range(10):
            self.write({self._key("queue", "line", self._word()): ticket for _ in range(100)})

    def come_and_go(self) -> None:
        """Tickets of many lines, some of them large, there for a moment."""
        new = [self._key("queue", self._name(), self._word()) for _ in range(20)]
        self.write({key: self._word().encode() * 500 for key in new})
        self.write(dict.fromkeys(new))

    def take_and_release(self) -> None:
        """Locks that are held for a moment, of holders that say very much."""
        for name in (f"{self._name()}-{number}" for number in range(5)):
            self.write(self._lock(name, 0.5))
            self.write({self._key("locks", name, part): None for part in SUBKEYS})

    def take(self) -> None:
        """Locks that nobody releases; those of few seconds are due at once."""
        for number in range(5):
            seconds = self._chosen.choice([0.2, 1.0, 600.0])
            self.write(self._lock(f"{self._name()}-{self._word()}-{number}", seconds))

    def push(self) -> None:
        """Stamps of many locks at once, that fit or do not."""
        for _ in range(5):
            now = time.time() + self._chosen.choice([0, 0, 3600, -3600])
            stamps = {"alert_at": now + 1, "auto_unlock_at": now + 2}
            held = [f"{self._name()}-{number}" for number in range(5) for _ in range(5)]
            self.write(
                {
                    self._key("locks", name, part): f"{at:.3f}".encode()
                    for name in held
                    for part, at in stamps.items()
                }
            )

    def put_large(self) -> None:
        """All that etcd takes in one value: in subkeys, known or not, in tickets, in marks."""
        name = self._name()
        key = self._chosen.choice(
            [
                self._key("locks", self._chosen.choice(BURIED), self._word()),
                self._key("locks", name, f"junk-{self._chosen.randrange(5)}"),
                self._key("locks", name, self._chosen.choice(SUBKEYS)),
                self._key("queue", name, f"large-{self._chosen.randrange(5)}"),
                self._key("withdrawn", name, f"large-{self._chosen.randrange(5)}"),
            ]
        )
        allowed = BYTES_A_SECOND * (time.monotonic() - self._since)
        if self._sent < allowed:
            self._sent += LARGE
            self.write({key: self._large})

    def mark(self) -> None:
        self.write({self._key("withdrawn", self._name(), self._word()): b"" for _ in range(50)})

    def contradict(self) -> None:
        """What a lock says of itself, written by another hand, in lines that have no lock."""
        name = f"{self._name()}-{self._chosen.randrange(5)}"
        said = json.dumps({"reason": self._word(), "auto_unlock_after": 0.01}).encode()
        self.write({self._key("locks", name, "about"): said})
        self.write({self._key("locks", name, "uuid"): self._word().encode() * 1000})

    # -------------------------------------------------------- means

    def write(self, step: dict[bytes, bytes | None]) -> None:
        """Write these values, or delete those of None, and rest for a part of that time."""
        txn = wire.Txn()
        for key, value in step.items():
            assert key.startswith((b"/clustermutex/locks/", b"/clustermutex/queue/",
                                   b"/clustermutex/withdrawn/")), key  # fmt: skip
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
            if error.fault not in (ErrorKind.REFUSED, ErrorKind.TOO_LARGE):
                raise
            self.done["refused"] += 1
        time.sleep(max(0.002, REST * (time.monotonic() - began)))

    def _lock(self, name: str, seconds: float) -> dict[bytes, bytes | None]:
        now = time.time()
        said = {"locked_at": now, "expected_runtime": seconds / 2, "auto_unlock_after": seconds}
        long = {name: self._word() * 300 for name in ("reason", "thread", "identity", "client")}
        values = {
            "uuid": self._word(),
            "hostname": self._word() * 100,
            "alert_at": f"{now + seconds / 2:.3f}",
            "auto_unlock_at": f"{now + seconds:.3f}",
            "about": json.dumps({**said, **long, "backtrace": "b" * 8000}),
        }
        return {self._key("locks", name, part): text.encode() for part, text in values.items()}

    def _key(self, kind: str, name: str, part: str) -> bytes:
        return f"{ROOT}/{kind}/{name}/{part}".encode()

    def _name(self) -> str:
        return f"hostile-{self._chosen.randrange(50)}"

    def _word(self) -> str:
        return f"{self._chosen.randrange(2**64):016x}"


if __name__ == "__main__":
    client = Client(sys.argv[1], int(sys.argv[3]))
    client.run(float(sys.argv[2]))
    print(json.dumps(client.done))
