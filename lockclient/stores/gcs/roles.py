"""Roles in a bucket: given by Google's own tools, so that there is no script for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockclient.stores.gcs.location import GcsLocation


def setup_script(location: GcsLocation, users: Mapping[str, Sequence[str]]) -> str:  # noqa: ARG001
    """Refuse it: see `StoreEntry.setup_script`."""
    raise ValueError(
        "A bucket's users are Google's, and it is there that they are given rights: "
        "docs/stores.md says which, under Rights."
    )
