"""One path: a TLS session over a TCP connection, and its segments (docs/protocol.md §§2, 3)."""

import socket
import struct
from collections import deque
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from . import frames
from .handshake import SessionTicket
from .tls13 import TlsClient

READ_SIZE = 65_536
TIMEOUT = 10.0


class PathGone(Exception):
    """The carrier ended."""


@dataclass
class Sent:
    """What a segment carried that must arrive.

    Its frames are said again as they stand; `told` are the paths whose final count they told."""

    frames: list[bytes] = field(default_factory=list)
    told: list[int] = field(default_factory=list)


class Path:
    """A carrier that is being opened or is open."""

    def __init__(
        self,
        id: int,
        address: tuple[str, int],
        key: Ed25519PrivateKey,
        peer: bytes,
        ticket: SessionTicket | None = None,
        early: bytes = b"",
    ) -> None:
        self.id = id
        self.socket = socket.create_connection(address, timeout=TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.tls = TlsClient(key, peer, ticket, early)
        self._early = early
        # After a resumed handshake the server's first byte says what became of early data.
        self.verdict: int | None = None
        self.answered = False
        # The server has said how much of a lost path it took.
        self.final = False
        # What RETIRE said: we send nothing more here, and how many segments the server sends in all.
        self.retired = False
        self.expected: int | None = None
        self.sent = 0
        self.received = 0
        self.unacknowledged: deque[Sent] = deque()
        self.owes_ack = False
        self._plaintext = b""
        self.flush()

    def handshake(self) -> None:
        """Completes the TLS handshake, and sends early data again that was not taken."""
        while not self.tls.is_open:
            self._read()
            self.flush()
        if self._early and not self.tls.early_accepted:
            self.tls.send(self._early)
            self.flush()

    def send(self, body: bytes, sent: Sent) -> None:
        """Sends one segment."""
        self.note_sent(sent)
        self.tls.send(frames.segment(body))
        self.flush()

    def note_sent(self, sent: Sent) -> None:
        self.unacknowledged.append(sent)
        self.sent += 1

    def receive(self) -> list[bytes]:
        """Waits for bytes; the whole segments that they complete."""
        self._read()
        self._plaintext += self.tls.take_plaintext()
        if self.tls.resumed and self.verdict is None and self._plaintext:
            self.verdict, self._plaintext = self._plaintext[0], self._plaintext[1:]
        whole = []
        while (found := frames.split_segment(self._plaintext)) is not None:
            body, size = found
            self._plaintext = self._plaintext[size:]
            whole.append(body)
        return whole

    @property
    def done(self) -> bool:
        """A retired path on which all has arrived, both ways."""
        return self.retired and self.expected == self.received and not self.unacknowledged

    def acknowledged(self, count: int) -> list[Sent]:
        """The peer has the first `count` segments: what was in those that it had not told before."""
        known = self.sent - len(self.unacknowledged)
        return [self.unacknowledged.popleft() for _ in range(min(count, self.sent) - known)]

    def flush(self) -> None:
        """Writes what TLS has for the wire."""
        try:
            self.socket.sendall(self.tls.outgoing)
        except OSError as error:
            raise PathGone(str(error)) from error
        self.tls.outgoing.clear()

    def close(self) -> None:
        """Gives the path up in order."""
        try:
            self.tls.close()
            self.flush()
        except PathGone:
            pass
        self.socket.close()

    def cut(self) -> None:
        """Loses the path: the TCP connection is reset, and with it everything on its way."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _read(self) -> None:
        try:
            data = self.socket.recv(READ_SIZE)
        except OSError as error:
            raise PathGone(str(error)) from error
        if not data:
            raise PathGone("the server ended the TCP connection")
        self.tls.receive(data)
