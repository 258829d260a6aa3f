"""The cost of a lock in a bucket, and the errors when it can't be taken."""

from __future__ import annotations

import json

import pytest

from lockclient import ClusterMutex, Settings, StoreError, StoreUnavailable, open_store
from lockclient.stores.request_types import Take
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import holder
from tests.support.bucket.server import LOSE, Answer, Asked, BucketServer
from tests.support.locks import ask, soon, take


class TestCost:
    @pytest.mark.parametrize("status", [200, 204])
    def test_a_deletion_has_no_content(
        self, server: BucketServer, store: ServiceStore, status: int
    ) -> None:
        """Google says so by 204, and some emulators by 200 with nothing."""
        server.deleted = status
        with ClusterMutex("x", store=store):
            pass
        assert server.counted("DELETE") == 1

    def test_a_lost_answer_costs_a_read(self, server: BucketServer, store: ServiceStore) -> None:
        server.fault("POST", LOSE)
        with ClusterMutex("x", store=store):
            pass
        assert [asked.method for asked in server.asked] == ["POST", "GET", "DELETE"]

    def test_a_push_is_one_request(self, server: BucketServer, store: ServiceStore) -> None:
        with ClusterMutex("x", store=store) as held:
            held.alive()
            held.alive(force=True)
            held.alive(force=True)
        assert [asked.method for asked in server.asked] == ["POST", "PATCH", "PATCH", "DELETE"]


class TestErrors:
    def test_a_missing_right_is_named(self, server: BucketServer, store: ServiceStore) -> None:
        server.denied = {"storage.objects.create"}
        with pytest.raises(StoreError, match=r"storage\.objects\.create.*objectUser"):
            ClusterMutex("x", store=store).acquire()

    def test_a_missing_bucket_is_named(self, server: BucketServer) -> None:
        store = open_store(Settings.load("gs://another"))
        lock = ClusterMutex("x", store=store)
        for ask_it in (lock.acquire, lock.holder):
            with pytest.raises(StoreError, match=r"bucket another .*Create the bucket"):
                ask_it()
        store.close()

    @pytest.mark.parametrize(
        ("status", "message", "advice"),
        [
            (403, "The billing account for the owning project is disabled", "billing of"),
            (400, "Bucket is a requester pays bucket but no user project provided.", "owner pay"),
            (
                403,
                "Object 'x' is subject to bucket's retention policy or object retention and cannot "
                "be deleted or overwritten until 2027-01-01",
                "without retention",
            ),
            (401, "Invalid Credentials", "GOOGLE_APPLICATION_CREDENTIALS"),
            (413, "Too large", "unexpected"),
        ],
    )
    def test_errors_of_google_are_quoted_with_the_remedy(
        self, server: BucketServer, store: ServiceStore, status: int, message: str, advice: str
    ) -> None:
        said = json.dumps({"error": {"code": status, "message": message}}).encode()
        server.instead = lambda _: Answer(status, said)
        with pytest.raises(StoreError, match=advice) as caught:
            ask(store, Take(holder()))
        assert message.rstrip(".") in str(caught.value)

    def test_a_412_by_policy_is_an_error_at_once(
        self, server: BucketServer, store: ServiceStore
    ) -> None:
        text = "Request violates constraint 'constraints/gcp.restrictNonCmekServices'"
        by_policy = {"errors": [{"reason": "orgPolicyConstraintFailed", "message": text}]}
        said = json.dumps({"error": {"code": 412, "message": text, **by_policy}}).encode()
        reached = list[Asked]()

        def refuse(asked: Asked) -> Answer | None:
            if asked.method == "GET":
                return None
            reached.append(asked)
            return Answer(412, said)

        held = ClusterMutex("held", store=store, expected_runtime=60).acquire()
        assert held is not None
        server.instead = refuse
        for ask_it in (
            lambda: ClusterMutex("x", store=store).acquire(timeout=10),
            lambda: held.alive(force=True),
            lambda: store.announce("u", "{}", 60.0, soon()),
        ):
            reached.clear()
            with pytest.raises(StoreError, match=f"412.*{text}.*that policy") as caught:
                ask_it()
            assert not isinstance(caught.value, StoreUnavailable)
            assert len(reached) == 1
        with pytest.raises(StoreError, match=f"412.*{text}.*that policy"):
            held.release()  # the background sends it again
        server.instead = lambda _: None

    @pytest.mark.parametrize(
        "errors",
        [{}, {"errors": []}, {"errors": [{"message": "No."}]}, {"errors": [{"reason": ""}]}],
    )
    def test_a_412_without_a_reason_is_a_precondition(
        self, server: BucketServer, store: ServiceStore, errors: dict[str, object]
    ) -> None:
        """Emulators give none."""

        def without_reason(asked: Asked) -> Answer:
            answer = server.by_rules(asked)
            if answer.status != 412:
                return answer
            return Answer(412, json.dumps({"error": {"code": 412, **errors}}).encode())

        with ClusterMutex("x", store=store):
            server.instead = without_reason
            assert ClusterMutex("x", store=store).acquire(blocking=False) is None

    @pytest.mark.parametrize("lacks", ["generation", "metageneration", "timeCreated"])
    def test_an_object_without_a_version_or_a_time_is_none_of_google_s(
        self, server: BucketServer, store: ServiceStore, lacks: str
    ) -> None:
        take(store)

        def incomplete(asked: Asked) -> Answer | None:
            said = json.loads(server.by_rules(asked).body)
            said.pop(lacks, None)
            return Answer(200, json.dumps(said).encode()) if asked.method == "GET" else None

        server.instead = incomplete
        with pytest.raises(StoreError, match=f"{lacks}.* not Google Cloud Storage"):
            ask(store, Take(holder()))

    def test_a_page_of_a_proxy_is_no_answer(
        self, server: BucketServer, store: ServiceStore
    ) -> None:
        page = Answer(200, b"<html>Log in!</html>", {"Content-Type": "text/html"})
        server.instead = lambda _: page
        with pytest.raises(StoreUnavailable, match="is no JSON") as caught:
            ask(store, Take(holder()), 0.5)
        assert caught.value.unknown

    def test_a_missing_network_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with BucketServer() as server:
            url = server.url
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        store = open_store(Settings.load("gs://locks"))
        with pytest.raises(StoreUnavailable, match="connection refused") as caught:
            ask(store, Take(holder()), 0.5)
        assert not caught.value.unknown
        store.close()
