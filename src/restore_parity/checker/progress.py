"""A sign of life for what takes long."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
TERMINAL_S = 2.0  # between two signs on a terminal
FILE_S = 30.0  # and where standard error is a log


def progress(items: Iterable[T], what: str, unit: str) -> Iterator[T]:
    """Pass the items on; now and then say on standard error how many there were."""
    terminal = sys.stderr.isatty()
    interval = TERMINAL_S if terminal else FILE_S
    end = "\r" if terminal else "\n"
    due = time.monotonic() + interval
    for number, item in enumerate(items, start=1):
        yield item
        if time.monotonic() >= due:
            print(f"{what}: {number:,} {unit}s", end=end, file=sys.stderr, flush=True)
            due = time.monotonic() + interval
