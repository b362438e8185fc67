"""A TLS 1.3 client without I/O: bytes from the wire in, bytes for the wire out (docs/protocol.md §2)."""

import os
import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from . import handshake as hs
from . import key_schedule as ks
from . import records
from .handshake import SessionTicket, TlsError
from .records import Protection

CLOSE_NOTIFY = bytes([1, 0])


def raw_public(key: Ed25519PrivateKey | X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


class TlsClient:
    """One TLS session with the endpoint whose Ed25519 key is `peer`."""

    def __init__(
        self, key: Ed25519PrivateKey, peer: bytes, ticket: SessionTicket | None = None, early: bytes = b""
    ) -> None:
        self._key, self._peer, self._ticket = key, peer, ticket
        self._exchange = X25519PrivateKey.generate()
        self._incoming, self._messages = bytearray(), bytearray()
        self._plaintext = bytearray()
        self._transcript = b""
        self._early_secret = ks.early_secret(ticket.psk if ticket else ks.ZEROS)
        self._reader: Protection | None = None
        self._writer: Protection | None = None
        self._request_context: bytes | None = None
        self._server_key: bytes | None = None
        self._state = hs.SERVER_HELLO
        self._resumption_secret = b""
        self.outgoing = bytearray()
        self.tickets: list[SessionTicket] = []
        self.is_open = self.is_closed = False
        self.resumed = self.early_accepted = False
        self._hello(early)

    def _hello(self, early: bytes) -> None:
        hello = hs.client_hello(
            os.urandom(32), raw_public(self._exchange), self._ticket, bool(early), time.monotonic()
        )
        if self._ticket is not None:
            truncated = hello[: -hs.BINDER_LIST_SIZE]
            binder_key = ks.derive_secret(self._early_secret, "res binder", b"")
            binder = ks.verify_data(binder_key, truncated)
            hello = truncated + hs.vector(2, hs.vector(1, binder))
        self._transcript = hello
        self.outgoing += records.plain_record(records.HANDSHAKE, hello)
        if early:
            assert self._ticket is not None and len(early) <= self._ticket.max_early_data
            self._writer = Protection(ks.derive_secret(self._early_secret, "c e traffic", hello))
            self.send(early)

    def send(self, plaintext: bytes) -> None:
        """Encrypts application data."""
        assert self._writer is not None
        for start in range(0, len(plaintext), records.MAX_PLAINTEXT):
            piece = plaintext[start : start + records.MAX_PLAINTEXT]
            self.outgoing += self._writer.seal(records.APPLICATION, piece)

    def close(self) -> None:
        """Says that nothing follows."""
        if self.is_open and self._writer is not None:
            self.outgoing += self._writer.seal(records.ALERT, CLOSE_NOTIFY)

    def take_plaintext(self) -> bytes:
        """The application data that arrived since the last call."""
        taken = bytes(self._plaintext)
        self._plaintext.clear()
        return taken

    def receive(self, data: bytes) -> None:
        """Takes bytes from the wire."""
        self._incoming += data
        while len(self._incoming) >= records.HEADER_SIZE:
            size = records.HEADER_SIZE + int.from_bytes(self._incoming[3:5], "big")
            if len(self._incoming) < size:
                return
            record = bytes(self._incoming[:size])
            del self._incoming[:size]
            self._take_record(record)

    def _take_record(self, record: bytes) -> None:
        kind, body = record[0], record[records.HEADER_SIZE :]
        if kind == records.CHANGE_CIPHER_SPEC:
            return  # means nothing in TLS 1.3 (RFC 8446 §5)
        if kind == records.APPLICATION:
            if self._reader is None:
                raise TlsError("an encrypted record before its keys")
            kind, body = self._reader.open(record)
        if kind == records.HANDSHAKE:
            self._messages += body
            self._take_messages()
        elif kind == records.APPLICATION:
            self._plaintext += body
        elif body == CLOSE_NOTIFY:
            self.is_closed = True
        else:
            raise TlsError(f"the server sent alert {body.hex()}")

    def _take_messages(self) -> None:
        while len(self._messages) >= 4:
            size = 4 + int.from_bytes(self._messages[1:4], "big")
            if len(self._messages) < size:
                return
            whole = bytes(self._messages[:size])
            del self._messages[:size]
            if self.is_open:
                self._take_late_message(whole[0], whole[4:])
            else:
                self._take_handshake(whole[0], whole[4:], whole)

    def _take_handshake(self, kind: int, body: bytes, whole: bytes) -> None:
        before = self._transcript
        self._transcript += whole
        if kind != self._state and (self._state, kind) != (hs.CERTIFICATE_REQUEST, hs.CERTIFICATE):
            raise TlsError(f"handshake message {kind} instead of {self._state}")
        if kind == hs.SERVER_HELLO:
            self._server_hello(body)
            self._state = hs.ENCRYPTED_EXTENSIONS
        elif kind == hs.ENCRYPTED_EXTENSIONS:
            self._encrypted_extensions(hs.parse_encrypted_extensions(body))
        elif kind == hs.CERTIFICATE_REQUEST:
            self._request_context = hs.Fields(body).vector(1)
            self._state = hs.CERTIFICATE
        elif kind == hs.CERTIFICATE:
            self._server_key = hs.parse_raw_key_certificate(body)
            if self._server_key != self._peer:
                raise TlsError("another endpoint answered")
            self._state = hs.CERTIFICATE_VERIFY
        elif kind == hs.CERTIFICATE_VERIFY:
            fields = hs.Fields(body)
            if fields.number(2) != hs.ED25519:
                raise TlsError("another signature algorithm than was offered")
            content = hs.signed_content("server", ks.sha256(before))
            Ed25519PublicKey.from_public_bytes(self._peer).verify(fields.vector(2), content)
            self._state = hs.FINISHED
        else:
            if body != ks.verify_data(self._server_secret, before):
                raise TlsError("the server's Finished is wrong")
            self._finish()

    def _server_hello(self, body: bytes) -> None:
        share, self.resumed = hs.parse_server_hello(body)
        if self.resumed and self._ticket is None:
            raise TlsError("the server resumed a session that was not offered")
        early = self._early_secret if self.resumed else ks.early_secret()
        shared = self._exchange.exchange(X25519PublicKey.from_public_bytes(share))
        secret = ks.handshake_secret(early, shared)
        self._client_secret = ks.derive_secret(secret, "c hs traffic", self._transcript)
        self._server_secret = ks.derive_secret(secret, "s hs traffic", self._transcript)
        self._master = ks.master_secret(secret)
        self._reader = Protection(self._server_secret)

    def _encrypted_extensions(self, extensions: dict[int, bytes]) -> None:
        self.early_accepted = hs.EARLY_DATA in extensions
        if self.resumed:
            self._state = hs.FINISHED
            return
        if extensions.get(hs.SERVER_CERTIFICATE_TYPE) != bytes([hs.RAW_PUBLIC_KEY]):
            raise TlsError("the server does not show a raw public key")
        if extensions.get(hs.CLIENT_CERTIFICATE_TYPE) != bytes([hs.RAW_PUBLIC_KEY]):
            raise TlsError("the server does not ask for a raw public key")
        self._state = hs.CERTIFICATE_REQUEST

    def _finish(self) -> None:
        """Everything that the client says after the server's Finished (RFC 8446 §4.4)."""
        until_server_finished = self._transcript
        if self.early_accepted:
            assert self._writer is not None
            self._say(self._writer, hs.message(hs.END_OF_EARLY_DATA, b""))
        writer = Protection(self._client_secret)
        if self._request_context is not None:
            self._say(writer, hs.raw_key_certificate(self._request_context, raw_public(self._key)))
            content = hs.signed_content("client", ks.sha256(self._transcript))
            signature = hs.vector(2, self._key.sign(content))
            self._say(writer, hs.message(hs.CERTIFICATE_VERIFY, hs.ED25519.to_bytes(2, "big") + signature))
        finished = ks.verify_data(self._client_secret, self._transcript)
        self._say(writer, hs.message(hs.FINISHED, finished))
        self._writer = Protection(ks.derive_secret(self._master, "c ap traffic", until_server_finished))
        self._reader = Protection(ks.derive_secret(self._master, "s ap traffic", until_server_finished))
        self._resumption_secret = ks.derive_secret(self._master, "res master", self._transcript)
        self.is_open = True

    def _say(self, writer: Protection, whole: bytes) -> None:
        self.outgoing += writer.seal(records.HANDSHAKE, whole)
        self._transcript += whole

    def _take_late_message(self, kind: int, body: bytes) -> None:
        assert self._reader is not None and self._writer is not None
        if kind == hs.NEW_SESSION_TICKET:
            nonce, identity, age_add, most = hs.parse_ticket(body)
            psk = ks.resumption_psk(self._resumption_secret, nonce)
            self.tickets.append(SessionTicket(identity, psk, age_add, most, time.monotonic()))
        elif kind == hs.KEY_UPDATE:
            self._reader = self._reader.updated()
            if body == b"\x01":
                answer = hs.message(hs.KEY_UPDATE, b"\x00")
                self.outgoing += self._writer.seal(records.HANDSHAKE, answer)
                self._writer = self._writer.updated()
        else:
            raise TlsError(f"unexpected message {kind}")
