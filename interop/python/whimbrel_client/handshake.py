"""The handshake messages of TLS 1.3 that a Whimbrel client needs (RFC 8446 §4, RFC 7250)."""

from dataclasses import dataclass

from .key_schedule import HASH_SIZE

CLIENT_HELLO, SERVER_HELLO, NEW_SESSION_TICKET, END_OF_EARLY_DATA = 1, 2, 4, 5
ENCRYPTED_EXTENSIONS, CERTIFICATE, CERTIFICATE_REQUEST = 8, 11, 13
CERTIFICATE_VERIFY, FINISHED, KEY_UPDATE = 15, 20, 24

AES_128_GCM_SHA256 = 0x1301
X25519 = 0x001D
ED25519 = 0x0807
RAW_PUBLIC_KEY = 2
ALPN = b"whimbrel/1"

SUPPORTED_GROUPS, SIGNATURE_ALGORITHMS, PROTOCOL = 10, 13, 16
CLIENT_CERTIFICATE_TYPE, SERVER_CERTIFICATE_TYPE = 19, 20
PRE_SHARED_KEY, EARLY_DATA, SUPPORTED_VERSIONS, PSK_MODES, KEY_SHARE = 41, 42, 43, 45, 51

# SubjectPublicKeyInfo of an Ed25519 key without the key itself (RFC 8410 §4).
SPKI_PREFIX = bytes.fromhex("302a300506032b6570032100")
RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
BINDER_LIST_SIZE = 2 + 1 + HASH_SIZE


class TlsError(Exception):
    """The peer broke TLS, or is not the one that was expected."""


@dataclass(frozen=True)
class SessionTicket:
    """What resumes a session: used once."""

    identity: bytes
    psk: bytes
    age_add: int
    max_early_data: int
    received: float

    def obfuscated_age(self, now: float) -> int:
        return (int((now - self.received) * 1000) + self.age_add) % (1 << 32)


def vector(size: int, body: bytes) -> bytes:
    """A vector behind its length of `size` bytes."""
    return len(body).to_bytes(size, "big") + body


def message(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + vector(3, body)


class Fields:
    """Takes fields off the front of a message."""

    def __init__(self, data: bytes) -> None:
        self._rest = data

    def take(self, count: int) -> bytes:
        if count > len(self._rest):
            raise TlsError("a message is cut off")
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))

    def more(self) -> bool:
        return bool(self._rest)


def _extension(kind: int, body: bytes) -> bytes:
    return kind.to_bytes(2, "big") + vector(2, body)


def _u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def client_hello(random: bytes, share: bytes, ticket: SessionTicket | None, early: bool, now: float) -> bytes:
    """A ClientHello. With a ticket the binder at its end is zero; see BINDER_LIST_SIZE."""
    extensions = [
        _extension(SUPPORTED_VERSIONS, vector(1, b"\x03\x04")),
        _extension(SUPPORTED_GROUPS, vector(2, _u16(X25519))),
        _extension(SIGNATURE_ALGORITHMS, vector(2, _u16(ED25519))),
        _extension(KEY_SHARE, vector(2, _u16(X25519) + vector(2, share))),
        _extension(PROTOCOL, vector(2, vector(1, ALPN))),
        _extension(CLIENT_CERTIFICATE_TYPE, vector(1, bytes([RAW_PUBLIC_KEY]))),
        _extension(SERVER_CERTIFICATE_TYPE, vector(1, bytes([RAW_PUBLIC_KEY]))),
        _extension(PSK_MODES, vector(1, b"\x01")),
    ]
    if ticket is not None:
        if early:
            extensions.append(_extension(EARLY_DATA, b""))
        identity = vector(2, ticket.identity) + ticket.obfuscated_age(now).to_bytes(4, "big")
        binders = vector(2, vector(1, bytes(HASH_SIZE)))
        extensions.append(_extension(PRE_SHARED_KEY, vector(2, identity) + binders))
    suites = vector(2, _u16(AES_128_GCM_SHA256))
    body = b"\x03\x03" + random + vector(1, b"") + suites + vector(1, b"\x00")
    return message(CLIENT_HELLO, body + vector(2, b"".join(extensions)))


def parse_extensions(data: bytes) -> dict[int, bytes]:
    fields, found = Fields(data), {}
    while fields.more():
        kind = fields.number(2)
        found[kind] = fields.vector(2)
    return found


def parse_server_hello(body: bytes) -> tuple[bytes, bool]:
    """The server's X25519 share, and whether it took our ticket."""
    fields = Fields(body)
    fields.take(2)
    if fields.take(32) == RETRY_RANDOM:
        raise TlsError("the server asks for another group")
    fields.vector(1)
    suite = fields.number(2)
    fields.take(1)
    extensions = parse_extensions(fields.vector(2))
    if suite != AES_128_GCM_SHA256 or extensions.get(SUPPORTED_VERSIONS) != b"\x03\x04":
        raise TlsError("the server chose what was not offered")
    share = Fields(extensions.get(KEY_SHARE, b""))
    if share.number(2) != X25519:
        raise TlsError("the server chose another group")
    return share.vector(2), PRE_SHARED_KEY in extensions


def parse_encrypted_extensions(body: bytes) -> dict[int, bytes]:
    extensions = parse_extensions(Fields(body).vector(2))
    if extensions.get(PROTOCOL) != vector(2, vector(1, ALPN)):
        raise TlsError("the server does not speak " + ALPN.decode())
    return extensions


def raw_key_certificate(context: bytes, public_key: bytes) -> bytes:
    """A Certificate message with a raw public key (RFC 7250 §3, RFC 8446 §4.4.2)."""
    entry = vector(3, SPKI_PREFIX + public_key) + vector(2, b"")
    return message(CERTIFICATE, vector(1, context) + vector(3, entry))


def parse_raw_key_certificate(body: bytes) -> bytes:
    """The 32 bytes of the Ed25519 key that a Certificate message shows."""
    fields = Fields(body)
    fields.vector(1)
    spki = Fields(fields.vector(3)).vector(3)
    if len(spki) != len(SPKI_PREFIX) + 32 or not spki.startswith(SPKI_PREFIX):
        raise TlsError("the server's key is not a raw Ed25519 key")
    return spki[len(SPKI_PREFIX) :]


def signed_content(side: str, transcript_hash: bytes) -> bytes:
    """What CertificateVerify signs (RFC 8446 §4.4.3)."""
    return b" " * 64 + f"TLS 1.3, {side} CertificateVerify".encode() + b"\x00" + transcript_hash


def parse_ticket(body: bytes) -> tuple[bytes, bytes, int, int]:
    """Nonce, identity, age_add and the most early data of a NewSessionTicket."""
    fields = Fields(body)
    fields.number(4)
    age_add = fields.number(4)
    nonce, identity = fields.vector(1), fields.vector(2)
    early = parse_extensions(fields.vector(2)).get(EARLY_DATA, bytes(4))
    return nonce, identity, age_add, int.from_bytes(early, "big")
