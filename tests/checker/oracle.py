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
    "generation_top2",
)
CONTENTS = ("input_length", "token_ids", "token_loss_mask", "sample_loss_mask", "reward")


def oracle(world: dict, limits: dict) -> tuple[str, set[str]]:
    """The verdict on a world, and the rows that a problem names.

    `world` holds the planned keys, baseline and restored as [(key, row)], calls, records, infos.
    """
    cuts = [cut_of(world, call) for call in world["calls"]]
    named = {key for key, cut in cuts if is_bad(world, cut, limits)}
    parted = [key for key, cut in cuts if parting(cut) is not None]
    aside = [key for key in parted if key not in named]
    named |= {key for key in all_keys(world) if not is_there_once(world, key)}
    named |= {key for key, row in world["baseline"] + world["restored"] if not is_sound(row)}
    named |= {key for key in all_keys(world) if not is_same(world, key, cuts, aside, limits)}
    if named or not is_in_its_groups(world) or has_strays(world) or too_many(aside, cuts, limits):
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
    for name in (*LISTS, "prev_top2"):
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
    return bool(ended) and ended["signal"] == 9 and bool(ended["open_calls"])


def is_one_setup(world: dict) -> bool:
    setups = [info["setup"] for info in world["infos"].values()]
    return all(setup == setups[0] for setup in setups)


def has_signal(world: dict) -> bool:
    rewards = {row["reward"] for _, row in world["baseline"]}
    return len(rewards) > 1 and any(row["sample_loss_mask"] for _, row in world["baseline"])


def has_strays(world: dict) -> bool:
    """A record of a call that was not open at the kill."""
    calls = [call["call_id"] for call in world["calls"]]
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
    return not (is_right and may_part(cut, limits))


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
    stopped = ids != [] and ids[-1] in stop_ids
    if cut["ended"]["event"] == "completed":
        return len(ids) == limit or stopped
    return len(ids) == size and (size == limit or stopped)


# --- where rows part ------------------------------------------------------------------------------


def parting(cut: dict) -> int | None:
    """The place at which the row parts from the baseline's."""
    if not is_whole(cut) or cut["baseline"] is None:
        return None
    ids, others = cut["row"]["token_ids"], cut["baseline"]["token_ids"]
    for at in range(max(len(ids), len(others))):
        if ids[at : at + 1] != others[at : at + 1]:
            return at
    return None


def may_part(cut: dict, limits: dict) -> bool:
    """Not at all, or behind the call's start, at a near-tie, and with the baseline's masks."""
    at = parting(cut)
    if at is None:
        return True
    row, baseline = cut["row"], cut["baseline"]
    if at < cut["first"] or row["sample_loss_mask"] != baseline["sample_loss_mask"]:
        return False
    if row["token_loss_mask"][:at] != baseline["token_loss_mask"][:at]:
        return False
    return is_near(baseline, row, at, limits["near_tie_margin"])


def is_near(baseline: dict, row: dict, at: int, margin: float) -> bool:
    """Both runs were greedy, and show both tokens within the margin."""
    for run in (baseline, row):
        if at >= len(run["token_ids"]) or not run["token_loss_mask"][at] or not is_greedy(run):
            return False
    token, other = baseline["token_ids"][at], row["token_ids"][at]
    for run, taken, left in ((baseline, token, other), (row, other, token)):
        candidates = dict(run["generation_top2"][at] or [])
        if left not in candidates or not 0 <= candidates[taken] - candidates[left] <= margin:
            return False
    return True


def is_greedy(run: dict) -> bool:
    """It took its likeliest token every time, with the log-probability that its row has."""
    for at, token in enumerate(run["token_ids"]):
        if run["token_loss_mask"][at]:
            candidates = dict((run["generation_top2"] or [None] * (at + 1))[at] or [])
            if candidates.get(token) != run["generation_logprobs"][at]:
                return False
            if max(candidates.values()) > run["generation_logprobs"][at]:
                return False
    return True


def too_many(aside: list[str], cuts: list, limits: dict) -> bool:
    if not cuts:
        return False
    return len(aside) == len(cuts) or len(aside) > limits["max_set_aside"] * len(cuts)


# --- two rows -------------------------------------------------------------------------------------


def is_same(world: dict, key: str, cuts: list, aside: list[str], limits: dict) -> bool:
    """The rows of a key are equal up to where they part at a cut."""
    row, baseline = only(world["restored"], key), only(world["baseline"], key)
    if row is None or baseline is None:
        return True  # which others tell
    if (row["generation_top2"] is None) != (baseline["generation_top2"] is None):
        return False
    places = [parting(cut) for other, cut in cuts if other == key]
    parted = [at for at in places if at is not None]
    if not parted and any(row[name] != baseline[name] for name in CONTENTS):
        return False
    end = min(parted, default=10**9)
    columns = {"generation_logprobs": limits["max_logprob_diff"]}
    if step_of(key) <= min(map(step_of, aside), default=10**9):
        columns["prev_logprobs"] = limits["max_policy_diff"]
    return all(is_within(row, baseline, name, end, bound) for name, bound in columns.items())


def step_of(key: str) -> int:
    return int(key.split("/")[0])


def is_within(row: dict, baseline: dict, name: str, end: int, bound: float) -> bool:
    """A column differs by at most so much at the trained tokens before a place."""
    for at in range(min(len(row["token_ids"]), len(baseline["token_ids"]), end)):
        if row["token_loss_mask"][at] and abs(row[name][at] - baseline[name][at]) > bound:
            return False
    return True
