"""One run: the real clients and unlockers on a simulated etcd, with a plan's faults, checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Any

from lockclient.acquisition import wait_report
from lockclient.model.clocks import Deadline
from lockclient.model.removal import FORCE_UNLOCK, Removal
from lockclient.overview.live_table import Table
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.request_types import Read, Remove
from tests.proof.check import Broken, check
from tests.proof.evidence import WITHOUT_THREADS
from tests.proof.history import Limits, Line
from tests.simulation.clients import Client, run_loop
from tests.simulation.etcd import SimulatedEtcd
from tests.simulation.hub import BEGIN, Hub, Process, Thread
from tests.simulation.network import Network
from tests.simulation.plan import ACTIVE_S, LOCKS, MEMBERS, UNLOCKERS, Fault, Step, Work, make
from tests.simulation.process_end import EndLog, end, end_log
from tests.simulation.virtual_modules import new_process, virtual
from unlocker.unlocker import Unlocker

SETTLING_S = 45.0
"""Seconds without faults at the end, at most: less than those after which a waiter looks for
itself, so that one that was not woken is seen to be left."""
LOOK_S = 2.0
"""Seconds between two looks whether nothing is left to happen."""
assert wait_report  # a waiter would import it: all modules must be loaded before a run
ROOT = "/clustermutex"
MAX_REMOVALS = 3


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        order: names the order in which requests, answers and events came.
        seconds: virtual ones.
    """

    seed: int
    broken: list[Broken]
    order: str
    lines: list[Line]
    requests: int
    faults: int
    seconds: float


