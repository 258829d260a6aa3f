"""From URL and environment to settings: precedence, and an error for whatever is malformed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings, default_store, open_store
from lockclient.settings import made_of
from lockclient.stores.gcs.location import GcsLocation


def load(url: str | None = None, /, **environ: str) -> Settings:
    return Settings.load(url, environ)


@pytest.fixture
def pem(tmp_path: Path) -> str:
    path = tmp_path / "some.pem"
    path.write_text("pem")
    return str(path)


class TestPrecedence:
    def test_nothing_said_is_loopback(self) -> None:
        """etcd's own default port on this machine, in plain text."""
        assert load() == Settings(endpoints=("127.0.0.1:2379",), root="/clustermutex")
        assert load().url() == "etcd://127.0.0.1:2379/clustermutex"
        assert not load().secure

    def test_the_program_beats_our_variable_beats_etcdctl_s(self) -> None:
        """A URL wins over `CLUSTERMUTEX_URL` wins over `ETCDCTL_ENDPOINTS`."""
        environ = {"CLUSTERMUTEX_URL": "etcd://b:2/b", "ETCDCTL_ENDPOINTS": "c:3"}
        assert load("etcd://a:1/a", **environ).endpoints == ("a:1",)
        assert load(**environ) == Settings(endpoints=("b:2",), root="/b")
        assert load(ETCDCTL_ENDPOINTS="c:3").endpoints == ("c:3",)

    def test_what_the_url_does_not_say_comes_from_etcdctl_s_variables(self, pem: str) -> None:
        """Who, and by which certificates; but not the scheme of other endpoints."""
        settings = load("etcd://a:1", ETCDCTL_ENDPOINTS="https://c:3", ETCDCTL_USER="ann:secret")
        assert (settings.user, settings.password) == ("ann", "secret")
        assert not settings.secure
        assert load("etcd://a:1", ETCDCTL_CACERT=pem).secure

    def test_setup_takes_settings_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Endpoints with or without a scheme, and any field; the rest from the environment."""
        monkeypatch.setenv("CLUSTERMUTEX_URL", "etcds://b:2/b")
        settings = made_of(None, ["https://a:1", "https://b:1"], {"root": "/x"})
        assert settings == Settings(endpoints=("a:1", "b:1"), root="/x", tls=True)
        assert not made_of(None, ["a:1"], {}).secure
        assert made_of("etcd://c:3/c", None, {"user": "ann", "password": "p"}).user == "ann"

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
    def test_setup_refuses_nonsense(self, how: dict[str, object], said: str) -> None:
        """An error at once, and the old settings stay."""
        with pytest.raises(ValueError, match=said):
            ClusterMutex.setup(**how)  # type: ignore[arg-type]


class TestUrl:
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
    def test_it_is_read_and_written(self, url: str, settings: Settings) -> None:
        """Hosts with ports and a root; what is written is read again."""
        assert load(url) == settings
        assert load(settings.url()) == settings

    @pytest.mark.parametrize(
        "url",
        [
            "gs://bucket",
            "gs://bucket/.well-known/acme",
            "gs://bucket/a/b?expire=1",
            "gs://bucket?endpoint=https://storage-x.p.googleapis.com",
            "gs://bucket/a?expire=1&endpoint=http://127.0.0.1:4443",
            "gs://bucket/a?endpoint=http://[::1]:4443",
            "gs://bucket/a?endpoint=http://localhost",
        ],
    )
    def test_a_bucket_is_read_and_written(self, url: str) -> None:
        assert load(url).url() == url

    @pytest.mark.parametrize(
        ("url", "said"),
        [
            ("", "must begin with etcd://"),
            ("h:1", "must begin with etcd://"),
            ("mysql://h:1", "must begin with etcd://"),
            ("etcd://", "'' must be host:port"),
            ("etcd:///root", "'' must be host:port"),
            ("etcd://h", "'h' must be host:port"),
            ("etcd://h:", "'h:' must be host:port"),
            ("etcd://:1", "':1' must be host:port"),
            ("etcd://h:0", "'h:0' must be host:port"),
            ("etcd://h:65536", "'h:65536' must be host:port"),
            ("etcd://h:" + "9" * 5000, "must be host:port"),
            ("etcd://h:２３", "must be host:port"),
            ("etcd://h:1,", "'' must be host:port"),
            ("etcd://h:1,,i:1", "'' must be host:port"),
            ("etcd://h h:1", "'h h:1' must be host:port"),
            ("etcd://::1:2379", "'::1:2379' must be host:port"),
            ("etcd://[::1:2379", "must be host:port"),
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
            ("gs://bucket/.well-known/acme-challenge", "Google takes no object"),
            ("gs://bucket/.well-known/acme-challenge/x", "Google takes no object"),
            ("gs://bucket/x?endpoint=storage.example.com", "a scheme and a host"),
            ("gs://bucket/x?endpoint=https://h/path", "a scheme and a host"),
            ("gs://bucket/x?endpoint=https://h:1/?x", "a scheme and a host"),
            ("gs://bucket/x?endpoint=http://10.0.0.1", "must be https://"),
            ("gs://bucket/x?endpoint=http://localhost.example.com", "must be https://"),
        ],
    )
    def test_a_malformed_one_is_an_error(self, url: str, said: str) -> None:
        """Never a default: the text says what is wrong, and in which variable."""
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
    def test_a_password_in_it_is_refused_and_not_shown(self, url: str) -> None:
        """It would stand in every `ps`; the error must not put it into a log."""
        with pytest.raises(ValueError, match=r"URL '(etcd|redis|gs)://…@") as caught:
            load(url)
        assert "ter2" not in str(caught.value)
        assert "hun" not in str(caught.value)


BUCKET = "gs://bucket/a/prefix"


class TestOtherStores:
    def test_the_scheme_says_which_store_it_is(self) -> None:
        """And etcd's variables, which are for etcdctl, say nothing of it, malformed or not."""
        settings = load(BUCKET, ETCDCTL_USER="ann", ETCDCTL_ENDPOINTS="nonsense")
        assert settings == load(CLUSTERMUTEX_URL=BUCKET)
        assert settings == Settings(location=GcsLocation.of(BUCKET))
        assert settings.url() == settings.where == BUCKET
        store = open_store(settings)
        assert store.endpoints() == (BUCKET,)
        store.close()

    def test_where_locks_in_etcd_are_is_their_root(self) -> None:
        """In titles, as ever."""
        assert load("etcd://h:1/x").where == "/x"

    @pytest.mark.parametrize(
        ("settings", "named"),
        [
            ({"user": "ann", "password": "hunter2"}, "user, password"),
            ({"cacert": __file__}, "cacert"),
            ({"root": "/x"}, "root"),
            ({"tls": True}, "tls"),
        ],
    )
    def test_what_is_for_etcd_alone_is_refused(self, settings: dict[str, Any], named: str) -> None:
        """Whoever gave it counts on it."""
        with pytest.raises(ValueError, match=f"^{named}: .*nothing at {BUCKET}") as caught:
            ClusterMutex.setup(BUCKET, **settings)
        assert "hunter2" not in str(caught.value)

    def test_endpoints_of_the_program_beat_a_bucket_of_the_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CLUSTERMUTEX_URL", BUCKET)
        assert made_of(None, ["a:1"], {"root": "/x"}) == Settings(endpoints=("a:1",), root="/x")

    def test_a_client_of_etcd_s_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CLUSTERMUTEX_URL", BUCKET)
        with pytest.raises(ValueError, match=f"client of etcd's .* at {BUCKET}"):
            ClusterMutex.setup(client=object())

    @pytest.mark.parametrize("missing", ["requests", "google.auth"])
    def test_what_is_not_installed_is_said_at_once(self, missing: str) -> None:
        """With what to install."""
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
        words, env = [sys.executable, "-c", script], {"CLUSTERMUTEX_URL": BUCKET}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines() == 2 * [
            f"CLUSTERMUTEX_URL {BUCKET!r}: Locks at gs://… need {missing}, which is not installed: "
            "pip install 'clustermutex[gcs]'."
        ], done.stderr


