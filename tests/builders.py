"""A tiny world of tokens: an engine that follows a script, a codec of bytes, three healthy runs by the real rollouts."""

import json
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import yaml

from restore_parity.checks import Judgement, judge
from restore_parity.engine import Output
from restore_parity.journal import Journal, JsonlWriter
from restore_parity.params import Params
from restore_parity.records import Key, Row
from restore_parity.rollouts import Generation
from restore_parity.saved import Exit, RunInfo, load_run, load_runs
from restore_parity.workload import tasks

STOP = 2
CUTS = {"1/0/0#1": 3, "1/1/0#1": "limit-1", "1/1/1#0": 5, "2/1/1#1": "limit"}


GIVEN = {
    "model": "tiny-qwen3",
    "strict": True,
    "tool_limit_tokens": 24,
    "closing_limit_tokens": [40, 20],
    "cut_tokens": {"1/0/0#1": 1, "1/0/1#1": 15, "1/1/0#1": "limit-1", "1/1/1#1": "limit", "2/0/0#1": 16, "2/1/0#0": 17},
    "near_tie_margin": 0.0,
    "max_set_aside": 0.0,
    "max_logprob_diff": 0.0,
    "max_policy_diff": 0.0,
}


def report(folder: Path, **changes) -> int:
    """The `report` command over a file of parameters; its exit code."""
    file = folder.parent / f"{folder.name}.yaml"
    file.write_text(yaml.safe_dump(GIVEN | {"runs": str(folder)} | changes))
    return subprocess.run([sys.executable, "-m", "restore_parity.cli", "report", str(file)], cwd=folder.parent).returncode


def params(**changes) -> Params:
    """Eight rows of short calls with four cuts; strict."""
    small = {"tool_limit_tokens": 12, "closing_limit_tokens": [14, 9], "cut_tokens": CUTS, "fsync_ms": 0}
    strict = {"near_tie_margin": 0.0, "max_set_aside": 0.0, "max_logprob_diff": 0.0, "max_policy_diff": 0.0}
    return Params.model_validate(small | strict | changes)


class ScriptedEngine:
    """A token a call a step; the next one is a function of all tokens before it, so a right restore is exact."""

    def __init__(self, steps: int | None = None, width: int | None = None):
        self._steps_left = steps  # then the process is "killed"
        self._width = width  # calls that get a token in one step: the oldest ones
        self._running: dict[str, tuple[list[int], int]] = {}
        self.requests: list[tuple[str, list[int], int]] = []

    def add(self, call_id: str, prompt_ids: list[int], max_tokens: int) -> None:
        self.requests.append((call_id, prompt_ids, max_tokens))
        self._running[call_id] = (list(prompt_ids), max_tokens)

    def step(self) -> list[Output]:
        if self._steps_left == 0:
            raise KilledError
        self._steps_left = None if self._steps_left is None else self._steps_left - 1
        outputs = []
        for call_id, (context, left) in list(self._running.items())[: self._width]:
            token, logprob, top2 = likeliest(context)
            context.append(token)
            reason = "stop" if token == STOP else "length" if left == 1 else None
            self._running[call_id] = (context, left - 1)
            if reason:
                del self._running[call_id]
            outputs.append(Output(call_id, [token], [logprob], [top2], reason))
        return outputs

    def busy(self) -> bool:
        return bool(self._running) or self._steps_left is not None  # held calls wait for the kill


class KilledError(Exception):
    """Stands for SIGKILL: nothing after it is journaled."""


def likeliest(context: list[int]) -> tuple[int, float, list[tuple[int, float]]]:
    """The script: token, log-probability and top-2 after a context."""
    roll = zlib.crc32(json.dumps(context).encode())
    token = STOP if roll % 23 == 0 else 48 + roll % 10  # a stop now and then, else a digit
    logprob = -0.05 - (roll % 1000) / 4000
    return token, logprob, [(token, logprob), (60 + roll % 7, logprob - 2.5)]


class ByteCodec:
    """Text as its bytes; 2 is the stop token."""

    stop_ids = (STOP,)

    def prompt_ids(self, messages) -> list[int]:
        return list(messages[-1]["content"].encode())

    def tool_ids(self, messages, last_id, result) -> list[int]:
        ids = [STOP, *f"\n{json.dumps(result)}\n".encode()]
        return ids[1:] if last_id == STOP else ids

    def text(self, ids) -> str:
        return bytes(i for i in ids if i != STOP).decode(errors="replace")


