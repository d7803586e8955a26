"""A second comparer, as naive as can be: no index, no shared code, every question asked anew.

It reads rows, calls and records as plain dictionaries, keys as they print (1/0/0), and answers two
things: the verdict, and which rows a problem names.
"""

import hashlib
import itertools
import math

LISTS = (
    "token_ids",
    "token_loss_mask",
    "advantages",
    "generation_logprobs",
    "prev_logprobs",
    "generation_top_logprobs",
)
TOP = ("generation_top_logprobs", "prev_top_logprobs")
CONTENTS = ("input_length", "token_ids", "token_loss_mask", "sample_loss_mask", "reward")
OWNERS = {"baseline": ["uninterrupted"], "restored": ["restored", "killed"]}


def oracle(world: dict, limits: dict) -> tuple[str, set[str]]:
    """The verdict on a world, and the rows that a problem names.

    `world` holds the planned keys, baseline and restored as [(key, row)], calls, records, infos,
    and each call's limit as {(key, call index): tokens}.
    """
    cuts = [cut_of(world, call) for call in world["calls"] if call["finish_reason"] is None]
    cuts = [(key, cut) for key, cut in cuts if cut["call"]["ids"] or cut["records"]]
    parted = Parted(world, cuts, limits)
    named = {key for key, cut in cuts if is_bad(world, cut, limits)}
    named |= {key for key in all_keys(world) if not is_there_once(world, key)}
    named |= {key for key, row in world["baseline"] + world["restored"] if not is_sound(row)}
    for key in all_keys(world):
        row, baseline = only(world["restored"], key), only(world["baseline"], key)
        if row is None or baseline is None:
            continue
        if not is_same(row, baseline, key, parted, limits):
            named.add(key)
        if not has_its_shape(world, key, row, baseline):
            named.add(key)
        if not holds_what_was_finished(world, key, row):
            named.add(key)
    wrong = named or not is_in_its_groups(world) or has_strays(world)
    if wrong or parted.are_too_many(named) or has_other_gaps(world, limits):
        return "FAIL", named
    took_place = was_killed(world) and is_one_setup(world) and has_signal(world)
    covered = any(is_cut_inside(cut) for _, cut in cuts)
    return ("PASS" if took_place and covered else "INCOMPLETE"), named


# --- dumps ----------------------------------------------------------------------------------------


def all_keys(world: dict) -> set[str]:
    return {key for key, _ in world["baseline"] + world["restored"]} | set(world["planned"])


def is_there_once(world: dict, key: str) -> bool:
    """Once in both dumps where it is planned, in neither where it is not."""
    wanted = 1 if key in world["planned"] else 0
    for dump in (world["baseline"], world["restored"]):
        if sum(1 for other, _ in dump if other == key) != wanted:
            return False
    return True


def is_sound(row: dict) -> bool:
    """Its columns are of one length, its numbers finite, its masks 0 or 1 and one of them 1."""
    for name in (*LISTS, "prev_top_logprobs"):
        if row[name] is not None and len(row[name]) != row["input_length"]:
            return False
    for name in ("advantages", "generation_logprobs", "prev_logprobs"):
        for value in row[name]:
            if value is None or math.isnan(value) or math.isinf(value):
                return False
    return 1 in row["token_loss_mask"] and all(mask in (0, 1) for mask in row["token_loss_mask"])


def only(dump: list, key: str) -> dict | None:
    found = [row for other, row in dump if other == key]
    return found[0] if len(found) == 1 and is_sound(found[0]) else None


def is_in_its_groups(world: dict) -> bool:
    """Two rows of a dump share their group exactly where they share step and prompt."""
    for dump in (world["baseline"], world["restored"]):
        for (key, row), (other, another) in itertools.product(dump, dump):
            together = key.rsplit("/", 1)[0] == other.rsplit("/", 1)[0]
            if together != (row["group_id"] == another["group_id"]):
                return False
    return True


# --- the experiment -------------------------------------------------------------------------------


