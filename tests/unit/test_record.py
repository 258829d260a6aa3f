"""What is read from the store is hostile until parsed; what was written is read again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.errors import InvalidLockName
from lockclient.record import (
    ALERT,
    BROKEN,
    MAX_VALUE,
    OK,
    OVERDUE,
    STAMPS,
    STATES,
    SUBKEYS,
    Holder,
    Removal,
    Ticket,
    check_name,
)
from lockclient.timing import LATEST, Stamps

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
stamps = st.integers(0, LATEST).map(float)
holders = st.builds(
    Holder,
    st.just("x"),
    uuid=texts.filter(bool),
    hostname=texts,
    pid=st.integers(0, 2**22),
    thread=st.none() | texts,
    identity=st.none() | texts,
    process=st.none() | texts,
    reason=st.none() | texts,
    locked_at=st.none() | stamps,
    alive_at=st.none() | stamps,
    alert_at=stamps,
    auto_unlock_at=st.none() | stamps,
    backtrace=st.none() | texts,
    client=st.none() | texts,
    fencing_token=st.integers(0, 2**37),
)
hostile = st.dictionaries(
    st.sampled_from(SUBKEYS) | texts,
    st.binary(max_size=60)
    | texts.map(str.encode)
    | st.sampled_from(
        [b"", b"\xff\xfe", b"9" * 5000, b"-1", b"nan", b"1e5", "١".encode(), b"0" * (MAX_VALUE + 1)]
    ),
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


def printable(text: object) -> None:
    """Whatever can be shown can be written to a terminal, a log and a page."""
    str(text).encode()


class TestHolder:
    @given(holders)
    def test_what_was_written_is_read(self, holder: Holder) -> None:
        """Through the store and back: the same holder, and nothing wrong with it."""
        values = {key: text.encode() for key, text in holder.subkeys().items()}
        assert Holder.read("x", values, holder.fencing_token) == holder
        assert holder.faults() == ()
        assert not holder.broken()

    @given(hostile)
    def test_whatever_bytes_never_raise(self, values: dict[str, bytes]) -> None:
        """It is read as far as it can be, shown, and called broken where it is."""
        holder = Holder.read("x", values, 5)
        assert holder.state(1e9) in STATES
        assert holder.broken() == bool(holder.faults()) == (holder.state(1e9) == BROKEN)
        for shown in (holder.describe(), holder.faults(), json.dumps(holder.facts()), repr(holder)):
            printable(shown)
        for stamp in STAMPS:
            value = getattr(holder, stamp)
            assert value is None or 0 <= value <= LATEST

    @pytest.mark.parametrize(
        ("key", "value", "problem"),
        [
            ("uuid", b"", "is empty"),
            ("uuid", b"\xff", "is not UTF-8"),
            ("pid", b"12a", "'12a' is no process id"),
            ("pid", b"-1", "is no process id"),
            ("pid", "٣".encode(), "is no process id"),
            ("pid", b"1" * 20, "is no process id"),
            ("alert_at", b"soon", "no decimal number"),
            ("auto_unlock_at", b"99999999999999", "after the year 9999"),
            ("reason", b"x" * (MAX_VALUE + 1), f"has {MAX_VALUE + 1} bytes"),
            ("reason", b"\xc3\x28", "is not UTF-8"),
        ],
    )
    def test_a_bad_value_is_named(self, key: str, value: bytes, problem: str) -> None:
        """The lock is broken, and says which value is why."""
        sound = {"uuid": b"u", "hostname": b"h", "alert_at": b"5"}
        holder = Holder.read("x", {**sound, key: value}, 5)
        assert holder.state(0) == BROKEN
        (fault,) = (each for each in holder.faults() if problem in each)
        assert fault.startswith(f"{key}: ")
        mended = holder.updated({key: sound.get(key, b"1")})
        assert not mended.broken()

    @pytest.mark.parametrize("missing", ["uuid", "hostname", "alert_at"])
    def test_a_missing_fact_is_named(self, missing: str) -> None:
        """Nobody knows who, where or when: broken."""
        sound: dict[str, bytes | None] = {"uuid": b"u", "hostname": b"h", "alert_at": b"5"}
        holder = Holder("x").updated({**sound, missing: None})
        assert holder.faults() == (f"{missing}: is missing",)
        assert holder.broken()

    def test_unknown_subkeys_are_ignored(self) -> None:
        """A newer client may write more than we know; it must not get at other fields, either."""
        values = {"uuid": b"u", "hostname": b"h", "alert_at": b"5", "new": b"1", "problems": b"x"}
        holder = Holder.read("x", {**values, "name": b"y", "fencing_token": b"7"}, 5)
        assert (holder.name, holder.fencing_token, holder.broken()) == ("x", 5, False)

    def test_its_state_follows_its_stamps(self) -> None:
        """Past the alert only after it, overdue only after that, never without an end."""
        holder = Holder("x", "u", hostname="h").stamped(Stamps(100.0, 200.0, 300.0))
        assert [holder.state(at) for at in (200, 200.1, 300, 300.1)] == [OK, ALERT, ALERT, OVERDUE]
        assert replace(holder, auto_unlock_at=None).state(1e9) == ALERT

    def test_it_says_who_it_is(self) -> None:
        """One line for people: host, process, what for, since when."""
        holder = Holder("x", "u", hostname="web-1", pid=7, reason="job", locked_at=0.0)
        assert holder.describe() == "web-1, pid 7, for 'job', since 1970-01-01 00:00:00 UTC"
        assert Holder("x").describe() == "an unknown host, pid unknown, since an unknown time"


class TestTicketsAndRemovals:
    def test_a_ticket_comes_back(self) -> None:
        """Its place is the store's, the rest is in its value."""
        ticket = Ticket("x", "u", "h", 7, "main", "why ✓", 5.5, 9)
        assert Ticket.read("x", "u", ticket.value().encode(), 9) == ticket

    @given(holders, texts, texts, texts, stamps)
    def test_a_removal_comes_back(
        self, holder: Holder, by: str, how: str, why: str, removed_at: float
    ) -> None:
        """Every fact of the removed holder is in the record, its fencing token, too."""
        removal = Removal(holder, removed_at, by, how, why)
        other = Removal.read("x", holder.uuid or "", removal.value().encode())
        assert other == replace(removal, holder=replace(holder, process=None))

    @given(st.binary(max_size=80) | (json_values | json_facts).map(json.dumps).map(str.encode))
    def test_whatever_value_never_raises(self, value: bytes) -> None:
        """What can't be read is None or empty; what was read can be shown."""
        ticket = Ticket.read("x", "u", value, 9)
        removal = Removal.read("x", "u", value)
        for shown in (ticket, ticket.facts(), removal.describe(), removal.facts()):
            printable(shown)
        assert ticket.pid is None or ticket.pid >= 0
        assert isinstance(removal.holder.fencing_token, int)

    @pytest.mark.parametrize(
        "value", [b"", b"[]", b"1", b"{", b"[" * 100_000, b"\xff", b"9" * 5000]
    )
    def test_no_object_is_an_empty_one(self, value: bytes) -> None:
        """A ticket has its place in line whatever its value says."""
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

    def test_not_a_number_is_none(self) -> None:
        """Python's JSON reads NaN and Infinity; nobody can count with them."""
        ticket = Ticket.read("x", "u", b'{"since": NaN, "pid": Infinity}', 9)
        assert (ticket.since, ticket.pid) == (None, None)


