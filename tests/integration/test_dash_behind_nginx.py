"""The dashboard behind a real nginx: no client can choose its own address."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from lockclient import Settings
from lockclient.cli.setup.ports import free_port
from lockclient.model.clocks import Runtime
from lockclient.stores.service_store import ServiceStore
from tests.support.locks import take
from tests.support.processes import Service, needed, start_service, wait_until
from tests.support.records import taker
from tests.support.unlocker_process import mutexdash, when_ready

ANN, EVE = "127.0.0.2", "127.0.0.3"
"""Addresses on loopback from which clients come to nginx."""
HOST = "ops.example"
RUNTIME = Runtime(300, 900)
CLAIMS = [
    *([ANN], ['"'], [f'{ANN}%"'], [f'"{ANN}, '], ["127.0.0.1"], [",,,"], ["x" * 5000], ["\\"]),
    *([ANN, f'"{ANN}'], [f'"{ANN}', ANN], ["fe80::1%eth0"], []),
]
"""What the client itself says in its headers `X-Forwarded-For`."""

_SERVER = """
server {{
  listen 127.0.0.1:{port};
  location / {{
    proxy_pass http://127.0.0.1:{to};
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    proxy_set_header X-Forwarded-Host $http_host;
    proxy_set_header X-Forwarded-Proto $scheme;
    proxy_set_header Host {host};
  }}
}}
"""


@contextmanager
def nginx(folder: Path, dashboard: Service, hops: int) -> Iterator[int]:
    """Run one with as many servers, each before the next; yield the port of the first."""
    behind = int(dashboard.url.rpartition(":")[2])
    ports = [free_port() for _ in range(hops)]
    servers = "".join(
        _SERVER.format(port=port, to=to, host="$http_host" if to != behind else "localhost")
        for port, to in zip(ports, [*ports[1:], behind], strict=True)
    )
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; large_client_header_buffers 4 16k;\n{folders}{servers} }}"
    )
    words = [needed("nginx"), "-p", str(folder), "-e", "stderr", "-c", str(config)]
    with start_service(words):
        wait_until(lambda: _listens(ports[0]), what="nginx")
        yield ports[0]


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def force_unlock(port: int, name: str, uuid: str, claims: list[str]) -> tuple[int, str]:
    """Ask for it as Eve, with these headers of her own; return the status and who it was."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60, source_address=(EVE, 0))
    body = json.dumps({"name": name, "uuid": uuid, "reason": "a test"})
    connection.putrequest("POST", f"/api/locks/{name}/force-unlock", skip_host=True)
    for header, value in (
        *(("Host", HOST), ("Content-Type", "application/json"), ("Content-Length", len(body))),
        *(("X-Forwarded-For", claim) for claim in claims),
    ):
        connection.putheader(header, str(value))
    connection.endheaders(body.encode())
    answer = connection.getresponse()
    said = json.loads(answer.read())
    connection.close()
    return answer.status, said["removed"]["removed_by"] if "removed" in said else str(said)


@pytest.mark.parametrize("hops", [1, 2])
def test_the_client_is_the_address_seen_by_nginx(
    settings: Settings, store: ServiceStore, tmp_path: Path, hops: int
) -> None:
    options = ("--no-auth", "--allow-force-unlock", "--force-unlock-limit", "1000")
    proxied = ("--trusted-proxy", "127.0.0.1", "--proxy-hops", str(hops), "--allowed-host", HOST)
    names = [f"lock-{number}" for number in range(len(CLAIMS))]
    uuids = [take(store, taker(name, RUNTIME))[0] for name in names]
    with (
        when_ready(mutexdash(settings, *options, *proxied)) as dashboard,
        nginx(tmp_path, dashboard, hops) as port,
    ):
        for name, uuid, claims in zip(names, uuids, CLAIMS, strict=True):
            status, who = force_unlock(port, name, uuid, claims)
            assert (status, who) == (200, f"somebody at {EVE}"), claims
