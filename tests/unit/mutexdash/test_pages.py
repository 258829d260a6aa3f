"""The pages as HTML, in each state."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.support.board import Board, PolledStore
from tests.support.processes import Figure, wait_until


@pytest.fixture
def board() -> Iterator[Board]:
    with Board("--allow-force-unlock") as started:
        started.store.unlocker()
        yield started


# ---------------------------------------------------------------- the list


def test_the_list_shows_holder_host_reason_and_age(board: Board) -> None:
    board.store.take("nightly-report", held_for=61.5)
    board.store.wait("nightly-report", "w1")
    parts = ("OK nightly-report", "worker-1 : 4711", "rebuild totals", "1 min 1 s", "1 waiting")
    board.shows("/", *parts, "13 min 58 s left")


def test_states_are_words_not_only_colours(board: Board) -> None:
    board.store.take("a", held_for=400)
    board.store.take("b", held_for=1000)
    board.store.take("c", alert_at="x")
    board.shows("/", "Past alert", "Overdue", "Broken", "overdue 1 min 40 s")
    board.store.take("d", held_for=150)
    html = board.html("/?q=d")
    times = "Last heartbeat .* UTC, alert .* UTC, auto-unlock .* UTC"
    assert re.search(rf'role="img" aria-label="{times}"', html)
    assert re.search(r'class="filled" height="100%" width="25\.\d%"', html)
    assert "style=" not in html


def test_empty_pages_explain_themselves(board: Board) -> None:
    for path, said in {
        "/": "No lock is held right now.",
        "/removed": "No removals on record.",
        "/timeline": "No lock was held in this time.",
        "/waiting": "No client is waiting for a lock.",
        "/host?name=nobody": "This host holds no locks.",
    }.items():
        board.shows(path, said)
    board.store.take("a")
    board.shows("/?q=nothing", "The only held lock does not match.", "Clear the filter")
    board.store.take("b")
    board.store.wait("a", "w1")
    board.store.removed("x", "u")
    for path, said in {
        "/": "None of 2 locks match.",
        "/removed": "No removal matches.",
        "/timeline": "No lock matches.",
        "/waiting": "None of 1 waiters match.",
    }.items():
        board.shows(f"{path}?q=nothing", said)
    board.shows("/host", "give the host's name", code=400)


def test_the_banner_without_an_unlocker_names_the_command(board: Board) -> None:
    board.shows("/", but=("No unlocker is running",))
    board.store.unlocker(runs=False)
    how = "unlocker --url etcd://127.0.0.1:2379/clustermutex"
    for path in ("/", "/removed", "/lock/a"):
        board.shows(path, "No unlocker is running.", how)


def test_an_unreachable_store_greys_the_last_known_state(board: Board) -> None:
    board.store.take("a")
    board.text("/")
    board.store.reachable = False
    board.ahead = 75
    board.shows("/", "etcd is unreachable.", "last known state, 1 min 1", "worker-1")
    assert 'class="outdated"' in board.html("/")


def test_links_keep_the_search_and_leave_the_page(board: Board) -> None:
    """A page that is gone shows the last one; a link with parameters of others still opens."""
    for number in range(101):
        board.store.take(f"lock-{number:03}")
    board.shows("/?page=7", "101–101 of 101 locks")
    board.shows("/", "1–100 of 101 locks")
    html = unescape(board.html("/?q=lock&page=2&sort=name"))
    assert 'href="/?q=lock&sort=-name"' in html
    assert 'href="/?q=lock&state=alert&sort=name"' in html
    assert 'rel="prev" href="/?q=lock&sort=name"' in html
    assert board.get("/?utm_source=mail").status_code == 200
    board.shows("/?sort=x", "The parameter sort must be one of", code=400)


# ---------------------------------------------------------------- one lock


def test_a_lock_page_shows_the_age_and_the_waiters(board: Board) -> None:
    board.store.take("deploy/prod", identity="worker-7", held_for=400)
    board.store.wait("deploy/prod", "w1", hostname="next-1", pid=3, reason="my turn", since=1.0)
    text = board.shows(
        "/lock/deploy%2Fprod",
        *("Past its alert for 1 min 40 s, auto-unlock in 8 min", "next-1 : 3", "my turn"),
    )
    assert re.search(r"Taken 6 min 40 s ago\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", text)


def test_a_broken_lock_page_names_each_problem(board: Board) -> None:
    board.store.take("odd", hostname=None, pid="<many>", format="all", auto_unlock_at=b"\xff")
    board.shows(
        "/lock/odd",
        *("hostname is missing.", "auto_unlock_at is not UTF-8."),
        "about pid is not a whole number; format is not a whole number.",
        "never remove a lock that they can't read",
    )


def test_the_page_of_a_free_lock_shows_its_latest_removal(board: Board) -> None:
    facts = {"how": "auto-unlock", "removed_by": "dog", "backtrace": "File dead.py"}
    for uuid, why in (("u1", "first"), ("u2", "second")):
        board.store.removed("old", uuid, **facts, why=why, hostname="dead-host", removed_at=5.0)
    parts = ("Not held", "Auto-unlocked", "dog", "second", "dead-host", "File dead.py")
    board.shows("/lock/old", *parts, but=("first",))
    board.shows("/lock/never-was", "no removals on record")


def test_the_page_of_a_free_lock_with_waiters_names_the_head_of_the_queue(board: Board) -> None:
    board.store.removed("stuck", "u1", how="auto-unlock")
    board.store.wait("stuck", "w1", hostname="next-1", pid=3, reason="my turn", since=1.0)
    board.store.wait("stuck", "w2", hostname="next-2", pid=4)
    text = board.shows(
        "/lock/stuck",
        *("Free, with 2 waiters", "Waiting (2)", "ssh next-1", "py-spy dump --pid 3"),
        "LockFreeWithWaiters",
        but=("force-unlock", "was never taken"),
    )
    assert text.index("my turn") < text.index("next-2 : 4")
    board.store.take("stuck")
    board.shows("/lock/stuck", but=("Free, with",))


def test_a_lock_page_shows_known_facts_while_the_store_is_unreachable(board: Board) -> None:
    board.store.take("a")
    board.store.answers = False
    assert "ETag" not in board.get("/lock/a").headers
    why = "etcd could not be asked for it: etcd at 127.0.0.1:2379 did not answer"
    board.shows("/lock/a", "worker-1", why)
    board.store.answers = True
    board.shows("/lock/a", "line 41, in rebuild")


# ---------------------------------------------------------------- around the pages

EVIL = "<img src=x onerror=alert(1)>\u202e\x07"


def test_hostile_text_is_text_in_every_field(board: Board) -> None:
    name = EVIL.replace("\x07", "")
    fields = ("uuid", "hostname", "thread", "reason", "identity", "client", "backtrace", "pid")
    board.store.take(name, **dict.fromkeys((*fields, "actor"), EVIL))
    board.store.wait(name, EVIL, **dict.fromkeys(("hostname", "thread", "reason", "actor"), EVIL))
    texts = ("hostname", "reason", "client", "how", "why", "removed_by", "thread", "identity")
    board.store.removed("other" + name, EVIL, **dict.fromkeys(texts, EVIL))
    board.store.unlocker(EVIL)
    about = (f"/lock?name={name}", f"/lock?name=other{name}", f"/host?name={name}", f"/?q={EVIL}")
    for path in ("/", "/removed", "/waiting", "/timeline", *about):
        html = board.html(path)
        assert "<img" not in html, path
        outside_the_search_box = re.sub(r' value=".*?"', "", html)
        assert not {"\x07", "\u202e"} & {*outside_the_search_box}, path


def test_pages_hold_no_inline_code_and_load_nothing_from_elsewhere(board: Board) -> None:
    board.store.take("a")
    ours = r"<script(?! (?:type=\"module\" )?src=\"/static/)"
    for path in ("/", "/lock/a", "/timeline", "/removed", "/nothing"):
        assert not re.search(rf"{ours}|<style|\sstyle=|\son\w+=|https?://", board.html(path))


def test_a_missing_page_is_404(board: Board) -> None:
    board.shows("/nothing", "This page does not exist.", but=("URL",), code=404)
    board.store.take("deploy/prod")
    for path, page in {"/locks/deploy%2Fprod": "/lock/deploy%2Fprod", "/locks": "/"}.items():
        answer = board.get(path)
        assert (answer.status_code, answer.headers["Location"]) == (302, page)
    assert board.get("/locks/deploy%2Fprod/force-unlock?uuid=x").status_code == 200


@pytest.mark.parametrize("path", ["/lock/a", "/api/locks/a"])
def test_an_internal_error_reveals_no_details(board: Board, path: str) -> None:
    board.store.answers = RuntimeError("secret of the inside")
    answer = board.get(path)
    assert answer.status_code == 500
    assert b"secret" not in answer.data
    assert answer.is_json == path.startswith("/api/")


# ---------------------------------------------------------------- machines


def test_health_and_readiness(board: Board) -> None:
    board.store.reachable = False
    assert board.get("/healthz").status_code == board.get("/readyz").status_code == 200
    assert "etcd is unreachable" in board.html("/readyz")
    board.store.reachable = True
    assert board.html("/readyz") == "The dashboard is ready.\n"


def test_pages_before_the_first_read_name_the_cause() -> None:
    unread = Board()
    for path, code in {
        **dict.fromkeys(("/healthz", "/runbook"), 200),
        **dict.fromkeys(("/readyz", "/", "/api/locks"), 503),
    }.items():
        assert unread.get(path).status_code == code
    unread.shows("/", "etcd at 127.0.0.1:2379 has not answered so far", code=503)
    assert "127.0.0.1:2379" in unread.get("/api/locks").json["error"]
    assert "mutexdash_locks" not in unread.html("/metrics")


def test_metrics_count_locks_by_state(board: Board) -> None:
    board.store.take("a")
    board.store.take("b", held_for=400)
    board.store.take("c", alert_at="x")
    board.store.wait("a", "w1")
    text = board.html("/metrics")
    for state, found in {"ok": 1, "alert": 1, "overdue": 0, "broken": 1}.items():
        assert f'mutexdash_locks{{state="{state}"}} {found}.0\n' in text
    for name in ("waiters", "unlockers", "store_connected"):
        assert f"mutexdash_{name} 1.0\n" in text


DEEP = """\
  File "/srv/run.py", line 88, in <module>
    main()
  File "/usr/lib/python3.11/site-packages/celery/app.py", line 5, in call
    task()
  File "/srv/invoices.py", line 214, in create
    stack.enter_context(mutex)
  File "/usr/lib/python3.11/contextlib.py", line 502, in enter_context
    result = _enter(cm)
