"""A page of another origin, opened in the browser of an operator of etcd."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from lockclient.cli.setup.etcd_server import Etcd
from tests.support.etcd_binary import OPEN, etcdctl_of
from tests.support.web_server import serving

pytestmark = pytest.mark.browser

ASK = """async ([url, words, mode]) => {
  try {
    const answer = await fetch(url, {method: "POST", mode, body: JSON.stringify(words)});
    return mode === "cors" ? `${answer.status} ${await answer.text()}` : "sent";
  } catch (error) { return `refused: ${error}`; }
}"""


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The address of another site's page: another port is another origin."""
    with serving(lambda _: (200, "<title>kittens</title>")) as there:
        yield f"http://{there}/"


@pytest.mark.parametrize("kind", ["as we start it", "as etcd starts by itself"])
def test_a_page_of_another_origin_reads_and_deletes_no_lock(
    kind: str, etcd_binary: str, tmp_path: Path, chromium: Browser, elsewhere: str
) -> None:
    """Not of our etcd; of one that is open it does both, which shows that it would."""
    lock = "/clustermutex/locks/deploy/uuid"
    key = base64.b64encode(lock.encode()).decode()
    with Etcd(etcd_binary, tmp_path / "data", tmp_path / "log") as server:
        if kind != "as we start it":
            server.stop()
            server.extra = OPEN
            server.start()
        etcdctl = etcdctl_of(server)
        etcdctl("put", lock, "u1")
        page = chromium.new_page()
        page.goto(elsewhere)

        def ask(path: str, mode: str) -> Any:
            url = f"http://{server.endpoint}/v3/kv/{path}"
            return page.evaluate(ASK, [url, {"key": key}, mode])

        read = ask("range", "cors")
        # A browser need not let the page see the answer: the request alone would delete.
        assert ask("deleterange", "no-cors") == "sent"
        left = etcdctl("get", lock, "--print-value-only").strip()
        page.close()
    if kind == "as we start it":
        assert read.startswith("refused")
        assert left == "u1"
    else:
        assert base64.b64encode(b"u1").decode() in read
        assert left == ""
