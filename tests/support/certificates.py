"""Certificates for the tests, made on the spot, and an etcd that serves with them."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from lockclient.cli.setup.etcd_server import Etcd


@dataclass(frozen=True)
class Pair:
    """A certificate and its key: paths of PEM files."""

    cert: str
    key: str


class Authority:
    """A certificate authority of the test's own; `cacert` is the path of its PEM file."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._folder = folder / name
        self._folder.mkdir()
        self.cacert = str(self._folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.cacert)

    def issue(self, *hosts: str, user: str | None = None, until: datetime | None = None) -> Pair:
        """Return a certificate for these hosts, or for a client: `user` is its common name.

        It is valid until then, or for ever.
        """
        name = user or "-".join(hosts)
        # Go refuses a certificate that is for no host at all, a client's, too.
        issued = self._ca.issue_cert(
            *(hosts or ("client.example",)), common_name=user, not_after=until
        )
        pair = Pair(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(pair.cert)
        issued.private_key_pem.write_to_path(pair.key)
        return pair


class TlsEtcd(Etcd):
    """An etcd that talks TLS with its clients, and asks them for a certificate if told to.

    Args:
        authority: signed the server's certificate; the server trusts its clients.
        server: its certificate.
        ask_clients: whether clients need a certificate.
        others: as for `Etcd`.
    """

    def __init__(
        self, authority: Authority, server: Pair, *others: Any, ask_clients: bool = False
    ) -> None:
        super().__init__(*others)
        client = f"https://{self.endpoint}"
        self.extra = [  # the last of a flag given twice counts
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--cert-file", server.cert, "--key-file", server.key),
        ]
        if ask_clients:  # `--trusted-ca-file` by itself asks for a certificate, too
            self.extra += ["--trusted-ca-file", authority.cacert, "--client-cert-auth"]
        own = authority.issue(user="health")
        # It looks whether a server serves; who that is, is for the tests to find out.
        self._context = ssl.create_default_context()
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self._context.load_cert_chain(own.cert, own.key)

    def _serves(self) -> bool:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=2, context=self._context
        )
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def jwt_keys(folder: Path) -> str:
    """Return what `--auth-token` takes for JSON Web Tokens with new keys, without the `ttl`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = folder / "jwt.key", folder / "jwt.pub"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return f"jwt,pub-key={public},priv-key={private},sign-method=RS256"
