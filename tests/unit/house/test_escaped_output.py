"""Hostile texts in errors, logs, tracebacks, memory and on command lines."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from lockclient import errors
from lockclient.errors import ClusterMutexError, LockTimeout, StoreError
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.service.logging_setup import configure_logging, log_fields
from lockclient.stores.settings import Settings, made_of
from tests.support.records import found

pytestmark = pytest.mark.usefixtures("logging_as_before")

HOSTILE = "h\x1b[2J\x07\x7f\x9b\u202e\u200b\u3164\n2026-01-01 00:00:00,000 WARNING forged"
STEERS = {*HOSTILE} - {*map(chr, range(32, 127))} - {"\n"}
HOLDER = Holder("deploy/prod", "u-1", HOSTILE, 4711, reason=HOSTILE)
log = logging.getLogger("tests.ways_out")


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "error",
    [
        LockTimeout.after(1.0, "deploy/prod", HOLDER, 3),
        StoreError(f"etcd says: {HOSTILE}"),
        *(
            getattr(errors, name)(HOSTILE)
            for name in ("ClusterMutexError", "LockNotHeld", "LockLost", "InvalidLockName")
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_text_of_an_error_is_safe_to_print(error: ClusterMutexError) -> None:
    assert not {*str(error)} & (STEERS | {"\n"})
    assert "forged" in str(error)


def test_descriptions_of_holders_and_removals_are_safe_to_print() -> None:
    removal = Removal(HOLDER, 5.0, HOSTILE, HOSTILE, HOSTILE)
    for text in (HOLDER.describe(), HOLDER.undecided(), removal.describe()):
        assert not {*text} & (STEERS | {"\n"})


# ---------------------------------------------------------------- logs


@pytest.mark.parametrize("style", ["text", "json"])
def test_log_lines_are_escaped(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", style)
    removal = Removal(replace(HOLDER, backtrace=HOSTILE), 5.0, HOSTILE, "auto-unlock", HOSTILE)
    try:
        raise RuntimeError(HOSTILE)
    except RuntimeError:
        log.warning(
            *("%s at etcd://ann:hunter2@h:1", HOSTILE),
            extra=log_fields("removed", HOLDER, removal),
            exc_info=True,
            stack_info=True,
        )
    text = capsys.readouterr().err
    assert not {*text} & STEERS
    assert "hunter2" not in text
    if style == "json":
        (line,) = text.splitlines()
        assert json.loads(line)["hostname"] == HOSTILE
        assert json.loads(line)["removal"] == json.loads(removal.value())
        return
    first, *rest = text.splitlines()
    assert json.loads(first.partition(" The record: ")[2]) == json.loads(removal.value())
    assert all(line.startswith(("  ", "Traceback", "Stack")) for line in rest)


def test_the_traceback_of_a_thread_is_escaped() -> None:
    program = (
        "import threading\n"
        "from lockclient.text.log_format import log_uncaught\n"
        "log_uncaught()\n"
        f"def fail(): raise ValueError({HOSTILE!r} + ' etcd://a:hunter2@h')\n"
        "thread = threading.Thread(target=fail, name='part'); thread.start(); thread.join()\n"
        "fail()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    text = done.stderr.decode()
    assert "The thread part has ended: Traceback" in text
    assert text.count("forged") == 2
    assert not {*text} & STEERS
    assert "hunter2" not in text


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("part", ["hostname", "reason", "thread", "identity", "client", "process"])
def test_no_text_of_a_lock_is_interned(part: str) -> None:
    text = f"{part} of nobody else"
    value = text if part == "hostname" else json.dumps({part: text})
    key = part if part == "hostname" else "about"
    holder = Holder.read("a", found({"uuid": "u", key: value}))
    assert getattr(holder, part) == text
    copy = "".join(list(text))
    assert copy is not getattr(holder, part)
    assert sys.intern(copy) is copy


def test_equal_texts_of_locks_are_in_memory_once() -> None:
    values = {"uuid": "u", "hostname": "host-1", "about": json.dumps({"reason": "nightly"})}
    one, other = (Holder.read("a", found(dict(values))) for _ in range(2))
    assert one.hostname is other.hostname
    assert one.reason is other.reason


# ---------------------------------------------------------------- secrets

SECRET_URLS = (
    *("etcd:ann:hunter2@h:1", "ann:hunter2@h:1", "//ann:hunter2@h:1/x", "etcd://ann:hunter2%40h:1"),
    *("etcd://h:1,ann:hunter2@g:1", "etcd://ann:hunter2\uff20h:1", "etcd://h:1/ann:hunter2@g"),
    *("etcd://[ann:hunter2@h", "etcd://h:1?ann:hunter2@g", "etcd://ann:hun,ter2@h:1"),
)


@pytest.mark.parametrize("url", SECRET_URLS)
def test_no_error_quotes_credentials_of_a_url(url: str) -> None:
    ways: tuple[Callable[[], object], ...] = (
        lambda: Settings.load(url, {}),
        lambda: Settings.load(None, {"CLUSTERMUTEX_URL": url}),
        lambda: Settings.load(None, {"ETCDCTL_ENDPOINTS": url}),
        lambda: made_of(None, [url], {}),
        lambda: made_of(None, url.split(","), {}),
        lambda: made_of(None, url, {}),
        lambda: Settings(endpoints=(url,)),
    )
    for load in ways:
        with pytest.raises(ValueError, match=r"It holds a user|must be a list") as caught:
            load()
        for secret in ("ann", "hun", "ter2"):
            assert secret not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["clustermutex", "ls", "--url", SECRET_URLS[0]],
        ["clustermutex", "doctor", "etcd:ann:hunter2@h"],
        ["clustermutex", "etcd://ann:hun ter2@h:1"],
        ["clustermutex", "--debug", "ls", "--url", "//ann:hunter2@h:1"],
        ["unlocker", "--url", "etcd:ann:hunter2@h"],
        ["unlocker", "etcd://ann:hunter2@h:1"],
        ["unlocker", "--listen", "ann:hunter2@h"],
        ["unlocker", "--max-removals", "ann:hunter2@h"],
        ["mutexdash", "--url", "ann:hunter2@h:1"],
        ["mutexdash", "--prometheus-url", "ftp://ann:hunter2@h"],
        ["mutexdash", "--prometheus-url", "http://ann:hunter2@h"],
        ["mutexdash", "--url-prefix", "http://ann:hunter2@h"],
    ],
    ids=lambda words: " ".join(words).encode("ascii", "replace").decode(),
)
def test_no_usage_error_quotes_credentials_of_a_url(words: list[str]) -> None:
    module = {"clustermutex": "lockclient.cli"}.get(words[0], words[0])
    main = f"import sys; sys.argv[0] = {words[0]!r}; from {module} import "
    main += "main; main()" if words[0] == "clustermutex" else "__main__; __main__.main()"
    done = subprocess.run(
        [sys.executable, "-c", main, *words[1:]], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    for secret in ("ann", "hun", "ter2"):
        assert secret not in done.stderr.replace("channel", "") + done.stdout
    assert done.stderr
