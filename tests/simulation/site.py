"""Real unlockers on a simulated etcd in virtual time, as tests see them from outside.

Seen are what people are notified of, the log, the store, and the HTTP endpoints. A minute takes a
fraction of a second, and one seed gives one order of events.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar, cast

from lockclient import ClusterMutex, HeldLock
from lockclient.cli.main import main
from lockclient.model.clocks import Deadline
from lockclient.model.removal import FORCE_UNLOCK, Removal
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.request_types import Remove
from lockclient.threads import scheduler
from tests.simulation.etcd import SimulatedEtcd
from tests.simulation.hub import BEGIN, WALL, Event, Hub, Process, Thread
from tests.simulation.network import Network
from tests.simulation.plan import MEMBERS
from tests.simulation.virtual_modules import new_process, virtual
from unlocker.http_app import create_app
from unlocker.notifications.apprise_recipients import Recipient
from unlocker.notifications.message import Message, Writer
from unlocker.notifications.notifier import Notifier
from unlocker.notifications.sender import Pace
from unlocker.notifications.sent_document import REFUSED, SENT, UNANSWERED
from unlocker.unlocker import Unlocker

assert main is not None  # imports what a run would import: all modules are to be there before
ROOT = "/clustermutex"
ANSWER_S = 32.0
STEP_S = 0.25
_Found = TypeVar("_Found")


class Url:
    """A place where people are notified; it takes messages unless `refuses`.

    Args:
        name: the operator's name for it.
    """

    def __init__(self, name: str = "ops") -> None:
        self.name = name
        self.messages: list[Message] = []
        self.refuses = False
        self.error: Exception | None = None
        """Raised by the next try."""
        self.delay_s = 0.0
        self.answers = Event()
        """Cleared: it takes messages, and answers none before this is set."""
        self.answers.set()

    def deliver(self, message: Message) -> str:
        """Stand for `Recipient.deliver`."""
        if self.refuses:
            return REFUSED
        if (error := self.error) is not None:
            self.error = None
            raise error
        self.messages.append(message)
        if self.delay_s:
            Hub.current.wait(self.delay_s)
        return SENT if self.answers.wait(ANSWER_S) else UNANSWERED

    def lines(self, *words: str) -> list[str]:
        """Return what was said in lines with all of these words."""
        said = [line for message in self.messages for line in message.body.splitlines()]
        return [line for line in said if all(word in line for word in words)]

    @property
    def titles(self) -> list[str]:
        """Return the titles without the name of the store."""
        return [message.title.partition(": ")[2] for message in self.messages]


class UnlockerProcess:
    """A virtual process with a real unlocker."""

    def __init__(self, site: Site, process: Process, urls: Sequence[Url], how: Mapping[str, Any]):
        self.site, self.process = site, process
        self._how = dict(how)
        pace, link = Pace(**self._how.pop("pace", {})), self._how.pop("link", "")
        self._notifier = Notifier(cast("Sequence[Recipient]", urls), Writer("here", link), pace)
        with site.hub.of(process):
            Thread(target=self._run, name="main").start()

    def _run(self) -> None:
        store = EtcdStore(self.site.location)
        self.unlocker = Unlocker(store, notifier=self._notifier, **self._how)
        self.unlocker.start()
        while True:
            self.unlocker.supervise()
            self.site.hub.wait(1.0)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """GET a page; return its status and text."""
        with self.site.hub.of(self.process):
            answer = create_app(self.unlocker).test_client().get(path, headers=headers)
            return answer.status_code, answer.get_data(as_text=True)

    def ready(self) -> bool:
        """Tell whether it says that it can do its work."""
        return self.get("/readyz")[0] == 200

    def figures(self) -> dict[str, float]:
        """Return the samples of its metrics."""
        samples = re.findall(r"^([^#].*) (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return {name: float(value) for name, value in samples}

    def kill(self) -> None:
        """End it where it stands."""
        self.process.dead = True
        self.site.network.hang_up(self.process)

    def stop(self) -> None:
        """End it as SIGTERM does."""
        self.site.do(self.unlocker.stop, self.process)
        self.kill()


class Site:
    """A simulated etcd, a process that takes locks, and unlockers.

    Args:
        seed: of all that is drawn.
    """

    def __init__(self, seed: int = 1) -> None:
        self.hub = Hub(seed)
        self.etcd = SimulatedEtcd()
        self.network = Network(
            self.hub,
            self.etcd,
            len(MEMBERS),
            lambda process: self.trouble.get(process.name, (0.0, 0.0, 0.0)),
        )
        self.trouble: dict[str, tuple[float, float, float]] = {}
        """By process: the part of its requests that is lost, of its answers, of what is late."""
        self.location = EtcdLocation(endpoints=MEMBERS, root=ROOT)
        self._numbers = iter(range(1_000_000))
        self.log = _Log()

    def _trouble(self, process: Process) -> tuple[float, float, float]:
        return self.trouble.get(process.name, (0.0, 0.0, 0.0))

    def begin(self) -> None:
        """Start the process that takes locks."""
        self.hub.at(BEGIN, self.network.tick)
        self.client = new_process(self.hub, "client")
        with self.hub.of(self.client):
            self.store = EtcdStore(self.location)

    # ------------------------------------------------------------ time

    def run(self, seconds: float) -> None:
        """Go on for so many seconds."""
        self.hub.run(self.hub.now + seconds)

    def until(
        self, condition: Callable[[], _Found], what: str = "it", seconds: float = 60
    ) -> _Found:
        """Go on until something is so, and return it; after so many seconds it is a failure."""
        end = self.hub.now + seconds
        while not (found := condition()):
            assert self.hub.now < end, f"no {what} in {seconds} s"
            self.hub.run(self.hub.now + STEP_S)
        return found

    @property
    def wall(self) -> float:
        """The wall-clock time of processes whose clock is right."""
        return WALL + self.hub.now - BEGIN

    def do(self, call: Callable[[], _Found], process: Process | None = None) -> _Found:
        """Call something in a thread of a process; return what it returns."""
        done: list[_Found] = []
        with self.hub.of(process or self.client):
            Thread(target=lambda: done.append(call()), name="call").start()
        self.until(lambda: done, "end of a call")
        return done[0]

    # ------------------------------------------------------------ processes

    def url(self, name: str = "ops") -> Url:
        """Return a place where people are notified."""
        return Url(name)

    def unlocker(
        self, *urls: Url, ready: bool = True, hangs: Sequence[str] = (), **how: Any
    ) -> UnlockerProcess:
        """Start an unlocker.

        Args:
            urls: where it notifies people.
            ready: whether to wait until it is ready.
            hangs: tasks that never end.
            how: arguments of `Unlocker`, and the `pace` and the `link` of its messages.
        """
        process = new_process(self.hub, f"u{next(self._numbers)}")
        process.hangs = hangs
        service = UnlockerProcess(self, process, urls, how)
        if ready:
            self.until(lambda: hasattr(service, "unlocker") and service.ready(), "readiness")
        return service

    def lag(self, seconds: float, most: float | None = None) -> None:
        """Let the watches of all members tell late, by `most` at most, for so long."""
        self.network.lag_s = seconds if most is None else most
        for member in self.network.members.values():
            member.behind_until = self.hub.now + seconds

    def cut_off(self, service: UnlockerProcess, seconds: float) -> None:
        """Let nothing pass between an unlocker and the store."""
        service.process.cut_off_until = self.hub.now + seconds

    # ------------------------------------------------------------ locks

    def take(self, name: str, alert: float = 1.0, unlock: float | None = None) -> HeldLock:
        """Take a lock, whose holder is silent from then on."""
        mutex = ClusterMutex(
            name,
            expected_runtime=alert,
            auto_unlock_after=unlock,
            reason="x",
            capture_backtrace=False,
            store=self.store,
        )
        held = self.do(mutex.acquire)
        assert held is not None
        return held

    def write(self, entries: Mapping[str, str | None]) -> None:
        """Write keys below the root in one transaction, as any client may; None deletes one."""
        txn = wire.Txn()
        for key, value in entries.items():
            path = f"{ROOT}/{key}".encode()
            if value is None:
                txn.success.add().delete.CopyFrom(wire.Delete(key=path))
            else:
                txn.success.add().put.CopyFrom(wire.Put(key=path, value=value.encode()))
        self.network.settle()
        self.etcd.txn(txn)
        self.network.publish()

    def read(self, below: str) -> dict[str, str]:
        """Return the keys below a folder, and their values."""
        prefix = f"{ROOT}/{below}"
        return {
            key.decode().removeprefix(prefix): (kv.value or b"").decode()
            for key, kv in self.etcd.kept.items()
            if key.decode().startswith(prefix)
        }

    def foreign(
        self, name: str, alert_at: float, unlock_at: float | None, **facts: str | None
    ) -> None:
        """Have a client with its own uuid for each lock take one, or push its stamps."""
        pushed_at = min(self.wall, alert_at - 1.0)
        about = {"expected_runtime": round(alert_at - pushed_at, 3), "locked_at": pushed_at}
        if unlock_at is not None:
            about["auto_unlock_after"] = round(unlock_at - pushed_at, 3)
        said: dict[str, str | None] = {
            "uuid": f"u-{name}",
            "hostname": "elsewhere",
            "alert_at": f"{alert_at:.3f}",
            "auto_unlock_at": None if unlock_at is None else f"{unlock_at:.3f}",
            "about": json.dumps(about),
        }
        self.write({f"locks/{name}/{part}": value for part, value in (said | facts).items()})

    def removed(self) -> dict[str, float]:
        """Return when which lock was removed with a record, seconds of the wall clock."""
        return {
            write.key.decode().split("/")[3]: WALL + write.at - BEGIN
            for write in self.etcd.past
            if write.value is not None and write.key.startswith(f"{ROOT}/removed/".encode())
        }

    def clear(self, name: str) -> None:
        """Have a lock of `foreign` released."""
        self.write({f"locks/{name}/{part}": None for part in self.read(f"locks/{name}/")})

    def document(self, recipient: str = "ops") -> dict[str, Any]:
        """Return the document of what a recipient was sent."""
        documents = self.read("notifications/sent/")
        document: dict[str, Any] = json.loads(documents.get(recipient, "{}"))
        return document

    def document_requests(self, recipient: str = "ops") -> tuple[int, int]:
        """Return how often that document was read, and written."""
        key = f"{ROOT}/notifications/sent/{recipient}".encode()
        return self.etcd.reads[key], sum(write.key == key for write in self.etcd.past)

    def force_unlock(self, held: HeldLock) -> None:
        """Remove a lock, as a person does."""
        removal = Removal(held.record, self.wall, "ann", FORCE_UNLOCK, "it hangs")
        self.do(lambda: self.store.ask(Remove(removal, None), Deadline.after(10)))

    @contextmanager
    def refusing(self, part: str) -> Iterator[None]:
        """Have etcd refuse what writes a key with this part."""
        self.etcd.refused = part.encode()
        try:
            yield
        finally:
            self.etcd.refused = b""


class _Log(logging.Handler):
    """Warnings and errors that all processes have logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self.lines.append(record.getMessage())

    def count(self, words: str) -> int:
        """Return how many lines have these words."""
        return sum(words in line for line in self.lines)


class _Parked:
    """Holds the real scheduler thread of this process, so that it runs no job meanwhile."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def clean_up(self) -> None:
        """Block the thread that calls it."""
        self.over.wait()


@contextmanager
def virtual_site(seed: int = 1) -> Iterator[Site]:
    """A site, and all modules of ours on its clock, until the end of the block."""
    with ExitStack() as stack:
        parked = _Parked()
        stack.callback(parked.over.set)
        if not scheduler.shared.missing:
            scheduler.shared.clean_up(parked)
        site = Site(seed)
        stack.enter_context(virtual(site.network.open_channel))
        logging.disable(logging.NOTSET)
        stack.callback(site.hub.end)
        logging.getLogger().addHandler(site.log)
        stack.callback(logging.getLogger().removeHandler, site.log)
        site.begin()
        yield site
        assert not site.hub.errors, site.hub.errors
