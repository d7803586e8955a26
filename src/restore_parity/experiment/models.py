"""Models by name: where a checkpoint lies, made on first use, and what its files tell."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs

from ..errors import UsageError
from .model_makers import make_random_qwen3, make_smollm2, make_tiny_qwen3

Maker = Callable[[Path], None]

MAKERS: dict[str, Maker] = {
    "smollm2-135m": make_smollm2,
    "tiny-qwen3": make_tiny_qwen3,
    "qwen3-1.7b-random": make_random_qwen3,
}
RANDOM_WEIGHTS = {
    "tiny-qwen3": "half a million seeded random weights",
    "qwen3-1.7b-random": "Qwen3-1.7B's shape with seeded random weights",
}


def model_path(model: str) -> Path:
    """Return the folder of a checkpoint, making a named one in the user's cache on first use.

    `model` is one of MAKERS, a folder, or a hub id whose snapshot is already on this machine (or
    can be fetched when `HF_HUB_OFFLINE` is not set).
    Raises UsageError, naming what to do, when there is no such model.
    """
    if model in MAKERS:
        folder = platformdirs.user_cache_path("restore-parity") / f"{model}-v2"
        return folder if folder.is_dir() else make_whole(folder, MAKERS[model])
    if (Path(model) / "config.json").is_file():
        return Path(model).resolve()
    if Path(model).exists() or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise UsageError(
            f"model: {model!r} is neither a checkpoint folder (no config.json in it) nor a hub id",
            f"give a folder, an id like owner/name, or one of {', '.join(MAKERS)}",
        )
    return _hub_snapshot(model)


def make_whole(folder: Path, maker: Maker) -> Path:
    """Build beside the final place and rename: a killed or parallel build leaves no half model."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        maker(scratch)
        scratch.chmod(0o755)
        os.replace(scratch, folder)
    except OSError:
        if not folder.is_dir():  # else another process was first, with the same bytes
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _hub_snapshot(model: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds; the user needs one line
        raise UsageError(
            f"model: no snapshot of {model!r} on this machine, and the hub did not give one "
            f"({type(error).__name__})",
            f"run `hf download {model}` where the hub is reached, or give a folder",
        ) from None


def weights_sha256(folder: Path) -> str:
    """SHA-256 over a checkpoint's safetensors files in the order of their names."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(
            f"model: {folder} holds no safetensors file", "convert the checkpoint to safetensors"
        )
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def head_size(folder: Path) -> int:
    """Elements of one attention head of a checkpoint; 0 where its config.json does not say."""
    config = _read(folder / "config.json")
    config = config.get("text_config") or config
    heads = config.get("num_attention_heads") or 1
    return int(config.get("head_dim") or config.get("hidden_size", 0) // heads)


def vocabulary_tokens(folder: Path) -> int | None:
    """How many tokens a checkpoint knows; None where its config.json does not say."""
    config = _read(folder / "config.json")
    config = config.get("text_config") or config
    return config.get("vocab_size")


def stop_token_ids(folder: Path) -> list[int]:
    """The ids that end a call, where the engine looks for them.

    That is generation_config.json, else config.json.
    """
    for name in ("generation_config.json", "config.json"):
        found = _read(folder / name).get("eos_token_id")
        if isinstance(found, int):
            return [found]
        if found is not None:
            return list(found)
    return []


def _read(file: Path) -> dict[str, Any]:
    """What a JSON file of a checkpoint holds; empty where there is no such file."""
    if not file.is_file():
        return {}
    return dict(json.loads(file.read_text()))