"""


# ---------------------------------------------------------------- the list


def test_tiles_are_filters_and_a_second_click_clears_them(board: Board) -> None:
    board.store.take("quiet")
    board.store.take("wanted")
    for number in range(3):
        board.store.wait("wanted", f"w{number}")
    assert 'href="/?state=waiters"' in unescape(board.html("/"))
    board.shows("/", "waiting for 1 lock")
    chosen = unescape(board.html("/?state=waiters"))
    assert re.search(r'class="tile waiters" href="/" aria-current="true"', chosen)
    board.shows("/?state=waiters", "wanted", but=("quiet",))


def test_the_tile_counts_a_free_lock_with_waiters(board: Board) -> None:
    """No list of held locks shows that lock, so the front page must hint at it."""
    board.store.take("wanted")
    board.store.wait("wanted", "w1")
    board.store.wait("free", "w2")
    board.shows("/", "waiting for 2 locks, 1 free")


# ---------------------------------------------------------------- one lock


def test_the_backtrace_has_own_frames_first_and_the_innermost_marked(board: Board) -> None:
    board.store.take("a", backtrace=DEEP)
    text = board.shows("/lock/a", "Through 1 library call, folded below.")
    order = [
        *("/srv/invoices.py:214", "acquired here", "stack.enter_context(mutex)"),
        *("/srv/run.py:88", "2 library frames", "contextlib.py:502", "Full traceback"),
    ]
    positions = [text.index(part) for part in order]
    assert positions == sorted(positions)
    assert DEEP in unescape(board.html("/lock/a"))
    foreign = "goroutine 1 [running]:\nmain.main()\n\t/srv/main.go:7"
    board.store.take("b", backtrace=foreign)
    assert foreign in board.html("/lock/b"), "as it came"


def test_a_lock_links_to_its_alert_its_removals_and_its_lane(board: Board) -> None:
    board.store.take('odd "name"\\')
    html = unescape(board.html("/lock?name=odd%20%22name%22%5C"))
    for path in ("/removed", "/timeline"):
        names = ('odd+"name"\\', "odd+%22name%22%5C")
        assert any(f'href="{path}?q={name}"' in html for name in names)
    assert "Prometheus" not in html
    with Board("--prometheus-url https://p.example/x/", board.store) as linked:
        html = linked.html("/lock?name=odd%20%22name%22%5C")
        assert 'href="https://p.example/x/' in html
        assert "ALERTS%7Bname%3D%22odd+%5C%22name%5C%22%5C%5C%22%7D" in html


# ---------------------------------------------------------------- force-unlock


def test_the_force_unlock_form_is_for_one_holder(board: Board) -> None:
    board.store.take("a", uuid="u1", hostname="old-host", held_for=2000)
    board.store.wait("a", "w1", hostname="next-host", pid=7, since=time.time() - 60)
    assert 'href="/locks/a/force-unlock?uuid=u1"' in board.html("/lock/a")
    form = "/locks/a/force-unlock?uuid=u1"
    html = board.html(form)
    assert '<form class="card force" method="post" action="/locks/a/force-unlock"' in html
    assert 'name="uuid_hex" value="7531"' in html
    evidence = ("Overdue", "Taken 33 min", "Last heartbeat 33 min", "1 waiter, for 1 min")
    board.shows(form, *evidence, "gets it at once: next-host : 7.")
    changed = board.html("/locks/a/force-unlock?uuid=u0")
    assert ("<form class" in changed, "old-host" in changed) == (False, True)
    board.shows("/locks/b/force-unlock?uuid=u0", "Nobody holds it now.")
    board.shows("/locks/a/force-unlock", "No holder chosen.")
    board.store.reachable = False
    assert re.search(r'class="danger" disabled', board.html(form))
    board.shows("/lock/a", "Force-unlock is disabled while this page is out of date")
    assert "/locks/a/force-unlock" not in board.html("/lock/a")


def test_the_form_after_a_force_unlock_says_that_it_was_done(board: Board) -> None:
    board.store.take("a", uuid="u2")
    board.store.removed("a", "u1", how="force-unlock", removed_by="ann", why="hung", removed_at=5.0)
    done = "Done: that holder no longer has the lock."
    nothing = "Nothing was unlocked"
    board.shows("/locks/a/force-unlock?uuid=u1", done, "Force-unlocked by ann", but=(nothing,))
    board.shows("/locks/a/force-unlock?uuid=u0", nothing)


# ---------------------------------------------------------------- removals and lanes


def test_a_removal_is_shown_with_the_dead_holders_backtrace(board: Board) -> None:
    facts = {"how": "auto-unlock", "removed_by": "dog", "why": "silent", "hostname": "dead"}
    times = {"locked_at": 10.0, "removed_at": 700.0}
    board.store.removed("..", "u 1", **facts, **times, backtrace=DEEP)
    assert 'href="/removal?name=..&uuid=u+1"' in unescape(board.html("/removed"))
    where, parts = "Where it was acquired", ("Auto-unlocked", "dog", "silent", "dead")
    board.shows("/removal?name=..&uuid=u+1", *parts, "/srv/invoices.py:214")
    board.shows("/removed", *parts, where, "11 min 30 s", "1970-01-01 00:11:40 UTC")
    html = board.html("/removed?q=dead")
    for kind in ("csv", "json"):
        assert f'href="/removed.{kind}?q=dead" download' in html
    board.store.removed("without", "u2", backtrace=None, removed_at=6.0)
    board.shows("/removed?q=without", but=(where,))


def test_the_timeline_has_a_lane_for_each_lock_and_words_for_each_colour(board: Board) -> None:
    board.store.take("went", held_for=100, uuid="u2")
    board.text("/")
    board.store.release("went")
    html = board.html("/timeline?span=900")
    assert re.search(r'aria-label="worker-1 : 4711, from .* for 1 min \d+ s, released"', html)
    assert re.search(r'class="span released" href="/lock/went" [^>]*>\s*<title>worker-1 : ', html)
    board.store.take("late", held_for=400)
    board.store.wait("late", "w", hostname="h", pid=3, since=time.time() - 60)
    html = board.html("/timeline?span=900")
    assert re.search(r'class="span held alert" href="/lock/late"', html)
    assert re.search(r'aria-label="h : 3 has waited for 1 min', html)
    for span, said in {
        **dict.fromkeys(("15m", "900s", "15+min"), "15 min ago10 min ago5 min agonow"),
        "6h": "6 h ago4 h ago2 h agonow",
        "1h": "1 h ago40 min ago20 min agonow",
    }.items():
        board.shows(f"/timeline?span={span}", said, "held", "released", "auto-unlocked")
    for other in ("1", "soon", "15m15m"):
        said = f"must be one of 15 min, 1 h, 6 h, 24 h; it is '{other}'"
        board.shows(f"/timeline?span={other}", said, code=400)


def test_a_lane_names_its_newest_holders_first(board: Board) -> None:
    for number in range(5):
        board.store.take("a", uuid=f"u{number}", hostname="h\u202e", pid=number, held_for=90)
    board.store.take("b", locked_at=None)

    def lane(name: str) -> str:
        row = board.html(f"/timeline?q=lock:{name}").partition(f'data-key="{name}"')[2]
        return unescape(re.findall(r'role="group" aria-label="([^"]*)"', row)[0])

    wait_until(lambda: "Held 5 times" in lane("a"), what="the history")
    assert re.match(
        r"Held 5 times\. The newest: h\\u202e : 4, from .* UTC for 1 min \d+ s, still held; "
        r"h\\u202e : 3, from .* UTC for 1 min \d+ s, released; h\\u202e : 2, from [^;]*$",
        lane("a"),
    )
    # Of a broken lock nobody knows since when: the span is no claim that it was all the time.
    assert lane("b") == "worker-1 : 4711, start unknown, still held"


# ---------------------------------------------------------------- around the pages


def test_styles_and_scripts_are_small(board: Board, figure: Figure) -> None:
    """30 KB compressed, all together: the page is there at once, on a phone at night, too."""
    folder = Path(board.app.static_folder or "")
    files = [*folder.glob("*.css"), *folder.glob("*.js")]
    size = sum(len(gzip.compress(path.read_bytes())) for path in files)
    figure(f"all styles and scripts, compressed: {size / 1024:.1f} KB")
    assert size <= 30 * 1024


# ---------------------------------------------------------------- which cluster, what to do


def test_a_label_is_on_every_page_and_in_the_tab() -> None:
    with Board("--allow-force-unlock --title prod --colour red") as board:
        board.store.unlocker()
        board.store.take("a", uuid="u1", held_for=2000)
        titles = {
            "/": "1 overdue · prod", "/lock/a": "Overdue: a · prod",
            "/nothing": "Page not found · prod",
            "/removed": "Removed locks · prod", "/waiting": "Waiting · prod",
            "/locks/a/force-unlock?uuid=u1": "Force-unlock a · prod",
        }  # fmt: skip
        for path, title in titles.items():
            html = board.html(path)
            assert f"<title>{title}</title>" in html
            assert 'class="labelled red"' in html
            assert '<b class="cluster red">' in html
            assert "etcd://127.0.0.1:2379/clustermutex" in html
        board.store.reachable = False
        assert "<title>etcd unreachable · prod</title>" in board.html("/")
    with Board() as plain:
        assert "<title>Locks · ClusterMutex</title>" in plain.html("/")


def test_the_page_of_a_stuck_lock_names_the_next_steps(board: Board) -> None:
    board.store.take("deploy/prod", uuid="u1", held_for=400, hostname="ci-3.example.com")
    for number in range(6):
        since = time.time() - 900 + number
        board.store.wait("deploy/prod", f"w{number}", hostname="h", pid=1, since=since)
    commands = ("ssh ci-3.example.com", "ps -o", "py-spy dump --pid 4711", "-- deploy/prod")
    text = board.shows("/lock/deploy%2Fprod", *commands, "LockPastAlert")
    assert re.search(
        r"auto-unlock in 8 min \d+ s\. 6 waiters, the longest for 15 min \d+ s\.", text
    )
    board.shows("/", "6 waiting · the longest 15 min")
    board.store.take("well")
    board.shows("/lock/well", but=("What to do",))


def test_a_list_names_its_keys_order_and_matches(board: Board) -> None:
    assert "<kbd>" not in board.html("/")
    board.store.take("a", hostname="bill-3", keepalive=True)
    html = board.html("/")
    for part in ("<kbd>", 'href="/?sort=-waiters"', 'href="/host?name=bill-3"'):
        assert part in html
    background = "Kept alive in the background: a hung worker looks healthy"
    assert html.count(background) == 1
    board.shows("/lock/a", background)
    assert 'href="/?sort=waiters"' in board.html("/?sort=-waiters")
    board.shows("/?q=host:bill+-nothing+4711", "1–1 of 1 lock")
    for number in range(5):
        assert "c-waiters many" not in board.html("/")
        board.store.wait("a", f"w{number}")
    assert "c-waiters many" in board.html("/")


def test_a_host_page_lists_its_locks_and_waits(board: Board) -> None:
    board.store.take("a", hostname="bill-3.example.com", pid=7, held_for=2000)
    board.store.take("b", hostname="bill-30.example.com")
    board.store.wait("free", "w", hostname="bill-3.example.com")
    others = ("bill-30", "bill-3.example.com : 7")  # each row would say the same
    text = board.shows("/host?name=bill-3.example.com", "Holds (1)", "Waits for (1)", but=others)
    assert re.search(r"Process .* pid 7 ", text)


def test_a_host_loses_its_domain_first_and_an_address_nothing(board: Board) -> None:
    hosts = ("bill-3.prod.example.com", "10.20.30.40", "::1", "db", ".x")
    for number, host in enumerate(hosts):
        board.store.take(f"lock-{number}", hostname=host)
    heads = re.findall(r'<span class="head"><bdi class="text">([^<]*)<', board.html("/?sort=name"))
    assert heads == ["bill-3", *hosts[1:]]


# ---------------------------------------------------------------- a restore


def test_a_banner_is_on_every_page_and_counts_as_a_change(board: Board) -> None:
    """A restore is shown for a day."""
    board.store.take("a")
    board.store.take("b")
    failing, back = "failed to notify <b>, ops.", "The store was restored from a backup."
    board.shows("/", but=(failing, back))

    def fail() -> None:
        board.store.write(("unlockers", "u", "", b'{"failing": ["ops", "<b>"]}'))

    def restore() -> None:
        model = board.store.model
        for key in [key for key in model.kept if key[:2] == ("locks", "a")]:
            model.kept[key] = model.kept[key]._replace(revision=1, created=1)
        model.compacted = model.revision + 1  # so that everything is read again
        board.store.write(("unlockers", "v", "", b"{}"))
        board.settle()

    banners: list[tuple[Callable[[], None], str, tuple[str, ...]]] = [
        (fail, failing, ("/", "/lock/a")),
        (restore, back, ("/", "/lock/b", "/removed", "/timeline")),
    ]
    for happen, said, paths in banners:
        tags = {path: board.get(path).headers["ETag"] for path in paths}
        happen()
        for path in paths:
            assert board.get(path).headers["ETag"] != tags[path], path
            board.shows(path, said)
    board.ahead = 86400
    board.shows("/", but=("restored from a backup",))


# ---------------------------------------------------------------- the runbook, traces


def test_a_lock_page_links_to_the_runbook() -> None:
    with Board() as board, Board("--runbook-url https://ops.example/runbook") as theirs:
        for asked, link in ((board, "/runbook"), (theirs, "https://ops.example/runbook")):
            asked.store.take("late", held_for=400)
            assert f'href="{link}#lockpastalert"' in asked.html("/lock/late")
        board.shows("/runbook", "LockPastAlert", "It means:", "LockHeldTooLong")
        csp = board.get("/runbook").headers["Content-Security-Policy"]
        assert csp == board.get("/").headers["Content-Security-Policy"]


def test_a_lock_page_links_to_its_trace(board: Board) -> None:
    url = "https://traces.example.org/trace/{trace_id}?span={span_id}"
    base = "https://traces.example.org/trace/"
    cases: list[tuple[Any, str]] = [
        ({"trace_id": "4bf9", "span_id": "00"}, f"{base}4bf9?span=00"),
        (
            {"trace_id": "../../?a=b#c", "span_id": "//evil.example.org"},
            f"{base}..%2F..%2F%3Fa%3Db%23c?span=%2F%2Fevil.example.org",
        ),
        *((missing, "") for missing in (
            None, {}, {"trace_id": "4bf9"}, {"trace_id": "", "span_id": "1"},
            {"trace_id": "4" * 201, "span_id": "1"}, {"trace_id": "..", "span_id": "1"},
        )),
    ]  # fmt: skip
    with Board(f"--trace-url {url}", board.store) as traced:
        for context, link in cases:
            board.store.take("x", context=context, labels={"span_id": "old"} if link else {})
            found = re.findall(rf'href="({re.escape(base)}[^"]*)"', traced.html("/lock/x"))
            assert [unescape(there) for there in found] == ([link] if link else [])
            assert base not in board.html("/lock/x")


# ---------------------------------------------------------------- verdicts

FRAME = "/srv/app/jobs.py:41 in rebuild"


def embrace(board: Board, *, held_for: float = 0) -> None:
    """Have two that hold a lock each wait for the other one's."""
    for name, actor, waits_for, host in (("x", "A", "y", "left"), ("y", "B", "x", "right")):
        board.store.take(
            name, uuid=f"u{name}", actor=actor, held_for=held_for, backtrace=f"code of {name}"
        )
        board.store.wait(
            waits_for, actor, actor=actor, hostname=host, pid=1, frame=FRAME, since=1.0
        )


