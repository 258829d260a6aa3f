"""Roles in a bucket: there is no script, since Google's own tools grant them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockclient.stores.gcs.location import GcsLocation


def setup_script(location: GcsLocation, users: Mapping[str, Sequence[str]]) -> str:  # noqa: ARG001 - as in each store
    """See `StoreEntry.setup_script`. Raises ValueError, always."""
    raise ValueError(
        "A bucket's users are Google's, and Google's tools grant them rights: docs/stores.md says "
        "which, under Rights."
    )
