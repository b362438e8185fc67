"""The key schedule and the records against the traces of RFC 8448 §3 and §4."""

import unittest

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from whimbrel_client import key_schedule as ks
from whimbrel_client.records import Protection

CLIENT_PRIVATE = "49af42ba7f7994852d713ef2784bcbcaa7911de26adc5642cb634540e7ea5005"
SERVER_PUBLIC = "c9828876112095fe66762bdbf7c672e156d6cc253b833df1dd69b1b04e751f0f"
HANDSHAKE_SECRET = "1dc826e93606aa6fdc0aadc12f741b01046aa6b99f691ed221a9f0ca043fbeac"
MASTER_SECRET = "18df06843d13a08bf2a449844c5f8a478001bc4d4c627984d5a41da8d0402919"
CLIENT_HANDSHAKE = "b3eddb126e067f35a780b3abf45e2d8f3b1a950738f52e9600746a0e27a55a21"
SERVER_HANDSHAKE = "b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38"
RESUMPTION_SECRET = "7df235f2031d2a051287d02b0241b0bfdaf86cc856231f2d5aba46c434ec196c"
RESUMPTION_PSK = "4ecd0eb6ec3b4d87f5d6028f922ca4c5851a277fd41311c9e62d2c9492e1c4f3"

CLIENT_HELLO = (
    "010000c00303cb34ecb1e78163ba1c38c6dacb196a6dffa21a8d9912ec18a2ef6283024dece7000006"
    "130113031302010000910000000b0009000006736572766572ff01000100000a00140012001d00170018"
    "0019010001010102010301040023000000330026"
    "0024001d002099381de560e4bd43d23d8e435a7dbafeb3c06e51c13cae4d5413691e529aaf2c"
    "002b0003020304000d0020001e040305030603020308040805080604010501060102010402050206020202"
    "002d00020101001c00024001"
)
SERVER_HELLO = (
    "020000560303a6af06a4121860dc5e6e60249cd34c95930c8ac5cb1434dac155772ed3e26928"
    "00130100002e00330024001d0020c9828876112095fe66762bdbf7c672e156d6cc253b833df1dd69b1b04e751f0f"
    "002b00020304"
)
HELLOS = bytes.fromhex(CLIENT_HELLO + SERVER_HELLO)


class KeySchedule(unittest.TestCase):
    def test_the_secrets_of_a_full_handshake(self) -> None:
        exchange = X25519PrivateKey.from_private_bytes(bytes.fromhex(CLIENT_PRIVATE))
        shared = exchange.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(SERVER_PUBLIC)))
        secret = ks.handshake_secret(ks.early_secret(), shared)
        self.assertEqual(secret.hex(), HANDSHAKE_SECRET)
        self.assertEqual(ks.derive_secret(secret, "c hs traffic", HELLOS).hex(), CLIENT_HANDSHAKE)
        self.assertEqual(ks.derive_secret(secret, "s hs traffic", HELLOS).hex(), SERVER_HANDSHAKE)
        self.assertEqual(ks.master_secret(secret).hex(), MASTER_SECRET)

    def test_the_key_of_a_session_ticket(self) -> None:
        psk = ks.resumption_psk(bytes.fromhex(RESUMPTION_SECRET), b"\x00\x00")
        self.assertEqual(psk.hex(), RESUMPTION_PSK)

    def test_the_keys_of_a_direction(self) -> None:
        secret = bytes.fromhex(SERVER_HANDSHAKE)
        key = ks.hkdf_expand_label(secret, "key", b"", 16)
        self.assertEqual(key.hex(), "3fce516009c21727d0f2e4e86ee403bc")
        iv = ks.hkdf_expand_label(secret, "iv", b"", 12)
        self.assertEqual(iv.hex(), "5d313eb2671276ee13000b30")
        finished = ks.hkdf_expand_label(secret, "finished", b"", 32)
        self.assertEqual(finished.hex(), "008d3b66f816ea559f96b537e885c31fc068bf492c652f01f288a1d8cdc19fc8")


class Records(unittest.TestCase):
    def test_what_is_sealed_is_opened_in_order(self) -> None:
        writer, reader = Protection(bytes(32)), Protection(bytes(32))
        for kind, body in ((22, b"handshake"), (23, b""), (23, b"zeros at its end\x00\x00")):
            self.assertEqual(reader.open(writer.seal(kind, body)), (kind, body))

    def test_keys_change(self) -> None:
        writer = Protection(bytes(32)).updated()
        self.assertEqual(Protection(bytes(32)).updated().open(writer.seal(23, b"new")), (23, b"new"))


if __name__ == "__main__":
    unittest.main()
