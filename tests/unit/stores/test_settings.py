"""Settings from URL and environment: precedence, and an error for each malformed one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings, open_store
from lockclient.stores.gcs.location import GcsLocation
from lockclient.stores.settings import made_of
from tests.support.processes import run_to_end


def load(url: str | None = None, /, **environ: str) -> Settings:
    return Settings.load(url, environ)


@pytest.fixture
def pem(tmp_path: Path) -> str:
    path = tmp_path / "some.pem"
    path.write_text("pem")
    return str(path)


def test_the_default_is_loopback() -> None:
    assert load() == Settings(endpoints=("127.0.0.1:2379",), root="/clustermutex")
    assert load().url() == "etcd://127.0.0.1:2379/clustermutex"
    assert load().where == "/clustermutex"
    assert not load().secure


def test_the_program_beats_our_variable_beats_etcdctl_s() -> None:
    """A URL wins over `CLUSTERMUTEX_URL` wins over `ETCDCTL_ENDPOINTS`."""
    environ = {"CLUSTERMUTEX_URL": "etcd://b:2/b", "ETCDCTL_ENDPOINTS": "c:3"}
    assert load("etcd://a:1/a", **environ).endpoints == ("a:1",)
    assert load(**environ) == Settings(endpoints=("b:2",), root="/b")
    assert load(ETCDCTL_ENDPOINTS="c:3").endpoints == ("c:3",)


def test_etcdctl_variables_complete_the_url(pem: str) -> None:
    settings = load("etcd://a:1", ETCDCTL_ENDPOINTS="https://c:3", ETCDCTL_USER="ann:secret")
    assert (settings.user, settings.password) == ("ann", "secret")
    assert not settings.secure
    assert load("etcd://a:1", ETCDCTL_CACERT=pem).secure


def test_members_in_the_dns_are_refused_where_nothing_names_the_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """etcdctl asks the DNS first, so the default would be another cluster than etcdctl's."""
    monkeypatch.setenv("ETCDCTL_DISCOVERY_SRV", "example.com")
    for endpoints in ({}, {"ETCDCTL_ENDPOINTS": "c:3"}):
        with pytest.raises(ValueError, match="ETCDCTL_DISCOVERY_SRV: members"):
            load(ETCDCTL_DISCOVERY_SRV="example.com", **endpoints)
    assert load("etcd://a:1", ETCDCTL_DISCOVERY_SRV="example.com").endpoints == ("a:1",)
    assert made_of(None, ["a:1"], {}).endpoints == ("a:1",)


