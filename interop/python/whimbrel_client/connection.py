"""A connection: streams, and the paths that carry them (docs/protocol.md §§6 to 11)."""

import os
import select
import time
from collections import deque

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from . import frames as f
from .frames import Frame, Report
from .handshake import SessionTicket
from .key_schedule import hmac_sha256
from .path import Path, PathGone, Sent
from .streams import Stream
from .tls13 import raw_public

WINDOW = 1 << 20
CHUNK = 16_000
PROTOCOL_VIOLATION = 0x01
UNKNOWN_CONNECTION = 0x05
PATH_ID_REUSED = 0x07


class Refused(Exception):
    """The server refused a path."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"refused with code {code:#x}: {reason}")
        self.code = code


class Connection:
    """The client's end of a connection. Nothing happens between the calls of its methods."""

    def __init__(self, key: Ed25519PrivateKey, peer: bytes, target: str | None = None) -> None:
        self._key, self.peer = key, peer
        self.id, self.random = os.urandom(16), os.urandom(32)
        self.secret: bytes | None = None
        self._own = f.Params(max_data=WINDOW, max_stream_data=WINDOW, target=target, retire=True)
        # What counts before ACCEPT: early credit.
        self._max_data, self._peer_params = f.Params().max_data, f.Params()
        self._data_sent = self._granted = 0
        self.paths: dict[int, Path] = {}
        self._lost: dict[int, Path] = {}
        self.next_path = 0
        # Final counts of lost paths that the server has not acknowledged.
        self._untold: dict[int, int] = {}
        # Frames that wait for a segment. Each states a fact, so a lost one is simply said again.
        self._queue: deque[tuple[bytes, list[int]]] = deque()
        self._streams: dict[int, Stream] = {}
        self._opened = 0
        self._mode_sequence = 0
        self.tickets: list[SessionTicket] = []
        self.closed: tuple[int, str] | None = None
        self._close_acknowledged = False
        # Frames that were lost with their path and went again.
        self.requeued = 0

    # Paths

    def open(self, address: tuple[str, int], version: int = f.VERSION) -> Path:
        """Opens the connection over a first path; what was written before travels behind OPEN."""
        return self._answered(self._send_open(address, version))

    def open_twice(self, first: tuple[str, int], second: tuple[str, int]) -> tuple[Path, Path]:
        """Opens the connection by two equal OPENs, on two paths."""
        one, other = self._send_open(first), self._send_open(second)
        return self._answered(one), self._answered(other)

    def _send_open(self, address: tuple[str, int], version: int = f.VERSION) -> Path:
        path = self._dial(address)
        head = bytes([version]) + self.id + f.varint(path.id) + self.random + f.reports(self._lost_reports())
        self._send_first(path, f.frame(f.OPEN, head, self._own.encode()))
        return path

    def join(self, address: tuple[str, int], early: bool = False) -> Path:
        """Joins with another path. With `early`, JOIN travels in the first flight, if there is a ticket."""
        ticket = self.tickets.pop() if early else None
        id = self.next_path
        first = f.frame(f.JOIN, self.id, id, self.join_proof(id), f.reports(self._lost_reports()))
        if ticket is None:
            path = self._dial(address)
            self._send_first(path, first)
        else:
            path = self._dial(address, ticket, f.segment(first))
            path.note_sent(Sent(told=list(self._untold)))
        return self._answered(path)

    def lose(self, path: Path) -> None:
        """Cuts a path, and notes that it is lost."""
        path.cut()
        self._path_lost(path)

    def give_up(self, path: Path) -> None:
        """Closes a path that is no longer wanted."""
        path.close()
        self._path_lost(path)

    def retire(self, path: Path) -> None:
        """Ends a path without a loss: it is over when all has arrived that either side sent on it."""
        if not self._peer_params.retire:
            raise ValueError("the server does not know RETIRE")
        path.retired = True
        self._say(f.frame(f.RETIRE, path.id, path.sent))

    def set_mode(self, mode: int) -> None:
        """States how paths are used."""
        self._mode_sequence += 1
        self._say(f.frame(f.HANDOVER, self._mode_sequence, mode))

    def _dial(
        self, address: tuple[str, int], ticket: SessionTicket | None = None, early: bytes = b""
    ) -> Path:
        path = Path(self.next_path, address, self._key, self.peer, ticket, early)
        self.next_path += 1
        path.handshake()
        self.paths[path.id] = path
        return path

    def _send_first(self, path: Path, first: bytes) -> None:
        sent = Sent(told=list(self._untold))
        body = first
        for data in self._pieces(CHUNK - len(first)):
            body += data
            sent.frames.append(data)
        path.send(body, sent)

    def _answered(self, path: Path) -> Path:
        while not path.answered:
            self.pump()
        return path

    def _path_lost(self, path: Path) -> None:
        if self.paths.pop(path.id, None) is None:
            return
        self._lost[path.id] = path
        self._untold[path.id] = path.received
        if self.paths:
            self._say(f.frame(f.PATH_LOST, path.id, path.received), [path.id])

    def _lost_reports(self) -> list[Report]:
        return [Report(path, count) for path, count in self._untold.items()]

    def _final_count_heard(self, report: Report) -> None:
        """The server took so many segments from a path and takes no more: the others go again."""
        if report.path in self.paths:
            lost = self.paths[report.path]
            lost.close()
            self._path_lost(lost)
        path = self._lost.get(report.path)
        if path is None:
            if report.received > 0:
                self._say(f.frame(f.PATH_LOST, report.path, 0))
        elif not path.final:
            path.final = True
            self._delivered(path.acknowledged(report.received))
            for sent in path.unacknowledged:
                self._queue.extend((data, []) for data in sent.frames)
                self.requeued += len(sent.frames)
            path.unacknowledged.clear()
            path.close()
        self._forget_settled()

    def _forget_settled(self) -> None:
        """Forgets lost paths whose own count is acknowledged and whose peer's was heard."""
        settled = [id for id, path in self._lost.items() if path.final and id not in self._untold]
        for id in settled:
            self._lost.pop(id).close()

    def join_proof(self, path: int) -> bytes:
        assert self.secret is not None
        return hmac_sha256(self.secret, b"whimbrel join v1" + self.id + path.to_bytes(8, "big"))

    # Streams

    def open_stream(self) -> Stream:
        stream = Stream(self._opened << 1, self._peer_params.max_stream_data)
        self._opened += 1
        stream.granted = WINDOW
        self._streams[stream.id] = stream
        return stream

    def read(self, stream: Stream) -> bytes:
        """What arrived in order; raises the credit by as much."""
        data = stream.receiver.read()
        if data:
            self._granted += len(data)
            stream.granted += len(data)
            self._say(f.frame(f.MAX_DATA, WINDOW + self._granted))
            self._say(f.frame(f.MAX_STREAM_DATA, stream.id, stream.granted))
        return data

    def _pieces(self, room: int) -> list[bytes]:
        """STREAM frames of new data, at most about `room` bytes, within the server's credit."""
        found = []
        for stream in self._streams.values():
            while room > 0:
                piece = stream.next_piece(min(room, self._max_data - self._data_sent))
                if piece is None:
                    break
                offset, data, fin = piece
                self._data_sent += len(data)
                found.append(f.frame(f.STREAM_FIN if fin else f.STREAM, stream.id, offset, data))
                room -= len(found[-1])
        return found

    # Segments

    def ping(self, unknown: int | None = None) -> None:
        """Asks for an acknowledgement; with `unknown`, by a frame of a type that the server does not know."""
        self._say(f.frame(f.PING if unknown is None else unknown, b"" if unknown is None else b"anything"))

    def _say(self, data: bytes, told: list[int] | None = None) -> None:
        self._queue.append((data, told or []))

    def transmit(self) -> None:
        """Sends what waits, and acknowledgements, on the newest answered path."""
        answered = [path for path in self.paths.values() if path.answered and not path.retired]
        if not answered:
            return
        path = answered[-1]
        try:
            while body := self._next_segment(path):
                path.send(*body)
        except PathGone:
            self._path_lost(path)

    def _next_segment(self, path: Path) -> tuple[bytes, Sent] | None:
        body, sent = self._acknowledgements(), Sent()
        while self._queue and len(body) + len(self._queue[0][0]) <= f.MAX_SEGMENT - 2:
            data, told = self._queue.popleft()
            body += data
            sent.frames.append(data)
            sent.told += told
        for data in self._pieces(CHUNK - len(body)):
            body += data
            sent.frames.append(data)
        return (body, sent) if body else None

    def _acknowledgements(self) -> bytes:
        if not any(path.owes_ack for path in self.paths.values()):
            return b""
        live = list(self.paths.values())[: f.MAX_REPORTS]
        for path in live:
            path.owes_ack = False
        counts = b"".join(f.varint(path.id) + f.varint(path.received) + f.varint(0) for path in live)
        return f.frame(f.ACK, len(live), counts)

    def pump(self, timeout: float = 10.0) -> None:
        """Sends what waits, then waits until something arrives and takes it."""
        self.transmit()
        by_socket = {path.socket: path for path in self.paths.values()}
        readable, _, _ = select.select(list(by_socket), [], [], timeout)
        if not readable:
            raise TimeoutError("the server is silent")
        for one in readable:
            path = by_socket[one]
            if path.id not in self.paths:
                continue
            try:
                segments = path.receive()
            except PathGone:
                self._path_lost(path)
                continue
            self.tickets += path.tls.tickets
            path.tls.tickets = []
            for body in segments:
                self._take_segment(path, body)
        self.transmit()

    def _take_segment(self, path: Path, body: bytes) -> None:
        path.received += 1
        for frame in f.decode(body):
            path.owes_ack |= frame.eliciting
            self._take_frame(path, frame)
        for done in [path for path in self.paths.values() if path.done]:
            # Its carrier stays open until the server has heard this, or has said the same.
            self._path_lost(done)

    def _take_frame(self, path: Path, frame: Frame) -> None:
        kind = frame.kind
        if kind == f.REFUSE:
            path.close()
            del self.paths[path.id]
            if frame.value == UNKNOWN_CONNECTION and self.closed is not None:
                self._close_acknowledged = True
                return
            raise Refused(frame.value, frame.data.decode())
        if kind == f.ACCEPT:
            self.accepted(frame)
        if kind in (f.ACCEPT, f.JOINED):
            path.answered = True
            path.owes_ack = True
        if kind in (f.ACCEPT, f.JOINED, f.PATH_LOST):
            for report in frame.reports:
                self._final_count_heard(report)
        elif kind == f.ACK:
            for report in frame.reports:
                if report.path in self.paths:
                    self._delivered(self.paths[report.path].acknowledged(report.received))
        elif kind == f.RETIRE:
            for report in frame.reports:
                if report.path in self.paths:
                    self.paths[report.path].expected = report.received
        elif kind in (f.STREAM, f.STREAM_FIN):
            self._streams[frame.stream].receiver.take(frame.offset, frame.data, kind == f.STREAM_FIN)
        elif kind == f.MAX_DATA:
            self._max_data = max(self._max_data, frame.value)
        elif kind == f.MAX_STREAM_DATA and frame.stream in self._streams:
            stream = self._streams[frame.stream]
            stream.max_data = max(stream.max_data, frame.value)
        elif kind == f.CLOSE:
            self.closed = (frame.value, frame.data.decode())
            self._say(f.frame(f.CLOSE_ACK))
        elif kind == f.CLOSE_ACK:
            self._close_acknowledged = True

    def accepted(self, frame: Frame) -> None:
        self._peer_params = frame.params
        self._max_data = max(self._max_data, frame.params.max_data)
        for stream in self._streams.values():
            stream.max_data = max(stream.max_data, frame.params.max_stream_data)
        material = self.id + raw_public(self._key) + self.peer + self.random + frame.data
        secret = hmac_sha256(b"whimbrel connection secret v1", material)
        if self.secret is not None and self.secret != secret:
            raise f.FrameError("two answers to equal OPENs differ")
        self.secret = secret

    def _delivered(self, segments: list[Sent]) -> None:
        for sent in segments:
            for path in sent.told:
                self._untold.pop(path, None)
        self._forget_settled()

    # The end

    @property
    def unacknowledged(self) -> int:
        """Segments, and frames that wait for one, of which it is not known that the server has them."""
        waiting = sum(len(path.unacknowledged) for path in (*self.paths.values(), *self._lost.values()))
        return waiting + len(self._queue) + sum(len(stream.unsent) for stream in self._streams.values())

    def drain(self) -> None:
        """Waits until everything was acknowledged."""
        self.transmit()
        while self.unacknowledged:
            self.pump()

    def close(self, code: int = 0, reason: str = "") -> None:
        """Ends the connection, agreed with the server."""
        self.drain()
        self.closed = (code, reason)
        self._say(f.frame(f.CLOSE, code, reason.encode()))
        while not self._close_acknowledged:
            self.pump()
        # CLOSE_ACK is acknowledged before the carrier is closed.
        self.transmit()
        for path in list(self.paths.values()):
            path.close()

    def wait_closed(self) -> tuple[int, str]:
        """Waits until the server ends the connection, and until it knows that we heard."""
        deadline = time.monotonic() + 10
        while self.closed is None or (self.unacknowledged and self.paths):
            if time.monotonic() > deadline:
                raise TimeoutError("the server does not acknowledge CLOSE_ACK")
            self.pump()
        return self.closed