class World:
    """All that there is in a run.

    Args:
        seed: of the run.
        steps: of its plan, by their numbers.
    """

    def __init__(self, seed: int, steps: Sequence[tuple[int, Step]]) -> None:
        self.hub = Hub(seed)
        self.etcd = SimulatedEtcd()
        self.lines: list[Line] = []
        self._steps = steps
        self._troubles: list[tuple[str, int, float, float]] = []
        self.network = Network(self.hub, self.etcd, len(MEMBERS), self._trouble)
        self.processes = self.hub.processes
        self._location = EtcdLocation(endpoints=MEMBERS, root=ROOT)
        self._barged = 0
        self._tables: list[str] = []
        self._stores: dict[str, EtcdStore] = {}
        self.jumped = False

    def run(self) -> Result:
        """Run it, and check what it has written down."""
        hub = self.hub
        with virtual(self.network.open_channel), end_log(EndLog(hub, self.lines.append)):
            limits = Limits(ROOT, MAX_REMOVALS, len(UNLOCKERS))
            self.say("limits", limits=asdict(limits))
            hub.at(BEGIN, self.network.tick)
            self._begin_all()
            for number, step in self._steps:
                if isinstance(step, Fault):
                    hub.at(BEGIN + step.at, partial(self._strike, number, step))
            hub.run(BEGIN + ACTIVE_S)
            while hub.now < BEGIN + ACTIVE_S + SETTLING_S and not self._is_over():
                hub.run(hub.now + LOOK_S)
            self.network.settle()
            self.say("settled")
            hub.end()
        lines = [*self.lines, *self._written()]
        broken = [one for one in check(lines) if not (self.jumped and one.rule == "stamps_rise")]
        broken += [Broken("table_is_fold", how) for how in self._tables[:1]]
        broken += [Broken("no_error", error) for error in hub.errors]
        return Result(
            *(hub.seed, broken, hub.order.hexdigest(), lines),
            requests=self.network.requests,
            faults=sum(isinstance(step, Fault) for _, step in self._steps) + self.network.faults,
            seconds=hub.now - BEGIN,
        )

    def _is_over(self) -> bool:
        """Tell whether every call has ended, and nothing is left in etcd that is to go."""
        begun = {
            line.call
            for line in self.lines
            if line.what == "acquire" and not self.processes[line.process].dead
        }
        ended = {line.call for line in self.lines if line.what in ("acquired", "missed")}
        ours = (b"/locks/a/", b"/locks/b/", b"/queue/")
        left = any(part in key for key in self.etcd.kept for part in ours)
        return not left and not self.network.under_way and begun <= ended

    def say(self, what: str, process: str = "", **more: Any) -> None:
        """Write a line of the harness's."""
        self.lines.append(Line(self.hub.now, process, what, **more))

    def _written(self) -> list[Line]:
        return [
            Line(
                *(write.at, "etcd", "written"),
                revision=write.revision,
                key=write.key.decode(),
                value=None if write.value is None else write.value.decode(),
                lease=write.lease,
            )
            for write in self.etcd.past
        ]

    # ------------------------------------------------------------ processes

    def _begin_all(self) -> None:
        works: dict[str, list[tuple[int, Work]]] = {}
        for number, step in self._steps:
            if isinstance(step, Work):
                works.setdefault(step.process, []).append((number, step))
        for name, theirs in works.items():
            process = self._new_process(name)
            with self.hub.of(process):
                self._stores[name] = EtcdStore(self._location)
                self._begin_clients(self._stores[name], theirs)
        for name in UNLOCKERS:
            with self.hub.of(self._new_process(name)):
                Thread(target=self._run_unlocker, name="main").start()

    def _new_process(self, name: str) -> Process:
        return new_process(self.hub, name)

    def _begin_clients(self, store: EtcdStore, works: list[tuple[int, Work]]) -> None:
        clients = [(work, Client(work, number, store, self.lines.append)) for number, work in works]
        if works[0][1].kind == "asyncio":
            on_loop = [(work.at, client) for work, client in clients]
            Thread(target=partial(run_loop, on_loop), name="loop").start()
            return
        process = self.hub.process

        def start(client: Client) -> None:
            if not process.is_ending:
                Thread(target=client.run_in_thread, name="worker").start()

        for work, client in clients:
            self.hub.at(BEGIN + work.at, partial(start, client), process)

    def _run_unlocker(self) -> None:
        service = Unlocker(EtcdStore(self._location), max_removals=MAX_REMOVALS)
        service.start()
        while True:
            self.hub.wait(1.0)
            service.supervise()
            self._compare(service._table)

    def _compare(self, table: Table) -> None:
        """Hold a table against the fold over all events at its revision."""
        if not table.ready() or table.loading():
            return
        with table._lock:  # or it is in the middle of a step
            revision, rows = table.revision, dict(table._contents.rows)
        shown = {name: row.holder.uuid for name, row in rows.items() if row.held}
        prefix, there = f"{ROOT}/locks/".encode(), self.etcd.at_revision(revision)
        held = {
            key.split(b"/")[3].decode(): (kv.value or b"").decode()
            for key, kv in there.items()
            if key.startswith(prefix) and key.endswith(b"/uuid")
        }
        if shown != held:
            self._tables.append(f"at revision {revision} a table shows {shown}, there is {held}")

    # ------------------------------------------------------------ what goes wrong

    def _strike(self, number: int, fault: Fault) -> None:
        self.hub.happened("fault", number)
        getattr(self, fault.what)(fault)

    def _trouble(self, process: Process) -> tuple[float, float, float]:
        much = [0.0, 0.0, 0.0]
        for name, kind, until, part in self._troubles:
            if name == process.name and self.hub.now < until:
                much[kind] = max(much[kind], part)
        return much[0], much[1], much[2]

    def _have_trouble(self, fault: Fault, kind: int) -> None:
        self._troubles.append((fault.on, kind, self.hub.now + fault.seconds, fault.much))
        self.say("trouble", fault.on, seconds=fault.seconds)

    def lose_requests(self, fault: Fault) -> None:
        """Let some never arrive."""
        self._have_trouble(fault, 0)

    def lose_answers(self, fault: Fault) -> None:
        """Let some arrive, and their answers not."""
        self._have_trouble(fault, 1)

    def delay_requests(self, fault: Fault) -> None:
        """Let some arrive long after their senders have given up."""
        self._have_trouble(fault, 2)

    def cut_off(self, fault: Fault) -> None:
        """Cut a process off."""
        if (process := self.processes.get(fault.on)) is not None:
            process.cut_off_until = self.hub.now + fault.seconds
            self.say("trouble", fault.on, seconds=fault.seconds)

    def freeze_process(self, fault: Fault) -> None:
        """Stop a process where it stands, and let it go on."""
        if (process := self.processes.get(fault.on)) is not None:
            process.frozen_until = self.hub.now + fault.seconds
            self.say("frozen", fault.on, seconds=fault.seconds)

    def kill_process(self, fault: Fault) -> None:
        """End a process where it stands."""
        if (process := self.processes.get(fault.on)) is not None and not process.dead:
            process.dead = True
            self.network.hang_up(process)
            self.say("killed", fault.on)

    def end_process(self, fault: Fault) -> None:
        """End a process normally, while its threads and tasks go on."""
        process = self.processes.get(fault.on)
        if process is None or process.dead or process.is_ending:
            return
        with self.hub.of(process):
            thread = Thread(target=partial(self._end, process, fault), name="main")
            if fault.much < 0.3:
                self.network.at_claim[process.name] = thread.start
            elif fault.much < 0.7:
                self.network.at_request[process.name] = thread.start
            else:
                thread.start()

    def _end(self, process: Process, fault: Fault) -> None:
        choose = Random(fault.much)
        work = Work(process.name, "threads", 0.0, choose.choice(LOCKS), 1, 1.0, 3.0)
        number = choose.randrange(10_000, 20_000)  # not that of a step of the plan
        client = Client(work, number, self._stores[process.name], self.lines.append)
        client.is_at_exit = True
        uses_locks = choose.random() < 0.5

        def program() -> None:
            self.say("marked", process.name)
            if uses_locks:
                client.run_in_thread()

        starts_threads = choose.random() < 0.6
        self.say("ending", process.name, key="" if starts_threads else WITHOUT_THREADS)
        seconds = end(process, program, starts_threads=starts_threads)
        self.say("ended", process.name, seconds=seconds)
        process.dead = True
        self.network.hang_up(process)

    def freeze_member(self, fault: Fault) -> None:
        """Have a member do nothing, and then all that it was asked meanwhile."""
        self.network.members[fault.on].frozen_until = self.hub.now + fault.seconds
        self.say("trouble", seconds=fault.seconds)

    def stop_member(self, fault: Fault) -> None:
        """End a member, and start it again."""
        self.network.members[fault.on].down_until = self.hub.now + fault.seconds
        self.say("trouble", seconds=fault.seconds)
        self.etcd.elect()

    def lose_leader(self, fault: Fault) -> None:
        """Leave a member without a leader, and then let there be a new one."""
        self.network.members[fault.on].without_leader_until = self.hub.now + fault.seconds
        self.say("trouble", seconds=fault.seconds)
        self.hub.at(self.hub.now + fault.seconds, self.etcd.elect)

    def lag_behind(self, fault: Fault) -> None:
        """Let a member's watches tell late."""
        self.network.members[fault.on].behind_until = self.hub.now + fault.seconds
        self.say("trouble", seconds=fault.seconds)

    def compact(self, fault: Fault) -> None:
        """Forget the past again and again."""
        self.say("trouble", seconds=fault.seconds)
        until = self.hub.now + fault.seconds

        def forget() -> None:
            self.etcd.compact()
            if self.hub.now < until:
                self.hub.at(self.hub.now + 0.2, forget)

        forget()

    def fill_up(self, fault: Fault) -> None:
        """Leave no space for a while."""
        self.etcd.full = True
        self.say("full", seconds=fault.seconds)
        self.say("trouble", seconds=fault.seconds)
        self.hub.at(self.hub.now + fault.seconds, lambda: setattr(self.etcd, "full", False))

    def jump_clock(self, fault: Fault) -> None:
        """Set a process's wall clock wrong."""
        if (process := self.processes.get(fault.on)) is not None:
            process.wall_ahead += (fault.much - 0.5) * 7200
            self.jumped = True

    def outage(self, fault: Fault) -> None:
        """Part the waiters of a process from etcd, by a fault of that process or of all members."""
        waiters = next((step for _, step in self._steps if isinstance(step, Work)), None)
        if waiters is None:
            return
        self.say("outage", waiters.process, lock=waiters.lock, seconds=fault.seconds)
        for on in MEMBERS if fault.on.endswith("_member") else (waiters.process,):
            getattr(self, fault.on)(replace(fault, on=on))
        if fault.on == "stop_member":
            self.etcd.has_leader = False
            self.hub.at(self.hub.now + fault.seconds, self.etcd.elect)

    # ------------------------------------------------------------ who else is there

    def barge_in(self, fault: Fault) -> None:
        """Have a client that knows no line take a lock, and give it back."""
        uuid = self._take_foreign(fault.on, max(8.0, 2 * fault.seconds))
        prefix = f"{ROOT}/locks/{fault.on}/".encode()
        give = wire.Txn()
        give.compare.add(target=wire.Compare.VALUE, key=prefix + b"uuid", value=uuid.encode())
        give.success.add().delete.CopyFrom(wire.Delete(key=prefix, range_end=prefix[:-1] + b"0"))
        self.hub.at(self.hub.now + fault.seconds, partial(self._write, give))

    def leave_many(self, _fault: Fault) -> None:
        """Have more locks abandoned at once than may be removed in a minute."""
        for number in range(2 * MAX_REMOVALS):
            self._take_foreign(f"abandoned-{number}")

    def _take_foreign(self, lock: str, auto_unlock: float = 8.0) -> str:
        uuid, prefix = f"foreign-{self._barged}", f"{ROOT}/locks/{lock}/".encode()
        self._barged += 1
        take = wire.Txn()
        take.compare.add(target=wire.Compare.VERSION, key=prefix + b"uuid", version=0)
        wall = 1_700_000_000.0 + self.hub.now - BEGIN
        times = {"expected_runtime": auto_unlock / 2, "auto_unlock_after": auto_unlock}
        about = {**times, "locked_at": wall}
        said = {
            "uuid": uuid,
            "hostname": "elsewhere",
            "alert_at": f"{wall + auto_unlock / 2:.3f}",
            "auto_unlock_at": f"{wall + auto_unlock:.3f}",
            "about": json.dumps(about),
        }
        for part, value in said.items():
            take.success.add().put.CopyFrom(
                wire.Put(key=prefix + part.encode(), value=value.encode())
            )
        self._write(take)
        return uuid

    def push_by_hand(self, fault: Fault) -> None:
        """Have a person move both stamps of a lock, now and then."""
        prefix, until = f"{ROOT}/locks/{fault.on}/".encode(), self.hub.now + fault.seconds
        self.jumped = True

        def push() -> None:
            txn = wire.Txn()
            for part in (b"alert_at", b"auto_unlock_at"):
                stamp = self.etcd.kept.get(prefix + part)
                if stamp is None or stamp.value is None:
                    continue
                value = f"{float(stamp.value) + 1:.3f}".encode()
                txn.success.add().put.CopyFrom(wire.Put(key=prefix + part, value=value))
            self._write(txn)
            if self.hub.now < until:
                self.hub.at(self.hub.now + 0.3, push)

        push()

    def _write(self, txn: Any) -> None:
        if not self.etcd.full:
            self.network.settle()
            self.etcd.txn(txn)
            self.network.publish()

    def force_unlock(self, fault: Fault) -> None:
        """Have a person remove a lock."""
        process = self.processes.get("person") or self._new_process("person")

        def remove() -> None:
            store = EtcdStore(self._location)
            seen = store.ask(Read(fault.on), Deadline.after(2))
            if isinstance(seen, ReadResult) and seen.holder is not None:
                why = (self.hub.wall(), "ann", FORCE_UNLOCK, "It hangs.")
                store.ask(Remove(Removal(seen.holder, *why), None), Deadline.after(2))

        def try_it() -> None:
            try:
                remove()
            except Exception as error:  # noqa: BLE001 - a person tries once
                self.hub.happened("person", type(error).__name__)

        with self.hub.of(process):
            Thread(target=try_it, name="person").start()


def run(seed: int, kept: Sequence[int] | None = None) -> Result:
    """Run the plan of a seed, or a part of its steps."""
    steps = list(enumerate(make(seed)))
    if kept is not None:
        steps = [steps[number] for number in kept]
    return World(seed, steps).run()
