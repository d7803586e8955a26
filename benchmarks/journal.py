"""What the journal costs: the same rollouts with one that is written and one that is not.

    python benchmarks/journal.py [PARAMS.yaml] [ROUNDS]

The two alternate in one process, whose engine is started once and warmed up. Prints tokens a second
of each round and the ratio of the medians.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from restore_parity.experiment.engine.settings import engine_env
from restore_parity.experiment.engine.vllm_engine import VllmEngine
from restore_parity.experiment.models import model_path
from restore_parity.experiment.rollouts import Generation
from restore_parity.experiment.workload import Codec, tasks
from restore_parity.journal import JsonlWriter
from restore_parity.params import CHECKOUT, profile_file, read_params


class NoJournal:
    """Takes records and keeps none."""

    def append(self, record) -> None: ...

    def commit(self, now: bool = False) -> None: ...


def tokens_a_second(  # noqa: PLR0913 (one call, one measurement)
    params, codec, engine, journal, todo, prompts, run_id
) -> float:
    start = time.perf_counter()
    rollouts = Generation(params, run_id, codec, engine, journal).run(todo, prompts)
    return sum(len(call.ids) for rollout in rollouts for call in rollout.calls) / (
        time.perf_counter() - start
    )


def main(file: Path, rounds: int) -> None:
    params = read_params(file)
    os.environ.update(engine_env(params))
    model = model_path(params.model)
    codec, todo = Codec(model), tasks(params)
    prompts = [codec.prompt_ids(task.messages()) for task in todo]
    engine = VllmEngine(model, params.model_copy(update={"companion": False}), 1024)
    tokens_a_second(params, codec, engine, NoJournal(), todo, prompts, "warm-up")
    speeds: dict[str, list[float]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory(
        dir=CHECKOUT
    ) as folder:  # the disk the runs lie on, not a temp folder in memory
        for turn in range(2 * rounds):
            kind = ("with", "without")[
                (turn + turn // 2) % 2
            ]  # with, without, without, with: drift hits both alike
            journal = (
                JsonlWriter(Path(folder) / f"{turn}.jsonl", params.fsync_ms)
                if kind == "with"
                else NoJournal()
            )
            speeds[kind].append(
                tokens_a_second(params, codec, engine, journal, todo, prompts, f"{turn}")
            )
            print(f"{kind:<8} journal: {speeds[kind][-1]:7.1f} tokens/s", flush=True)
    medians = {kind: statistics.median(values) for kind, values in speeds.items()}
    ratio = medians["with"] / medians["without"]
    print(
        f"medians: {medians['with']:.1f} with, {medians['without']:.1f} without, ratio {ratio:.4f}"
    )


if __name__ == "__main__":
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else profile_file("smoke"),
        int(sys.argv[2]) if len(sys.argv) > 2 else 8,
    )