def test_setup_takes_settings_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints with or without a scheme, and any field; the rest from the environment."""
    monkeypatch.setenv("CLUSTERMUTEX_URL", "etcds://b:2/b")
    settings = made_of(None, ["https://a:1", "https://b:1"], {"root": "/x"})
    assert settings == Settings(endpoints=("a:1", "b:1"), root="/x", tls=True)
    assert not made_of(None, ["a:1"], {}).secure
    assert made_of("etcd://c:3/c", None, {"user": "ann", "password": "p"}).user == "ann"


def test_a_password_argument_beats_the_password_file_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("of the file")
    monkeypatch.setenv("ETCDCTL_USER", "ann")
    monkeypatch.setenv("ETCDCTL_PASSWORD_FILE", str(file))
    assert made_of(None, ["a:1"], {}).password_file == str(file)
    own = made_of(None, ["a:1"], {"password": "p"})
    assert (own.password, own.password_file) == ("p", None)
    assert made_of(None, ["a:1"], {}, with_client=True).password_file is None
    monkeypatch.delenv("ETCDCTL_PASSWORD_FILE")
    monkeypatch.setenv("ETCDCTL_PASSWORD", "p")
    own = made_of(None, ["a:1"], {"password_file": str(file)})
    assert (own.password, own.password_file) == (None, str(file))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"url": "etcd://a:1", "endpoints": ["a:1"]}, "not both"),
        ({"endpoints": "a:1"}, "must be a list"),
        ({"endpoints": []}, "At least one etcd endpoint"),
        ({"rot": "/x"}, "no setting 'rot'; there are: root, "),
        ({"root": "x"}, "'x' must look like /clustermutex"),
        ({"url": "http://a:1"}, "must begin with etcd://"),
    ],
)
def test_setup_refuses_nonsense(how: dict[str, object], said: str) -> None:
    """An error at once, and the old settings stay."""
    with pytest.raises(ValueError, match=said):
        ClusterMutex.setup(**how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("etcd://h:1", Settings(endpoints=("h:1",))),
        ("etcd://h:1/", Settings(endpoints=("h:1",))),
        ("etcd://h:1/a/b.c_d~e-f/", Settings(endpoints=("h:1",), root="/a/b.c_d~e-f")),
        ("etcd://h1:1,h2:65535/x", Settings(endpoints=("h1:1", "h2:65535"), root="/x")),
        ("etcd://[::1]:2379", Settings(endpoints=("[::1]:2379",))),
        ("etcd://h:2379,[::1]:2379", Settings(endpoints=("h:2379", "[::1]:2379"))),
        ("etcds://h:1/x", Settings(endpoints=("h:1",), root="/x", tls=True)),
    ],
)
def test_a_url_is_read_and_written(url: str, settings: Settings) -> None:
    assert load(url) == settings
    assert load(settings.url()) == settings


@pytest.mark.parametrize(
    "query",
    ["", "expire=1", "endpoint=https://storage-x.p.googleapis.com"]
    + [f"endpoint=http://{host}" for host in ("127.0.0.1:4443", "[::1]:4443", "localhost")],
)
def test_a_bucket_is_read_and_written(query: str) -> None:
    for prefix in ("", "/.well-known/acme", "/a/b"):
        url = f"gs://bucket{prefix}?{query}".rstrip("?")
        assert load(url).url() == url


NO_ENDPOINTS = [
    *("h", "h:", ":1", "h:0", "h:65536", "h:２３", "h h:1", "::1:2379", "[::1:2379"),
    "h:" + "9" * 5000,
]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "must begin with etcd://"),
        ("h:1", "must begin with etcd://"),
        ("mysql://h:1", "must begin with etcd://"),
        *((f"etcd://{text}", "'' must be host:port") for text in ("", "/root", "h:1,", "h:1,,i:1")),
        *((f"etcd://{text}", f"'{text}' must be host:port") for text in NO_ENDPOINTS),
        ("etcd://h:1//x", "root '//x'"),
        ("etcd://h:1/x y", "root '/x y'"),
        ("etcd://h:1/x%2Fy%20", "root '/x/y '"),
        ("etcd://h:1/x?tls=1", "query or fragment"),
        ("etcd://h:1/x#y", "query or fragment"),
        ("gs://", "bucket ''"),
        ("gs:///x", "bucket ''"),
        ("gs://Bucket", "bucket 'Bucket'"),
        ("gs://bucket/a b", "prefix 'a b/'"),
        ("gs://bucket/../x", ". or .."),
        ("gs://bucket/x?y=1", "like gs://bucket/prefix"),
        ("gs://bucket/x#y", "like gs://bucket/prefix"),
        ("gs://bucket/x?expire=yes", "expire must be 0 or 1"),
        ("gs://bucket/.well-known/acme-challenge", "Google refuses objects"),
        ("gs://bucket/.well-known/acme-challenge/x", "Google refuses objects"),
        ("gs://bucket/x?endpoint=storage.example.com", "a scheme and a host"),
        ("gs://bucket/x?endpoint=https://h/path", "a scheme and a host"),
        ("gs://bucket/x?endpoint=https://h:1/?x", "a scheme and a host"),
        ("gs://bucket/x?endpoint=http://10.0.0.1", "must be https://"),
        ("gs://bucket/x?endpoint=http://localhost.example.com", "must be https://"),
    ],
)
def test_a_malformed_url_is_an_error(url: str, said: str) -> None:
    with pytest.raises(ValueError, match="CLUSTERMUTEX_URL") as caught:
        load(CLUSTERMUTEX_URL=url)
    assert said in str(caught.value)
    with pytest.raises(ValueError, match="The URL"):
        load(url)


@pytest.mark.parametrize(
    "url",
    [
        *("etcd://ann:hunter2@h:1/x", "etcd://ann:hun@ter2@h:1", "etcd://ann:hunter2/@h:1"),
        *("etcd://ann:hunter2#@h:1", "etcd://ann:hunter2?@h:1", "redis://ann:hunter2@h:1"),
        *("etcd://ann:hun\nter2@h:1", "gs://ann:hunter2@bucket/x"),
    ],
)
def test_a_password_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL '(etcd|redis|gs)://…@") as caught:
        load(url)
    assert "ter2" not in str(caught.value)
    assert "hun" not in str(caught.value)


BUCKET = "gs://bucket/a/prefix"


def test_the_scheme_chooses_the_store() -> None:
    settings = load(BUCKET, ETCDCTL_USER="ann", ETCDCTL_ENDPOINTS="nonsense")
    assert settings == load(CLUSTERMUTEX_URL=BUCKET)
    assert settings == Settings(location=GcsLocation.of(BUCKET))
    assert settings.url() == settings.where == BUCKET
    store = open_store(settings)
    assert store.endpoints() == (BUCKET,)
    store.close()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"user": "ann", "password": "hunter2"}, "user, password"),
        ({"cacert": __file__}, "cacert"),
        ({"root": "/x"}, "root"),
        ({"tls": True}, "tls"),
    ],
)
def test_etcd_settings_beside_a_bucket_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}: .*nothing at {BUCKET}") as caught:
        ClusterMutex.setup(BUCKET, **settings)
    assert "hunter2" not in str(caught.value)


def test_arguments_beside_a_bucket_url_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLUSTERMUTEX_URL", BUCKET)
    assert made_of(None, ["a:1"], {"root": "/x"}) == Settings(endpoints=("a:1",), root="/x")
    with pytest.raises(ValueError, match=f"client of etcd's .* at {BUCKET}"):
        ClusterMutex.setup(client=object())


@pytest.mark.parametrize("missing", ["requests", "google.auth"])
def test_a_missing_extra_is_named_at_once(missing: str) -> None:
    script = f"""