def was_killed(world: dict) -> bool:
    ended = world["infos"]["killed"]["exit"]
    opened = [call for call in world["calls"] if call["finish_reason"] is None]
    return bool(ended) and ended["signal"] == 9 and bool(ended["open_calls"]) and opened != []


def is_one_setup(world: dict) -> bool:
    setups = [info["setup"] for info in world["infos"].values()]
    for dump, runs in OWNERS.items():
        owners = [world["infos"][run]["run_id"] for run in runs]
        for _, row in world[dump]:
            if not any(row["group_id"].startswith(f"{owner}-") for owner in owners):
                return False
    return all(setup == setups[0] for setup in setups)


def has_signal(world: dict) -> bool:
    rewards = {row["reward"] for _, row in world["baseline"]}
    return len(rewards) > 1 and any(row["sample_loss_mask"] for _, row in world["baseline"])


def has_strays(world: dict) -> bool:
    """A record of a call that was not open at the kill."""
    calls = [call["call_id"] for call in world["calls"] if call["finish_reason"] is None]
    return any(record["source_call_id"] not in calls for record in world["records"])


# --- cuts -----------------------------------------------------------------------------------------


def cut_of(world: dict, call: dict) -> tuple[str, dict]:
    """A cut's row, and what there is of the cut."""
    key = call["key"]
    records = [one for one in world["records"] if one["source_call_id"] == call["call_id"]]
    begun = [record for record in records if record["event"] == "restored"]
    ended = [record for record in records if record["event"] != "restored"]
    cut = {
        "call": call,
        "key": key,
        "records": records,
        "row": only(world["restored"], key),
        "baseline": only(world["baseline"], key),
        "once": len(begun) == 1 and len(ended) == 1,
        "begun": begun[0] if begun else None,
        "ended": ended[0] if ended else None,
    }
    if is_whole(cut):
        runs = trained_runs(cut["row"])
        length = len(cut["row"]["token_loss_mask"])
        cut["calls"] = len(runs)
        cut["first"], cut["stop"] = (runs + [(length, length)] * 9)[call["call_index"]]
        cut["size"] = cut["begun"]["prefix_tokens"]
        cut["tail"] = cut["ended"].get("tail_tokens", 0)
        cut["ids"] = cut["row"]["token_ids"][cut["first"] : cut["stop"]]
    return key, cut


def trained_runs(row: dict) -> list[tuple[int, int]]:
    """Where the trained parts of a row begin and end."""
    runs, place = [], 0
    for trained, group in itertools.groupby(row["token_loss_mask"]):
        size = len(list(group))
        if trained:
            runs.append((place, place + size))
        place += size
    return runs


def is_whole(cut: dict) -> bool:
    return bool(cut["begun"] and cut["ended"] and cut["row"])


def is_cut_inside(cut: dict) -> bool:
    return is_whole(cut) and cut["size"] > 0 and cut["tail"] > 0


def is_bad(world: dict, cut: dict, limits: dict) -> bool:
    """Whether a problem names the cut."""
    if not cut["once"] or not is_whole(cut):
        return not cut["once"]
    is_right = has_its_place(cut) and has_its_prefix(cut) and has_its_end(cut, world["stop_ids"])
    return not (is_right and may_part(world, cut, limits))


def has_its_place(cut: dict) -> bool:
    """The records name the row and its call, and prefix and tail fill that."""
    begun, ended, call, row = cut["begun"], cut["ended"], cut["call"], cut["row"]
    generation = int(cut["key"].split("/")[2])
    right = {
        "group_id": row["group_id"],
        "generation_index": generation,
        "call_index": call["call_index"],
        "call_id": begun["call_id"],
        "prefix_tokens": cut["size"],
    }
    for record in (begun, ended):
        if any(record[name] != value for name, value in right.items()):
            return False
    if call["group_id"] != row["group_id"] or cut["size"] + cut["tail"] != len(cut["ids"]):
        return False
    baseline = cut["baseline"]
    return baseline is None or len(trained_runs(baseline)) == cut["calls"]


