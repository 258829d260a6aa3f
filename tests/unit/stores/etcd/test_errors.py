"""Errors of etcd and gRPC: their meaning and their text."""

from __future__ import annotations

import grpc
import pytest

from lockclient.stores.common.network_errors import Cause, Reason
from lockclient.stores.etcd.errors import (
    ErrorKind,
    cause_of,
    diagnose,
    more_telling,
    refused,
    unavailable,
)
from lockclient.stores.etcd.location import EtcdLocation
from tests.simulation.members import Failed as Error

Code = grpc.StatusCode
REFUSED, NO_ANSWER = Cause.of(Reason.REFUSED), Cause.of(Reason.NO_ANSWER)
CONNECT = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
    "Failed to connect to remote host: connect: Connection refused (111)"
)
ISSUER = "unable to get local issuer certificate"
TLS = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Tls handshake "
    "failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
    f"CERTIFICATE_VERIFY_FAILED: {ISSUER}: OK"
)
MVCC = "etcdserver: mvcc:"
SYN_LOST = "Failed to connect to remote host: connect() timed out"
NO_SUCH_HOST = "DNS resolution failed for nowhere:2379: Domain name not found"


@pytest.mark.parametrize(
    ("code", "details", "fault"),
    [
        # The outcome is unknown, in its several faces.
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", ErrorKind.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: request timed out", ErrorKind.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: request timed out, possibly due to…", ErrorKind.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: leader changed", ErrorKind.UNKNOWN),
        (Code.UNAVAILABLE, "Socket closed", ErrorKind.UNKNOWN),
        (Code.UNKNOWN, "context deadline exceeded", ErrorKind.UNKNOWN),
        (Code.UNKNOWN, "context canceled", ErrorKind.UNKNOWN),
        (Code.UNKNOWN, "raft: stopped", ErrorKind.UNKNOWN),
        (Code.CANCELLED, None, ErrorKind.UNKNOWN),
        (Code.INTERNAL, "Received RST_STREAM with error code 2", ErrorKind.UNKNOWN),
        # It can't have happened.
        (Code.UNAVAILABLE, CONNECT, ErrorKind.NOT_EXECUTED),
        (Code.UNAVAILABLE, TLS, ErrorKind.NOT_EXECUTED),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", ErrorKind.NOT_EXECUTED),
        # By the state of one member; in each pair as up to etcd 3.5, and as from 3.6 on.
        *(
            (code, f"etcdserver: {text}", ErrorKind.NOT_EXECUTED)
            for text in ("rpc not supported for learner", "not capable")
            for code in (Code.UNAVAILABLE, Code.FAILED_PRECONDITION)
        ),
        # An alarm that all members obey.
        (Code.DATA_LOSS, "etcdserver: corrupt cluster", ErrorKind.REFUSED),
        # The same code for different things: the text decides.
        (Code.INVALID_ARGUMENT, "etcdserver: invalid auth token", ErrorKind.NEW_TOKEN),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", ErrorKind.NEW_TOKEN),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", ErrorKind.NEW_TOKEN),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", ErrorKind.NEW_TOKEN),
        (Code.UNKNOWN, "auth: revision in header is old", ErrorKind.NEW_TOKEN),
        (Code.OUT_OF_RANGE, f"{MVCC} required revision has been compacted", ErrorKind.COMPACTED),
        (Code.NOT_FOUND, "etcdserver: requested lease not found", ErrorKind.NO_LEASE),
        (Code.RESOURCE_EXHAUSTED, f"{MVCC} database space exceeded", ErrorKind.NO_SPACE),
        # No, and no again.
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", ErrorKind.NO_RIGHT),
        (Code.INVALID_ARGUMENT, "etcdserver: request is too large", ErrorKind.REFUSED),
        (Code.INVALID_ARGUMENT, "etcdserver: authentication failed, …", ErrorKind.REFUSED),
        (Code.UNIMPLEMENTED, "unknown service etcdserverpb.KV", ErrorKind.REFUSED),
    ],
)
def test_each_error_is_diagnosed(
    code: grpc.StatusCode, details: str | None, fault: ErrorKind
) -> None:
    assert diagnose(Error(code, details)) is fault


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Error(Code.UNAVAILABLE, CONNECT), "connection refused"),
        (Error(Code.UNAVAILABLE, SYN_LOST), "no connection in time"),
        (Error(Code.UNAVAILABLE, NO_SUCH_HOST), "the host name can't be resolved"),
        (Error(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"), "no answer"),
        (Error(Code.UNAVAILABLE, "Socket closed"), "the connection was closed"),
        (Error(Code.UNAVAILABLE, None), "unavailable"),
    ],
)
def test_the_reason_is_a_few_words(error: Error, said: str) -> None:
    """Not gRPC's whole story."""
    assert cause_of(error).text == said


