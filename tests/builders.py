"""A tiny world of tokens: an engine that follows a script, and three healthy runs by rollouts.

The rollouts are the real ones; the tests break what they leave behind.
"""

import json
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from restore_parity.checker.checks import judge
from restore_parity.checker.judgement import Judgement
from restore_parity.checker.loading import load_run, load_runs
from restore_parity.experiment.engine.protocol import Output
from restore_parity.experiment.rollouts import Generation
from restore_parity.experiment.workload import tasks
from restore_parity.journal import Journal, JsonlWriter
from restore_parity.params import Params
from restore_parity.records import Key, Row
from restore_parity.runs import Exit, RunInfo, write_info

# --- parameters -----------------------------------------------------------------------------------

STRICT = {
    "near_tie_margin": 0.0,
    "max_set_aside": 0.0,
    "max_logprob_diff": 0.0,
    "max_mean_logprob_diff": 0.0,
    "max_policy_diff": 0.0,
    "max_gap_increase": 0.0,
}
SMALL = {
    "tool_limit_tokens": 12,
    "closing_limit_tokens": [14, 9],
    "cut_tokens": {"1/0/0#1": 3, "1/1/0#1": "limit-1", "1/1/1#0": 5, "2/1/1#1": "limit"},
    "fsync_ms": 0,
}
# of a report with a real engine
GIVEN = STRICT | {
    "model": "tiny-qwen3",
    "strict": True,
    "tool_limit_tokens": 24,
    "closing_limit_tokens": [40, 20],
    "cut_tokens": {
        "1/0/0#1": 1,
        "1/0/1#1": 15,
        "1/1/0#1": "limit-1",
        "1/1/1#1": "limit",
        "2/0/0#1": 16,
        "2/1/0#0": 17,
    },
}


def params(**changes: Any) -> Params:
    """Eight rows of short calls with four cuts; strict."""
    return Params.model_validate(SMALL | STRICT | changes)


def report(folder: Path, **changes: Any) -> int:
    """The `report` command over a file of parameters; its exit code."""
    file = folder.parent / f"{folder.name}.yaml"
    file.write_text(yaml.safe_dump(GIVEN | {"runs": str(folder)} | changes))
    command = [sys.executable, "-m", "restore_parity.cli", "report", str(file)]
    return subprocess.run(command, cwd=folder.parent).returncode


# --- an engine and a codec ------------------------------------------------------------------------

STOP = 2
TIED = -0.6  # the log-probability of the likelier of two tied tokens


class KilledError(Exception):
    """Stands for SIGKILL: nothing after it is journaled."""


def likeliest(context: list[int]) -> tuple[int, float, list[tuple[int, float]]]:
    """The script: token, log-probability and top-2 after a context."""
    roll = zlib.crc32(json.dumps(context).encode())
    token = STOP if roll % 23 == 0 else 48 + roll % 10  # a stop now and then, else a digit
    logprob = -0.05 - (roll % 1000) / 4000
    return token, logprob, [(token, logprob), (60 + roll % 7, logprob - 2.5)]


@dataclass(frozen=True)
class Ties:
    """Tokens at which the two likeliest are `margin` nats apart, by row: their place in it.

    One run takes the other one there, being the likelier by its own arithmetic.
    """

    places: dict[str, int]
    parted: str
    margin: float = 0.1


@dataclass(frozen=True)
class Script:
    """How the engines of three runs go: `width` calls get a token in one step, the oldest."""

    width: int | None = None
    ties: Ties = Ties({}, "none")


HEALTHY = Script()


