"""Segments and frames (docs/protocol.md §§1, 3, 4, 5): values and their bytes."""

from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_SEGMENT = 16_384
MAX_REPORTS = 64
VERSION = 1

OPEN, ACCEPT, JOIN, JOINED, REFUSE, ACK = 0x00, 0x02, 0x04, 0x06, 0x08, 0x0A
STREAM, STREAM_FIN = 0x0C, 0x0E
MAX_DATA, MAX_STREAM_DATA, MAX_STREAMS = 0x10, 0x12, 0x14
RESET, STOP, PATH_LOST, CLOSE, CLOSE_ACK = 0x16, 0x18, 0x1A, 0x1C, 0x1E
RETIRE, PING, HANDOVER = 0x20, 0x21, 0x2B
# A segment with nothing else in it is not acknowledged.
NOT_ELICITING = (ACK, REFUSE)

MODE_FULL, MODE_BACKUP, MODE_SINGLE = 0, 1, 2


class FrameError(Exception):
    """The bytes are not what the document allows."""


def varint(value: int) -> bytes:
    """A variable-length integer of RFC 9000 §16, in its shortest form."""
    for size, mark in ((1, 0), (2, 1), (4, 2), (8, 3)):
        if value < 1 << (8 * size - 2):
            return (value | mark << (8 * size - 2)).to_bytes(size, "big")
    raise ValueError(value)


class Reader:
    """Takes fields off the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def more(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise FrameError("a field is cut off")
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def varint(self) -> int:
        first = self.take(1)
        rest = self.take((1 << (first[0] >> 6)) - 1)
        return int.from_bytes(bytes([first[0] & 0x3F]) + rest, "big")

    def prefixed(self) -> bytes:
        return self.take(self.varint())


@dataclass(frozen=True)
class Report:
    """So many segments of a path were received."""

    path: int
    received: int


@dataclass(frozen=True)
class Params:
    """What one side states about itself (§5), with the values that count when it says nothing."""

    max_data: int = 65_536
    max_stream_data: int = 65_536
    max_streams: int = 16
    max_ack_delay: int = 25
    linger: int = 86_400
    target: str | None = None
    retire: bool = False

    def encode(self) -> bytes:
        numbers = (self.max_data, self.max_stream_data, self.max_streams, self.max_ack_delay, self.linger)
        out = b"".join(_parameter(id, varint(value)) for id, value in enumerate(numbers, 1))
        out += _parameter(6, self.target.encode()) if self.target else b""
        return out + (_parameter(8, b"") if self.retire else b"")

    @classmethod
    def decode(cls, data: bytes) -> "Params":
        reader, numbers, retire = Reader(data), {}, False
        while reader.more():
            id, value = reader.varint(), reader.prefixed()
            if 1 <= id <= 5:
                numbers[id] = Reader(value).varint()
            retire |= id == 8
        least = cls()
        return cls(
            max(numbers.get(1, 0), least.max_data),
            max(numbers.get(2, 0), least.max_stream_data),
            max(numbers.get(3, 0), least.max_streams),
            numbers.get(4, least.max_ack_delay),
            numbers.get(5, least.linger),
            retire=retire,
        )


def _parameter(id: int, value: bytes) -> bytes:
    return varint(id) + varint(len(value)) + value


@dataclass(frozen=True)
class Frame:
    """A frame from the server; which fields mean something depends on its type."""

    kind: int
    path: int = 0
    stream: int = 0
    offset: int = 0
    value: int = 0
    data: bytes = b""
    reports: list[Report] = field(default_factory=list)
    params: Params = Params()

    @property
    def eliciting(self) -> bool:
        """Asks for an acknowledgement; so do unknown odd ones."""
        return self.kind not in NOT_ELICITING


def frame(kind: int, *body: bytes | int) -> bytes:
    """A frame; numbers in its body are written as variable-length integers."""
    joined = b"".join(part if isinstance(part, bytes) else varint(part) for part in body)
    return varint(kind) + varint(len(joined)) + joined


def reports(lost: list[Report]) -> bytes:
    told = lost[:MAX_REPORTS]
    return varint(len(told)) + b"".join(varint(one.path) + varint(one.received) for one in told)


def segment(frames: bytes) -> bytes:
    whole = varint(len(frames)) + frames
    assert len(whole) <= MAX_SEGMENT
    return whole


def split_segment(data: bytes) -> tuple[bytes, int] | None:
    """The first whole segment's frames, and how many bytes it took; nothing if more bytes are needed."""
    if not data or len(data) < 1 << (data[0] >> 6):
        return None
    reader = Reader(data)
    length = reader.varint()
    size = (1 << (data[0] >> 6)) + length
    if size > MAX_SEGMENT + 8:
        raise FrameError("the segment is too long")
    return (data[size - length : size], size) if len(data) >= size else None


def decode(data: bytes) -> Iterator[Frame]:
    """The frames of a segment."""
    reader = Reader(data)
    while reader.more():
        yield _decode(reader.varint(), Reader(reader.prefixed()))


def _decode(kind: int, body: Reader) -> Frame:
    if kind in (STREAM, STREAM_FIN):
        return Frame(kind, stream=body.varint(), offset=body.varint(), data=body.rest())
    if kind == ACCEPT:
        random = body.take(32)
        return Frame(kind, data=random, reports=_reports(body), params=Params.decode(body.rest()))
    if kind == JOINED:
        return Frame(kind, reports=_reports(body))
    if kind == ACK:
        return Frame(kind, reports=_acks(body))
    if kind in (REFUSE, CLOSE):
        return Frame(kind, value=body.varint(), data=body.rest())
    if kind in (MAX_DATA, MAX_STREAMS):
        return Frame(kind, value=body.varint())
    if kind in (MAX_STREAM_DATA, RESET, STOP):
        return Frame(kind, stream=body.varint(), value=body.varint())
    if kind in (PATH_LOST, RETIRE):
        return Frame(kind, reports=[Report(body.varint(), body.varint())])
    if kind == CLOSE_ACK or kind & 1:
        return Frame(kind)
    raise FrameError(f"frame type {kind:#x} must be understood, and is not")


def _reports(body: Reader) -> list[Report]:
    return [Report(body.varint(), body.varint()) for _ in range(_count(body))]


def _acks(body: Reader) -> list[Report]:
    found = []
    for _ in range(_count(body)):
        found.append(Report(body.varint(), body.varint()))
        body.varint()  # the delay: this client measures no round trips
    return found


def _count(body: Reader) -> int:
    count = body.varint()
    if count > MAX_REPORTS:
        raise FrameError("too many reports")
    return count