class TestEtcdctlVariables:
    def test_all_are_read(self, pem: str) -> None:
        """As etcdctl reads them: lists, schemes, spaces, a password with colons."""
        files = {f"ETCDCTL_{name}": pem for name in ("CACERT", "CERT", "KEY")}
        endpoints = "https://a:1/, https://b:2"
        settings = load(ETCDCTL_ENDPOINTS=endpoints, ETCDCTL_USER="ann:pass:word", **files)
        who: dict[str, Any] = {"user": "ann", "password": "pass:word", "tls": True}
        assert settings == Settings(("a:1", "b:2"), cacert=pem, cert=pem, key=pem, **who)
        assert "pass:word" not in repr(settings)

    def test_the_password_may_stand_alone(self) -> None:
        """`ETCDCTL_PASSWORD` beats what stands behind the user's colon."""
        assert load(ETCDCTL_USER="ann", ETCDCTL_PASSWORD="p").password == "p"
        assert load(ETCDCTL_USER="ann:q", ETCDCTL_PASSWORD="p").password == "p"
        assert load(ETCDCTL_USER="ann:").password == ""

    @pytest.mark.parametrize(
        "name", ["ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_USER", "ETCDCTL_PASSWORD"]
    )
    def test_an_empty_one_is_as_good_as_unset(self, name: str) -> None:
        """That is how a shell script or a compose file leaves one out."""
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
        ],
    )
    def test_a_malformed_one_is_an_error(self, environ: dict[str, str], said: str) -> None:
        """It names the variable and says what it should be."""
        with pytest.raises(ValueError, match=said):
            load(**environ)


class TestDefaultStore:
    @pytest.fixture(autouse=True)
    def _fresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(default_store, "_default_settings", None)
        monkeypatch.setattr(default_store, "_default_store", None)

    def test_one_store_serves_the_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Opened at first need, from the environment, with nothing sent."""
        monkeypatch.setenv("CLUSTERMUTEX_URL", "etcd://nowhere.invalid:1/x")
        store = default_store.default_store()
        assert default_store.default_store() is store
        assert store.endpoints() == ("nowhere.invalid:1",)

    def test_setup_beats_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From then on, for mutexes that name no store, also when it is called again."""
        monkeypatch.setenv("CLUSTERMUTEX_URL", "etcd://nowhere.invalid:1/x")
        for endpoint in ("127.0.0.1:1", "127.0.0.1:2"):
            ClusterMutex.setup(endpoints=[endpoint], root="/a")
            assert default_store.default_store().endpoints() == (endpoint,)

    def test_a_malformed_environment_is_an_error_at_first_use(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Naming the variable, before any I/O; not at import and not at construction."""
        monkeypatch.setenv("CLUSTERMUTEX_URL", "nonsense")
        mutex = ClusterMutex("x")
        with pytest.raises(ValueError, match="CLUSTERMUTEX_URL"):
            mutex.acquire()
