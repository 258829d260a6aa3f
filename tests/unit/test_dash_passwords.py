"""Users and passwords from a file."""

from __future__ import annotations

from pathlib import Path

import bcrypt
import pytest

from mutexdash.passwords import BadFile, Passwords
from tests.dash_memory import hashed


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


def test_a_changed_file_counts_at_once_and_a_broken_one_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"ann:{hashed('x')}\n")
    passwords = Passwords(path)
    assert passwords.check("ann", "x")
    path.write_text("ann:in the clear, by mistake\n")
    assert passwords.known("ann", "x")
    fresh = tmp_path / "fresh"
    fresh.write_text(f"bob:{hashed('y')}\n")
    fresh.replace(path)
    assert not passwords.known("ann", "x")
    assert not passwords.check("ann", "x")
    assert passwords.check("bob", "y")


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
