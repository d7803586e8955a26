"""The healthy noise of saved runs, and the smallest drift of an engine that the bounds still see.

    python benchmarks/noise.py PARAMS.yaml RUNS [PARAMS.yaml RUNS]...

Each folder holds the three runs of one experiment, judged by the parameters before it. Prints, over
the equal tokens of its rows, how far the log-probabilities of two healthy engines lie apart (nats):
the largest of a token, the largest mean of a call, the largest change of the engine-trainer gap of
a step. Then the restored run's engine drifts, as one that missed an update does: each trained
token's log-probability moves up or down at random by the same amount. Prints from which amount on
each bound sees it.
"""

import random
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from msgspec import Struct

from restore_parity.checker.dumps import Runs
from restore_parity.checker.loading import load_runs
from restore_parity.params import Params, profile_file, read_params
from restore_parity.records import Row

DRIFTS = [round(digit * 10.0**power, 7) for power in range(-6, 1) for digit in (1, 2, 5)]


class Noise(Struct):
    """The largest of each kind of difference, in nats."""

    token: float = 0.0
    call_mean: float = 0.0
    gap: float = 0.0


class Pair(Struct):
    """Two rows of one key, equal up to `end`, their engine's log-probabilities."""

    step: int
    baseline: Row
    restored: Row
    end: int

    def differences(self, drift: dict[int, float]) -> list[list[float]]:
        """|difference| of each trained token before `end`, by call; `drift` moves the restored."""
        found = []
        for start, stop in self.restored.segments():
            places = range(start, min(stop, self.end))
            one, other = self.baseline.generation_logprobs, self.restored.generation_logprobs
            found.append([abs(one[at] - other[at] - drift.get(at, 0.0)) for at in places])
        return [of_call for of_call in found if of_call]


def pairs_of(runs: Runs) -> list[Pair]:
    """The rows that both runs hold."""
    found = []
    for key in sorted(runs.uninterrupted.rows.keys() & runs.restored.rows.keys()):
        baseline, restored = runs.uninterrupted.only(key), runs.restored.only(key)
        if baseline and restored:
            both = zip(baseline.token_ids, restored.token_ids, strict=False)
            shorter = min(baseline.input_length, restored.input_length)
            end = next((at for at, (one, other) in enumerate(both) if one != other), shorter)
            found.append(Pair(key.train_step, baseline, restored, end))
    return found


def gap_of(rows: list[Row], drifts: list[dict[int, float]]) -> float:
    """The mean |generation_logprobs - prev_logprobs| over trained tokens."""
    gaps = []
    for row, drift in zip(rows, drifts, strict=True):
        for at, trained in enumerate(row.token_loss_mask):
            if trained:
                moved = row.generation_logprobs[at] + drift.get(at, 0.0)
                gaps.append(abs(moved - row.prev_logprobs[at]))
    return statistics.fmean(gaps)


def noise_of(pairs: list[Pair], drift: float) -> Noise:
    """What the checks see of pairs whose restored engine has drifted by so much."""
    generator = random.Random(0)
    noise = Noise()
    steps: dict[int, list[tuple[Pair, dict[int, float]]]] = defaultdict(list)
    for pair in pairs:
        moved = {at: generator.choice((-drift, drift)) for at in range(pair.restored.input_length)}
        steps[pair.step].append((pair, moved))
        for of_call in pair.differences(moved):
            noise.token = max(noise.token, *of_call)
            noise.call_mean = max(noise.call_mean, statistics.fmean(of_call))
    for of_step in steps.values():
        baseline = gap_of([pair.baseline for pair, _ in of_step], [{} for _ in of_step])
        restored = gap_of([pair.restored for pair, _ in of_step], [moved for _, moved in of_step])
        noise.gap = max(noise.gap, abs(restored - baseline))
    return noise


def first_seen(seen: list[bool]) -> str:
    """The smallest drift from which on all are seen."""
    for at, drift in enumerate(DRIFTS):
        if all(seen[at:]):
            return f"{drift:g}"
    return "none"


def bounds_of(params: Params) -> Noise:
    """The bounds of the three kinds of difference."""
    return Noise(
        token=params.max_logprob_diff,
        call_mean=params.max_mean_logprob_diff,
        gap=params.max_gap_increase,
    )


def main(params: Params, folder: Path) -> None:
    pairs = pairs_of(load_runs(folder))
    tokens = sum(len(of_call) for pair in pairs for of_call in pair.differences({}))
    healthy, bounds = noise_of(pairs, 0.0), bounds_of(params)
    drifted = [noise_of(pairs, drift) for drift in DRIFTS]
    print(f"{folder}: {len(pairs)} rows, {tokens} equal generated tokens")
    for name in Noise.__struct_fields__:
        quiet, bound = getattr(healthy, name), getattr(bounds, name)
        seen = first_seen([getattr(noise, name) > bound for noise in drifted])
        print(f"  {name:<10} noise {quiet:8.3g}  bound {bound:<6g}  a drift shows from {seen} on")


if __name__ == "__main__":
    given = sys.argv[1:]
    for file, name in zip(given[::2], given[1::2], strict=True):
        main(read_params(profile_file(file)), Path(name))