def has_its_prefix(cut: dict) -> bool:
    """The row begins its call by the captured tokens, whose hash was recorded."""
    call, row, first, size = cut["call"], cut["row"], cut["first"], cut["size"]
    prefix = row["token_ids"][first : first + size]
    digest = hashlib.sha256(",".join(str(token) for token in prefix).encode()).hexdigest()
    if cut["begun"]["prefix_ids_sha256"] != digest:
        return False
    if row["token_ids"][: first + size] != call["prompt_ids"] + call["ids"]:
        return False
    logprobs = row["generation_logprobs"][first : first + size]
    return all(a == b for a, b in zip(call["logprobs"], logprobs, strict=False))


def has_its_end(cut: dict, stop_ids: list[int]) -> bool:
    """The call keeps to its limit, and ends there or by a stop token, with none before."""
    limit, size, ids = cut["call"]["max_tokens"], cut["size"], cut["ids"]
    if cut["begun"]["max_tokens"] != limit - size or size + cut["tail"] > limit:
        return False
    if any(token in stop_ids for token in ids[:-1]):
        return False
    if cut["ended"]["event"] == "completed":
        stopped = ids != [] and ids[-1] in stop_ids
        return cut["tail"] > 0 and (len(ids) == limit or stopped or not stop_ids)
    stopped = ids[:size] != [] and ids[:size][-1] in stop_ids
    return len(ids) == size and (size == limit or stopped or not stop_ids)


# --- where rows part ------------------------------------------------------------------------------


def part_at(row: dict, baseline: dict) -> int | None:
    """The place at which the row parts from the baseline's."""
    ids, others = row["token_ids"], baseline["token_ids"]
    for at in range(max(len(ids), len(others))):
        if ids[at : at + 1] != others[at : at + 1]:
            return at
    return None


def captured_token(world: dict, key: str, row: dict, at: int) -> tuple[dict, int] | None:
    """The captured call, and which of its tokens it is, that the row's token at a place is."""
    parts = trained_runs(row)
    for call in world["calls"]:
        if call["key"] == key and call["call_index"] < len(parts):
            nth = at - parts[call["call_index"]][0]
            is_inside = 0 <= nth < len(call["ids"])
            if is_inside and row["token_ids"][at : at + 1] == [call["ids"][nth]]:
                return call, nth
    return None


def may_part(world: dict, cut: dict, limits: dict) -> bool:
    """Not at all, or behind the call's start or where the killed run did, at a near-tie."""
    if cut["baseline"] is None:
        return True
    row, baseline = cut["row"], cut["baseline"]
    at = part_at(row, baseline)
    if at is None:
        return True
    if at < cut["first"] and captured_token(world, cut["key"], row, at) is None:
        return False
    return is_excused(world, cut["key"], row, baseline, limits)


def is_excused(world: dict, key: str, row: dict, baseline: dict, limits: dict) -> bool:
    """The rows part at a near-tie, with the baseline's masks."""
    at = part_at(row, baseline)
    if row["sample_loss_mask"] != baseline["sample_loss_mask"]:
        return False
    if row["token_loss_mask"][:at] != baseline["token_loss_mask"][:at]:
        return False
    return is_near(world, key, row, baseline, at, limits["near_tie_margin"])


def is_near(world: dict, key: str, row: dict, baseline: dict, at: int, margin: float) -> bool:
    """Both runs were greedy, and show both tokens within the margin."""
    for run in (baseline, row):
        if at >= len(run["token_ids"]) or not run["token_loss_mask"][at] or not is_greedy(run):
            return False
    shown = row["generation_top_logprobs"][at]
    captured = captured_token(world, key, row, at)
    if captured is not None:
        call, nth = captured
        shown = call["top_logprobs"][nth]
        likely = dict(shown)
        chosen = call["ids"][nth]
        if likely.get(chosen) != call["logprobs"][nth] or max(likely.values()) > likely[chosen]:
            return False
    token, other = baseline["token_ids"][at], row["token_ids"][at]
    seen_by_baseline = dict(baseline["generation_top_logprobs"][at] or [])
    for candidates, taken, left in ((seen_by_baseline, token, other), (dict(shown), other, token)):
        if left not in candidates or not 0 <= candidates[taken] - candidates[left] <= margin:
            return False
    return True


