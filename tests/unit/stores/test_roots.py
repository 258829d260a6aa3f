"""Roots that would lie among the keys of a root above them are refused, in every store."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.stores.etcd.keys import Keys
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.gcs.keys import ObjectNames
from lockclient.stores.gcs.location import GcsLocation
from lockclient.stores.location import FOLDERS
from lockclient.stores.service_store import Kind
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.location import ValkeyLocation
from tests.support.processes import run_to_end
from tests.support.terminal import called

STORES = ["etcd://127.0.0.1:1", "gs://bucket", "valkey://127.0.0.1:1"]
COMMANDS = ["clustermutex ls", "clustermutex run x -- true", "clustermutex setup-auth"]


@pytest.mark.parametrize("folder", sorted(FOLDERS))
@pytest.mark.parametrize("store", STORES)
def test_a_folder_of_the_locks_is_none_of_a_root_s_later_segments(store: str, folder: str) -> None:
    for root in (f"a/{folder}", f"a/b/{folder}/c", f"{folder}/{folder}/"):
        with pytest.raises(ValueError, match=f"must not have '{folder}' after its first segment"):
            Settings.load(f"{store}/{root}")


@pytest.mark.parametrize("root", ["a", "a/b", "locks", "locks/a", "a/lock", "a/locks.d", "a/b/c"])
@pytest.mark.parametrize("store", STORES)
def test_other_roots_are_as_they_were(store: str, root: str) -> None:
    assert Settings.load(f"{store}/{root}").url().endswith(f"/{root}")


@pytest.mark.parametrize("folder", ["removed", "locks-unlockers"])
def test_a_bucket_prefix_inside_our_own_folders_is_refused(folder: str) -> None:
    for root in (folder, f"{folder}/x"):
        with pytest.raises(ValueError, match=f"must not have '{folder}' after its first segment"):
            GcsLocation.of(f"gs://bucket/{root}")


@pytest.mark.parametrize(
    "make",
    [
        lambda root: ClusterMutex.setup(endpoints=["127.0.0.1:1"], root=root),
        lambda root: Settings(root=root),
        lambda root: EtcdLocation(root=root),
        lambda root: ValkeyLocation(("127.0.0.1:1",), root=root.strip("/")),
        lambda root: GcsLocation("bucket", f"{root.strip('/')}/"),
    ],
)
def test_a_nested_root_is_refused_by_each_constructor(make: Any) -> None:
    with pytest.raises(ValueError, match="must not have 'locks' after its first segment"):
        make("/a/locks/x")


@pytest.mark.parametrize("program", [*COMMANDS, "unlocker", "mutexdash"])
def test_each_program_refuses_a_nested_root_before_any_request(program: str) -> None:
    name, *words = program.split()
    url = {"CLUSTERMUTEX_URL": f"{STORES[0]}/a/queue/x"}
    done = run_to_end(Path(sys.executable).with_name(name), *words, env=url, status=None)
    assert done.returncode in (2, os.EX_USAGE), done
    assert "must not have 'queue' after its first segment" in " ".join(done.stderr.split())


def test_setup_auth_refuses_a_nested_root() -> None:
    done = called(Settings(), "setup-auth", "--root", "/a/locks", status=2)
    assert "must not have 'locks' after its first segment" in " ".join(done.stderr.split())


def test_folders_has_each_folder_of_each_store() -> None:
    keys = Keys("/r")
    of_lock = keys.keys_of("n")
    etcd = [keys.everything[0] + kind.encode() for kind in get_args(Kind)]
    etcd += [keys.documents[0], keys.unlocker("u"), keys.code("c"), of_lock.lock[0]]
    etcd += [of_lock.queue[0], of_lock.removed, of_lock.withdrawn]
    found = {key.removeprefix(b"/r/").split(b"/")[0].decode() for key in etcd}
    for names in (ObjectNames("r/"), KeyNames("r")):
        attributes = [text for text in vars(names).values() if text != "r/"]
        methods = [names.lock("n"), names.record("n", "u"), names.announcement("u")]
        found |= {text.removeprefix("r/").split("/")[0] for text in [*attributes, *methods]}
    valkey = KeyNames("r")
    for key in (valkey.tombstone("n", "u"), valkey.channel("n")):
        found.add(key.removeprefix("r/").split("/")[0])
    assert found == FOLDERS