class ScriptedEngine:
    """A token a call a step, a function of all tokens before it: a right restore is exact.

    After `steps` steps the process is "killed".
    """

    def __init__(
        self, phase: str = "uninterrupted", script: Script = HEALTHY, steps: int | None = None
    ):
        self.requests: list[tuple[str, list[int], int]] = []
        self._steps_left = steps
        self._width = script.width
        self._ties = script.ties
        self._takes_other = script.ties.parted == phase
        self._running: dict[str, tuple[list[int], int]] = {}  # the context, the tokens left

    def add(self, call_id: str, prompt_ids: list[int], max_tokens: int) -> None:
        self.requests.append((call_id, prompt_ids, max_tokens))
        self._running[call_id] = (list(prompt_ids), max_tokens)

    def step(self) -> list[Output]:
        if self._steps_left == 0:
            raise KilledError
        if self._steps_left is not None:
            self._steps_left -= 1
        return [self._next(call_id) for call_id in list(self._running)[: self._width]]

    def busy(self) -> bool:
        return bool(self._running) or self._steps_left is not None  # held calls wait for the kill

    def _next(self, call_id: str) -> Output:
        """One more token of a call."""
        context, left = self._running[call_id]
        token, logprob, top2 = self._choose(call_id, context)
        self._running[call_id] = ([*context, token], left - 1)
        reason = "length" if left == 1 else None
        if token == STOP:
            reason = "stop"
        if reason:
            del self._running[call_id]
        return Output(
            call_id=call_id,
            ids=[token],
            logprobs=[logprob],
            top_logprobs=[top2],
            finish_reason=reason,
        )

    def _choose(self, call_id: str, context: list[int]) -> tuple[int, float, list]:
        """The script's token, or the other of two that tie."""
        token, logprob, top2 = likeliest(context)
        row = call_id.partition(":")[2].partition("#")[0]
        if self._ties.places.get(row) != len(context):
            return token, logprob, top2
        assert token != STOP, f"row {row} ends at {len(context)}: no place for a tie"
        tied = [token, top2[1][0]]
        if self._takes_other:
            tied.reverse()
        chosen, other = tied
        return chosen, TIED, [(chosen, TIED), (other, TIED - self._ties.margin)]


class ByteCodec:
    """Text as its bytes; 2 is the stop token."""

    stop_ids = (STOP,)

    def prompt_ids(self, messages: list[dict]) -> list[int]:
        return list(messages[-1]["content"].encode())

    def tool_ids(self, messages: list[dict], last_id: int, result: dict) -> list[int]:
        ids = list(f"\n{json.dumps(result)}\n".encode())
        return ids if last_id == STOP else [STOP, *ids]

    def text(self, ids: list[int]) -> str:
        return bytes(token for token in ids if token != STOP).decode(errors="replace")


# --- three healthy runs ---------------------------------------------------------------------------


def healthy_runs(
    folder: Path,
    given: Params | None = None,
    steps: int = 24,
    width: int | None = None,
    ties: Ties = Script.ties,
) -> Path:
    """The three runs of a restore that is right, as files; the kill comes after so many steps."""
    given = given or params()
    script = Script(width, ties)
    generate(folder / "uninterrupted", "uninterrupted", given, script=script)
    generate(folder / "killed", "killed", given, steps=steps, script=script)
    generate(folder / "restored", "restored", given, source=folder / "killed", script=script)
    return folder


def generate(
    folder: Path,
    phase: str,
    given: Params,
    steps: int | None = None,
    source: Path | None = None,
    script: Script = Script(),
) -> ScriptedEngine:
    """One run of the real rollouts, with the files that a worker and a trainer leave."""
    folder.mkdir(parents=True)
    begun = time.time()
    engine = ScriptedEngine(phase, script, steps)
    rows = _rollouts(folder, phase, given, engine, source)
    if phase != "killed":
        write_dump(folder / "training.jsonl", rows)
    write_info(folder, _info(folder, phase, given, begun))
    return engine


def _rollouts(
    folder: Path, phase: str, given: Params, engine: ScriptedEngine, source: Path | None
) -> list[tuple[int, Row]]:
    """Generate until the end or the kill: (train step, row), none of a killed run."""
    codec, journal = ByteCodec(), JsonlWriter(folder / "journal.jsonl")
    generation = Generation(given, phase[0], codec, engine, journal)
    if source:
        captured = Journal(source / "journal.jsonl").poll()
        restores = JsonlWriter(folder / "restores.jsonl")
        generation = Generation(given, phase[0], codec, engine, journal, captured, restores)
    if phase == "killed":
        generation.holds = {name: given.planned_tokens(name) for name in given.cut_tokens}
    todo = tasks(given)
    try:
        rollouts = generation.run(todo, [codec.prompt_ids(task.messages()) for task in todo])
    except KilledError:
        return []
    journal.close()
    if generation.restores:
        generation.restores.close()
    return [(one.task.key.train_step, trained(generation.row(one))) for one in rollouts]