def is_greedy(run: dict) -> bool:
    """It took its likeliest token every time, with the log-probability that its row has."""
    for at, token in enumerate(run["token_ids"]):
        if run["token_loss_mask"][at]:
            candidates = dict((run["generation_top_logprobs"] or [None] * (at + 1))[at] or [])
            if candidates.get(token) != run["generation_logprobs"][at]:
                return False
            if max(candidates.values()) > run["generation_logprobs"][at]:
                return False
    return True


class Parted:
    """Which rows are set aside, of those with a cut and of those without."""

    def __init__(self, world: dict, cuts: list, limits: dict):
        self.share = limits["max_set_aside"]
        self.cuts = cuts
        self.cut_keys = {key for key, _ in cuts}
        self.aside: set[str] = set()
        self.uncut: list[str] = []
        self.uncut_aside: list[str] = []
        for key, cut in cuts:
            is_right = is_whole(cut) and cut["baseline"] and not is_bad(world, cut, limits)
            if is_right and part_at(cut["row"], cut["baseline"]) is not None:
                self.aside.add(key)
        for key in all_keys(world) - self.cut_keys:
            row, baseline = only(world["restored"], key), only(world["baseline"], key)
            if row is None or baseline is None:
                continue
            self.uncut.append(key)
            is_parted = part_at(row, baseline) is not None
            if is_parted and is_excused(world, key, row, baseline, limits):
                self.uncut_aside.append(key)
                self.aside.add(key)

    def are_too_many(self, named: set[str]) -> bool:
        """Of the cuts with a tail, all or more than their share; of the other rows, their share."""
        live = [key for key, cut in self.cuts if is_whole(cut) and cut["tail"]]
        aside = [key for key in live if key in self.aside and key not in named]
        if live and (len(aside) == len(live) or len(aside) > self.share * len(live)):
            return True
        return len(self.uncut_aside) > self.share * len(self.uncut)


# --- two rows -------------------------------------------------------------------------------------


def is_same(row: dict, baseline: dict, key: str, parted: Parted, limits: dict) -> bool:
    """The rows of a key are equal up to where they part."""
    if any((row[name] is None) != (baseline[name] is None) for name in TOP):
        return False
    at = part_at(row, baseline)
    is_exact = all(row[name] == baseline[name] for name in CONTENTS)
    may_differ = key in parted.cut_keys or key in parted.aside
    if not is_exact and (at is None or not may_differ):
        return False
    groups_aside = {other.rsplit("/", 1)[0] for other in parted.aside}
    is_aside = key.rsplit("/", 1)[0] in groups_aside
    if not is_aside and row["advantages"] != baseline["advantages"]:
        return False
    end = min(len(row["token_ids"]), len(baseline["token_ids"])) if at is None else at
    has_its_weights = step_of(key) <= min(map(step_of, parted.aside), default=10**9)
    policy = is_within(row, baseline, "prev_logprobs", end, limits["max_policy_diff"])
    if has_its_weights and not policy:
        return False
    return has_its_logprobs(row, baseline, end, limits)


def step_of(key: str) -> int:
    return int(key.split("/")[0])


def is_within(row: dict, baseline: dict, name: str, end: int, bound: float) -> bool:
    """A column differs by at most so much at the trained tokens before a place."""
    for at in range(end):
        if row["token_loss_mask"][at] and abs(row[name][at] - baseline[name][at]) > bound:
            return False
    return True


