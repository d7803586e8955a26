"""What overlapped starts save: one uninterrupted workload alone, then a whole report, timed side by side in one run.

    python benchmarks/overlap.py params/gpu_strict.yaml

Prints both times and their ratio, counted from the first process's start to the last dump, and the report's verdict.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from restore_parity.params import read_params
from restore_parity.saved import RunInfo, read_info
from restore_parity.supervisor import PHASES, prepare, run_phase


def main(file: str) -> int:
    params = read_params(Path(file))
    alone = params.model_copy(update={"runs": f"{params.runs}_alone", "overlap_starts": False})
    prepare(alone)
    run_phase("uninterrupted", alone)
    one = read_info(alone.folder / "uninterrupted")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as overlapped:
        yaml.safe_dump(params.model_dump() | {"overlap_starts": True}, overlapped)
        code = subprocess.run([sys.executable, "-m", "restore_parity.cli", "report", overlapped.name]).returncode
    three = [read_info(params.folder / phase) for phase in PHASES]
    print("\n| | one uninterrupted workload, s | all three, s | ratio |\n| -- | -- | -- | -- |")
    for name, end in (("to the last generated token", generated), ("to the last dump", dumped)):
        took = max(map(end, three)) - min(info.start for info in three)
        print(f"| {name} | {end(one) - one.start:.1f} | {took:.1f} | {took / (end(one) - one.start):.2f} |")
    return code


def generated(info: RunInfo) -> float:
    return info.exit.time


def dumped(info: RunInfo) -> float:
    return info.trained or info.exit.time


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