def generate(
    folder: Path,
    phase: str,
    given: Params,
    steps: int | None = None,
    source: Path | None = None,
    width: int | None = None,
) -> ScriptedEngine:
    """One run of the real rollouts over the scripted engine, with the files a worker and a trainer leave."""
    folder.mkdir(parents=True)
    begun = time.time()
    codec, engine = ByteCodec(), ScriptedEngine(steps, width)
    todo = tasks(given)
    captured = Journal(source / "journal.jsonl").poll() if source else None
    restores = JsonlWriter(folder / "restores.jsonl") if source else None
    holds = {name: given.planned_tokens(name) for name in given.cut_tokens} if phase == "killed" else {}
    journal = JsonlWriter(folder / "journal.jsonl")
    generation = Generation(given, phase[0], codec, engine, journal, captured, restores, holds)
    prompts = [codec.prompt_ids(task.messages()) for task in todo]
    try:
        rollouts = generation.run(todo, prompts)
    except KilledError:
        rollouts = []
    ended = Exit(time=time.time(), code=0)
    if phase == "killed":
        calls = Journal(folder / "journal.jsonl").poll().open_calls()
        ended = Exit(time=time.time(), signal=9, open_calls={call.call_id: len(call.ids) for call in calls})
    else:
        for writer in filter(None, (journal, restores)):
            writer.close()
        rows = [(rollout.task.key.train_step, trained(generation.row(rollout))) for rollout in rollouts]
        write_dump(folder / "training.jsonl", rows)
    info = RunInfo(
        phase=phase,
        run_id=phase[0],
        params_sha256=given.sha256(),
        params=given.model_dump(),
        setup={"model": "scripted", "workload": given.sha256(), "stop_token_ids": [STOP]},
        device="none",
        git_revision=None,
        start=begun,
        ready=begun,
        exit=ended,
        trained=None if phase == "killed" else time.time(),
    )
    (folder / "run.json").write_bytes(msgspec.json.encode(info))
    return engine


def trained(row: Row) -> Row:
    """A row with the trainer's columns filled in: a policy that gives every token a little less than the engine."""
    given = [
        0.0 if mask == 0 else logprob - 0.01
        for mask, logprob in zip(row.token_loss_mask, row.generation_logprobs, strict=True)
    ]
    return msgspec.structs.replace(row, advantages=[0.5 * mask for mask in row.token_loss_mask], prev_logprobs=given)


def write_dump(file: Path, rows: list[tuple[int, Row]]) -> None:
    lines = [msgspec.json.encode({"train_step": step, "chunk_index": 0, "rows": [row]}) for step, row in rows]
    file.write_bytes(b"".join(line + b"\n" for line in lines))


def healthy_runs(folder: Path, given: Params | None = None, steps: int = 24, width: int | None = None) -> Path:
    """The three runs of a restore that is right, as files; the kill comes after so many steps."""
    given = given or params()
    generate(folder / "uninterrupted", "uninterrupted", given, width=width)
    generate(folder / "killed", "killed", given, steps=steps, width=width)
    generate(folder / "restored", "restored", given, source=folder / "killed", width=width)
    return folder


def change_row(folder: Path, key: str, change: Callable[[dict], None], run: str = "restored") -> None:
    """Change one row of a dump in place."""
    file = folder / run / "training.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        for row in line["rows"]:
            if str(Key(line["train_step"], row["prompt_idx"], row["generation_index"])) == key:
                change(row)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_records(folder: Path, change: Callable[[list[dict]], list[dict]]) -> None:
    """Change the restore records in place."""
    file = folder / "restored" / "restores.jsonl"
    records = change([json.loads(line) for line in file.read_text().splitlines()])
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def judged(folder: Path, **thresholds) -> Judgement:
    uninterrupted, killed, restored = load_runs(folder)
    return judge(uninterrupted, restored, killed, params(**thresholds))


def failed(judgement: Judgement) -> set[str]:
    return {problem.check for problem in judgement.problems}


def at(place, value):
    """A list with one place, counted from its end, replaced."""
    return lambda values: [*values[: len(values) + place], value, *values[len(values) + place + 1 :]]


def at_place(place, **columns):
    """A change of one place of some columns of a row."""
    return lambda row: row.update({name: at(place, value)(row[name]) for name, value in columns.items()})


def tie(runs, margin, place=-4) -> None:
    """Make the restored row 1/0/0 part from the baseline at a tie, shown by both runs' top-2, inside its restored call."""
    ours = load_run(runs / "uninterrupted").only(Key(1, 0, 0)).token_ids[place]
    for run, (token, other) in {"uninterrupted": (ours, 99), "restored": (99, ours)}.items():
        pair = [[token, -0.6], [other, -0.6 - margin]]
        change_row(runs, "1/0/0", at_place(place, token_ids=token, generation_top2=pair, generation_logprobs=-0.6), run)
