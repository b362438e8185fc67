"""TLS 1.3 records, protected with AES-128-GCM (RFC 8446 §5)."""

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .key_schedule import HASH_SIZE, hkdf_expand_label

CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION = 20, 21, 22, 23
MAX_PLAINTEXT = 1 << 14
HEADER_SIZE = 5


def plain_record(kind: int, body: bytes) -> bytes:
    return bytes([kind, 3, 3]) + len(body).to_bytes(2, "big") + body


class Protection:
    """One direction's keys: seals or opens its records, in order."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._aead = AESGCM(hkdf_expand_label(secret, "key", b"", 16))
        self._iv = int.from_bytes(hkdf_expand_label(secret, "iv", b"", 12), "big")
        self._sequence = 0

    def updated(self) -> "Protection":
        """The keys after a KeyUpdate (RFC 8446 §7.2)."""
        return Protection(hkdf_expand_label(self.secret, "traffic upd", b"", HASH_SIZE))

    def seal(self, kind: int, body: bytes) -> bytes:
        inner = body + bytes([kind])
        header = bytes([APPLICATION, 3, 3]) + (len(inner) + 16).to_bytes(2, "big")
        return header + self._aead.encrypt(self._nonce(), inner, header)

    def open(self, record: bytes) -> tuple[int, bytes]:
        """The content type and content of a whole record."""
        header, sealed = record[:HEADER_SIZE], record[HEADER_SIZE:]
        inner = self._aead.decrypt(self._nonce(), sealed, header).rstrip(b"\x00")
        return inner[-1], inner[:-1]

    def _nonce(self) -> bytes:
        nonce = (self._iv ^ self._sequence).to_bytes(12, "big")
        self._sequence += 1
        return nonce
