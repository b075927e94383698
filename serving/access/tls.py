"""TLS: callers see who the server is, and with a CA for callers the server sees who they are. Files may be renewed."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
from cryptography import x509

from court.errors import BadRequest
from serving.access.reload import Contents, read_all
from serving.settings import Settings

_TO_BEGIN_S = 0.1
"""What a handshake has to begin with the certificate that it has found in use, in seconds: a thousand times enough."""

_credentials: list[grpc.ServerCredentials] = []
"""To ports. The library keeps a bare pointer to them, and asks by it also where a server has gone and a handshake has
not."""

_log = logging.getLogger("memecourt.server")

WHAT = "The files of the server's certificate"


@dataclass(slots=True)
class Certificates:
    """The certificate that the server shows, and the authorities whose certificates it wants to see.

    A new one is used from the next connection on; connections that are there go on.

    Attributes:
        paths: The certificate chain, its key and, if there is one, the file of authorities; all PEM.
        contents: Contents in use.
    """

    paths: Sequence[Path]
    contents: Contents

    @classmethod
    def of(cls, settings: Settings) -> Certificates | None:
        """Returns the certificates that the settings name; None if they name none.

        Raises:
            BadRequest: They are named by half, or can't be used.
        """
        certificate, key, authorities = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
        if certificate is None and key is None and authorities is None:
            return None
        if certificate is None or key is None:
            raise BadRequest(
                "TLS needs both the server's certificate and its key: give tls_certificate and tls_key.",
                reason="TLS_HALF_NAMED",
                field="tls_certificate" if certificate is None else "tls_key",
            )
        paths = [certificate, key] if authorities is None else [certificate, key, authorities]
        contents = read_all(paths, WHAT)
        _check(contents, paths)
        certificates = cls(paths, contents)
        if certificates.expires < datetime.now(UTC):
            # No reason not to serve: a new file is in use within seconds.
            _log.warning("the server's certificate has expired, and callers refuse it: replace its file")
        return certificates

    @property
    def expires(self) -> datetime:
        """Time when the certificate in use expires, UTC."""
        return x509.load_pem_x509_certificate(self.contents[0]).not_valid_after_utc

    def use(self, contents: Contents) -> None:
        """From now on, these. Raises BadRequest where they can't be used; then nothing changes."""
        _check(contents, self.paths)
        self.contents = contents

    def credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials for a server's port."""
        shown = self.contents

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """Is asked at every handshake, in a thread of the library, one handshake at a time."""
            nonlocal shown
            contents = self.contents
            if contents is shown:
                return None
            # The library frees what it had as soon as it is given another, and does not look whether a handshake is
            # about to begin with it, for which it would end the process. Those that come wait meanwhile.
            time.sleep(_TO_BEGIN_S)
            configuration = _configuration(contents)
            shown = contents
            return configuration

        credentials = grpc.dynamic_ssl_server_credentials(
            _configuration(shown),
            renewed,  # type: ignore[arg-type]  # None is for what has not changed, which its stub does not know
            require_client_authentication=len(self.paths) > 2,
        )
        _credentials.append(credentials)
        return credentials


def _configuration(contents: Contents) -> grpc.ServerCertificateConfiguration:
    certificate, key, *authorities = contents
    return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities[0] if authorities else None)


def _check(contents: Contents, paths: Sequence[Path]) -> None:
    """The library says nothing of a key that is another certificate's: all handshakes would fail."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Only files will do for it; and without a password to try it would ask for one at the terminal.
        context.load_cert_chain(paths[0], paths[1], password="")
    except (ssl.SSLError, OSError) as error:
        raise _unusable("no certificate with its key, both PEM and the key without a password", error) from None
    # It was checked by path and is used from memory: a renewal between the two must not go unnoticed.
    if read_all(paths, WHAT) != contents:
        raise BadRequest(f"{WHAT} are being changed.", reason="TLS_UNUSABLE")
    if len(contents) > 2:
        try:
            context.load_verify_locations(cadata=contents[2].decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise _unusable("no file of certificate authorities, PEM", error) from None


def _unusable(what: str, error: Exception) -> BadRequest:
    why = getattr(error, "reason", None)  # OpenSSL's word for it; the message holds no more
    return BadRequest(f"TLS can't be set up: there is {what}{f' ({why})' if why else ''}.", reason="TLS_UNUSABLE")
