"""When each run did what: its milestones, in seconds from the first start."""

from ..checker.dumps import KilledRun, Run, Runs
from ..journal import moments

MILESTONES = (
    "start",
    "engine ready",
    "gate open",  # it may generate
    "restored",  # its first restored call began
    "first token",
    "last token",
    "killed",
    "trained",
)
Timeline = dict[str, float]  # milestone to seconds, those that a run reached, in their order


def timelines(runs: Runs) -> dict[str, Timeline]:
    """The milestones of each run that ended, by the run's name."""
    reached = {run.name: _milestones(run) for run in runs.every}
    first = min((times["start"] for times in reached.values() if times), default=0.0)
    found = {}
    for name, times in reached.items():
        if times:
            in_order = [milestone for milestone in MILESTONES if milestone in times]
            found[name] = {milestone: times[milestone] - first for milestone in in_order}
    return found


def _milestones(run: Run | KilledRun) -> Timeline:
    """The same in seconds since the epoch, in any order; empty for a run that did not end."""
    info = run.info
    if info is None or info.exit is None or run.folder is None:
        return {}
    times = {"start": info.start, "engine ready": info.built or info.ready, "gate open": info.ready}
    times |= moments(run.folder / "journal.jsonl")
    if info.exit.signal:
        times["killed"] = info.exit.time
    if info.trained:
        times["trained"] = info.trained
    return times