import sys
sys.modules[{missing!r}] = None
from lockclient import ClusterMutex, Settings
for ask in (ClusterMutex("x").acquire, Settings.load):
    try:
        ask()
    except ValueError as error:
        print(error)
"""
    done = run_to_end(sys.executable, "-c", script, env={"CLUSTERMUTEX_URL": BUCKET})
    assert done.stdout.splitlines() == 2 * [
        f"CLUSTERMUTEX_URL {BUCKET!r}: Locks at gs://… need {missing}, which is not installed: "
        "pip install 'clustermutex[gcs]'."
    ]


def test_etcdctl_variables_are_read_as_etcdctl_reads_them(pem: str) -> None:
    files = {f"ETCDCTL_{name}": pem for name in ("CACERT", "CERT", "KEY")}
    endpoints = "https://a:1/, https://b:2"
    settings = load(ETCDCTL_ENDPOINTS=endpoints, ETCDCTL_USER="ann:pass:word", **files)
    who: dict[str, Any] = {"user": "ann", "password": "pass:word", "tls": True}
    assert settings == Settings(("a:1", "b:2"), cacert=pem, cert=pem, key=pem, **who)
    assert "pass:word" not in repr(settings)
    for user in ("ann", "ann:q"):
        assert load(ETCDCTL_USER=user, ETCDCTL_PASSWORD="p").password == "p"
    assert load(ETCDCTL_USER="ann:").password == ""
    # A shell script or a compose file leaves one out by an empty one.
    for name in ("ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_USER", "ETCDCTL_PASSWORD"):
        assert load(**{name: ""}) == Settings()


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"ETCDCTL_ENDPOINTS": ""}, "ETCDCTL_ENDPOINTS: .*'' must be host:port"),
        ({"ETCDCTL_ENDPOINTS": "a"}, "ETCDCTL_ENDPOINTS: .*'a' must be host:port"),
        ({"ETCDCTL_ENDPOINTS": "ftp://a:1"}, "ETCDCTL_ENDPOINTS: .*'ftp://a:1' must be"),
        ({"ETCDCTL_ENDPOINTS": "https://a:1,b:1"}, "ETCDCTL_ENDPOINTS: .*mix https"),
        ({"ETCDCTL_CACERT": "/no/such"}, "ETCDCTL_CACERT.* cacert file '/no/such' can't be"),
        ({"ETCDCTL_CERT": "/no/such"}, "ETCDCTL_CERT.* both or none"),
        ({"ETCDCTL_KEY": "/no/such"}, "ETCDCTL_KEY.* both or none"),
        ({"ETCDCTL_CERT": "/x", "ETCDCTL_KEY": "/y"}, "ETCDCTL_CERT.* cert file '/x' can't"),
        ({"ETCDCTL_USER": "ann"}, "ETCDCTL_USER.* without a password"),
        ({"ETCDCTL_USER": ":p"}, "ETCDCTL_USER.* without a user"),
        ({"ETCDCTL_PASSWORD": "p"}, "ETCDCTL_PASSWORD: .* without a user"),
        ({"ETCDCTL_PASSWORD_FILE": __file__}, "ETCDCTL_PASSWORD: .*has more than 4096 bytes"),
        (
            {"ETCDCTL_USER": "ann", "ETCDCTL_PASSWORD_FILE": "/x"},
            "file '/x' can't be read: No such file",
        ),
        (
            {"ETCDCTL_USER": "ann", "ETCDCTL_PASSWORD_FILE": "/dev/null"},
            "file '/dev/null' is empty",
        ),
        (
            {"ETCDCTL_USER": "ann:p", "ETCDCTL_PASSWORD_FILE": "/x"},
            "Give ETCDCTL_PASSWORD or ETCDCTL_PASSWORD_FILE, not both",
        ),
    ],
)
def test_a_malformed_variable_is_an_error(environ: dict[str, str], said: str) -> None:
    """It names the variable and says what it should be."""
    with pytest.raises(ValueError, match=said):
        load(**environ)


DEFAULT_STORE = """
import os

