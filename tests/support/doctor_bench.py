"""Parts of the clusters in the cases of `clustermutex doctor`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from lockclient import Settings
from lockclient.cli.setup.etcd_server import Etcd
from tests.support.bucket.server import BucketServer
from tests.support.etcd_binary import etcdctl_of, put_at_once
from tests.support.relay import Relay
from tests.support.valkey_servers import Servers, running


@dataclass
class Bench:
    """The parts from which cases make their clusters; all of it ends with the test."""

    etcd: Etcd
    settings: Settings
    folder: Path
    request: pytest.FixtureRequest
    patch: pytest.MonkeyPatch
    exits: ExitStack

    def put(self, **values: object) -> None:
        """Write keys below the root of the shared etcd; `__` stands for a slash in their names."""
        texts = {
            key.replace("__", "/"): value if isinstance(value, str) else json.dumps(value)
            for key, value in values.items()
        }
        put_at_once(etcdctl_of(self.etcd), f"{self.settings.root}/", texts)

    @cached_property
    def own(self) -> Etcd:
        server: Etcd = self.request.getfixturevalue("own_etcd")
        return server

    def restarted(self, *flags: str) -> Settings:
        self.own.stop()
        self.own.extra = [*flags]
        self.own.start()
        return Settings((self.own.endpoint,))

    @cached_property
    def relay(self) -> Relay:
        return self.exits.enter_context(Relay(self.etcd.endpoint))

    @property
    def through_relay(self) -> Settings:
        return Settings((self.relay.endpoint,), self.settings.root)

    @cached_property
    def bucket(self) -> BucketServer:
        server: BucketServer = self.request.getfixturevalue("server")
        return server

    def servers(self, number: int) -> Servers:
        """Start servers of Valkey whose votes and durability are vouched for."""
        started = self.exits.enter_context(running(self.folder, number))
        with started.store():
            return started
