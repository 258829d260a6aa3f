"""Users and passwords from a file, and how many guesses a minute has."""

from __future__ import annotations

from pathlib import Path

import bcrypt
import pytest

from mutexdash.security.htpasswd import BadFile, Passwords
from mutexdash.security.rate_limit import RateLimits
from tests.support.dashboard_fakes import hashed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "htpasswd"
    path.write_text(f"# who may\nann:{hashed('söcret:1')}\n\nbob:{hashed('x')}\n", encoding="utf-8")
    return path


def test_a_password_is_checked_slowly_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passwords = Passwords(file)
    assert not passwords.known("ann", "söcret:1")
    assert passwords.check("ann", "söcret:1")
    monkeypatch.setattr(bcrypt, "checkpw", lambda *_: pytest.fail("asked again"))
    assert passwords.known("ann", "söcret:1")
    assert not passwords.known("ann", "söcret:2")


@pytest.mark.parametrize("cost", ["04", "05"])
def test_a_user_that_there_is_not_takes_as_long_as_one_that_there_is(
    file: Path, cost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the rounds that are counted, since a clock would prove nothing here."""
    file.write_text(f"ann:$2y${cost}${'.' * 53}\n")
    asked: list[bytes] = []
    check = bcrypt.checkpw

    def noted(password: bytes, stored: bytes) -> bool:
        asked.append(stored[4:6])
        return check(password, stored)

    monkeypatch.setattr(bcrypt, "checkpw", noted)
    passwords = Passwords(file)
    assert not passwords.check("nobody", "x")
    assert not passwords.check("ann", "x")
    assert asked == [cost.encode()] * 2


@pytest.mark.parametrize("password", ["", "x" * 73, "x\0y", "\ud800"])
def test_what_bcrypt_cant_tell_apart_is_no_password(file: Path, password: str) -> None:
    assert not Passwords(file).check("bob", password)
    assert not Passwords(file).check("nobody", password)


def test_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"ann:{hashed('x')}\n")
    passwords = Passwords(path)
    assert passwords.check("ann", "x")
    fresh = tmp_path / "fresh"
    fresh.write_text(f"bob:{hashed('y')}\n")
    fresh.replace(path)
    assert not passwords.known("ann", "x")
    assert not passwords.check("ann", "x")
    assert passwords.check("bob", "y")


@pytest.mark.parametrize(
    "spoilt", [b"", b"# nobody\n", b"ann:in the clear, by mistake\n", b"\xff\xfe", None, Path]
)
def test_without_a_user_in_the_file_nobody_is_let_in_at_once(
    tmp_path: Path, spoilt: bytes | type | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is empty, has no user, a bad line, no UTF-8; is deleted; is a folder."""
    path = tmp_path / "users"
    good = f"ann:{hashed('x')}\n"
    path.write_text(good)
    passwords = Passwords(path)
    assert passwords.check("ann", "x")
    path.unlink()
    if isinstance(spoilt, bytes):
        path.write_bytes(spoilt)
    elif spoilt is Path:
        path.mkdir()
    for _ in range(3):
        assert not passwords.known("ann", "x")
        assert not passwords.check("ann", "x")
        assert not passwords.check("nobody", "x")
    told_once = [str(path) in record.getMessage() for record in caplog.records]
    assert told_once == [True] * 2
    if path.is_dir():
        path.rmdir()
    path.write_text(f"# again\n{good}")
    assert passwords.check("ann", "x")


def test_a_bad_line_is_nobodys_and_named_and_takes_no_other_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "users"
    line = f"ann:{hashed('x')}\n".encode()
    path.write_bytes(line + b"bob:secret\n\xffeve:1\n" + f"dan:{hashed('y')}\n".encode() * 2)
    passwords = Passwords(path)
    assert passwords.check("ann", "x")
    assert not passwords.check("bob", "secret")
    assert not passwords.check("dan", "y"), "twice, so nobody can tell which one is meant"
    told = [record.getMessage() for record in caplog.records]
    assert all(any(key in text for text in told) for key in ("Line 2", "Line 3", "'dan'"))
    assert len(told) == 3
    assert not any("secret" in text for text in told)
    path.write_bytes(b"nonsense\n" * 500 + line)
    assert passwords.known("ann", "x"), "the line is as it was"
    assert len(caplog.records) < 20


def test_a_password_is_known_where_it_came_from(file: Path) -> None:
    passwords = Passwords(file)
    assert passwords.check("bob", "x", "here")
    assert passwords.known("bob", "x", "here")
    assert not passwords.known("bob", "x", "there")
    assert (passwords.knows("bob", "here"), passwords.knows("bob", "there")) == (True, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no user"),
        ("ann:$apr1$abc$def\n", "Line 1 .* bcrypt"),
        ("# x\nann:{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=\n", "Line 2"),
        (f"ann:$2y$31${'.' * 53}\n", "cost 4 to 15"),
        (f"ann:$2y$10${'/' * 53}\n", "Line 1"),
        (f"ann:$2y$10${'.' * 53}\n" * 2, "'ann' twice"),
        (f":$2y$10${'.' * 53}\n", "Line 1"),
    ],
)
def test_a_bad_file_of_passwords_is_told_in_a_sentence(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "users"
    path.write_text(text)
    with pytest.raises(BadFile, match=said):
        Passwords(path)


def test_files_that_cant_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="can't be read"):
        Passwords(tmp_path / "none")
    (tmp_path / "odd").write_bytes(b"\xff\xfe")
    with pytest.raises(BadFile, match="not UTF-8"):
        Passwords(tmp_path / "odd")


def test_a_minute_later_it_is_as_if_nothing_had_been(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("mutexdash.security.rate_limit.monotonic", lambda: now[0])
    counts = RateLimits()
    assert [counts.hit(2, "ann", "here") for _ in range(3)] == [True, True, False]
    assert not counts.full(2, "ann", "there")
    now[0] += 61
    assert not counts.full(2, "ann", "here")
    assert counts.hit(2, "ann", "here")
    now[0] += 30
    assert counts.hit(2, "ann", "here")
    now[0] += 31
    assert not counts.full(2, "ann", "here"), "one of the two is over"
    assert counts.hit(2, "ann", "here")
    now[0] += 61
    assert not counts.full(2, "ann", "here")
    assert not counts._times, "whoever makes up names does not fill the memory"
