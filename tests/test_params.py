"""Parameters: what is refused, and with which words."""

from pathlib import Path

import pytest
import yaml
from builders import params

from restore_parity.errors import UsageError
from restore_parity.params import (
    CHECKOUT,
    MOST_ROWS,
    Params,
    profile_file,
    profiles,
    read_params,
    shipped,
    validate,
)

PROFILES = profiles()


def refusal(**values) -> str:
    """What is said of parameters that are refused."""
    with pytest.raises(UsageError) as caught:
        validate({"kill_after_tokens": 5} | values, "x.yaml")
    return str(caught.value)


# --- profiles -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
def test_the_shipped_profiles_are_valid(name):
    assert read_params(PROFILES[name]).runs == f"runs/{name}"


def test_the_gpu_profiles_differ_in_strictness_alone():
    loose = read_params(PROFILES["gpu"]).model_dump()
    strict = read_params(PROFILES["gpu_strict"]).model_dump()
    assert {name for name in loose if loose[name] != strict[name]} == {
        "runs",
        "strict",
        "near_tie_margin",
        "max_set_aside",
        "max_logprob_diff",
        "max_mean_logprob_diff",
        "max_policy_diff",
        "max_gap_increase",
        "thresholds_from",
    }


def test_a_profile_is_found_by_its_name():
    assert profile_file("smoke") == PROFILES["smoke"]


@pytest.mark.parametrize("given", ["gone.yaml", "folder/smoke"])
def test_a_path_is_no_profiles_name(given):
    assert profile_file(given) == Path(given)


def test_a_file_goes_before_a_profile_of_its_name(tmp_path, monkeypatch):
    (tmp_path / "smoke").touch()
    monkeypatch.chdir(tmp_path)
    assert profile_file("smoke") == Path("smoke")


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".yaml"], ids=["a name", "a file"])
def test_a_name_too_long_for_any_file_is_a_mistake(name):
    with pytest.raises(UsageError):
        read_params(profile_file(name))


def test_an_unknown_profile_names_those_there_are():
    with pytest.raises(UsageError) as caught:
        profile_file("smok")
    assert str(caught.value).startswith("smok: no such file, and no profile of that name\n")
    assert str(caught.value).endswith("give a file, or one of gpu, gpu_strict, smoke, smoke_bf16")


def test_what_comes_with_the_package_lies_in_the_checkout():
    assert shipped("params") == CHECKOUT / "params"


# --- values ---------------------------------------------------------------------------------------


def test_a_misspelt_parameter_is_named_with_the_nearest_right_one():
    assert refusal(near_tie_magrin=0.1) == (
        "x.yaml: unknown parameter 'near_tie_magrin'; did you mean 'near_tie_margin'?"
    )


def test_a_parameter_like_no_other_is_named():
    assert refusal(zzz=1) == "x.yaml: unknown parameter 'zzz'"


def test_every_mistake_is_told():
    lines = refusal(steps=0, near_tie_margin=-1).splitlines()
    assert [line.split(":")[1] for line in lines] == [" steps", " near_tie_margin"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", "two"),
        ("steps", True),
        ("steps", 0),
        ("steps", 1.5),
        ("dtype", "float64"),
        ("max_set_aside", 1.5),
        ("near_tie_margin", -0.1),
        ("near_tie_margin", float("nan")),
        ("near_tie_margin", True),
        ("min_cut_groups", -1),
        ("engine_args", 3),
        ("closing_limit_tokens", [4]),
        ("list_lengths", [4, 0]),
    ],
    ids=str,
)
def test_a_value_of_the_wrong_kind_is_named(name, value):
    assert refusal(**{name: value}).startswith(f"x.yaml: {name}")


def test_a_boolean_may_be_true():
    assert validate({"strict": True}, "x").strict


def test_a_number_that_yaml_reads_as_text_is_a_number():
    given = yaml.safe_load("{temperature: 1, top_p: 1e-6}")
    assert given["top_p"] == "1e-6"
    assert validate(given, "x").top_p == 1e-6


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.7}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}],
    ids=str,
)
def test_sampling_that_is_not_greedy_is_refused(sampling):
    assert "parity of samples is undefined" in refusal(**sampling)


def test_more_rows_than_a_run_can_hold_are_refused():
    assert f"more than {MOST_ROWS} rows" in refusal(steps=MOST_ROWS)


@pytest.mark.parametrize("runs", ["a\0b", "a\nb", "a\ud800"], ids=["NUL", "line feed", "surrogate"])
def test_runs_that_cannot_be_a_folder_are_refused(runs):
    assert "cannot be the name of a folder" in refusal(runs=runs)


@pytest.mark.parametrize("name", ["model", "dtype", "seed", "logprobs_mode", "trust_remote_code"])
def test_what_parameters_set_themselves_is_no_engine_argument(name):
    assert f"engine_args.{name}: set by the parameters themselves" in refusal(
        engine_args={name: "x"}
    )


@pytest.mark.parametrize(
    "name", ["enable_prefix_caching", "kv_transfer_config", "kv_offloading_size"]
)
def test_a_cache_that_could_serve_another_runs_tokens_is_refused(name):
    assert f"engine_args.{name}: a cache could serve" in refusal(engine_args={name: True})