def _info(folder: Path, phase: str, given: Params, begun: float) -> RunInfo:
    """What run.json tells of a run that has just ended."""
    now = time.time()
    ended = Exit(time=now, code=0)
    if phase == "killed":
        calls = Journal(folder / "journal.jsonl").poll().open_calls()
        ended = Exit(time=now, signal=9, open_calls={call.call_id: len(call.ids) for call in calls})
    return RunInfo(
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
        trained=None if phase == "killed" else now,
        model_folder=given.model,
    )


def trained(row: Row) -> Row:
    """The row with the trainer's columns: a policy a little less sure than the engine."""
    masks, logprobs = row.token_loss_mask, row.generation_logprobs
    pairs = zip(masks, logprobs, strict=True)
    policy = [logprob - 0.01 if mask else 0.0 for mask, logprob in pairs]
    advantages = [0.5 * mask for mask in masks]
    return msgspec.structs.replace(row, advantages=advantages, prev_logprobs=policy)


def write_dump(file: Path, rows: list[tuple[int, Row]]) -> None:
    """A dump of (train step, row), one row a line."""
    with file.open("wb") as stream:
        for step, row in rows:
            chunk = {"train_step": step, "chunk_index": 0, "rows": [row]}
            stream.write(msgspec.json.encode(chunk) + b"\n")


# --- judging and breaking them --------------------------------------------------------------------


def judged(folder: Path, **thresholds: Any) -> Judgement:
    """The judgement of three runs by the strict thresholds or others."""
    return judge(load_runs(folder), params(**thresholds))


def failed(judgement: Judgement) -> set[str]:
    """The checks that found a problem."""
    return {problem.check for problem in judgement.problems}


def change_row(
    folder: Path, key: str, change: Callable[[dict], Any], run: str = "restored"
) -> None:
    """Change one row of a dump in place."""
    file = folder / run / "training.jsonl"
    chunks = [json.loads(line) for line in file.read_text().splitlines()]
    for chunk in chunks:
        for row in chunk["rows"]:
            if str(Key(chunk["train_step"], row["prompt_idx"], row["generation_index"])) == key:
                change(row)
    file.write_text("".join(json.dumps(chunk) + "\n" for chunk in chunks))


def change_records(folder: Path, change: Callable[[list[dict]], list[dict]]) -> None:
    """Change the restore records in place."""
    file = folder / "restored" / "restores.jsonl"
    records = change([json.loads(line) for line in file.read_text().splitlines()])
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def at_place(place: int, **columns: Any) -> Callable[[dict], None]:
    """A change of a row: other values at one place of some columns."""

    def change(row: dict) -> None:
        for name, value in columns.items():
            row[name][place] = value

    return change


def tie(folder: Path, margin: float, place: int = -4) -> None:
    """Let the restored row 1/0/0 take token 99 at a place, by a tie that both runs show.

    Places count from the row's end; -14 to -12 are the captured ones.
    """
    baseline = load_run(folder / "uninterrupted").only(Key(1, 0, 0))
    token = baseline.token_ids[place]
    choose(folder, "uninterrupted", "1/0/0", place, [token, 99], margin)
    choose(folder, "restored", "1/0/0", place, [99, token], margin)


def choose(folder: Path, run: str, key: str, place: int, tokens: list[int], margin: float) -> None:
    """Let a run take the first of two tokens, the other `margin` nats less likely."""
    chosen, other = tokens
    top2 = [[chosen, TIED], [other, TIED - margin]]
    change = at_place(
        place, token_ids=chosen, generation_top_logprobs=top2, generation_logprobs=TIED
    )
    change_row(folder, key, change, run)