ALL = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
FAILED = "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:10000412:SSL routines:"
UNTRUSTED = TLS.removeprefix(ALL)
HOST = "Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check"
BAD = "OPENSSL_internal:SSLV3_ALERT_BAD_CERTIFICATE: OK"
RESET = "recvmsg:Connection reset by peer (104)"


@pytest.mark.parametrize(
    ("details", "cause", "advice"),
    [
        (UNTRUSTED, f"not trusted: {ISSUER}", "ETCDCTL_CACERT must be"),
        (UNTRUSTED.replace(ISSUER, "certificate has expired"), "has expired", "Renew the server"),
        (f"{HOST} failed.", "for another host name", "as its certificate does"),
        ("Peer name a is not in peer certificate", "for another host name", "certificate"),
        ("Unwrap failed (TSI_DATA_CORRUPTED)", "it refused our certificate", "ETCDCTL_CERT"),
        (f"{FAILED}{BAD}", "it refused our certificate", "ETCDCTL_CERT and ETCDCTL_KEY must be"),
        ("Failed to create security handshaker.", "files can't be used", "PEM files"),
        (f"{FAILED}OPENSSL_internal:NEW: OK", "handshake failed: NEW", "both sides"),
        ("Handshake read failed (Socket closed)", "does not talk TLS", "leave out"),
        (f"Handshake read failed ({RESET})", "does not talk TLS", "leave out"),
        ("Socket closed", "that talks TLS only", "set ETCDCTL_CACERT"),
        (RESET, "that talks TLS only", "ETCDCTL_CACERT"),
    ],
)
def test_a_tls_error_is_not_reported_as_a_server_that_is_down(
    details: str, cause: str, advice: str
) -> None:
    said = cause_of(Error(Code.UNAVAILABLE, f"{ALL}{details}"))
    assert cause in said.text
    text = str(unavailable(("a:1",), said, unknown=False))
    assert f"({said.text})" in text
    assert advice in text
    assert "Check that it runs" not in text


def test_the_most_telling_cause_of_all_tries_is_reported() -> None:
    tls, nobody, closed = (
        cause_of(Error(Code.UNAVAILABLE, said)) for said in (TLS, CONNECT, f"{ALL}Socket closed")
    )
    assert more_telling(tls, nobody) == tls
    assert more_telling(tls, closed) == tls
    assert more_telling(nobody, tls) == tls
    assert more_telling(NO_ANSWER, nobody) == nobody
    assert more_telling(nobody, closed) == closed
    assert more_telling(tls, NO_ANSWER) == NO_ANSWER


@pytest.mark.parametrize("endpoint", ["127.0.0.1:2379", "localhost:2379", "[::1]:2379"])
def test_an_unreachable_etcd_on_loopback_names_the_command_up(endpoint: str) -> None:
    word = "`clustermutex up` starts one"
    assert word in str(unavailable((endpoint,), REFUSED, unknown=False))
    assert word not in str(unavailable((endpoint, "a:1"), REFUSED, unknown=False))
    assert word not in str(unavailable((endpoint,), NO_ANSWER, unknown=False))


def test_unavailable_names_the_endpoints_and_the_cause() -> None:
    error = unavailable(("a:1", "b:2"), REFUSED, unknown=False)
    assert str(error) == (
        "etcd at a:1, b:2 did not answer in time (connection refused). "
        "Check that it runs and that the endpoints are right (CLUSTERMUTEX_URL)."
    )
    assert error.unknown is False


@pytest.mark.parametrize(
    ("details", "advice"),
    [
        ("etcdserver: permission denied", "role lacks a right"),
        ("etcdserver: authentication failed, invalid user ID or password", "Check ETCDCTL_USER"),
        ("etcdserver: user name is empty", "set ETCDCTL_USER and ETCDCTL_PASSWORD"),
        ("etcdserver: mvcc: database space exceeded", "compacted, defragmented"),
        ("something new", ""),
        (None, ""),
    ],
)
def test_a_refusal_names_the_remedy(details: str | None, advice: str) -> None:
    error = refused(Error(Code.PERMISSION_DENIED, details), "a:1", EtcdLocation())
    words = (details or "PERMISSION_DENIED").removeprefix("etcdserver: ")
    assert str(error).startswith(f"etcd at a:1 refused the request: {words}.")
    assert advice in str(error)


@pytest.mark.parametrize(
    ("user", "said"),
    [("ann", "The user 'ann' has"), (None, "The user of this client's certificate has")],
)
def test_a_lack_of_rights_names_the_user_and_the_root(user: str | None, said: str) -> None:
    location = EtcdLocation(root="/r", user=user, password=user)
    text = str(refused(Error(Code.PERMISSION_DENIED, "permission denied"), "a:1", location))
    assert said in text
    assert "on keys below /r/" in text
    assert "clustermutex setup-auth --root /r" in text
