"""Location of a bucket, its URL and the prefix of all names in it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from lockclient.text.escaping import HAS_AT

EXAMPLE = "gs://bucket/prefix"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_ROOT = re.compile(r"([A-Za-z0-9._~-]+/)*")
_LONGEST_ROOT = 150
"""Bytes: with a name and a digest behind it, an object's name has 1,024 at most."""


@dataclass(frozen=True, slots=True)
class GcsLocation:
    """A bucket, and what all names in it begin with.

    Attributes:
        bucket: its name.
        root: empty, or with a slash at the end.
    """

    bucket: str
    root: str = ""

    def __post_init__(self) -> None:
        if not _BUCKET.fullmatch(self.bucket):
            raise ValueError(
                f"The bucket {self.bucket!r} must have 3 to 222 small letters, digits and ._-, and "
                "begin and end with a letter or digit."
            )
        if not _ROOT.fullmatch(self.root) or len(self.root) > _LONGEST_ROOT:
            raise ValueError(
                f"The prefix {self.root!r} must be segments of letters, digits and ._~- with "
                f"slashes between them, of {_LONGEST_ROOT} characters at most."
            )
        if {".", ".."} & {*self.root.split("/")}:
            raise ValueError(f"The prefix {self.root!r} must not have . or .. as a segment.")

    @classmethod
    def of(cls, url: str, environ: Mapping[str, str] = os.environ) -> GcsLocation:  # noqa: ARG003
        """Read a URL like `gs://bucket/prefix`; Google's variables are read where they are used.

        Raises:
            ValueError: it is malformed; the text says what it should be.
        """
        if HAS_AT(url):  # first of all: what is said below quotes parts of it
            raise ValueError(
                "It holds a user, of which a bucket knows nothing: who asks is told by Google's "
                "credentials (GOOGLE_APPLICATION_CREDENTIALS)."
            )
        parts = urlsplit(url)
        if parts.scheme != "gs" or parts.query or parts.fragment:
            raise ValueError(f"It must be a bucket and a prefix, like {EXAMPLE}.")
        path = unquote(parts.path).strip("/")
        return cls(parts.netloc, f"{path}/" if path else "")

    def url(self) -> str:
        """Return it as a URL."""
        return f"gs://{self.bucket}/{self.root}".rstrip("/")

    @property
    def where(self) -> str:
        """The same, for titles."""
        return self.url()


def emulator() -> str | None:
    """Return the address of an emulator that stands for the real one, by the common variable."""
    said = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if not said:
        return None
    return said if "://" in said else f"http://{said}"