def test_a_deadlock_is_shown_everywhere(board: Board) -> None:
    board.store.take("fine")
    assert "mutexdash_deadlocks 0.0" in board.html("/metrics")
    embrace(board)
    for path in ("/", "/waiting"):
        board.shows(path, "2 clients each hold a lock and wait for the next one's: x, y.")
    html = board.html("/")
    assert "<title>Deadlock? · Locks" in html
    assert html.count('<tr class="deadlock"') == html.count('<span class="badge deadlock"') == 2
    assert html.count('href="#i-ok"') - html.partition("<main")[0].count('href="#i-ok"') == 1
    assert '<a class="tile deadlock"' in html
    board.shows("/", "2in a deadlock?")
    board.shows("/waiting", f"waits at {FRAME}")
    assert board.locks("") == ["y", "x", "fine"], "above all that is well"
    for query in ("?state=deadlock", "?q=state:deadlock", "?q=state:d"):
        assert sorted(board.locks(query)) == ["x", "y"]
    assert board.locks("?q=-state:deadlock") == ["fine"]
    waits = ("left : 1 holds x and has waited", "right : 1 holds y and has waited")
    for name in "xy":
        text = board.shows(
            f"/lock/{name}", "This may be a deadlock", "code of x", "code of y", *waits
        )
        twice = ("clustermutex force-unlock", f"Waits at {FRAME}")
        assert [text.count(part) for part in twice] == [2, 2]
        html = board.html(f"/lock/{name}")
        assert 'href="/runbook#lockdeadlock"' in html
        assert f"<title>Deadlock?: {name}" in html
        assert "badge ok" not in html.partition('class="heading"')[2]
        board.shows(f"/locks/{name}/force-unlock?uuid=u{name}", "Deadlock?")
    board.shows("/lock/fine", but=("deadlock",))
    for path in ("/api/locks?q=lock:y", "/api/locks/y"):
        answer = board.get(path).json
        lock = answer.get("locks", [answer])[0]
        assert (lock["state"], lock["deadlock"]) == ("ok", ["y", "x"])
    assert board.get("/api/locks/fine").json["deadlock"] == []
    assert "mutexdash_deadlocks 1.0" in board.html("/metrics")
    board.store.release("x")
    metrics = board.html("/metrics")
    assert "mutexdash_deadlocks 0.0" in metrics, "an actor that holds nothing blocks nobody"


