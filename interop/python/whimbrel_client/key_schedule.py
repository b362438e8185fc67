"""The key schedule of TLS 1.3 with SHA-256 (RFC 8446 §7.1)."""

import hashlib
import hmac

HASH_SIZE = 32
ZEROS = bytes(HASH_SIZE)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def hmac_sha256(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def hkdf_extract(salt: bytes, material: bytes) -> bytes:
    return hmac_sha256(salt, material)


def hkdf_expand_label(secret: bytes, label: str, context: bytes, length: int) -> bytes:
    """HKDF-Expand-Label; no more than one block of output, which is all that this client needs."""
    assert length <= HASH_SIZE
    name = b"tls13 " + label.encode()
    info = length.to_bytes(2, "big") + bytes([len(name)]) + name + bytes([len(context)]) + context
    return hmac_sha256(secret, info + b"\x01")[:length]


def derive_secret(secret: bytes, label: str, transcript: bytes) -> bytes:
    """Derive-Secret over the hash of `transcript`."""
    return hkdf_expand_label(secret, label, sha256(transcript), HASH_SIZE)


def early_secret(psk: bytes = ZEROS) -> bytes:
    return hkdf_extract(ZEROS, psk)


def handshake_secret(early: bytes, shared: bytes) -> bytes:
    return hkdf_extract(derive_secret(early, "derived", b""), shared)


def master_secret(handshake: bytes) -> bytes:
    return hkdf_extract(derive_secret(handshake, "derived", b""), ZEROS)


def verify_data(traffic_secret: bytes, transcript: bytes) -> bytes:
    """What a Finished message, or a PSK binder, says about all before it (RFC 8446 §4.4.4)."""
    key = hkdf_expand_label(traffic_secret, "finished", b"", HASH_SIZE)
    return hmac_sha256(key, sha256(transcript))


def resumption_psk(resumption_secret: bytes, nonce: bytes) -> bytes:
    """The key that belongs to a session ticket (RFC 8446 §4.6.1)."""
    return hkdf_expand_label(resumption_secret, "resumption", nonce, HASH_SIZE)