class TestNames:
    @pytest.mark.parametrize(
        "name",
        ["x", "a" * 255, "é" * 127, "🔒" * 63, "a/b", "%", "..", " ", "<b>", "\u2028", "a\u00a0b"],
    )
    def test_any_text_of_1_to_255_bytes_is_one(self, name: str) -> None:
        """Also with slashes, spaces, emoji: it is the keyspace that takes care of them."""
        assert check_name(name) == name

    @pytest.mark.parametrize("name", ["", "a" * 256, "é" * 128, "🔒" * 64])
    def test_bytes_are_counted(self, name: str) -> None:
        """The text says how many there are."""
        with pytest.raises(InvalidLockName, match=f"this one has {len(name.encode())}") as caught:
            check_name(name)
        assert caught.value.name == name

    @pytest.mark.parametrize("char", ["\0", "\n", "\t", "\x1f", "\x7f", "\x80", "\x9f"])
    def test_control_characters_are_refused(self, char: str) -> None:
        """They would spoil terminals and logs; the message shows them escaped."""
        with pytest.raises(InvalidLockName, match="control characters") as caught:
            check_name(f"a{char}b")
        assert char not in str(caught.value)

    @pytest.mark.parametrize("name", ["\ud800", "a\udcff"])
    def test_lone_surrogates_are_refused(self, name: str) -> None:
        """They are no text that UTF-8 could carry, and the message can be printed."""
        with pytest.raises(InvalidLockName, match="surrogate") as caught:
            check_name(name)
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
