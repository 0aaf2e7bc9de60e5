"""Frames on a pipe: a 4-byte big-endian length, then that many bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAX_FRAME = 64 * 1024 * 1024
"""Bytes; a longer length can only be garbage."""

_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """What came through the pipe is no frame."""


def frame(payload: bytes) -> bytes:
    """`payload` as it travels. Raises FrameError if it is longer than MAX_FRAME bytes."""
    if len(payload) > MAX_FRAME:
        raise FrameError(f"a message of {len(payload)} bytes is longer than {MAX_FRAME}")
    return _LENGTH.pack(len(payload)) + payload


class Frames:
    """Puts frames together again from however the pipe cut them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads that `data` completes. Raises FrameError at an impossible length."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes was announced; at most {MAX_FRAME}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield payload

    @property
    def partial(self) -> bool:
        """Whether bytes of an unfinished frame are waiting."""
        return bool(self._buffer)
