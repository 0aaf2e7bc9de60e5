"""What can go wrong in the engine, as one line for people and a kind for programs."""

from __future__ import annotations

from fsd_chat.engine.messages import Failed, FailureKind


class EngineError(Exception):
    """A failure that has been understood: its text is the line to show."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


def failed(error: BaseException, request: int | None, log: str) -> Failed:
    """The event for `error`; what nobody foresaw names itself and the log."""
    if isinstance(error, EngineError):
        return Failed(kind=error.kind, message=_one_line(str(error)), request=request)
    if is_out_of_memory(error):
        return Failed(
            kind="memory",
            message="there is not enough memory; take a smaller pair, a dtype of fewer bytes or "
            "another device, or start a new chat: a shorter text needs less",
            request=request,
        )
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failed(kind="internal", message=f"{_one_line(what)} (details in {log})", request=request)


def is_out_of_memory(error: BaseException) -> bool:
    """Python's own, CUDA's, or what torch's other allocators say in a RuntimeError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )


def _one_line(text: str, longest: int = 400) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
