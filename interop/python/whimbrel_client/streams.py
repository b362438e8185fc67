"""One stream's two directions (docs/protocol.md §6)."""

from collections import deque


class Receiver:
    """Puts the pieces of a stream in order."""

    def __init__(self) -> None:
        self._pieces: dict[int, bytes] = {}
        self._ready = bytearray()
        self._delivered = 0
        self.highest = 0
        self.final_size: int | None = None

    def take(self, offset: int, data: bytes, fin: bool) -> None:
        """Takes a piece: in any order, of any size, and repeatedly."""
        end = offset + len(data)
        self.highest = max(self.highest, end)
        if fin:
            self.final_size = end
        if len(data) > len(self._pieces.get(offset, b"")):
            self._pieces[offset] = data
        for start in sorted(self._pieces):
            at = self._delivered
            if start > at:
                break
            piece = self._pieces.pop(start)
            self._ready += piece[at - start :]
            self._delivered = max(at, start + len(piece))

    def read(self) -> bytes:
        """What has arrived in order since the last call."""
        taken = bytes(self._ready)
        self._ready.clear()
        return taken

    @property
    def ended(self) -> bool:
        """All was read."""
        return self._delivered == self.final_size and not self._ready


class Stream:
    """What the application has of a stream."""

    def __init__(self, id: int, max_data: int) -> None:
        self.id = id
        self.receiver = Receiver()
        self.granted = 0
        self.max_data = max_data
        self.written = 0
        self.unsent: deque[bytes] = deque()
        self.finishing = False
        self.fin_sent = False

    def write(self, data: bytes) -> None:
        self.unsent.append(data)

    def finish(self) -> None:
        """Nothing follows."""
        self.finishing = True

    def next_piece(self, most: int) -> tuple[int, bytes, bool] | None:
        """Offset, bytes and end of what may be sent now."""
        most = min(most, self.max_data - self.written)
        offset = self.written
        data = b""
        if self.unsent and most > 0:
            data = self.unsent.popleft()
            if len(data) > most:
                self.unsent.appendleft(data[most:])
                data = data[:most]
        fin = self.finishing and not self.unsent and not self.fin_sent
        if not data and not fin:
            return None
        self.written += len(data)
        self.fin_sent |= fin
        return offset, data, fin