def test_prefix_caching_switched_off_is_no_cache():
    assert params(engine_args={"enable_prefix_caching": False}).engine_args


# --- cuts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ({"9/0/0#1": 3}, "no such call"),
        ({"0/0/0#1": 3}, "no such call"),
        ({"1/9/0#1": 3}, "no such call"),
        ({"1/0/9#1": 3}, "no such call"),
        ({"1/0/0": 3}, "no such call"),
        ({"1/0/0#2": 3}, "no such call"),
        ({"1/0/0#1": 0}, "between 1 and"),
        ({"1/0/0#1": 99}, "between 1 and"),
        ({"1/0/0#1": "limit-99"}, "between 1 and"),
        ({"1/0/0#1": "half"}, "'limit' or 'limit-1'"),
        ({"1/0/0#1": "limit-"}, "'limit' or 'limit-1'"),
        ({"1/0/0#1": True}, "cut_tokens"),
        ({"1/0/0#1": 1.5}, "cut_tokens"),
        ({"1/0/0#0": 3, "1/0/0#1": 3}, "the same row"),
    ],
    ids=str,
)
def test_a_cut_that_cannot_be_planned_is_refused(cuts, message):
    assert message in refusal(cut_tokens=cuts)


@pytest.mark.parametrize(
    ("tokens", "planned"),
    [(3, 3), ("limit", 14), ("limit-1", 13), ("limit-13", 1)],
    ids=str,
)
def test_planned_tokens_may_count_from_the_limit(tokens, planned):
    assert params(cut_tokens={"1/0/0#1": tokens}).planned_tokens("1/0/0#1") == planned


@pytest.mark.parametrize(("name", "limit"), [("1/0/0#0", 12), ("1/0/0#1", 14), ("1/1/0#1", 9)])
def test_the_limit_of_a_closing_call_is_its_prompts(name, limit):
    assert params().cut_limit(name) == limit


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "p.yaml"


def test_the_defaults_alone_are_valid():
    """The notebook as it is, run by hand, is a workload."""
    assert validate({}, "x") == Params()


def test_an_empty_file_is_the_defaults(file):
    file.write_text("# nothing\n")
    assert read_params(file) == Params()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: 1\nseed: 2\nsteps: 3", r"line 1: .steps. is given twice"),
        ("engine_args: {x: 1, x: 2}", r"line 1: .x. is given twice"),
        ("[1, 2]", "a mapping of parameters is wanted, not a list"),
        ("text", "a mapping of parameters is wanted, not a str"),
        ("a: [", "not YAML"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
        ("x: 2024-99-99", "not YAML"),
        ("[ " * 5000, "not YAML"),
        (f"seed: {'9' * 6000}", "not YAML"),
        ('runs: "a\\0b"', "cannot be the name of a folder"),
        ("steps: 1000000000", "more than 1000000 rows"),
        ("engine_args: {x: 2024-01-01}", "only what JSON can hold"),
        ("engine_args: {x: !!binary aGk=}", "only what JSON can hold"),
        ("engine_args: &a {x: *a}", "only what JSON can hold"),
    ],
    ids=[
        "a key twice",
        "an inner key twice",
        "a list",
        "text",
        "torn",
        "code",
        "no date",
        "nested",
        "too long a number",
        "NUL",
        "too many",
        "a date",
        "bytes",
        "circular",
    ],
)
def test_a_file_that_is_no_parameters_is_one_message(file, text, message):
    file.write_text(text)
    with pytest.raises(UsageError, match=rf"p\.yaml: .*{message}"):
        read_params(file)


def test_a_file_that_is_not_utf_8_is_one_message(file):
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"p\.yaml: not YAML"):
        read_params(file)


def test_a_missing_file_says_what_to_give(file):
    with pytest.raises(UsageError, match=r"p\.yaml: No such file or directory\n  -> give a file"):
        read_params(file)


# --- what they are of a run -----------------------------------------------------------------------


def test_the_hash_is_of_the_workload():
    assert params(seed=1).sha256() != params().sha256()


@pytest.mark.parametrize(
    "changes",
    [{"near_tie_margin": 0.2}, {"runs": "elsewhere"}, {"overlap_starts": True}, {"timeout_s": 9}],
    ids=str,
)
def test_what_does_not_decide_the_rows_is_no_part_of_the_hash(changes):
    assert params(**changes).sha256() == params().sha256()


def test_rows_are_keyed_in_order_from_train_step_one():
    keys = [str(key) for key in Params().row_keys()]
    assert keys[:3] == ["1/0/0", "1/0/1", "1/1/0"]
    assert keys[-1] == "2/1/1"


def test_a_relative_folder_counts_from_the_working_directory():
    assert Params(runs="runs/x").folder == Path("runs/x")


@pytest.mark.parametrize("name", ["1/0/0#01", "01/0/0#1", "1/0/0#+1"])
def test_a_cut_is_named_as_it_prints(name):
    """Another spelling would name no call of the journal, and its kill would never come."""
    with pytest.raises(UsageError, match="no such call"):
        validate({"cut_tokens": {name: 3}}, "x")
