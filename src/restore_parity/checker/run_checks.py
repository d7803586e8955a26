"""The checks of whole runs: the experiment took place, and both dumps hold the same rows."""

import signal
from collections import defaultdict

from ..params import workload_sha256
from ..records import Key, Row
from ..runs import Exit, RunInfo
from .dumps import KilledRun, Run, Runs
from .judgement import Judgement

MOST_PROBLEMS = 1000  # of one kind; what there are more of is counted


def check_setup(judgement: Judgement, runs: Runs) -> None:
    """The experiment took place, and all runs had one setup."""
    if runs.killed:
        judgement.add(*runs.killed.problems)
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
            _check_hash(judgement, file, info)
    check_owners(judgement, runs)
    ids = sorted(info.run_id for info in known)
    different = len(set(ids)) == len(ids)
    judgement.expect("same-setup", different, "different runs", ids, where="run.json, run_id")


def _check_hash(judgement: Judgement, file: str, info: RunInfo) -> None:
    """The parameters in a run.json are those its hash is of."""
    actual = workload_sha256(info.params)
    holds = actual == info.params_sha256
    where = f"{file}, params_sha256"
    judgement.expect("same-setup", holds, actual, info.params_sha256, where=where)


def check_owners(judgement: Judgement, runs: Runs) -> None:
    """Each dump is its own run's: the group ids of its rows begin with the id of the run.

    A restored run goes on with the groups of the killed one.
    """
    ids = {run.name: run.info.run_id for run in runs.every if run.info}
    for run in runs.trained:
        owners = [ids[name] for name in (run.name, "killed") if name in ids]
        if run.name == "uninterrupted":
            owners = owners[:1]
        if run.name not in ids or runs.killed is None:
            continue
        groups = {ref.group_id for refs in run.rows.values() for ref in refs}
        strangers = sorted(
            group for group in groups if not group.startswith(tuple(f"{one}-" for one in owners))
        )
        judgement.expect(
            "same-setup",
            not strangers,
            f"groups of run {' or '.join(owners)}",
            f"{len(strangers)} of other runs, as {strangers[:1]}",
            where=f"{run.name} dump",
        )


def check_kill(judgement: Judgement, killed: KilledRun) -> None:
    """The killed run ended by SIGKILL, with the open calls that its journal holds."""
    if killed.journal is None or killed.info is None:
        return  # told as missing or broken
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
    """Both dumps are whole, have the same columns, and hold the same rows in the same groups."""
    for run in runs.trained:
        judgement.add(*run.problems)
        judgement.seen["dump-complete"] += run.lines
        check_membership(judgement, runs, run, cut_rows)
        check_groups(judgement, run)
    check_unread_columns(judgement, runs)


def check_membership(judgement: Judgement, runs: Runs, run: Run, cut_rows: set[Key]) -> None:
    """A dump holds each row that must be there once, and no other."""
    known = runs.uninterrupted.rows.keys() | runs.restored.rows.keys() | cut_rows
    expected = runs.planned | cut_rows if runs.planned else known
    wrong = [key for key in known | expected if len(run.rows.get(key, [])) != int(key in expected)]
    judgement.seen["row-membership"] += len(known | expected) - len(wrong)
    where = f"{run.name} dump"
    for key in sorted(wrong)[:MOST_PROBLEMS]:
        refs = run.rows.get(key, [])
        places = "; ".join(ref.place for ref in refs) or "none"
        wanted, got = f"{int(key in expected)} row", f"{len(refs)}: {places}"
        judgement.expect("row-membership", False, wanted, got, where=where, key=key)
    more = len(wrong) - MOST_PROBLEMS
    if more > 0:
        got = f"{more} more rows lost, doubled or unplanned"
        judgement.expect("row-membership", False, "the rows planned", got, where=where)


def check_unread_columns(judgement: Judgement, runs: Runs) -> None:
    """Both dumps have the same columns; those that no check reads are told, not compared."""
    one, other = (run.columns for run in runs.trained)
    read = {*Row.__struct_fields__, "generation_top2", "prev_top2"}
    for name in sorted((one.keys() | other.keys()) - read):
        sizes = len(runs.uninterrupted.rows), len(runs.restored.rows)
        both = (one[name] > 0) == (other[name] > 0)
        everywhere = (one[name] >= sizes[0]) == (other[name] >= sizes[1])
        judgement.expect(
            "dump-complete",
            both and everywhere,
            "in as many rows of both dumps",
            f"uninterrupted: {one[name]}, restored: {other[name]}",
            where=f"column {name}",
        )
        judgement.unread.add(name)


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
