"""Holders are parsed from hostile data; a written holder is read back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.errors import InvalidLockName
from lockclient.model.clocks import MAX_DURATION_S, MAX_STAMP, Runtime
from lockclient.model.fields import ABOUT
from lockclient.model.holder import (
    ALERT,
    BROKEN,
    FACTS,
    MAX_VALUE_BYTES,
    OK,
    OVERDUE,
    STAMPS,
    STATES,
    SUBKEYS,
    UNDECIDED,
    Found,
    Holder,
)
from lockclient.model.lock_name import check_name
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from tests.support.records import found, written

ABOUT_FACTS = [fact.name for fact in FACTS if fact.place == ABOUT]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
stamps = st.integers(0, MAX_STAMP).map(float)
seconds = st.floats(0, MAX_DURATION_S, exclude_min=True)
holders = st.builds(
    Holder,
    st.just("x"),
    uuid=texts.filter(bool),
    hostname=texts,
    pid=st.none() | st.integers(0, 2**22),
    thread=st.none() | texts,
    identity=st.none() | texts,
    process=st.none() | texts,
    reason=st.none() | texts,
    locked_at=st.none() | stamps,
    alert_at=stamps,
    auto_unlock_at=st.none() | stamps,
    expected_runtime=st.none() | seconds,
    auto_unlock_after=st.none() | seconds,
    format=st.none() | st.integers(0, 2**22),
    backtrace=st.none() | texts,
    client=st.none() | texts,
)
revisions = st.integers(1, 2**37)
values = (
    st.binary(max_size=60)
    | texts.map(str.encode)
    | st.sampled_from([b"", b"\xff\xfe", b"9" * 5000, b"-1", b"nan", b"1e5", "١".encode()])
    | st.just(b"0" * (MAX_VALUE_BYTES + 1))
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800 lone"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
json_facts = st.dictionaries(
    st.sampled_from(["hostname", "pid", "thread", "reason", "since", "why", "how", *STAMPS]),
    json_values,
)


# Few of each, so that what has a meaning together comes together often.
steps = st.dictionaries(
    st.sampled_from(["uuid", "about", *STAMPS, "hostname", "new"]),
    st.sampled_from([None, b"7", b"", b'{"auto_unlock_after": 60, "format": 2}']),
    min_size=1,
)


def timed() -> Holder:
    """A lock whose holder was last heard of at 1000: an alert after 30 s, removed after 60."""
    return Holder(
        *("x", "u", "h"),
        alert_at=1030.0,
        auto_unlock_at=1060.0,
        expected_runtime=30.0,
        auto_unlock_after=60.0,
    )


def printable(text: object) -> None:
    """Check that a text can be written to a terminal, a log and a page."""
    str(text).encode()


abouts = (
    st.dictionaries(st.sampled_from([*ABOUT_FACTS, "new"]), json_values)
    .map(json.dumps)
    .map(str.encode)
)
hostile = st.dictionaries(st.sampled_from(SUBKEYS) | texts, st.tuples(values | abouts, revisions))
SOUND = {"uuid": b"u", "hostname": b"h", "alert_at": b"5"}
AUTO = b'{"expected_runtime": 30, "auto_unlock_after": 60}'


NO_OBJECTS = [
    *(b"", b"\xff", b"[]", b"[" * 60_000, b'{"locked_at": NaN}', b'{"new": -Infinity}'),
    # What only a lenient reader takes: readers in other languages must judge the lock alike.
    *('{"pid": 1}'.encode("utf-16"), '{"pid": 1}'.encode("utf-32-le")),
    *(b'\xef\xbb\xbf{"pid": 1}', b'{"reason": "\xed\xa0\x80"}'),
    # Readers differ in which of two members of one name they take.
    *(b'{"format": 2, "format": 1}', b'{"labels": {"a": "b", "a": "c"}}'),
]


class TestHolder:
    @given(holders, revisions)
    def test_a_written_holder_is_read_back(self, holder: Holder, revision: int) -> None:
        stamped = (revision, 0 if holder.auto_unlock_at is None else revision)
        assert written(holder, revision) == replace(
            holder, fencing_token=revision, stamp_revisions=stamped
        )
        assert written(holder).faults() == ()
        assert not written(holder).broken()

    @given(hostile)
    def test_no_bytes_make_holder_read_raise(self, values: dict[str, Found]) -> None:
        holder = Holder.read("x", values)
        assert holder.state(1e9) in STATES
        assert holder.broken() == bool(holder.faults()) == (holder.state(1e9) == BROKEN)
        for shown in (holder.describe(), holder.faults(), json.dumps(holder.facts()), repr(holder)):
            printable(shown)
        printable(holder.undecided())
        for stamp in STAMPS:
            value = getattr(holder, stamp)
            assert value is None or 0 <= value <= MAX_STAMP
        for after in (holder.expected_runtime, holder.auto_unlock_after):
            assert after is None or 0 < after <= MAX_DURATION_S

    @pytest.mark.parametrize(
        ("key", "value", "problem"),
        [
            ("uuid", b"", "is empty"),
            ("uuid", b"\xff", "is not UTF-8"),
            ("hostname", b"\xc3\x28", "is not UTF-8"),
            ("hostname", b"x" * (MAX_VALUE_BYTES + 1), f"has {MAX_VALUE_BYTES + 1} bytes"),
            ("alert_at", b"soon", "no decimal number"),
            ("auto_unlock_at", b"99999999999999", "after the year 9999"),
            ("about", b"x" * (MAX_VALUE_BYTES + 1), f"has {MAX_VALUE_BYTES + 1} bytes"),
            *(("about", value, "is no JSON object") for value in NO_OBJECTS),
            *(
                ("about", b'{"pid": %b}' % value, "pid is not a whole number")
                for value in (b'"7"', b"true", b"1.5", b"4711.5", b"1" * 20)
            ),
            *(
                ("about", b'{"auto_unlock_after": %b}' % value, "auto_unlock_after is not seconds")
                for value in (b"0", b"-1", b"1e300")
            ),
            ("about", b'{"reason": 5}', "reason is not a text"),
            ("about", b'{"locked_at": "5"}', "locked_at is not Unix seconds"),
            ("about", b'{"expected_runtime": "60"}', "expected_runtime is not seconds"),
            ("about", b'{"format": "2"}', "format is not a whole number"),
            ("about", b'{"pid": -1, "format": 1.5}', "pid is not a whole number; format is not"),
        ],
    )
    def test_a_bad_value_is_named(self, key: str, value: bytes, problem: str) -> None:
        """The lock is broken, and says which value is why."""
        holder = Holder.read("x", found({**SOUND, key: value}))
        assert holder.state(0) == BROKEN
        (fault,) = (fault for fault in holder.faults() if problem in fault)
        assert fault.startswith(f"{key}: ")
        mended = holder.updated(found({"about": None, **SOUND, "auto_unlock_at": b"1"}, 6))
        assert not mended.broken()

    @pytest.mark.parametrize("missing", ["uuid", "hostname", "alert_at"])
    def test_a_missing_fact_is_named(self, missing: str) -> None:
        """Nobody knows who, where or when: broken."""
        holder = Holder("x").updated(found({**SOUND, missing: None}))
        assert holder.faults() == (f"{missing}: is missing",)
        assert holder.broken()

    def test_unknown_keys_are_ignored(self) -> None:
        values = {**SOUND, "new": b"1", "problems": b"x", "name": b"y", "fencing_token": b"7"}
        about = b'{"new": 1, "problems": 1, "name": "y", "fencing_token": 7, "uuid": "y"}'
        holder = Holder.read("x", found({**values, "about": about, "pid": b"7"}))
        assert holder == Holder.read("x", found({**SOUND, "about": b"{}"}))
        assert (holder.name, holder.uuid, holder.fencing_token) == ("x", "u", 5)
        assert not holder.broken()

    def test_a_null_is_as_good_as_missing(self) -> None:
        said = json.dumps(dict.fromkeys(ABOUT_FACTS))
        holder = Holder.read("x", found({**SOUND, "about": said}))
        assert holder == Holder.read("x", found(SOUND))

    def test_its_state_follows_its_stamps(self) -> None:
        """Past the alert only after it, overdue only after that, never without an end."""
        holder = replace(timed(), alert_at=200.0, auto_unlock_at=230.0)
        assert [holder.state(at) for at in (200, 200.1, 230, 230.1)] == [OK, ALERT, ALERT, OVERDUE]
        never = replace(holder, auto_unlock_at=None, auto_unlock_after=None)
        assert never.state(1e9) == ALERT

    def test_the_last_heartbeat_follows_from_the_stamps(self) -> None:
        holder = timed()
        assert holder.alive_at == 1000.0
        assert replace(holder, stamp_revisions=(6, 5)).alive_at is None  # one was moved alone
        assert replace(holder, auto_unlock_at=None).alive_at == 1000.0
        assert replace(holder, auto_unlock_after=None, alert_at=1100.0).alive_at == 1070.0
        assert Holder.read("x", found(SOUND)).alive_at is None

    def test_describe_names_the_process_the_reason_and_the_age(self) -> None:
        holder = Holder("x", "u", hostname="web-1", pid=7, reason="job", locked_at=0.0)
        assert holder.describe() == "web-1, pid 7, for 'job', since 1970-01-01 00:00:00 UTC"
        assert Holder("x").describe() == "an unknown host, pid unknown, since an unknown time"


class TestUndecided:
    @given(wall=st.floats(0, 4e9), runtime=seconds, more=st.floats(0.001, MAX_DURATION_S))
    def test_no_lock_of_ours_is(self, wall: float, runtime: float, more: float) -> None:
        longer = min(runtime + more, MAX_DURATION_S)
        how = Runtime(runtime, longer if runtime < MAX_DURATION_S else None)
        mine = replace(timed(), expected_runtime=how.expected, auto_unlock_after=how.auto_unlock)
        assert written(mine.stamped(how.stamps(wall))).undecided() == ""

    @pytest.mark.parametrize(
        ("facts", "why"),
        [
            ({"auto_unlock_at": None}, "but not when it is to be auto-unlocked"),
            ({"auto_unlock_after": None}, "but does not say how long it may be silent"),
            ({"format": 2}, "its format 2 is newer than the one known here, 1"),
            ({"format": 3, "auto_unlock_at": None, "auto_unlock_after": None}, "its format 3"),
        ],
    )
    def test_undecided_locks_say_why(self, facts: dict[str, Any], why: str) -> None:
        holder = written(replace(timed(), **facts))
        assert why in holder.undecided()
        assert not holder.broken()
        assert holder.state(1000) == UNDECIDED
        assert holder.state(9000) == UNDECIDED

    @pytest.mark.parametrize(
        "values",
        [SOUND, {**SOUND, "about": b"{}"}, {**SOUND, "about": b'{"format": 1}'}],
        ids=["four keys", "an empty about", "the known format"],
    )
    def test_a_holder_without_an_end_is_decided(self, values: dict[str, bytes]) -> None:
        holder = Holder.read("x", found(values))
        assert holder.undecided() == ""
        assert holder.state(9000) == ALERT

    @pytest.mark.parametrize(
        ("auto_unlock_at", "state", "why"),
        [(b"3000", OVERDUE, ""), (b"0", UNDECIDED, "no later than alerted on")],
    )
    def test_four_keys_are_decided_by_the_order_of_their_stamps(
        self, auto_unlock_at: bytes, state: str, why: str
    ) -> None:
        holder = Holder.read("x", found({**SOUND, "auto_unlock_at": auto_unlock_at}))
        assert holder.faults() == ()
        assert holder.state(9000) == state
        assert why in holder.undecided()
        assert bool(why) == bool(holder.undecided())

    def test_without_an_expected_runtime_nothing_contradicts(self) -> None:
        """Five plain keys need say no more than how long their holder may be silent."""
        about = b'{"auto_unlock_after": 60}'
        holder = Holder.read("x", found({**SOUND, "auto_unlock_at": b"60", "about": about}))
        assert holder.undecided() == ""
        assert holder.state(61) == OVERDUE


class TestLeftovers:
    @pytest.mark.parametrize("key", ["alert_at", "auto_unlock_at", "about"])
    def test_values_older_than_the_uuid_are_ignored(self, key: str) -> None:
        for value in (b"7", b"{}", b"\xff"):
            new = found({**SOUND, "uuid": b"u"}, 9)
            without = {part: at for part, at in new.items() if part != key}
            holder = Holder.read("x", {**without, key: (value, 8)})
            assert holder == Holder.read("x", without)

    def test_a_whole_number_may_be_written_as_a_float(self) -> None:
        """Some languages have no other numbers."""
        assert Holder.read("x", found({**SOUND, "about": b'{"pid": 4711.0}'})).pid == 4711

    @pytest.mark.parametrize("uuid", [b"", b"\xff", b"u" * (MAX_VALUE_BYTES + 1)])
    def test_an_unreadable_uuid_still_names_one_holder(self, uuid: bytes) -> None:
        holder = Holder.read("x", found({**SOUND, "uuid": uuid}, 5))
        assert (holder.uuid, holder.broken()) == ("unreadable-5", True)
        assert holder.updated(found({"uuid": uuid}, 6)).uuid == "unreadable-6"
        assert holder.updated(found({"uuid": b"v"}, 6)).uuid == "v"

    def test_a_younger_stamp_is_a_push(self) -> None:
        holder = Holder.read("x", {**found(SOUND), **found({"alert_at": b"77"}, 6)})
        assert (holder.alert_at, holder.stamp_revisions, holder.broken()) == (77.0, (6, 0), False)

    def test_a_younger_about_makes_the_lock_broken(self) -> None:
        holder = Holder.read("x", {**found(SOUND), **found({"about": AUTO}, 6)})
        assert holder.faults() == ("about: was written after uuid, so by somebody else",)
        assert (holder.auto_unlock_after, holder.broken()) == (None, True)
        assert not holder.updated(found({"about": None}, 7)).broken()

    def test_a_rewritten_uuid_discards_older_values(self) -> None:
        holder = Holder.read("x", found({**SOUND, "auto_unlock_at": b"60", "about": AUTO}))
        again = holder.updated(found({"uuid": b"u"}, 6))
        assert again.faults() == ("alert_at: is missing",)
        assert (again.auto_unlock_at, again.auto_unlock_after) == (None, None)
        assert (again.fencing_token, again.stamp_revisions) == (6, (0, 0))

    def test_values_without_a_uuid_belong_to_no_holder(self) -> None:
        whole = found({**SOUND, "auto_unlock_at": b"60", "about": AUTO})
        left = {key: at for key, at in whole.items() if key != "uuid"}
        for holder in (
            Holder.read("x", left),
            Holder.read("x", whole).updated(found({"uuid": None}, 6)),
            Holder.read("x", whole).updated(found(dict.fromkeys(whole), 6)).updated(left),
        ):
            assert holder == Holder("x", hostname="h")
            assert holder.faults() == ("uuid: is missing",)

    @given(st.data())
    def test_a_followed_holder_equals_a_read_holder(self, data: st.DataObject) -> None:
        followed, standing = Holder("x"), dict[str, Found]()
        for revision, step in enumerate(data.draw(st.lists(steps, min_size=2)), 1):
            changes = {
                key: (value, revision)
                for key, value in step.items()
                if value is not None or key in standing
            }
            followed = followed.updated(changes)
            standing |= changes
            standing = {key: at for key, at in standing.items() if at[0] is not None}
            assert followed == Holder.read("x", standing)


class TestTicketsAndRemovals:
    def test_a_written_ticket_is_read_back(self) -> None:
        ticket = Ticket("x", "u", "h", 7, "main", "why ✓", 5.5, 9)
        assert Ticket.read("x", "u", ticket.value().encode(), 9) == ticket

    @given(holders, texts, texts, texts, stamps)
    def test_a_written_removal_is_read_back(
        self, holder: Holder, by: str, how: str, why: str, removed_at: float
    ) -> None:
        removal = Removal(written(holder), removed_at, by, how, why)
        other = Removal.read("x", holder.uuid or "", removal.value().encode())
        kept = replace(removal.holder, process=None, stamp_revisions=(0, 0))
        assert other == replace(removal, holder=kept)

    def test_a_removal_keeps_a_token_up_to_two_to_the_53(self) -> None:
        for token, kept in ((2**53 - 1, 2**53 - 1), (2**53, 0)):
            value = json.dumps({"fencing_token": token}).encode()
            assert Removal.read("x", "u", value).holder.fencing_token == kept

    @given(st.binary(max_size=80) | (json_values | json_facts).map(json.dumps).map(str.encode))
    def test_no_value_makes_ticket_or_removal_read_raise(self, value: bytes) -> None:
        ticket = Ticket.read("x", "u", value, 9)
        removal = Removal.read("x", "u", value)
        for shown in (ticket, ticket.facts(), removal.describe(), removal.facts()):
            printable(shown)
        assert ticket.pid is None or ticket.pid >= 0
        assert isinstance(removal.holder.fencing_token, int)

    @pytest.mark.parametrize(
        "value", [b"", b"[]", b"1", b"{", b"[" * 100_000, b"\xff", b"9" * 5000]
    )
    def test_a_value_that_is_no_json_object_is_read_as_empty(self, value: bytes) -> None:
        assert Ticket.read("x", "u", value, 9) == Ticket("x", "u", revision=9)
        assert Removal.read("x", "u", value).describe() == ("removal by unknown at an unknown time")

    @pytest.mark.parametrize(
        "facts",
        [
            {"pid": True, "since": True},
            {"pid": 1.5, "since": "5"},
            {"pid": -1, "since": -1},
            {"pid": 10**30, "since": 1e300},
            {"hostname": 5, "thread": None, "reason": ["x"]},
        ],
    )
    def test_another_kind_is_as_good_as_missing(self, facts: dict[str, object]) -> None:
        """A boolean is no number, and neither is one that no clock or kernel could give."""
        assert Ticket.read("x", "u", json.dumps(facts).encode(), 9) == Ticket("x", "u", revision=9)

    def test_nan_is_read_as_none(self) -> None:
        ticket = Ticket.read("x", "u", b'{"since": NaN, "pid": Infinity}', 9)
        assert (ticket.since, ticket.pid) == (None, None)


class TestNames:
    @pytest.mark.parametrize(
        "name",
        ["x", "a" * 255, "é" * 127, "🔒" * 63, "a/b", "%", "..", " ", "<b>", "\u2028", "a\u00a0b"],
    )
    def test_any_text_of_1_to_255_bytes_is_a_lock_name(self, name: str) -> None:
        assert check_name(name) == name

    @pytest.mark.parametrize("name", ["", "a" * 256, "é" * 128, "🔒" * 64])
    def test_bytes_are_counted(self, name: str) -> None:
        """The text says how many there are."""
        with pytest.raises(InvalidLockName, match=f"this one has {len(name.encode())}") as caught:
            check_name(name)
        assert caught.value.name == name

    @pytest.mark.parametrize("char", "\0\n\t\x1f\x7f\x80\x9f\ud800\udcff")
    def test_control_characters_and_lone_surrogates_are_refused(self, char: str) -> None:
        """They would spoil terminals and logs, or are no text; the message can be printed."""
        with pytest.raises(InvalidLockName, match=r"control characters|surrogate") as caught:
            check_name(f"a{char}b")
        assert char not in str(caught.value)
        printable(caught.value)

    @pytest.mark.parametrize("name", [None, 5, b"x", ["x"]])
    def test_only_a_text_is_a_name(self, name: object) -> None:
        """Anything else says what it is."""
        with pytest.raises(InvalidLockName, match=f"not {type(name).__name__}"):
            check_name(name)

    @given(st.text(st.characters(), max_size=300))
    def test_a_text_is_a_name_or_refused(self, name: str) -> None:
        """Never another error, and what is taken fits its promise."""
        try:
            check_name(name)
        except InvalidLockName as error:
            printable(error)
        else:
            assert 1 <= len(name.encode()) <= 255
