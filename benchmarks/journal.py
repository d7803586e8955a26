"""What captured tokens cost: the same rollouts without a journal, and with more or fewer likeliest.

    python benchmarks/journal.py [PARAMS.yaml] [ROUNDS]

The settings alternate in one process, whose engine is started once and warmed up. Prints tokens a
second of each round, then for each setting the median, its ratio over the first setting (the median
of the rounds' ratios), and the bytes of the journal for one generated token.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from restore_parity.experiment.engine.protocol import Output
from restore_parity.experiment.engine.settings import engine_env
from restore_parity.experiment.engine.vllm_engine import VllmEngine
from restore_parity.experiment.models import model_path
from restore_parity.experiment.rollouts import Generation
from restore_parity.experiment.worker import longest_tokens
from restore_parity.experiment.workload import Codec, Task, tasks
from restore_parity.journal import JsonlWriter
from restore_parity.params import CHECKOUT, Params, profile_file, read_params


class NoJournal:
    """Takes records and keeps none."""

    def append(self, record) -> None: ...

    def commit(self, now: bool = False) -> None: ...


class Asking:
    """An engine that is asked for so many likeliest tokens at each place."""

    def __init__(self, engine: VllmEngine, top_logprobs: int):
        self._engine = engine
        self._top_logprobs = top_logprobs

    def add(self, call_id: str, prompt_ids: list[int], max_tokens: int, **sampling: Any) -> None:
        sampling["logprobs"] = self._top_logprobs
        self._engine.add(call_id, prompt_ids, max_tokens, **sampling)

    def step(self) -> list[Output]:
        return self._engine.step()

    def busy(self) -> bool:
        return self._engine.busy()


class Setting(Struct):
    """One setting and what was measured of it, a round each."""

    name: str
    top_logprobs: int
    journaled: bool
    tokens_a_second: list[float] = []
    bytes_a_token: float = 0.0


class Bench(Struct):
    """What every round shares."""

    params: Params
    codec: Codec
    engine: VllmEngine
    todo: list[Task]
    prompts: list[list[int]]

    def measure(self, setting: Setting, run_id: str, file: Path) -> None:
        """Generate all rollouts once."""
        journal = NoJournal()
        if setting.journaled:
            journal = JsonlWriter(file, self.params.fsync_ms)
        generation = Generation(
            params=self.params,
            run_id=run_id,
            codec=self.codec,
            engine=Asking(self.engine, setting.top_logprobs),
            journal=journal,
        )
        start = time.perf_counter()
        rollouts = generation.run(self.todo, self.prompts)
        seconds = time.perf_counter() - start
        tokens = sum(len(call.ids) for rollout in rollouts for call in rollout.calls)
        setting.tokens_a_second.append(tokens / seconds)
        if setting.journaled:
            setting.bytes_a_token = file.stat().st_size / tokens


def main(file: Path, rounds: int) -> None:
    params = read_params(file).model_copy(update={"companion": False})
    os.environ.update(engine_env(params))
    model = model_path(params.model)
    codec, todo = Codec(model), tasks(params)
    prompts = [codec.prompt_ids(task.messages()) for task in todo]
    engine = VllmEngine(model, params, longest_tokens(params, prompts))
    bench = Bench(params, codec, engine, todo, prompts)
    settings = [
        Setting("2 likeliest", 2, journaled=True),
        Setting("4 likeliest", 4, journaled=True),
        Setting("8 likeliest", 8, journaled=True),
        Setting("4 likeliest, no journal", 4, journaled=False),
    ]
    # the disk the runs lie on, not a temp folder in memory
    with tempfile.TemporaryDirectory(dir=CHECKOUT) as folder:
        bench.measure(Setting("warm-up", 8, journaled=True), "warm-up", Path(folder) / "warm-up")
        for turn in range(rounds):
            for setting in settings[:: 1 - 2 * (turn % 2)]:  # forth and back: drift hits all alike
                place = Path(folder) / f"{turn}-{setting.top_logprobs}-{setting.journaled}"
                bench.measure(setting, place.name, place)
                print(f"{setting.name:<24} {setting.tokens_a_second[-1]:8.1f} tokens/s", flush=True)
    print(f"\n{'setting':<24} tokens/s  ratio  bytes a token")
    for setting in settings:
        pairs = zip(setting.tokens_a_second, settings[0].tokens_a_second, strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        speed = statistics.median(setting.tokens_a_second)
        print(f"{setting.name:<24} {speed:8.1f}  {ratio:5.3f}  {setting.bytes_a_token:8.1f}")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else profile_file("smoke"),
        int(sys.argv[2]) if len(sys.argv) > 2 else 8,
    )
