"""Names that look like another lock's are told from it, wherever names are shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from html import unescape
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.text.confusables import Looks, skeleton, told_apart
from tests.support.board import Board
from tests.support.memory_store import MemoryStore
from tests.support.polls import ALL, REAL
from tests.support.terminal import called


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
    assert len({*names}) == len(names) == len(ALL) + 1
    assert all(name.isascii() for name in names)
    assert page.count("looks like") == len(names)


def test_so_does_ls() -> None:
    store = MemoryStore()
    for name in (REAL, *ALL.values()):
        store.take(name)
    done = called(store, "ls")
    names = [line.split("\t")[1] for line in done.stdout.splitlines()[1:]]
    assert len({*names}) == len(ALL) + 1
    assert all(name.isascii() for name in names)
    assert f"{len(names)} names look like another's" in called(store, "ls", columns=200).stdout


@pytest.mark.parametrize("name", ALL.values(), ids=ALL)
def test_every_page_of_one_does_and_finds_it_by_its_name_as_it_is_shown(
    board: Board, name: str
) -> None:
    """Which is how alerts name it."""
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
    page = board.get(f"/lock?name={quote(told_apart(name), safe='')}").get_data(as_text=True)
    assert f'<dd><bdi class="text">u{number}</bdi></dd>' in page
    found = quote(told_apart(name).replace("\\x20", ""), safe="")
    assert "looks like" in board.html(f"/?q={found}")


def test_a_page_is_another_one_when_another_such_lock_comes_or_goes() -> None:
    """Who has seen it is told so."""
    fake = ALL["Cyrillic letters"]
    etag, looks_alike = "", []
    with Board() as board:
        board.store.take(fake)
        for change in (None, partial(board.store.take, REAL), partial(board.store.release, REAL)):
            if change is not None:
                change()
            answer = board.get(f"/lock/{quote(fake, safe='')}", If_None_Match=etag)
            assert answer.status_code == 200
            etag = answer.headers["ETag"]
            looks_alike.append("looks like" in answer.get_data(as_text=True))
    assert looks_alike == [False, True, False]


def test_what_looks_like_no_other_lock_stays_as_it_is() -> None:
    names = ("Grüße", "部署/prod", "развёртывание", "deploy/prod", "Deploy/prod", "a b")
    with Board() as board:
        for name in names:
            board.store.take(name)
        page = board.html("/")
    assert {"Grüße", "развёртывание"} < {*names_on(page)}
    assert "looks like" not in page
    assert [told_apart(name) for name in names if name != "Deploy/prod"] == [
        name for name in names if name != "Deploy/prod"
    ]


@pytest.mark.parametrize("name", ALL.values(), ids=ALL)
def test_the_skeleton_of_a_look_alike_is_what_it_looks_like(name: str) -> None:
    assert skeleton(name) == REAL
    assert told_apart(name) != REAL
    assert told_apart(name).isascii()


NAMES = [*ALL.values(), REAL, "other", "ötherer", "\u2126-1", "\u03a9-1"]


@given(st.lists(st.sampled_from(NAMES), unique=True))
def test_a_name_is_told_from_those_that_are_there_and_forgotten_when_it_goes(
    names: list[str],
) -> None:
    """Those of other scripts are told from each other, too."""
    looks = Looks()
    for name in names:
        looks.add(name)
    for name in names:
        alike = {other for other in names if skeleton(other) == skeleton(name)} - {name}
        found = looks.like(name, names.__contains__)
        assert found in alike if alike else not found
    for name in names:
        looks.discard(name)
    assert not any(vars(looks).values())