def test_a_new_deadlock_changes_the_etag(board: Board) -> None:
    board.store.take("x", uuid="ux", actor="A")
    tags = {path: board.get(path).headers["ETag"] for path in ("/", "/lock/x", "/waiting")}
    board.store.wait("x", "w", actor="A")
    for path, tag in tags.items():
        assert board.get(path, If_None_Match=tag).status_code == 200


def test_tickets_are_read_only_after_a_queue_changed(board: Board) -> None:
    embrace(board)
    board.shows("/waiting", "1–2 of 2 waiters", "x, y")
    reads = board.store.reads_of_tickets
    board.store.push("x")
    board.shows("/waiting", "1–2 of 2 waiters", "x, y")
    assert board.store.reads_of_tickets == reads
    board.store.wait("x", "another")
    board.shows("/waiting", "1–3 of 3 waiters", "x, y")
    assert board.store.reads_of_tickets == reads + 1


def test_the_waiting_page_lists_the_longest_waits_first(board: Board) -> None:
    board.store.take("deploy/prod", hostname="ci-1", pid=5)
    for number, name in enumerate(("deploy/prod", "free", "deploy/prod"), 2):
        board.store.wait(name, f"w{number}", hostname=f"ci-{number}.example.com", pid=58 + number)
    parts = ("held by ci-1 : 5", "nobody right now", "1–3 of 3 waiters")
    text = board.shows("/waiting", *parts)
    positions = [text.index(f"ci-{number}.example.com : {58 + number}") for number in (2, 3, 4)]
    assert positions == sorted(positions)
    board.shows("/waiting?q=lock:free", "1–1 of 1 waiter")


