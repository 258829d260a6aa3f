"""Names that look like another lock's are told from it, wherever names are shown."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from html import unescape
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.cli.operate import ls
from lockclient.cli.operate.tables import tab_separated
from lockclient.cli.store_access import listed_locks
from lockclient.model.clocks import Deadline
from lockclient.overview.table import Table
from lockclient.text.confusables import Looks, skeleton, told_apart
from tests.support.board import Board
from tests.support.polls import ALL, REAL


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    """All look-alikes are held, and the one that they look like; each was removed once."""
    with Board("--allow-force-unlock") as started:
        for number, name in enumerate((REAL, *ALL.values())):
            started.store.take(name, uuid=f"u{number}")
            started.store.removed(name, f"r{number}", how="auto-unlock", removed_at=5.0)
        started.settle()
        yield started


def names_on(page: str) -> list[str]:
    """Return what the links to locks, or the heading, say."""
    found = re.findall(r"<th scope=\"row\" class=\"c-name\"><a [^>]*>(.*?)</a>", page)
    found = found or re.findall(r"<h1>(?:Force-unlock )?(.*?)</h1>", page)
    return [unescape(re.sub("<[^>]*>", "", markup)) for markup in found]


@pytest.mark.parametrize("path", ["/", "/removed", "/timeline"])
def test_every_list_tells_them_apart(board: Board, path: str) -> None:
    """In plain letters, by escapes, and the ones that look like another say which."""
    page = board.html(path)
    names = names_on(page)
    assert len(names) == len(ALL) + 1
    assert len({*names}) == len(names)
    assert all(name.isascii() for name in names)
    assert page.count("looks like") == len(names)


@pytest.mark.parametrize("name", ALL.values(), ids=ALL)
def test_every_page_of_one_does(board: Board, name: str) -> None:
    number = [REAL, *ALL.values()].index(name)
    path = quote(name, safe="")
    for address in (
        f"/lock/{path}",
        f"/locks/{path}/force-unlock?uuid=u{number}",
        f"/removal?name={path}&uuid=r{number}",
    ):
        page = board.html(address)
        (shown,) = names_on(page)
        assert shown != REAL
        assert shown.isascii()
        assert f'looks like <bdi class="text">{REAL}</bdi>' in page


def test_so_does_ls(board: Board) -> None:
    table = Table(board.store)
    table.read(Deadline.after(60))
    locks = listed_locks(table, time.time())
    lines = tab_separated(ls.COLUMNS, ls.cells(locks, time.time())).splitlines()[1:]
    names = [line.split("\t")[1] for line in lines]
    assert len({*names}) == len(ALL) + 1
    assert all(name.isascii() for name in names)
    assert f"{len(names)} names look like another's" in ls.summary(table, locks)


@pytest.mark.parametrize("name", ALL.values(), ids=ALL)
def test_a_lock_is_found_by_its_name_as_it_is_shown(board: Board, name: str) -> None:
    """Which is how alerts name it."""
    number = [REAL, *ALL.values()].index(name)
    page = board.get(f"/lock?name={quote(told_apart(name), safe='')}").get_data(as_text=True)
    assert f'<dd><bdi class="text">u{number}</bdi></dd>' in page
    shown = quote(told_apart(name).replace("\\x20", ""), safe="")
    assert "looks like" in board.html(f"/?q={shown}")


def test_a_page_is_another_one_when_another_such_lock_comes_or_goes() -> None:
    """Who has seen it is told so."""
    fake = ALL["Cyrillic letters"]
    with Board() as board:
        board.store.take(fake)
        address = f"/lock/{quote(fake, safe='')}"
        before = board.get(address)
        assert "looks like" not in before.get_data(as_text=True)
        board.store.take(REAL, uuid="other")
        after = board.get(address, If_None_Match=before.headers["ETag"])
        assert after.status_code == 200
        assert "looks like" in after.get_data(as_text=True)
        board.store.release(REAL)
        again = board.get(address, If_None_Match=after.headers["ETag"])
        assert "looks like" not in again.get_data(as_text=True)


def test_what_looks_like_no_other_lock_stays_as_it_is() -> None:
    with Board() as board:
        for name in ("Grüße", "部署/prod", "развёртывание", "deploy/prod", "Deploy/prod", "a b"):
            board.store.take(name)
        page = board.html("/")
        assert "Grüße" in names_on(page)
        assert "развёртывание" in names_on(page)
        assert "looks like" not in page
        for name in ("Grüße", "部署/prod", "развёртывание", "deploy/prod", "a b"):
            assert told_apart(name) == name


@pytest.mark.parametrize("name", ALL.values(), ids=ALL)
def test_the_skeleton_of_a_look_alike_is_what_it_looks_like(name: str) -> None:
    assert skeleton(name) == REAL
    assert told_apart(name) != REAL
    assert told_apart(name).isascii()


def test_those_of_other_scripts_are_told_from_each_other() -> None:
    looks = Looks()
    for name in ("\u2126-1", "\u03a9-1", "plain"):
        looks.add(name)
    everything = {"\u2126-1", "\u03a9-1", "plain"}.__contains__
    assert looks.like("\u2126-1", everything) == "\u03a9-1"
    assert looks.like("plain", everything) == ""
    looks.discard("\u03a9-1")
    assert looks.like("\u2126-1", {"\u2126-1", "plain"}.__contains__) == ""


@given(st.lists(st.sampled_from([*ALL.values(), REAL, "other", "ötherer"]), unique=True))
def test_a_name_that_is_gone_is_forgotten(names: list[str]) -> None:
    looks = Looks()
    for name in names:
        looks.add(name)
    for name in names:
        assert bool(looks.like(name, names.__contains__)) == (
            skeleton(name) == REAL
            and len([other for other in names if skeleton(other) == REAL]) > 1
        )
    for name in names:
        looks.discard(name)
    assert not looks.__dict__["_odd"]
