"""The checks of whole runs: the experiment took place, and both dumps hold the same rows."""

import signal
from collections import defaultdict

from ..records import Key
from ..runs import Exit, RunInfo
from .dumps import KilledRun, Run, Runs
from .judgement import Judgement


def check_setup(judgement: Judgement, runs: Runs) -> None:
    """The experiment took place, and all runs had one setup."""
    if runs.killed:
        check_kill(judgement, runs.killed)
    infos = {run.name: run.info for run in runs.every}
    known = [info for info in infos.values() if info]
    if len(known) < len(infos) and not runs.killed:
        judgement.not_run["same-setup"] = "no run.json was given"
        return
    for name, info in infos.items():
        file = f"{name}/run.json"
        expected = "the settings of this run"
        there = judgement.expect("same-setup", bool(info), expected, "no such file", where=file)
        if there and info:
            _compare_setup(judgement, file, name, known[0], info)
    ids = sorted(info.run_id for info in known)
    different = len(set(ids)) == len(ids)
    judgement.expect("same-setup", different, "different runs", ids, where="run.json, run_id")


def check_kill(judgement: Judgement, killed: KilledRun) -> None:
    """The killed run ended by SIGKILL, with the open calls that its journal holds."""
    opened = {call.call_id: len(call.ids) for call in killed.journal.open_calls()}
    ended = killed.info.exit or Exit(time=0.0)
    as_planned = ended.signal == signal.SIGKILL and ended.open_calls == opened
    judgement.expect(
        "kill-happened",
        as_planned and bool(opened),
        _kill_in_words(signal.SIGKILL, opened),
        _kill_in_words(ended.signal, ended.open_calls),
        where="killed/run.json, exit",
    )


def _kill_in_words(number: int | None, open_calls: dict[str, int]) -> str:
    return f"signal {number}, calls open: {open_calls or 'none'}"


def _compare_setup(
    judgement: Judgement, file: str, name: str, first: RunInfo, info: RunInfo
) -> None:
    expected = first.setup | {"phase": name, "came to its end": True}
    actual = info.setup | {"phase": info.phase, "came to its end": _came_to_its_end(name, info)}
    for field_name in sorted(expected.keys() | actual.keys()):
        wanted, got = expected.get(field_name), actual.get(field_name)
        where = f"{file}, {field_name}"
        judgement.expect("same-setup", wanted == got, repr(wanted), repr(got), where=where)


def _came_to_its_end(name: str, info: RunInfo) -> bool:
    if name == "killed":
        return True  # its end is kill-happened's to check
    return info.exit is not None and info.exit.code == 0 and info.trained is not None


def check_dumps(judgement: Judgement, runs: Runs, cut_rows: set[Key]) -> None:
    """Both dumps are whole and hold the same rows, those planned, in the same groups."""
    known = runs.uninterrupted.rows.keys() | runs.restored.rows.keys() | cut_rows
    expected = runs.planned | cut_rows if runs.planned else known
    for run in runs.trained:
        judgement.add(*run.problems)
        judgement.seen["dump-complete"] += run.lines
        for key in sorted(known | expected):
            check_membership(judgement, run, key, expected=int(key in expected))
        check_groups(judgement, run)


def check_membership(judgement: Judgement, run: Run, key: Key, expected: int) -> None:
    """A dump holds `expected` rows of a key: 0 or 1."""
    refs = run.rows.get(key, [])
    places = "; ".join(ref.place for ref in refs) or "none"
    judgement.expect(
        "row-membership",
        len(refs) == expected,
        f"{expected} row",
        f"{len(refs)}: {places}",
        where=f"{run.name} dump",
        key=key,
    )


def check_groups(judgement: Judgement, run: Run) -> None:
    """One step and prompt is one group, one group is one step and prompt."""
    groups = defaultdict(set)
    prompts = defaultdict(set)
    for key, refs in run.rows.items():
        for ref in refs:
            prompt = f"prompt {key.train_step}/{key.prompt_idx}"
            group = f"group {ref.group_id}"
            groups[prompt].add(group)
            prompts[group].add(prompt)
    for one, others in (*groups.items(), *prompts.items()):
        judgement.expect(
            "group-membership",
            len(others) == 1,
            "one prompt, one group",
            sorted(others),
            where=f"{run.name}, {one}",
        )