def test_an_overdue_lock_in_a_deadlock_shows_both(board: Board) -> None:
    embrace(board, held_for=2000)
    assert board.locks("?state=overdue") == board.locks("?state=deadlock") == ["y", "x"]
    board.shows("/lock/x", "Deadlock?", "Overdue")
    assert 'title="Deadlock?, overdue"' in board.html("/")
    assert board.get("/api/locks/x").json["state"] == "overdue"


def test_the_form_and_the_lock_page_use_the_same_clock() -> None:
    store = PolledStore()
    store.take("a", uuid="u1", held_for=400)
    with Board("--allow-force-unlock", store=store) as board:
        for path in ("/lock/a", "/locks/a/force-unlock?uuid=u1"):
            assert "badge ok" in board.html(path), path
            assert "badge alert" not in board.html(path), path


def test_an_overdue_lock_names_its_earliest_removal(board: Board) -> None:
    board.store.take("a", uuid="u1", held_for=2000)
    board.shows("/lock/a", "Overdue for", but=("at the earliest",))
    for name, ago in (("one", 60), ("two", 30)):
        said = json.dumps({"started_at": time.time() - ago}).encode()
        board.store.write(("unlockers", name, "", said))
    text = board.shows("/lock/a", "at the earliest in 13 min")
    assert re.search(r"at the earliest in 1\d min \d+ s: \d{4}-\d\d-\d\d [\d:]+ UTC", text)


