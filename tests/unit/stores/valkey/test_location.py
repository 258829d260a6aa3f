"""URLs of Valkey and Redis, and the names and numbers of their keys."""

from __future__ import annotations

import pytest

from lockclient.model.holder import MOST_FENCING
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.valkey.keys import (
    KeyNames,
    drifted,
    holder_of,
    push_of,
    revision_of,
    token_of,
)
from lockclient.stores.valkey.location import ValkeyLocation


def test_a_url_names_servers_and_a_prefix() -> None:
    place = ValkeyLocation.of(
        "valkey://h1,h2:7000,[::1]:7001,[fe80::1]/a/b?expire=1&longest=60", {}
    )
    assert place.endpoints == ("h1:6379", "h2:7000", "[::1]:7001", "[fe80::1]:6379")
    assert (place.root, place.tls, place.expire, place.longest) == ("a/b", False, True, 60.0)
    assert place.majority == 3
    assert ValkeyLocation.of(place.url(), {}) == place
    for scheme in ("valkeys", "rediss", "valkey", "redis"):
        expected = ValkeyLocation(("h:6379",), tls=scheme in ("valkeys", "rediss"))
        assert ValkeyLocation.of(f"{scheme}://h", {}) == expected


def test_user_and_password_come_from_the_environment() -> None:
    place = ValkeyLocation.of("valkey://h", {"VALKEY_USER": "me", "VALKEY_PASSWORD": "secret"})
    assert (place.user, place.password) == ("me", "secret")
    assert "secret" not in repr(place)
    assert "me" not in place.url().replace("clustermutex", "")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("valkey://me:secret@h/x", "VALKEY_USER and VALKEY_PASSWORD"),
        ("valkey://h/x#y", "servers and a prefix, like valkey://"),
        ("valkey:///x", "must be host:port"),
        ("valkey://h:port/x", "must be host:port, like 127.0.0.1:6379"),
        ("valkey://h,h/x", "names a server twice"),
        ("valkey://h/a b", "The prefix"),
        ("valkey://h/x?db=0", "It says 'db'; it can say expire=1 and longest=SECONDS"),
        ("valkey://h/x?expire=yes", "expire must be 0 or 1"),
        ("valkey://h/x?longest=1h", "longest must be a whole number of seconds"),
        ("valkey://h/x?longest=0", "longest must be 1 s to 30 days"),
        (f"valkey://{','.join(f'h{i}' for i in range(16))}/x", "1 to 15 servers"),
    ],
)
def test_a_malformed_url_is_named(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("?", r"\?")) as caught:
        ValkeyLocation.of(url, {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["valkey", "redis", "valkeys", "rediss"])
@pytest.mark.parametrize("number", ["0", "12/"])
def test_a_number_is_no_prefix(scheme: str, number: str) -> None:
    """Other clients mean a database by that; it is said what to write instead."""
    with pytest.raises(ValueError, match="the number of a database") as caught:
        ValkeyLocation.of(f"{scheme}://127.0.0.1:6379/{number}", {})
    assert str(caught.value).endswith(f"like {scheme}://127.0.0.1:6379/clustermutex.")
    assert ValkeyLocation.of(f"{scheme}://127.0.0.1:6379/0/jobs", {}).root == "0/jobs"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"VALKEY_USER": "me"}, "without a password"),
        ({"VALKEY_CACERT": "/nowhere"}, "does not say TLS"),
        ({"VALKEY_CERT": "/nowhere"}, "does not say TLS"),
        ({"VALKEY_PASSWORD_FILE": "/nowhere"}, "can't be read: No such file"),
    ],
)
def test_a_malformed_variable_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ValkeyLocation.of("valkey://h", environ)


def test_a_malformed_etcd_endpoint_has_its_own_error() -> None:
    with pytest.raises(ValueError, match=r"The endpoint 'x' .* like 127\.0\.0\.1:2379"):
        EtcdLocation(("x",))


def test_a_server_s_clock_may_gain_a_hundredth() -> None:
    assert drifted(100.0) == pytest.approx(101.002)


def test_revisions_of_an_acquisition_grow_and_its_token_stays() -> None:
    assert 0 < token_of("a") != token_of("b")
    assert revision_of("a", 7) == token_of("a") + 7
    assert push_of(revision_of("a", 7)) == 7
    assert token_of("a") >= MOST_FENCING  # so that no list shows it as a fencing token


def test_a_partial_foreign_record_is_read() -> None:
    assert holder_of("x", {"hostname": b"h"}) is None
    found = holder_of("x", {"uuid": b"u", "push": b"-1e9", "alert_at": b"5.000"})
    assert found is not None
    assert (found.uuid, found.alert_at, found.stamp_revisions) == ("u", 5.0, (token_of("u"), 0))
    assert found.broken()


def test_names_never_meet() -> None:
    keys = KeyNames("r")
    assert len({keys.record("a/b", "c"), keys.record("a", "b/c"), keys.record("a%2Fb", "c")}) == 3