def has_its_logprobs(row: dict, baseline: dict, end: int, limits: dict) -> bool:
    """Each log-probability and each call's mean; where all are 0.0, there are none to compare."""
    name = "generation_logprobs"
    trained = [at for at in range(end) if row["token_loss_mask"][at]]
    if all(row[name][at] == 0 and baseline[name][at] == 0 for at in trained):
        return True
    if not is_within(row, baseline, name, end, limits["max_logprob_diff"]):
        return False
    for start, stop in trained_runs(row):
        gaps = [abs(row[name][at] - baseline[name][at]) for at in trained if start <= at < stop]
        if gaps and sum(gaps) / len(gaps) > limits["max_mean_logprob_diff"]:
            return False
    return True


def has_its_shape(world: dict, key: str, row: dict, baseline: dict) -> bool:
    """Both rows: a prompt, whole calls, nothing behind; between the calls the same frames."""
    cut_calls = [call["call_index"] for call in world["calls"] if is_restored(world, call, key)]
    for side, skipped in ((baseline, []), (row, cut_calls)):
        parts = trained_runs(side)
        if parts[0][0] == 0 or parts[-1][1] != len(side["token_ids"]):
            return False
        for index, (start, stop) in enumerate(parts):
            ids = side["token_ids"][start:stop]
            if index not in skipped and not is_whole_call(world, key, index, ids):
                return False
    frames = [
        [side["token_ids"][one[1] : other[0]][-2:] for one, other in itertools.pairwise(parts)]
        for side, parts in ((row, trained_runs(row)), (baseline, trained_runs(baseline)))
    ]
    return frames[0] == frames[1]


def is_restored(world: dict, call: dict, key: str) -> bool:
    """A cut of this row that has both its records."""
    return call["key"] == key and call["finish_reason"] is None and is_whole(cut_of(world, call)[1])


def is_whole_call(world: dict, key: str, index: int, ids: list[int]) -> bool:
    """It ends by a stop token or at its limit, with no stop token before."""
    limit = world["limits"][key, index]
    if any(token in world["stop_ids"] for token in ids[:-1]):
        return False
    return len(ids) == limit or (ids[-1] in world["stop_ids"] and len(ids) < limit)


def holds_what_was_finished(world: dict, key: str, row: dict) -> bool:
    """Calls that ended before the kill stand in the row as captured, their tool results too."""
    parts = trained_runs(row)
    for call in world["calls"]:
        if call["key"] != key or call["finish_reason"] is None:
            continue
        if call["call_index"] >= len(parts):
            return False
        start, stop = parts[call["call_index"]]
        if row["token_ids"][:stop] != call["prompt_ids"] + call["ids"]:
            return False
        if row["generation_logprobs"][start:stop] != call["logprobs"]:
            return False
        behind = row["token_ids"][stop:]
        if call["call_index"] + 1 < len(parts):
            behind = behind[: parts[call["call_index"] + 1][0] - stop]
        tool_ids = call["tool_ids"]
        if tool_ids is not None and behind[: max(len(tool_ids), len(behind))] != tool_ids:
            return False
    return True


def has_other_gaps(world: dict, limits: dict) -> bool:
    """In some step engine and trainer are further apart than in the baseline, or less far."""
    for step in {step_of(key) for key in all_keys(world)}:
        means = []
        keys = sorted((key for key in all_keys(world) if step_of(key) == step), key=as_numbers)
        pairs = [(only(world["baseline"], key), only(world["restored"], key)) for key in keys]
        for side in (0, 1):
            rows = [pair[side] for pair in pairs if None not in pair]
            total = sum((distance(row) for row in rows), 0.0)
            tokens = sum(sum(row["token_loss_mask"]) for row in rows)
            means.append(total / max(tokens, 1))
        if abs(means[0] - means[1]) > limits["max_gap_increase"]:
            return True
    return False


def as_numbers(key: str) -> list[int]:
    return [int(number) for number in key.split("/")]


def distance(row: dict) -> float:
    """The sum of what the engine's and the trainer's log-probabilities are apart."""
    columns = zip(
        row["token_loss_mask"], row["generation_logprobs"], row["prev_logprobs"], strict=True
    )
    return math.fsum(abs(engine - trainer) for trained, engine, trainer in columns if trained)