def test_a_record_is_never_judged(board: Board) -> None:
    """A four-key lock that was removed is not undecided."""
    board.store.removed(
        "shell", "u1", how="auto-unlock", hostname="nas", alert_at=1e9, auto_unlock_at=2e9
    )
    for path in ("/removed", "/removal?name=shell&uuid=u1", "/lock/shell"):
        board.shows(path, "nas", but=("undecided", "Undecided", "unknown when"))


def test_a_lock_held_too_long_is_shown_despite_heartbeats(board: Board) -> None:
    board.store.take("bounded", held_for=3000, max_hold=3001.5, keepalive=True)
    board.store.take("unbounded", held_for=3000)
    for name in ("bounded", "unbounded"):
        board.store.push(name)
    board.shows("/lock/bounded", but=("Held too long",))
    tags = {
        path: board.get(path).headers["ETag"] for path in ("/lock/bounded", "/api/locks/bounded")
    }
    board.ahead += 2
    for path, tag in tags.items():
        assert board.get(path, If_None_Match=tag).status_code == 200, "nobody wrote the lock"
    text = board.shows("/lock/bounded", "Held too long:", "over its limit of 50 min 1 s (max_hold)")
    assert "lockheldtoolong" in text.lower()
    assert board.locks("?state=held-too-long") == ["bounded"]
    assert board.locks("") == ["bounded", "unbounded"]
    board.shows("/", "1held too long")
    lock = board.get("/api/locks/bounded").json
    assert (lock["state"], lock["held_too_long"], lock["max_hold"]) == ("ok", True, 3001.5)
    board.shows("/lock/unbounded", but=("Held too long", "lockheldtoolong"))


# ---------------------------------------------------------------- where each one waits
