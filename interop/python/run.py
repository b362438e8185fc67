"""Runs one scenario against a Whimbrel listener that echoes every stream.

    python run.py SCENARIO SERVER_KEY_HEX HOST:PORT...

It ends with 0 and prints `ok` if all was as docs/protocol.md says.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from whimbrel_client import frames as f
from whimbrel_client.connection import Connection, Refused
from whimbrel_client.handshake import TlsError
from whimbrel_client.streams import Stream

Address = tuple[str, int]

BULK = 2_000_000
# The end of what is sent goes out last, so that the last path carries something in any case.
TAIL = 1000
APPLICATION_CODE = 0x100
BAD_PROOF, PATH_ID_REUSED, VERSION_UNKNOWN = 0x06, 0x07, 0x0E


def bulk(size: int) -> bytes:
    """Bytes in which no two stretches are alike."""
    blocks = (hashlib.sha256(index.to_bytes(8, "big")).digest() for index in range(size // 32 + 1))
    return b"".join(blocks)[:size]


def read(connection: Connection, stream: Stream, got: bytearray, until: int) -> None:
    """Reads until there are `until` bytes."""
    while True:
        got += connection.read(stream)
        if len(got) >= until:
            return
        connection.pump()


def read_to_end(connection: Connection, stream: Stream, got: bytearray) -> None:
    while not stream.receiver.ended:
        got += connection.read(stream)
        if not stream.receiver.ended:
            connection.pump()


def check(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def end(connection: Connection) -> None:
    connection.close(APPLICATION_CODE, "done")


def begin(connection: Connection, at: Address) -> tuple[Stream, bytes, bytearray]:
    """Opens a connection with much to send, and stops when some of it came back."""
    stream, sent, got = connection.open_stream(), bulk(BULK), bytearray()
    stream.write(sent[:-TAIL])
    connection.open(at)
    read(connection, stream, got, BULK // 10)
    return stream, sent, got


def finish(connection: Connection, stream: Stream, sent: bytes, got: bytearray) -> None:
    stream.write(sent[-TAIL:])
    stream.finish()
    read_to_end(connection, stream, got)
    check(bytes(got) == sent, f"{len(got)} bytes came back, not those that were sent")
    end(connection)


def echo(connection: Connection, at: list[Address]) -> None:
    """What was written before the connection is open comes back, and the end is agreed."""
    stream, got = connection.open_stream(), bytearray()
    stream.write(b"hello")
    connection.open(at[0])
    read(connection, stream, got, 5)
    stream.write(b", whimbrel")
    stream.finish()
    read_to_end(connection, stream, got)
    check(got == b"hello, whimbrel", f"got {bytes(got)!r}")
    end(connection)


def move(connection: Connection, at: list[Address]) -> None:
    """The only path is cut in the middle; a second one goes on from there."""
    stream, sent, got = begin(connection, at[0])
    connection.lose(connection.paths[0])
    connection.join(at[-1])
    finish(connection, stream, sent, got)


def two_paths(connection: Connection, at: list[Address]) -> None:
    """A second path joins beside the first, and survives its loss."""
    stream, sent, got = begin(connection, at[0])
    connection.set_mode(f.MODE_FULL)
    connection.join(at[-1])
    read(connection, stream, got, BULK // 2)
    check(set(connection.paths) == {0, 1}, f"the live paths are {set(connection.paths)}")
    connection.lose(connection.paths[0])
    finish(connection, stream, sent, got)


def retire(connection: Connection, at: list[Address]) -> None:
    """The first path ends beside a second one, and nothing has to be sent again."""
    stream, sent, got = begin(connection, at[0])
    connection.set_mode(f.MODE_FULL)
    connection.join(at[-1])
    read(connection, stream, got, BULK // 2)
    connection.retire(connection.paths[0])
    while 0 in connection.paths:
        got += connection.read(stream)
        connection.pump()
    finish(connection, stream, sent, got)
    check(connection.requeued == 0, f"{connection.requeued} frames went again")


def two_opens(connection: Connection, at: list[Address]) -> None:
    """Equal OPENs on two paths get the same answer, and both paths stay."""
    stream, sent, got = connection.open_stream(), bulk(BULK), bytearray()
    stream.write(sent[:-TAIL])
    first, _ = connection.open_twice(at[0], at[-1])
    read(connection, stream, got, BULK // 2)
    check(set(connection.paths) == {0, 1}, f"the live paths are {set(connection.paths)}")
    connection.lose(first)
    finish(connection, stream, sent, got)


def early(connection: Connection, at: list[Address]) -> None:
    """JOIN travels in the first flight of a resumed session, and its answer follows the verdict."""
    stream, sent, got = begin(connection, at[0])
    check(bool(connection.tickets), "no session ticket came")
    ticket = connection.tickets[-1]
    connection.lose(connection.paths[0])
    path = connection.join(at[-1], early=True)
    check(path.tls.resumed and path.tls.early_accepted and path.verdict == 1, "early data was not taken")
    read(connection, stream, got, BULK // 2)
    # The same ticket again: nothing of its early data may be taken.
    connection.give_up(path)
    connection.tickets.append(ticket)
    path = connection.join(at[0], early=True)
    check(not path.tls.resumed and not path.tls.early_accepted, "a ticket was taken twice")
    finish(connection, stream, sent, got)


def server_closes(connection: Connection, at: list[Address]) -> None:
    """The server ends the connection, and hears that we know."""
    stream, got = connection.open_stream(), bytearray()
    stream.write(b"end this")
    connection.open(at[0])
    read(connection, stream, got, 8)
    code, reason = connection.wait_closed()
    check((code, reason) == (APPLICATION_CODE + 7, "enough"), f"closed with {code:#x} {reason!r}")


def unknown_frames(connection: Connection, at: list[Address]) -> None:
    """An odd frame that the server does not know is stepped over and acknowledged."""
    connection.open(at[0])
    connection.ping(unknown=0x3FFF)
    connection.drain()
    end(connection)


def refusals(connection: Connection, at: list[Address]) -> None:
    """Another version, a path id that was used, a wrong proof: each is refused with its code."""
    other = Connection(Ed25519PrivateKey.generate(), connection.peer)
    expect_refusal(VERSION_UNKNOWN, lambda: other.open(at[0], version=2))
    connection.open(at[0])
    connection.next_path = 0
    expect_refusal(PATH_ID_REUSED, lambda: connection.join(at[0]))
    connection.next_path = 5
    secret, connection.secret = connection.secret, bytes(32)
    expect_refusal(BAD_PROOF, lambda: connection.join(at[0]))
    connection.secret = secret


def expect_refusal(code: int, attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except Refused as refused:
        check(refused.code == code, f"{refused}, and not with {code:#x}")
    else:
        raise AssertionError(f"it was not refused with {code:#x}")


def another_key(connection: Connection, at: list[Address]) -> None:
    """A server that cannot show the expected key is not spoken to."""
    other = Connection(Ed25519PrivateKey.generate(), bytes(32))
    try:
        other.open(at[0])
    except TlsError:
        return
    raise AssertionError("a server with another key was taken")


SCENARIOS = (
    echo,
    move,
    two_paths,
    retire,
    two_opens,
    early,
    server_closes,
    unknown_frames,
    refusals,
    another_key,
)


def main() -> int:
    scenarios = {scenario.__name__: scenario for scenario in SCENARIOS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=sorted(scenarios))
    parser.add_argument("server_key", type=bytes.fromhex)
    parser.add_argument("address", nargs="+")
    args = parser.parse_args()
    at = [(host, int(port)) for host, _, port in (text.rpartition(":") for text in args.address)]
    scenarios[args.scenario](Connection(Ed25519PrivateKey.generate(), args.server_key), at)
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
