"""Frames and streams, among them the worked examples of docs/protocol.md."""

import re
import unittest
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from whimbrel_client import frames as f
from whimbrel_client.connection import Connection
from whimbrel_client.streams import Receiver, Stream
from whimbrel_client.tls13 import raw_public

DOCUMENT = Path(__file__).parents[3] / "docs" / "protocol.md"


def documented(name: str) -> bytes:
    """The bytes of the block behind `<!-- example: NAME -->`: hexadecimal up to `;` on each line."""
    block = DOCUMENT.read_text().split(f"<!-- example: {name} -->")[1].split("```")[1]
    return bytes.fromhex("".join(re.sub(";.*", "", line) for line in block.splitlines()))


class Examples(unittest.TestCase):
    def test_the_documented_answer_gives_the_documented_join(self) -> None:
        client = Ed25519PrivateKey.from_private_bytes(b"\x01" * 32)
        self.assertEqual(raw_public(client), documented("client id"))
        connection = Connection(client, documented("server id"))
        connection.id, connection.random = b"\x11" * 16, b"\xaa" * 32
        body, size = f.split_segment(documented("accept segment")) or (b"", 0)
        self.assertEqual(size, len(documented("accept segment")))
        found = {frame.kind: frame for frame in f.decode(body)}
        accept = found[f.ACCEPT]
        self.assertEqual(accept.params, f.Params(16 << 20, 64 << 10, 1024, retire=True))
        self.assertEqual(found[f.ACK].reports, [f.Report(0, 1)])
        connection.accepted(accept)
        joined = f.frame(f.JOIN, connection.id, 1, connection.join_proof(1), f.reports([f.Report(0, 1)]))
        body, _ = f.split_segment(documented("join segment")) or (b"", 0)
        self.assertEqual(joined.hex(), _first_frame(body).hex())

    def test_parameters_are_documented(self) -> None:
        params = f.Params(16 << 20, 64 << 10, 1024, target="ssh.laptop.user@example.org", retire=True)
        self.assertIn(params.encode().hex(), documented("open segment").hex())


def _first_frame(body: bytes) -> bytes:
    """A segment's first frame, with its length in the shortest form."""
    reader = f.Reader(body)
    return f.frame(reader.varint(), reader.prefixed())


class Integers(unittest.TestCase):
    def test_the_examples_of_rfc_9000(self) -> None:
        for text, value in (
            ("c2197c5eff14e88c", 151_288_809_941_952_652),
            ("9d7f3e7d", 494_878_333),
            ("7bbd", 15_293),
            ("25", 37),
        ):
            self.assertEqual(f.varint(value).hex(), text)
            self.assertEqual(f.Reader(bytes.fromhex(text)).varint(), value)
        self.assertEqual(f.Reader(bytes.fromhex("4025")).varint(), 37)


class Frames(unittest.TestCase):
    def test_odd_frames_are_stepped_over_and_even_ones_are_not(self) -> None:
        self.assertTrue(next(f.decode(f.frame(0x3FFF, b"new"))).eliciting)
        with self.assertRaises(f.FrameError):
            next(f.decode(f.frame(0x3FFE, b"new")))

    def test_a_segment_is_taken_when_it_is_whole(self) -> None:
        whole = f.segment(f.frame(f.PING))
        for cut in range(len(whole)):
            self.assertIsNone(f.split_segment(whole[:cut]))
        self.assertEqual(f.split_segment(whole + b"more"), (f.frame(f.PING), len(whole)))


class Streams(unittest.TestCase):
    def test_pieces_arrive_in_any_order_and_repeatedly(self) -> None:
        receiver = Receiver()
        receiver.take(6, b"world", True)
        receiver.take(3, b"lo w", False)
        self.assertEqual(receiver.read(), b"")
        receiver.take(0, b"hel", False)
        receiver.take(0, b"hello", False)
        self.assertEqual(receiver.read(), b"hello world")
        self.assertTrue(receiver.ended)

    def test_no_more_is_sent_than_there_is_credit_for(self) -> None:
        stream = Stream(0, 4)
        stream.write(b"abcdef")
        stream.finish()
        self.assertEqual(stream.next_piece(100), (0, b"abcd", False))
        self.assertIsNone(stream.next_piece(100))
        stream.max_data = 6
        self.assertEqual(stream.next_piece(100), (4, b"ef", True))
        self.assertIsNone(stream.next_piece(100))


if __name__ == "__main__":
    unittest.main()
