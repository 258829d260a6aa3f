"""Names and keys: each name has its own keys, and a key is parsed back to its name."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockclient.errors import InvalidLockName
from lockclient.model.holder import MAX_UUID_BYTES, SUBKEYS
from lockclient.model.lock_name import check_name
from lockclient.stores.common.segments import decode, encode
from lockclient.stores.etcd.keys import KINDS, Keys

SPACE = Keys("/base")
ALIKE = [
    *("a", "A", "a ", " a", "a/", "a/b", "a%2Fb", "a%252Fb", "a+b", "a b", "a%20b", "..", ".", "~"),
    *("ü", "u\u0308", "%", "%%", "%25", "🔒", "a0", "a/uuid", "locks", "*", "a\u2028", "é" * 127),
]


def is_name(text: str) -> bool:
    try:
        return bool(check_name(text))
    except InvalidLockName:
        return False


names = st.text(min_size=1, max_size=60).filter(is_name) | st.sampled_from(ALIKE)


def spans(name: str) -> list[tuple[bytes, bytes]]:
    """Every range of keys that may belong to a lock."""
    keys = SPACE.keys_of(name)
    return [keys.lock, keys.queue, (keys.removed, keys.removed[:-1] + b"0")]


@settings(max_examples=50)
@given(names, names)
@example("a", "a/b")
@example("a", "a0")
@example("a%2Fb", "a/b")
def test_two_names_never_share_a_key(one: str, other: str) -> None:
    """Their ranges don't touch, whatever the names."""
    if one == other:
        return
    for first, end in spans(one):
        for start, stop in spans(other):
            assert end <= start or stop <= first


@given(names, st.sampled_from(SUBKEYS), names)
def test_a_key_is_parsed_back(name: str, part: str, uuid: str) -> None:
    keys = SPACE.keys_of(name)
    assert SPACE.parse(keys.subkey(part)) == ("locks", name, part)
    assert SPACE.parse(keys.ticket(uuid)) == ("queue", name, uuid)
    assert SPACE.parse(keys.removal(uuid)) == ("removed", name, uuid)
    assert SPACE.parse(keys.tombstone(uuid)) == ("withdrawn", name, uuid)
    assert SPACE.parse(SPACE.code("c0de")) == ("code", "c0de", "")
    assert SPACE.parse(SPACE.unlocker(name)) == ("unlockers", name, "")
    for (first, end), key in zip(
        spans(name), (keys.uuid, keys.ticket(uuid), keys.removal(uuid)), strict=True
    ):
        assert first < key < end


@pytest.mark.parametrize("kind", KINDS)
def test_the_range_of_a_kind_has_all_its_keys(kind: str) -> None:
    keys = SPACE.keys_of("🔒")
    whole = {
        "locks": keys.uuid,
        "queue": keys.ticket("u"),
        "removed": keys.removal("u"),
        "unlockers": SPACE.unlocker("u"),
        "withdrawn": keys.tombstone("u"),
        "code": SPACE.code("c0de"),
    }
    start, end = SPACE.kind(kind)  # type: ignore[arg-type]
    assert [name for name, key in whole.items() if start <= key < end] == [kind]
    assert all(SPACE.everything[0] <= key < SPACE.everything[1] for key in whole.values())


@pytest.mark.parametrize(
    "segment",
    ["", "a b", "a%2fb", "a%20b%", "%zz", "%FF", "%00", "%C3", "a+b/", "%61", "ü", "x" * 256],
)
def test_other_encodings_of_a_name_are_refused(segment: str) -> None:
    assert decode(segment) is None
    assert SPACE.parse(f"/base/locks/{segment}/uuid".encode()) is None


@pytest.mark.parametrize(
    "key", [b"", b"locks", b"else/a/b", b"restored/x", b"\xff/a", b"locks//uuid", b"x"]
)
def test_unknown_keys_below_the_root_are_ignored(key: bytes) -> None:
    assert SPACE.parse(b"/base/" + key) is None


@given(st.binary(max_size=60))
def test_any_key_is_parsed_or_ignored(rest: bytes) -> None:
    """Never an error, whatever bytes another program writes below the root."""
    for kind in (b"", b"locks/", b"queue/", b"removed/", b"unlockers/"):
        parsed = SPACE.parse(b"/base/" + kind + rest)
        assert parsed is None or parsed[0] in KINDS


@pytest.mark.parametrize("name", ALIKE)
def test_names_are_percent_encoded(name: str) -> None:
    assert encode(name) == quote(name, safe="")


@given(
    st.binary(max_size=12), st.sampled_from([b"", b"a", b"a/", b"a/uuid", b"a/new", b"a/about/"])
)
def test_skipped_ranges_hold_no_key_of_ours(rest: bytes, name: bytes) -> None:
    for folder in (b"/base/locks/", b"/base/queue/", b"/base/locks0", b"/base/"):
        key = folder + name + rest
        following = SPACE.following(key)
        assert following > key
        for part in SUBKEYS:
            for known in (b"/base/locks/a/", b"/base/locks/a0/", b"/base/locks/b/"):
                assert not key < known + part.encode() < following
        assert SPACE.parse(key + b"\0") is None or following == key + b"\0"


def test_an_unknown_subkey_is_followed_by_the_next_known_one() -> None:
    follows = {"a/about": "a/alert_at", "a/aaa": "a/about", "a/junk": "a/uuid", "a/uuid": "a0"}
    follows |= {"a/uuid/deeper": "a0", "a/zzz": "a0", "a%2Fb/zzz": "a%2Fb0"}
    for key, following in follows.items():
        assert SPACE.following(f"/base/locks/{key}".encode()) == f"/base/locks/{following}".encode()


def test_the_last_segment_of_a_key_is_bounded() -> None:
    most, locks = MAX_UUID_BYTES, MAX_UUID_BYTES // 4
    for kind in ("queue", "removed", "withdrawn", "code"):
        for part in ("u" * most, quote("🔒" * locks)):
            assert SPACE.parse(f"/base/{kind}/a/{part}".encode()) is not None
        for part in ("u" * (most + 1), "u" * 1_000_000, quote("🔒" * (locks + 1))):
            assert SPACE.parse(f"/base/{kind}/a/{part}".encode()) is None
