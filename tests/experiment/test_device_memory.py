"""A GPU's memory after a kill: waited for, and reported where it stays away."""

import pytest

from restore_parity.errors import IncompleteError
from restore_parity.experiment.device_memory import free_memory, wait_for_memory


def test_memory_that_comes_back_late_is_waited_for():
    readings = iter([[100, 8000], [8000, 8000]])
    wait_for_memory([8100, 8000], lambda: next(readings), timeout_s=30)
    assert next(readings, None) is None


def test_memory_that_stays_away_is_incomplete_with_both_readings():
    both = r"not back after 0 s: \[100\] MiB free, \[8000\] before"
    with pytest.raises(IncompleteError, match=both):
        wait_for_memory([8000], lambda: [100], timeout_s=0)


def test_the_cpu_build_has_no_device_to_wait_for():
    assert free_memory() == []
