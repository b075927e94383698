"""TLS and mTLS for the gRPC server, with certificates that can be renewed while it runs."""

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

_HANDSHAKE_START_S = 0.1
"""Seconds for a handshake to start with the certificate that it was given: a thousand times more than needed."""

_credentials: list[grpc.ServerCredentials] = []
"""Credentials of all ports, kept alive: the library holds a bare pointer to them, and may use it for a handshake after
the server is gone."""

_log = logging.getLogger("memecourt.server")

WHAT = "The files of the server's certificate"


@dataclass(slots=True)
class Certificates:
    """The server's certificate, and the authorities of its callers' certificates.

    New contents apply to new connections; existing ones continue.

    Attributes:
        paths: Files of the certificate chain, its key and, if given, the authorities; all PEM.
    """

    paths: Sequence[Path]
    contents: Contents

    @classmethod
    def of(cls, settings: Settings) -> Certificates | None:
        """Returns the certificates that the settings name; None if they name none.

        Raises:
            BadRequest: The settings are incomplete, or the files can't be used.
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
            # Serve anyway: a new file is in use within seconds.
            _log.warning("the server's certificate has expired, and callers refuse it: replace its file")
        return certificates

    @property
    def expires(self) -> datetime:
        """Time when the certificate in use expires, UTC."""
        return x509.load_pem_x509_certificate(self.contents[0]).not_valid_after_utc

    def use(self, contents: Contents) -> None:
        """Switches to new contents. Raises BadRequest if they are invalid; then nothing changes."""
        _check(contents, self.paths)
        self.contents = contents

    def credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials for a server's port."""
        shown = self.contents

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """Called by the library at every handshake, in one of its threads, one at a time."""
            nonlocal shown
            contents = self.contents
            if contents is shown:
                return None
            # The library frees the old configuration as soon as it gets a new one, even if a handshake is about to
            # start with it, which would crash the process. New handshakes wait meanwhile.
            time.sleep(_HANDSHAKE_START_S)
            configuration = _configuration(contents)
            shown = contents
            return configuration

        credentials = grpc.dynamic_ssl_server_credentials(
            _configuration(shown),
            renewed,  # type: ignore[arg-type]  # None means unchanged, which the stub does not declare
            require_client_authentication=len(self.paths) > 2,
        )
        _credentials.append(credentials)
        return credentials


def _configuration(contents: Contents) -> grpc.ServerCertificateConfiguration:
    certificate, key, *authorities = contents
    return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities[0] if authorities else None)


def _check(contents: Contents, paths: Sequence[Path]) -> None:
    """Checks that key and certificate match: the library does not, and all handshakes would fail."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # It only accepts files; and without a password to try it would prompt for one at the terminal.
        context.load_cert_chain(paths[0], paths[1], password="")
    except (ssl.SSLError, OSError) as error:
        raise _unusable("no certificate with its key, both PEM and the key without a password", error) from None
    # The check reads the files but memory is used: detect a renewal in between.
    if read_all(paths, WHAT) != contents:
        raise BadRequest(f"{WHAT} are being changed.", reason="TLS_UNUSABLE")
    if len(contents) > 2:
        try:
            context.load_verify_locations(cadata=contents[2].decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise _unusable("no file of certificate authorities, PEM", error) from None


def _unusable(what: str, error: Exception) -> BadRequest:
    why = getattr(error, "reason", None)  # OpenSSL's reason; the message contains no more
    return BadRequest(f"TLS can't be set up: there is {what}{f' ({why})' if why else ''}.", reason="TLS_UNUSABLE")
