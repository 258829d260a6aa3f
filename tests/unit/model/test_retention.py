"""For how long records are kept is one constant: stores, unlockers and all texts follow it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from lockclient.model.retention import RECORD_RETENTION, RECORD_RETENTION_S, _in_words

DOCS = Path(__file__).parents[3]
EDITED = """
import sys
from importlib.util import find_spec, module_from_spec
spec = find_spec("lockclient.model.retention")
with open(spec.origin, encoding="utf-8") as file:
    text = file.read()
edited = text.replace("RECORD_RETENTION_S: Final = 7 * 86400", "RECORD_RETENTION_S = 30 * 86400")
assert edited != text
module = sys.modules[spec.name] = module_from_spec(spec)
exec(compile(edited, spec.origin, "exec"), module.__dict__)

import time
from unittest.mock import MagicMock
from click.testing import CliRunner
import unlocker.cli
from lockclient import Settings, open_store
from lockclient.cli.operate import force_unlock, removed
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.stores.requests import Remove, RequestState
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.requests import ValkeyRequestExecutor
from tests.support.board import Board
from tests.unit.unlocker.test_record_cleanup import World, retention_of, run
from unlocker import record_cleanup

DAYS = 30 * 86400
store = open_store(Settings.load("etcd://127.0.0.1:9"))
lease = store._records
assert lease._reuse == DAYS < lease._ttl, "etcd's lease"
store.close()

class Sent(Exception):
    pass

def send(command, *_, **__):
    raise Sent(command.args)

rounds = MagicMock(keys=KeyNames("c"), until_enough=send)
try:
    removal = Removal(Holder("a"), 1.0, "u", "h", "w")
    ValkeyRequestExecutor(rounds, lambda _: None).do(RequestState(Remove(removal, None)), None)
except Sent as sent:
    assert str(DAYS * 1000 + 1) in sent.args[0], "Valkey's expiry"

world = World()
world.record("in 20 days", 10)
world.record("a day ago", 31)
record_cleanup.monotonic, time.time = lambda: world.now, lambda: world.wall
run(retention_of(world), world, 7200)
assert world.there("removed") == {"in 20 days"}, "the unlocker"

for command in (unlocker.cli.main, force_unlock.force_unlock, removed.removed):
    help = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert "30 days" in help and "seven days" not in help, help
assert "in the last 30 days" in removed._summary(1, 1, 1)
with Board() as board:
    for page in ("/removed", "/timeline"):
        html = board.html(page)
        assert "30 days" in html and "seven days" not in html, page
print("all of them")
"""


def test_all_that_keeps_records_or_speaks_of_it_follows_one_constant() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EDITED], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "all of them\n", done.stderr


def test_it_is_written_in_words() -> None:
    texts = [_in_words(days * 86400) for days in (1, 7, 10, 30, 0.5)]
    assert texts == ["one day", "seven days", "ten days", "30 days", "12 h"]


def test_documents_say_the_same() -> None:
    """Wherever they tell for how many days records of removals are kept."""
    said = [
        (page.name, f"{count} days")
        for page in [*(DOCS / "docs").glob("*.md"), DOCS / "README.md"]
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search("record|[Rr]emov|--reason", line)
        for count in re.findall(r"\b(\w+)[ -]days?\b(?! of soft)(?! \(soft)", line)
        if count.isdecimal() or count in ("seven", "thirty")
    ]
    assert len(said) >= 8
    number = f"{RECORD_RETENTION_S / 86400:g} days"
    assert {text for _, text in said} <= {RECORD_RETENTION, number}, said
