"""What overlapped starts save: three workloads side by side, then an uninterrupted one alone.

    python benchmarks/overlap.py params/gpu_strict.yaml [STEPS]

Prints both times and their ratio, from the first process's start on. The three come first, so that
a cold disk and kernels that are compiled once are held against them. STEPS makes the workload
smaller.
"""

import sys
from pathlib import Path

from restore_parity.experiment.supervisor import Experiment
from restore_parity.params import read_params
from restore_parity.runs import PHASES, RunInfo, read_info


def main(file: str, steps: str | None = None) -> None:
    given = read_params(Path(file))
    if steps:
        cuts = {
            name: tokens
            for name, tokens in given.cut_tokens.items()
            if int(name.split("/")[0]) <= int(steps)
        }
        given = given.model_copy(update={"steps": int(steps), "cut_tokens": cuts})
    took = {}
    for name, phases in (("three", PHASES), ("one", PHASES[:1])):
        params = given.model_copy(
            update={"runs": f"{given.runs}_{name}", "overlap_starts": name == "three"}
        )
        experiment = Experiment(params)
        for phase in phases:
            experiment.run(phase)
        infos = [read_info(params.folder / phase) for phase in phases]
        began = min(info.start for info in infos)
        took[name] = [max(map(end, infos)) - began for end in (engine_ready, generated, dumped)]
    print("\n| to | three workloads, s | one alone, s | ratio |\n| -- | -- | -- | -- |")
    ends = ("the last engine ready", "the last generated token", "the last dump")
    for end, three, one in zip(ends, took["three"], took["one"], strict=True):
        print(f"| {end} | {three:.1f} | {one:.1f} | {three / one:.2f} |")


def engine_ready(info: RunInfo) -> float:
    return info.built


def generated(info: RunInfo) -> float:
    return info.exit.time


def dumped(info: RunInfo) -> float:
    return info.trained or info.exit.time


if __name__ == "__main__":
    main(*sys.argv[1:])
