"""A run's folder: run.json written whole, read back, and what a saved run is good for."""

import json
import signal
import subprocess
import sys

import msgspec
import pytest
from builders import params
from msgspec.structs import replace

from restore_parity.errors import IncompleteError, UsageError
from restore_parity.runs import (
    Exit,
    RunInfo,
    check_saved,
    incomplete_if_broken,
    partial_of,
    read_info,
    read_params_of,
    write_info,
    written_whole,
)

INFO = RunInfo(
    phase="restored",
    run_id="r",
    params=params().model_dump(),
    params_sha256=params().sha256(),
    setup={"model": "scripted", "stop_token_ids": [2, 3]},
    device="none",
    git_revision=None,
    start=1_700_000_000.0,
    ready=1_700_000_001.0,
    exit=Exit(time=1_700_000_002.0, code=0),
)


# --- files written whole --------------------------------------------------------------------------


def test_a_file_is_there_when_all_of_it_is_written(tmp_path):
    file = tmp_path / "x.json"
    with written_whole(file) as stream:
        stream.write(b"first")
        stream.flush()
        assert not file.exists()
        assert partial_of(file).read_bytes() == b"first"
        stream.write(b" second")
    assert file.read_bytes() == b"first second"
    assert not partial_of(file).exists()


def test_a_partial_file_lies_beside_the_whole_one(tmp_path):
    assert partial_of(tmp_path / "x.json") == tmp_path / "x.json.partial"


def test_nothing_is_renamed_when_the_writer_raises(tmp_path):
    file = tmp_path / "x.json"
    with pytest.raises(RuntimeError, match="half"), written_whole(file) as stream:
        stream.write(b"first")
        raise RuntimeError("half")
    assert not file.exists()


def test_an_older_file_stays_when_the_writer_raises(tmp_path):
    file = tmp_path / "x.json"
    file.write_bytes(b"older")
    with pytest.raises(RuntimeError, match="half"), written_whole(file):
        raise RuntimeError("half")
    assert file.read_bytes() == b"older"


def test_a_writer_that_is_killed_leaves_no_file(tmp_path):
    file = tmp_path / "x.json"
    code = (
        "import os, pathlib, signal, sys\n"
        "from restore_parity.runs import written_whole\n"
        "with written_whole(pathlib.Path(sys.argv[1])) as stream:\n"
        "    stream.write(b'first')\n"
        "    stream.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, file])
    assert done.returncode == -signal.SIGKILL
    assert not file.exists()
    assert partial_of(file).read_bytes() == b"first"


def test_a_partial_file_of_a_killed_writer_is_written_anew(tmp_path):
    file = tmp_path / "x.json"
    partial_of(file).write_bytes(b"much that was left behind")
    with written_whole(file) as stream:
        stream.write(b"new")
    assert file.read_bytes() == b"new"


# --- run.json -------------------------------------------------------------------------------------


def test_run_json_comes_back_as_it_was_written(tmp_path):
    write_info(tmp_path, INFO)
    assert read_info(tmp_path) == INFO


def test_run_json_can_be_read_by_eye(tmp_path):
    write_info(tmp_path, INFO)
    text = (tmp_path / "run.json").read_text()
    assert json.loads(text)["run_id"] == "r"
    assert len(text.splitlines()) > 20


def test_a_run_tells_its_model_and_stop_tokens():
    assert INFO.model == "scripted"
    assert INFO.stop_token_ids == {2, 3}


def test_a_run_without_run_json_never_started(tmp_path):
    with pytest.raises(IncompleteError, match=r"run\.json is missing: this run never started"):
        read_info(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"\xff", b'{"a":' * 100_000],
    ids=["empty", "torn", "a list", "no fields", "bytes", "nested"],
)
def test_a_broken_run_json_is_incomplete(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(IncompleteError, match=r"run\.json: .*\n  -> broken, or of another version"):
        read_info(tmp_path)


@pytest.mark.parametrize(
    "setup",
    [
        {},
        {"model": "scripted"},
        {"stop_token_ids": [2]},
        {"model": 5, "stop_token_ids": [2]},
        {"model": "scripted", "stop_token_ids": "ab"},
    ],
    ids=["nothing", "no stop tokens", "no model", "a number as model", "text as stop tokens"],
)
def test_a_setup_that_does_not_tell_model_and_stop_tokens_is_incomplete(tmp_path, setup):
    write_info(tmp_path, replace(INFO, setup=setup))
    with pytest.raises(IncompleteError, match=r"run\.json: "):
        read_info(tmp_path)


def test_parameters_of_a_run_are_read_again(tmp_path):
    assert read_params_of(INFO, tmp_path) == params()


def test_parameters_that_this_version_does_not_know_are_incomplete(tmp_path):
    info = replace(INFO, params={"old_thing": 1})
    with pytest.raises(IncompleteError, match=r"run\.json: params: unknown parameter 'old_thing'"):
        read_params_of(info, tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        msgspec.ValidationError("x"),
        ValueError("x"),
        RecursionError("x"),
        OSError("x"),
        UsageError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_broken_file_raises_becomes_incomplete(tmp_path, error):
    with (
        pytest.raises(IncompleteError, match=rf"^{tmp_path}/f: x\n"),
        incomplete_if_broken(tmp_path / "f"),
    ):
        raise error


def test_an_error_of_our_own_is_not_called_a_broken_file(tmp_path):
    with pytest.raises(KeyError), incomplete_if_broken(tmp_path / "f"):
        raise KeyError("x")


# --- check_saved ----------------------------------------------------------------------------------


def test_a_saved_run_of_these_parameters_tells_when_it_was_started(tmp_path):
    write_info(tmp_path, INFO)
    assert check_saved(tmp_path, params()).startswith("2023-11-1")


def test_a_saved_run_is_of_these_parameters_however_it_is_judged(tmp_path):
    write_info(tmp_path, INFO)
    assert check_saved(tmp_path, params(near_tie_margin=0.3, timeout_s=9))


def test_a_saved_run_of_other_parameters_is_a_mistake_and_says_which(tmp_path):
    write_info(tmp_path, INFO)
    with pytest.raises(UsageError) as caught:
        check_saved(tmp_path, params(seed=1, top_p=0.5))
    assert str(caught.value) == (
        f"{tmp_path} is a run of other parameters (top_p: 1.0 in the saved run, 0.5 now; "
        "seed: 0 in the saved run, 1 now)\n  -> run again without reuse"
    )


def test_a_saved_run_that_never_ended_is_incomplete(tmp_path):
    write_info(tmp_path, replace(INFO, exit=None))
    with pytest.raises(IncompleteError, match="half-written, its run never ended"):
        check_saved(tmp_path, params())


def test_a_run_that_was_never_saved_is_incomplete(tmp_path):
    with pytest.raises(IncompleteError, match="never started its engine"):
        check_saved(tmp_path, params())
