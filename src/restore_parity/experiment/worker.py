"""One workload in a process of its own: `python -m restore_parity.worker FOLDER`, started by the supervisor.

FOLDER holds task.json (phase, parameters, source folder). Writes run.json when the engine is ready, journal.jsonl and
restores.jsonl as it goes, rollouts.jsonl when every rollout has ended.
"""

import os
import platform
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import msgspec

from .engine.vllm_engine import VllmEngine, check_engine, compile_caches, engine_env, engine_version
from ..errors import UsageError
from ..journal import Journal, JsonlWriter
from .models import model_path, weights_sha256
from ..params import ROOT, Params
from .rollouts import Generation
from ..checker.loading import RunInfo, write_info
from .supervisor import end_with_parent, wait_for
from .workload import Codec, tasks

SPARE_TOKENS = 256  # room for the tool result and what a chat template adds


class Order(msgspec.Struct):
    """What the supervisor wants of a worker (task.json)."""

    phase: str
    params: dict
    source: str | None  # the killed run's folder
    gate: str | None = None  # a file to wait for, once the engine is ready, before anything is generated or restored


def main(folder: Path) -> None:
    started = time.time()
    order = msgspec.json.decode((folder / "task.json").read_bytes(), type=Order)
    params = Params.model_validate(order.params)
    os.environ.update(compile_caches(params) | engine_env(params))
    check_engine(params)
    model = model_path(params.model)
    with ThreadPoolExecutor(1) as beside:  # gigabytes of weights take seconds to hash
        weights = beside.submit(weights_sha256, model)
        codec = Codec(model)
        todo = tasks(params)
        prompts = [codec.prompt_ids(task.messages()) for task in todo]
        longest = max(map(len, prompts)) + params.tool_limit_tokens + max(params.closing_limit_tokens) + SPARE_TOKENS
        engine = VllmEngine(model, params, longest)
    built = time.time()
    if order.gate:
        wait_for(Path(order.gate))
    run_id = f"{order.phase[0]}{uuid.uuid4().hex[:8]}"
    info = RunInfo(
        phase=order.phase,
        run_id=run_id,
        params_sha256=params.sha256(),
        params=params.model_dump(),
        setup={
            "model": params.model,
            "weights_sha256": weights.result(),
            "engine": "{}=={}".format(*engine_version()),
            "torch": version("torch"),
            "engine_args": engine.args,
            "engine_env": engine_env(params),
            "effective": engine.effective,
            "strict": params.strict,
            "overlap_starts": params.overlap_starts,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "device": engine.device,
            "stop_token_ids": list(codec.stop_ids),
            "workload": params.sha256(),
        },
        device=device_name(engine.device),
        git_revision=git_revision(),
        start=started,
        built=built,
        ready=time.time(),
    )
    write_info(folder, info)
    source = Journal(Path(order.source) / "journal.jsonl").poll() if order.source else None
    holds = {name: params.planned_tokens(name) for name in params.cut_tokens} if order.phase == "killed" else {}
    journal = JsonlWriter(folder / "journal.jsonl", params.fsync_ms)
    restores = JsonlWriter(folder / "restores.jsonl") if source else None
    generation = Generation(params, run_id, codec, engine, journal, source, restores, holds)
    rollouts = generation.run(todo, prompts)
    for writer in filter(None, (journal, restores)):
        writer.close()
    partial = folder / "rollouts.jsonl.partial"
    with partial.open("wb") as out:
        for rollout in rollouts:
            line = {"train_step": rollout.task.key.train_step, "row": generation.row(rollout)}
            out.write(msgspec.json.encode(line) + b"\n")
    partial.rename(folder / "rollouts.jsonl")


def device_name(kind: str) -> str:
    """The device for a reader: its maker's name for it where there is one."""
    import torch

    return f"{torch.cuda.get_device_name() if kind == 'cuda' else kind}, {platform.machine()}"


def git_revision() -> str | None:
    """The checkout's commit, with `+changes` behind it where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+changes"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


if __name__ == "__main__":
    end_with_parent()
    try:
        main(Path(sys.argv[1]))
    except UsageError as error:
        sys.exit(f"{error}")
    except OSError as error:
        sys.exit(f"{error.filename or 'journal.jsonl'}: {error.strerror}: what was committed before is kept")
    sys.stdout.flush()
    os._exit(0)  # an engine's own threads may otherwise hold the process for seconds
