"""Parameters: what is refused, and with which words."""

import pytest
import yaml
from builders import params

from restore_parity.errors import UsageError
from restore_parity.params import Params, profiles, read_params, validate

CUT = {"kill_after_tokens": 5}


def refusal(**values) -> str:
    with pytest.raises(UsageError) as caught:
        validate(CUT | values, "x.yaml")
    return str(caught.value)


@pytest.mark.parametrize(("name", "file"), profiles().items(), ids=profiles())
def test_the_shipped_profiles_are_valid(name, file):
    assert read_params(file).runs == f"runs/{name}"


def test_the_gpu_profiles_differ_in_strictness_alone():
    loose, strict = (read_params(profiles()[name]).model_dump() for name in ("gpu", "gpu_strict"))
    differing = {name for name in loose if loose[name] != strict[name]}
    assert differing == {
        *("runs", "strict", "near_tie_margin", "max_set_aside", "max_logprob_diff", "max_policy_diff", "thresholds_from"),
    }


def test_a_misspelt_parameter_is_named_with_the_nearest_right_one():
    assert refusal(near_tie_magrin=0.1) == "x.yaml: unknown parameter 'near_tie_magrin'; did you mean 'near_tie_margin'?"


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
        ("engine_args", 3),
        ("closing_limit_tokens", [4]),
    ],
    ids=lambda value: str(value),
)
def test_a_value_of_the_wrong_kind_is_named(name, value):
    assert name in refusal(**{name: value})


def test_a_number_that_yaml_reads_as_text_is_a_number():
    assert validate(CUT | yaml.safe_load("{temperature: 1, top_p: 1e-6}"), "x").top_p == 1e-6


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.7}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}], ids=str
)
def test_sampling_that_is_not_greedy_is_refused(sampling):
    assert "parity of samples is undefined" in refusal(**sampling)


@pytest.mark.parametrize("name", ["enable_prefix_caching", "kv_transfer_config", "kv_offloading_size"])
def test_a_cache_that_could_serve_another_runs_tokens_is_refused(name):
    assert f"engine_args.{name}" in refusal(engine_args={name: True})


def test_prefix_caching_switched_off_is_no_cache():
    assert params(engine_args={"enable_prefix_caching": False}).engine_args


@pytest.mark.parametrize(
    ("cuts", "told"),
    [
        ({"9/0/0#1": 3}, "no such call"),
        ({"1/0/0": 3}, "no such call"),
        ({"1/0/0#2": 3}, "no such call"),
        ({"1/0/0#1": 0}, "between 1 and"),
        ({"1/0/0#1": 99}, "between 1 and"),
        ({"1/0/0#1": "limit-99"}, "between 1 and"),
        ({"1/0/0#1": "half"}, "'limit' or 'limit-1'"),
        ({"1/0/0#1": True}, "cut_tokens"),
        ({"1/0/0#1": 1.5}, "cut_tokens"),
        ({"1/0/0#0": 3, "1/0/0#1": 3}, "the same row"),
    ],
    ids=str,
)
def test_a_cut_that_cannot_be_planned_is_refused(cuts, told):
    with pytest.raises(UsageError, match=told):
        validate({"cut_tokens": cuts}, "x")


def test_planned_tokens_count_from_the_limit():
    assert params(cut_tokens={"1/0/0#1": "limit-1", "1/0/1#1": "limit"}).planned_tokens("1/0/0#1") == 13


def test_the_defaults_alone_are_valid():
    """The notebook as it is, run by hand, is a workload."""
    assert validate({}, "x") == Params()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("steps: 1\nseed: 2\nsteps: 3", "line 1: .steps. is given twice"),
        ("[1, 2]", "a mapping"),
        ("a: [", "not YAML"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_told(tmp_path, text, told):
    file = tmp_path / "p.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_params(file)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_params(tmp_path / "none.yaml")


def test_the_hash_is_of_the_workload_not_of_the_judging():
    assert params(near_tie_margin=0.2, runs="elsewhere").sha256() == params().sha256() != params(seed=1).sha256()


def test_when_engines_start_is_no_part_of_the_workload():
    assert params(overlap_starts=True).sha256() == params().sha256()


def test_rows_are_keyed_from_train_step_one():
    assert str(Params(kill_after_tokens=1).row_keys()[0]) == "1/0/0"
