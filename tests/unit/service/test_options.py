"""Logs of the services as text and JSON; their signals and arguments."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.service.logging_setup import (
    MAX_OTHERS_CHARS,
    RateFilter,
    configure_logging,
    log_fields,
)

pytestmark = pytest.mark.usefixtures("logging_as_before")

HOLDER = Holder("nightly", "u-1", "web-1", 4711, reason="totals", backtrace="File a\nFile b\n")
REMOVAL = Removal(HOLDER, 1_800_000_000.5, "unlocker@here", "auto-unlock", "no heartbeat")
log = logging.getLogger("tests.serving")


def logged(style: str, capsys: pytest.CaptureFixture[str], extra: dict[str, object]) -> str:
    configure_logging("info", style)
    log.warning("Removed lock %r.", "nightly", extra=extra)
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_json_has_the_lock_as_fields_and_the_record_as_an_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = json.loads(logged("json", capsys, log_fields("auto-unlocked", HOLDER, REMOVAL)))
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "warning",
        "logger": "tests.serving",
        "message": "Removed lock 'nightly'.",
        "event": "auto-unlocked",
        "lock": "nightly",
        "uuid": "u-1",
        "hostname": "web-1",
        "removal": REMOVAL.facts(),
    }


def test_a_text_line_ends_with_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    line = logged("text", capsys, log_fields("auto-unlocked", HOLDER, REMOVAL))
    message, _, record = line.partition(" The record: ")
    assert message.endswith("WARNING tests.serving: Removed lock 'nightly'.")
    assert json.loads(record) == REMOVAL.facts()


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_hostile_lock_gives_one_log_line(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = Holder('a"b', "u\n" * 9999, "h\r\n" * 9999)
    line = logged(style, capsys, log_fields("past-alert", hostile))
    assert len(line) < 3000
    if style == "json":
        entry = json.loads(line)
        assert (len(entry["uuid"]), len(entry["hostname"])) == (500, 500)
        assert "removal" not in entry


def test_beyond_a_few_a_minute_records_are_counted_and_left_out() -> None:
    now = 1000.0
    rate = RateFilter(3, lambda: now)

    def passed(text: str) -> str | None:
        record = logging.LogRecord("waitress", logging.ERROR, "", 0, "%s", (text,), None)
        return record.getMessage() if rate.filter(record) else None

    assert [passed("x") for _ in range(10)] == ["x"] * 3 + [None] * 7
    now += 61
    assert passed("y") == "y (7 more of this logger were left out before.)"
    assert passed("y" * 9999) == "y" * MAX_OTHERS_CHARS


def test_a_signal_at_any_moment_ends_the_service() -> None:
    program = """
import os, signal, threading
from lockclient.service.lifecycle import EndSignal

end = EndSignal()
def send():
    for _ in range(5_000):
        os.kill(os.getpid(), signal.SIGTERM)
sender = threading.Thread(target=send)
sender.start()
while sender.is_alive():
    end.wait(0.0)
print(end.wait(1.0))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "SIGTERM\n"


@pytest.mark.parametrize("service", ["unlocker", "mutexdash"])
def test_an_argument_too_many_is_not_quoted(service: str) -> None:
    """The second of two URLs behind `--notify`, without quotes, is all that its chat asks for."""
    words = [sys.executable, "-m", service, "slack://T/B/secret", "secret"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "2 too many" in done.stderr
    assert "secret" not in done.stderr
