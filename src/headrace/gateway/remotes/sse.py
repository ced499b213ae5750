"""Server-sent events from bytes as they come (WHATWG HTML, 9.2.6), of bounded size."""

from __future__ import annotations

MAX_EVENT_BYTES = 2**20
_BOM = b"\xef\xbb\xbf"


class EventTooLongError(Exception):
    """An event, or a line, of more than MAX_EVENT_BYTES."""


class EventParser:
    """Finds the data of each event. What else an event may have, its name and id, neither API needs."""

    __slots__ = ("_after_return", "_data", "_first", "_rest", "_size", "lines")

    def __init__(self) -> None:
        self._rest = bytearray()
        """A line whose end has not come."""
        self._data: list[bytes | bytearray] = []
        """Of the event whose end has not come."""
        self._size = 0
        self._first = True
        self._after_return = False
        """The last byte was a carriage return, so that a line feed to come belongs to it."""
        self.lines = 0
        """How many have come: that something does come."""

    def feed(self, chunk: bytes) -> list[bytes | bytearray]:
        """The data of the events that end within the chunk. Raises EventTooLongError."""
        if b"\r" in chunk or self._after_return:
            chunk = self._line_feeds(chunk)
        events = []
        if b"\n" in chunk:
            lines = (self._rest + chunk if self._rest else chunk).split(b"\n")
            self._rest = bytearray(lines.pop())
            self.lines += len(lines)
            events = [event for line in lines if (event := self._take(line)) is not None]
        else:
            self._rest += chunk
        if len(self._rest) + self._size > MAX_EVENT_BYTES:
            raise EventTooLongError
        return events

    def _line_feeds(self, chunk: bytes) -> bytes:
        """The chunk with every kind of line end as a line feed."""
        if self._after_return and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_return = False
        if chunk:
            self._after_return = chunk[-1:] == b"\r"
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, line: bytes | bytearray) -> bytes | bytearray | None:
        """The data of the event that the line ends, if it ends one."""
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        if line.startswith(b"data:") or line == b"data":
            self._size += len(line) + 1
            if self._size > MAX_EVENT_BYTES:
                raise EventTooLongError
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        return None

    def _dispatch(self) -> bytes | bytearray | None:
        if not self._data:
            return None
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data = []
        self._size = 0
        return data
