"""How far a load is: a stage for people, and a fraction of the whole while it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from transformers.utils.logging import set_tqdm_hook

Progress = Callable[[str, float | None], None]


def part(progress: Progress, start: float, end: float) -> Progress:
    """Progress of a step that is the part from `start` to `end` of the whole."""

    def tell(stage: str, fraction: float | None) -> None:
        progress(stage, None if fraction is None else start + fraction * (end - start))

    return tell


@contextmanager
def bars_told(stage: str, progress: Progress) -> Iterator[None]:
    """What transformers would draw as bars goes to `progress`; nothing is printed."""

    def bar(factory: object, args: tuple[Any, ...], options: dict[str, Any]) -> _Bar:
        return _Bar(lambda fraction: progress(stage, fraction), *args, **options)

    before = set_tqdm_hook(bar)
    try:
        yield
    finally:
        set_tqdm_hook(before)


class _Bar:
    """As much of a tqdm bar as a library needs that reports progress."""

    def __init__(
        self,
        tell: Callable[[float], None],
        iterable: Iterable[Any] = (),
        total: int | None = None,
        **ignored: object,
    ) -> None:
        self._tell = tell
        self._iterable = iterable
        self._total = total or (len(iterable) if isinstance(iterable, Sized) else 0)
        self._done = 0

    def __iter__(self) -> Iterator[Any]:
        for one in self._iterable:
            yield one
            self.update()

    def update(self, count: int = 1) -> None:
        before = self._percent()
        self._done += count
        if self._percent() != before:
            self._tell(self._percent() / 100)

    def _percent(self) -> int:
        return min(100, 100 * self._done // self._total) if self._total else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Everything else that changes how a bar looks."""
        return lambda *args, **options: None
