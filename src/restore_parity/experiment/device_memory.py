"""A GPU's memory: free again after a kill, or the next run would start with less."""

import os
import subprocess
import time
from collections.abc import Callable

from ..errors import IncompleteError
from .engine.build import engine_version

POLL_S = 0.02
BACK_S = 60.0  # how long a device may take to give its memory back
SLACK_MIB = 256


def free_memory() -> list[int]:
    """Free MiB of each device an engine can see; empty where the engine runs on the CPU."""
    if engine_version().on_cpu:
        return []
    return _nvidia("--query-gpu=memory.free")


def wait_for_memory(
    before: list[int],
    read: Callable[[], list[int]] = free_memory,
    timeout_s: float = BACK_S,
) -> None:
    """Wait until each device has as much free memory as `before` (MiB a device).

    A driver may give a killed process's memory back later than the process table gives up the
    process. Raises IncompleteError naming the processes that hold a device.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        free = read()
        if all(now >= then - SLACK_MIB for now, then in zip(free, before, strict=True)):
            return
        if time.monotonic() > deadline:
            pids = ", ".join(map(str, _nvidia("--query-compute-apps=pid"))) or "unknown"
            raise IncompleteError(
                f"killed: the device's memory is not back after {timeout_s} s: {free} MiB free, "
                f"{before} before the run; processes on it: {pids}"
            )
        time.sleep(POLL_S)


def _nvidia(query: str) -> list[int]:
    """The numbers NVIDIA's own tool gives for the devices an engine can see.

    Empty where there is no such tool.
    """
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen:
        command += ["-i", seen]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [int(line) for line in result.stdout.split()]