from lockclient import ClusterMutex
from lockclient.default_store import default_store

try:
    ClusterMutex("x").acquire()
except ValueError as error:
    print(error)
os.environ["CLUSTERMUTEX_URL"] = "etcd://nowhere.invalid:1/x"
assert default_store() is default_store()
print(*default_store().endpoints())
for endpoint in ("127.0.0.1:1", "127.0.0.1:2"):
    ClusterMutex.setup(endpoints=[endpoint], root="/a")
    print(*default_store().endpoints())
"""


def test_a_process_has_one_default_store() -> None:
    done = run_to_end(sys.executable, "-c", DEFAULT_STORE, env={"CLUSTERMUTEX_URL": "nonsense"})
    error, *endpoints = done.stdout.splitlines()
    assert error.startswith("CLUSTERMUTEX_URL")
    assert endpoints == ["nowhere.invalid:1", "127.0.0.1:1", "127.0.0.1:2"]


CHANGED = """
import logging, os

from lockclient import ClusterMutex
from lockclient.default_store import default_store

logging.basicConfig(format="%(message)s")
assert default_store().endpoints() == ("127.0.0.1:1",)
os.environ["CLUSTERMUTEX_URL"] = "etcd://127.0.0.1:2/x"
ClusterMutex("x"), ClusterMutex("y"), ClusterMutex("z", store=default_store())
assert default_store().endpoints() == ("127.0.0.1:1",)
ClusterMutex.setup("etcd://127.0.0.1:3/x")
os.environ["CLUSTERMUTEX_URL"] = "etcd://127.0.0.1:4/x"
default_store(), ClusterMutex("x")
"""


def test_a_url_changed_after_the_first_use_is_logged() -> None:
    environ = {"ETCDCTL_ENDPOINTS": "127.0.0.1:1"}
    said = run_to_end(sys.executable, "-c", CHANGED, env=environ).stderr
    assert said.splitlines() == [
        "CLUSTERMUTEX_URL has changed to 'etcd://127.0.0.1:2/x' since its first use: locks stay at "
        "etcd://127.0.0.1:1/clustermutex. Set it before, or call ClusterMutex.setup()."
    ]


def test_a_bucket_has_no_address_of_an_etcd() -> None:
    with pytest.raises(AttributeError, match="endpoints"):
        _ = Settings.load("gs://bucket/locks").endpoints
