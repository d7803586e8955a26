"""Time, memory and size of the report of a large run: `python benchmarks/large_report.py [ROWS] [CUTS]`.

The runs are made by the tests' scripted engine (real rollouts, real files, no model). The report then takes the saved runs.
Prints how long it took, the largest sum of resident memory over its processes, and how large its page is.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from builders import healthy_runs, params  # noqa: E402


def main(rows: int = 10_000, cuts: int = 400) -> None:
    prompts = rows // 8
    given = {"steps": 2, "prompts_per_step": prompts, "generations_per_prompt": 4, "cut_tokens": {}}
    given |= {"list_lengths": [16] * prompts, "closing_limit_tokens": [100] * prompts, "tool_limit_tokens": 60}
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        runs = healthy_runs(Path(folder) / "runs", params(**given), steps=rows * 20 // cuts, width=cuts)
        dump = (runs / "restored" / "training.jsonl").stat().st_size
        print(f"made {rows} rows in {time.monotonic() - begun:.0f} s, {dump / 1e6:.0f} MB a dump")
        file = Path(folder) / "large.yaml"
        file.write_text(yaml.safe_dump(params(**given).model_dump() | {"runs": str(runs)}))
        begun, most = time.monotonic(), 0
        report = psutil.Popen(
            [sys.executable, "-m", "restore_parity.cli", "report", str(file), "--reuse"], stdout=subprocess.PIPE
        )
        while report.poll() is None:
            most = max(most, sum(_resident(process) for process in [report, *report.children(recursive=True)]))
            time.sleep(0.2)
        took, page = time.monotonic() - begun, (runs / "report.html").stat().st_size
        print(report.stdout.read().decode().splitlines()[-2])
        print(
            f"report of {rows} rows: {took:.1f} s, {most / 1e9:.2f} GB, page {page / 1e6:.2f} MB, exit {report.returncode}"
        )


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
