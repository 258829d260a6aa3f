"""Location of locks in a bucket: its URL, and the prefix of all names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from lockclient.stores.location import make_texts_exact, refuse_nested_root
from lockclient.text.escaping import HAS_AT
from lockclient.text.url import is_loopback

EXAMPLE = "gs://bucket/prefix"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_ROOT = re.compile(r"([A-Za-z0-9._~-]+/)*")
_LONGEST_ROOT = 150
"""Bytes: with a name and a digest after it, an object's name has at most 1,024."""
_RESERVED_ROOT = ".well-known/acme-challenge/"
"""Google refuses objects whose names begin with this."""
_ENDPOINT = re.compile(r"(https?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class GcsLocation:
    """A bucket, and the prefix of all names in it.

    Attributes:
        root: the prefix: empty, or with a slash at the end.
        expire: clients that want a lock remove it after silence of its whole time, where no
            unlocker runs; see `expiry`.
        endpoint: the API's address, if that is not Google's public one, like
            `https://storage-locks.p.googleapis.com`; credentials are sent there.
    """

    bucket: str
    root: str = ""
    expire: bool = False
    endpoint: str = ""

    def __post_init__(self) -> None:
        make_texts_exact(self)
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
        if self.root.startswith(_RESERVED_ROOT):
            raise ValueError(
                f"The prefix {self.root!r} can't be used: Google refuses objects whose names begin "
                f"with {_RESERVED_ROOT}."
            )
        refuse_nested_root(self.root)
        # The unlocker of locks without a prefix deletes old objects in these folders.
        if self.root.startswith(("removed/", "locks-unlockers/")):
            refuse_nested_root(f"{self.bucket}/{self.root}")
        _check_endpoint(self.endpoint)

    @classmethod
    def of(cls, url: str, environ: Mapping[str, str] = os.environ) -> GcsLocation:  # noqa: ARG003 - as in each store
        """Read a URL like `gs://bucket/prefix?expire=1`.

        Raises:
            ValueError: it is malformed.
        """
        if HAS_AT(url):  # first: the errors below quote parts of the URL
            raise ValueError(
                "It names a user, which a bucket does not know: Google's credentials say who "
                "asks (GOOGLE_APPLICATION_CREDENTIALS)."
            )
        parts = urlsplit(url)
        if parts.scheme != "gs" or parts.fragment:
            raise ValueError(f"It must be a bucket and a prefix, like {EXAMPLE}.")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := options.keys() - {"expire", "endpoint"}:
            raise ValueError(
                f"It has an option {min(unknown)!r}; a URL like {EXAMPLE} can have expire=1 and "
                "endpoint=https://HOST."
            )
        if options.get("expire", "1") not in ("0", "1"):
            raise ValueError("expire must be 0 or 1.")
        path = unquote(parts.path).strip("/")
        return cls(
            parts.netloc,
            f"{path}/" if path else "",
            expire=options.get("expire") == "1",
            endpoint=options.get("endpoint", "").rstrip("/"),
        )

    def url(self) -> str:
        options = ["expire=1"] if self.expire else []
        if self.endpoint:
            options.append(f"endpoint={quote(self.endpoint, safe=':/[]')}")
        bare = f"gs://{self.bucket}/{self.root}".rstrip("/")
        return f"{bare}?{'&'.join(options)}" if options else bare

    @property
    def where(self) -> str:
        """The location in titles."""
        return self.url()


def _check_endpoint(endpoint: str) -> None:
    """Raise ValueError for an endpoint that credentials must not be sent to."""
    if not endpoint:
        return
    parts = _ENDPOINT.fullmatch(endpoint)
    if parts is None:
        raise ValueError(
            f"The endpoint {endpoint!r} must be a scheme and a host, perhaps with a port, like "
            "https://storage-locks.p.googleapis.com."
        )
    if parts[1] == "http" and not is_loopback(parts[2].strip("[]")):
        raise ValueError(
            f"The endpoint {endpoint!r} must be https://: credentials are sent there, and without "
            "TLS to this machine only. (An emulator is named by STORAGE_EMULATOR_HOST, and gets "
            "none.)"
        )


def emulator() -> str | None:
    """Return the address of an emulator, by the variable that Google's libraries read."""
    address = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if not address:
        return None
    return address if "://" in address else f"http://{address}"
