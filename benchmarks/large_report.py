"""Time, memory and size of a large report: `python benchmarks/large_report.py [ROWS] [CUTS]`.

The runs are made by the tests' scripted engine: real rollouts, real files, no model. The report
takes these saved runs. Printed are how long it took, the largest sum of resident memory over its
processes, and the size of its page.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from builders import healthy_runs, params

STEPS = 2
SIBLINGS = 4
POLL_S = 0.2


def main(rows: int = 10_000, cuts: int = 400) -> None:
    """Make runs of so many rows, and report them."""
    given = workload(rows)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        # as many calls as cuts run at once; the kill comes when about half of the rows are done
        runs = healthy_runs(
            Path(folder) / "runs", params(**given), steps=rows * 20 // cuts, width=cuts
        )
        dump = (runs / "restored" / "training.jsonl").stat().st_size
        print(f"made {rows} rows in {time.monotonic() - begun:.0f} s, {dump / 1e6:.0f} MB a dump")
        file = Path(folder) / "large.yaml"
        file.write_text(yaml.safe_dump(params(**given).model_dump() | {"runs": str(runs)}))
        report(file, rows)
        print(f"page {(runs / 'report.html').stat().st_size / 1e6:.2f} MB")


def workload(rows: int) -> dict[str, Any]:
    """The parameters of so many rows, and no planned cuts."""
    prompts = rows // (STEPS * SIBLINGS)
    return {
        "steps": STEPS,
        "prompts_per_step": prompts,
        "generations_per_prompt": SIBLINGS,
        "cut_tokens": {},
        "list_lengths": [16] * prompts,
        "closing_limit_tokens": [100] * prompts,
        "tool_limit_tokens": 60,
    }


def report(file: Path, rows: int) -> None:
    """Report saved runs, and print the verdict, time and memory."""
    begun = time.monotonic()
    most = 0
    words = [sys.executable, "-m", "restore_parity.cli", "report", str(file), "--reuse"]
    with (file.parent / "out.txt").open("w+") as output:
        process = psutil.Popen(words, stdout=output)
        while process.poll() is None:
            most = max(most, resident_bytes(process))
            time.sleep(POLL_S)
        output.seek(0)
        print(output.read().splitlines()[-2])
    took = time.monotonic() - begun
    code = process.returncode
    print(f"report of {rows} rows: {took:.1f} s, {most / 1e9:.2f} GB, exit {code}")


def resident_bytes(report: psutil.Popen) -> int:
    """The resident memory of a process and all it has started."""
    total = 0
    for process in [report, *report.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
