"""Host names that the programs accept, without etcd."""

from __future__ import annotations

from tests.support.pages import request
from tests.support.processes import Service, start_service, wait_until

NOWHERE = ("--url", "etcd://127.0.0.1:1/x")


def status(service: Service, path: str, host: str = "localhost", **headers: str) -> int:
    return request(service.url, path, Host=host, **headers).status


def test_an_unlocker_beyond_loopback_answers_to_its_names_only() -> None:
    command = ["unlocker", *NOWHERE, "--listen", "0.0.0.0:0", "--allowed-host", "u1.example.org"]
    with start_service(command) as unlocker:
        wait_until(lambda: status(unlocker, "/healthz", "10.9.9.9:9722") == 200)
        for host in ("u1.example.org:9722", "unlocker1:9722", "10.9.9.9:9722"):
            assert status(unlocker, "/metrics", host) == 200
        across = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
        for path in ("/metrics", "/metrics/", "/"):
            assert status(unlocker, path, "evil.example") == 421
            assert status(unlocker, path, **across) == 403
        assert status(unlocker, "/readyz", "evil.example") == 503, "a probe gets a sentence"
        said = [
            line for line in unlocker.log_text().splitlines() if "allow only Prometheus" in line
        ]
        assert len(said) == 1
        assert f"WARNING unlocker: Anyone who can reach {unlocker.url} can read" in said[0]
        assert unlocker.log_text().count("'evil.example'") == 1
