"""One workload in a process of its own: `python -m restore_parity.experiment.worker FOLDER`.

The supervisor starts it. FOLDER holds task.json. Writes run.json when the engine is ready,
journal.jsonl and restores.jsonl as it goes, rollouts.jsonl when every rollout has ended.
"""

import os
import platform
import subprocess
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from ..errors import IncompleteError
from ..journal import Journal, JsonlWriter
from ..params import CHECKOUT, Params
from ..runs import Phase, RunInfo, write_info, written_whole
from .engine.build import engine_version
from .engine.settings import check_engine, compile_caches, engine_env
from .engine.vllm_engine import VllmEngine
from .models import RANDOM_WEIGHTS, model_path, vocabulary_tokens, weights_sha256
from .processes import run_as_child, wait_for
from .rollouts import Generation, Rollout
from .workload import Codec, Task, tasks

SPARE_TOKENS = 256  # room for the tool result and what a chat template adds


class WorkerTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor wants of a worker (task.json)."""

    phase: Phase
    params: dict[str, Any]
    source: str | None  # the killed run's folder, where one is restored
    gate: str  # a file to wait for once the engine is ready, before anything is generated


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker has made before it generates."""

    model: Path
    weights_sha256: str
    codec: Codec
    tasks: list[Task]
    prompts: list[list[int]]
    engine: VllmEngine


def main(folder: Path) -> None:
    """Make one run in its folder.

    Raises UsageError where the engine cannot do what is asked, IncompleteError where a file cannot
    be written.
    """
    started = time.time()
    task = msgspec.json.decode((folder / "task.json").read_bytes(), type=WorkerTask)
    params = Params.model_validate(task.params)
    os.environ.update(compile_caches(params) | engine_env(params))
    check_engine(params)
    try:
        ready = make_ready(params)
        built = time.time()
        wait_for(Path(task.gate))
        info = describe(task, params, ready, started, built)
        write_info(folder, info)
        generate(folder, task, params, ready, info.run_id)
    except OSError as error:
        place = error.filename or "journal.jsonl"
        raise IncompleteError(
            f"{place}: {error.strerror}: what was committed before is kept"
        ) from None


def make_ready(params: Params) -> Ready:
    """Build the engine, and put the workload into tokens."""
    model = model_path(params.model)
    with ThreadPoolExecutor(1) as beside:  # gigabytes of weights take seconds to hash
        weights = beside.submit(weights_sha256, model)
        codec = Codec(model)
        todo = tasks(params)
        prompts = [codec.prompt_ids(task.messages()) for task in todo]
        engine = VllmEngine(model, params, longest_tokens(params, prompts))
        if params.strict:
            engine.try_restore()
    return Ready(
        model=model,
        weights_sha256=weights.result(),
        codec=codec,
        tasks=todo,
        prompts=prompts,
        engine=engine,
    )


def longest_tokens(params: Params, prompts: Sequence[Sequence[int]]) -> int:
    """More tokens than any row can have."""
    longest_prompt = max(map(len, prompts))
    longest_closing = max(params.closing_limit_tokens)
    return longest_prompt + params.tool_limit_tokens + longest_closing + SPARE_TOKENS


def describe(
    task: WorkerTask, params: Params, ready: Ready, started: float, built: float
) -> RunInfo:
    """What run.json tells of the run before anything is generated."""
    workload = params.sha256()
    engine = ready.engine
    return RunInfo(
        phase=task.phase,
        run_id=f"{task.phase[0]}{uuid.uuid4().hex[:8]}",
        params_sha256=workload,
        params=params.model_dump(),
        setup={
            "model": params.model,
            "weights_sha256": ready.weights_sha256,
            "engine": str(engine_version()),
            "torch": version("torch"),
            "engine_args": engine.args,
            "engine_env": engine_env(params),
            "effective": engine.effective,
            "strict": params.strict,
            "overlap_starts": params.overlap_starts,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "device": engine.device,
            "stop_token_ids": list(ready.codec.stop_ids),
            "workload": workload,
        },
        device=device_name(engine.device),
        git_revision=git_revision(CHECKOUT),
        start=started,
        built=built,
        ready=time.time(),
        model_folder=str(ready.model),
        vocabulary_tokens=vocabulary_tokens(ready.model),
        random_weights=RANDOM_WEIGHTS.get(params.model),
    )


def generate(folder: Path, task: WorkerTask, params: Params, ready: Ready, run_id: str) -> None:
    """Generate every rollout, journaled as it goes, and write the rows. Raises OSError."""
    source = None
    restores = None
    if task.source:
        source = Journal(Path(task.source) / "journal.jsonl").poll()
        restores = JsonlWriter(folder / "restores.jsonl")
    holds = {}
    if task.phase == "killed":
        holds = {name: params.planned_tokens(name) for name in params.cut_tokens}
    journal = JsonlWriter(folder / "journal.jsonl", params.fsync_ms)
    generation = Generation(
        params=params,
        run_id=run_id,
        codec=ready.codec,
        engine=ready.engine,
        journal=journal,
        source=source,
        restores=restores,
        holds=holds,
    )
    rollouts = generation.run(ready.tasks, ready.prompts)
    journal.close()
    if restores:
        restores.close()
    write_rows(folder / "rollouts.jsonl", generation, rollouts)


def write_rows(file: Path, generation: Generation, rollouts: list[Rollout]) -> None:
    """One line a row, in the order of the train steps, for the trainer. Raises OSError."""
    with written_whole(file) as out:
        for rollout in rollouts:
            line = {"train_step": rollout.task.key.train_step, "row": generation.row(rollout)}
            out.write(msgspec.json.encode(line) + b"\n")


def device_name(kind: str) -> str:
    """The device for a reader: its maker's name for it where there is one."""
    import torch

    name = torch.cuda.get_device_name() if kind == "cuda" else kind
    return f"{name}, {platform.machine()}"


def git_revision(checkout: Path) -> str | None:
    """The checkout's commit, with `+changes` behind it where files differ from it.

    None where the folder is not this package's own checkout: an installed package may lie inside
    another repository, whose commit says nothing of it.
    """
    if not (checkout / "pyproject.toml").is_file():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=12"]
    command.append("--dirty=+changes")
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


if __name__ == "__main__":
    run_as_child(main)
