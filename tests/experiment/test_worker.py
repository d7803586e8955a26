"""The worker's own steps: how long a row can be, and whose commit run.json tells."""

import subprocess

import pytest
from builders import params

from restore_parity.experiment.worker import git_revision, longest_tokens


@pytest.fixture
def repository(tmp_path):
    """A git repository with one commit."""
    identity = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.invalid"]
    for command in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


def test_a_checkout_tells_its_commit(repository):
    (repository / "pyproject.toml").touch()
    head = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    assert git_revision(repository) == commit[:12]


def test_a_changed_checkout_says_so(repository):
    (repository / "pyproject.toml").touch()
    subprocess.run(["git", "-C", str(repository), "add", "pyproject.toml"], check=True)
    assert git_revision(repository).endswith("+changes")


def test_a_package_installed_inside_another_repository_has_no_commit(repository):
    (repository / "lib").mkdir()
    assert git_revision(repository / "lib") is None


def test_a_folder_that_is_not_in_git_has_no_commit(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    assert git_revision(tmp_path) is None


def test_a_row_has_room_for_its_prompt_and_both_calls():
    given = params(tool_limit_tokens=12, closing_limit_tokens=[14, 9])
    assert longest_tokens(given, [[1] * 100, [1] * 50]) > 100 + 12 + 14
