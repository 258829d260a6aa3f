"""Location of Valkey or Redis servers: URL, prefix of the keys, TLS files and user."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import parse_qsl, unquote

from lockclient.stores.location import Servers
from lockclient.text.url import check_no_user, split_url

EXAMPLE = "valkey://host1,host2,host3/clustermutex"
DEFAULT_ROOT = "clustermutex"
DEFAULT_LONGEST = 3600.0
SCHEMES = {"valkey": False, "redis": False, "valkeys": True, "rediss": True}
"""The schemes, and whether each is TLS."""
_ROOT = re.compile(r"[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*")
MAX_SERVERS = 15


@dataclass(frozen=True, slots=True)
class ValkeyLocation(Servers):
    """Servers that know nothing of each other, and the prefix of all keys.

    All clients of one lock name the same servers; user and password are the same on each.

    Attributes:
        expire: a lock ends with its time, and its next taker writes the record; else its key stays
            for a day, so that an unlocker removes it.
        longest: seconds that a lock may go without a heartbeat, in the whole keyspace: an emptied
            server gives no lock for so long.
    """

    root: str = DEFAULT_ROOT
    expire: bool = False
    longest: float = DEFAULT_LONGEST

    VARIABLES: ClassVar[str] = "VALKEY"
    PORT: ClassVar[int] = 6379

    def __post_init__(self) -> None:
        for what in ("cacert", "cert", "key"):
            if getattr(self, what) is not None and not self.tls:
                raise ValueError(f"{what} is given, but the URL does not say TLS (valkeys://).")
        Servers.__post_init__(self)  # `super()` does not know a class with slots
        if not 1 <= len(self.endpoints) <= MAX_SERVERS:
            raise ValueError(f"It must name 1 to {MAX_SERVERS} servers, like {EXAMPLE}.")
        if len(set(self.endpoints)) < len(self.endpoints):
            raise ValueError("It names a server twice, which would have two votes.")
        if not _ROOT.fullmatch(self.root):
            raise ValueError(
                f"The prefix {self.root!r} must be segments of letters, digits and ._~- with "
                "slashes between them."
            )
        if not 1 <= self.longest <= 30 * 86400:
            raise ValueError("longest must be 1 s to 30 days, like longest=3600.")

    @property
    def majority(self) -> int:
        return len(self.endpoints) // 2 + 1

    @property
    def terms(self) -> str:
        """The settings that all clients of this keyspace must share; each server stores them.

        The number of servers, not their names, which may differ between networks. `keys` is the
        version of the keys: clients before 2 wrote no index.
        """
        expire = " expire=1" if self.expire else ""
        return f"servers={len(self.endpoints)} longest={self.longest:g}{expire} keys=2"

    def url(self) -> str:
        """Return the URL, without user, password and certificates."""
        query = "&".join(
            (["expire=1"] if self.expire else [])
            + ([f"longest={self.longest:g}"] if self.longest != DEFAULT_LONGEST else [])
        )
        bare = f"{'valkeys' if self.tls else 'valkey'}://{','.join(self.endpoints)}/{self.root}"
        return f"{bare}?{query}" if query else bare

    @property
    def where(self) -> str:
        """The URL, for titles."""
        return self.url()

    @classmethod
    def of(cls, url: str, environ: Mapping[str, str] = os.environ) -> ValkeyLocation:
        """Read a URL like `valkey://host1,host2,host3/prefix?longest=3600`.

        Raises:
            ValueError: it is malformed; the text says what it should be.
        """
        check_no_user(url, cls.user_variables())  # first: errors below quote parts of it
        parts = split_url(url)
        if parts.scheme not in SCHEMES or parts.fragment:
            raise ValueError(f"It must be servers and a prefix, like {EXAMPLE}.")
        root = unquote(parts.path.strip("/"))
        if re.fullmatch("[0-9]+", root):
            raise ValueError(
                f"The prefix {root!r} looks like the number of a database, as other clients mean "
                "it: here all keys are in database 0, below a prefix. Name one, or none, like "
                f"{parts.scheme}://{parts.netloc}/{DEFAULT_ROOT}."
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in options:
            if name not in ("expire", "longest"):
                raise ValueError(f"It says {name!r}; it can say expire=1 and longest=SECONDS.")
        if options.get("expire", "1") not in ("0", "1"):
            raise ValueError("expire must be 0 or 1.")
        longest = options.get("longest", f"{DEFAULT_LONGEST:g}")
        if not re.fullmatch("[0-9]{1,8}", longest):
            raise ValueError("longest must be a whole number of seconds, like longest=3600.")
        return cls(
            endpoints=tuple(map(_with_port, parts.netloc.split(","))),
            root=root or DEFAULT_ROOT,
            tls=SCHEMES[parts.scheme],
            expire=options.get("expire") == "1",
            longest=float(longest),
            **cls.read_variables(
                environ, "cacert", "cert", "key", "user", "password", "password_file"
            ),
        )


def _with_port(endpoint: str) -> str:
    has_port = re.search(r":[^:\]]*$", endpoint) and not endpoint.endswith("]")
    return endpoint if has_port else f"{endpoint}:{ValkeyLocation.PORT}"
