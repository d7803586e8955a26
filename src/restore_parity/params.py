"""Parameters: read from a profile (YAML) or a mapping, validated, hashed."""

import difflib
import hashlib
import json
import os
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from .errors import UsageError
from .records import CutKey, Key

PACKAGE = Path(__file__).parent
CHECKOUT = PACKAGE.parents[1]  # of an installed wheel: a folder that holds no pyproject.toml

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# Caches that outlive a process would give the restored run what another run computed.
SHARED_CACHES = (
    "kv_transfer_config",
    "kv_offloading_size",
    "kv_offloading_backend",
    "kv_events_config",
)
OWN_ARGS = (
    "model",
    "dtype",
    "seed",
    "logprobs_mode",
    "trust_remote_code",
    "skip_tokenizer_init",
)
QUASI_GREEDY_TOP_P = 1e-6
MOST_ROWS = 1_000_000


class Params(BaseModel):
    """All that can be set; the notebook's parameters cell says what each is and in which unit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs: str = "runs/smoke"
    reuse: bool = False

    model: str = "smollm2-135m"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    engine_args: dict[str, Any] = {}
    engine_env: dict[str, str] = {}
    companion: bool = False
    strict: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    steps: Positive = 2
    prompts_per_step: Positive = 2
    generations_per_prompt: Positive = 2
    closing: str = "count from 1 to {n}"
    list_lengths: list[Positive] = [16, 16]
    tool_limit_tokens: Positive = 64
    closing_limit_tokens: list[Positive] = [64, 30]
    top_logprobs: Annotated[int, Field(ge=2, le=20)] = 4
    fsync_ms: Size = 20.0

    cut_tokens: dict[str, StrictInt | str] = {}
    kill_after_tokens: Positive = 200
    overlap_starts: bool = False
    timeout_s: Positive = 1800

    learning_rate: Size = 1e-6
    micro_batch_rows: Positive = 2

    near_tie_margin: Size = 0.3
    max_set_aside: Share = 0.5
    max_logprob_diff: Size = 0.3
    max_mean_logprob_diff: Size = 0.01
    max_policy_diff: Size = 1e-3
    max_gap_increase: Size = 0.0005
    vocabulary_tokens: Annotated[int, Field(ge=0)] = 0
    min_cut_groups: Annotated[int, Field(ge=0)] = 0
    thresholds_from: str = (
        "NeMo RL #4507: log-probabilities of equal tokens moved by up to 0.30 nats"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_not_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        wants_boolean = cls.model_fields[str(info.field_name)].annotation is bool
        if isinstance(value, bool) and not wants_boolean:
            raise ValueError("true and false are not numbers")
        return value

    @model_validator(mode="after")
    def _sampling_is_greedy(self) -> "Params":
        quasi_greedy = self.temperature == 1 and 0 < self.top_p <= QUASI_GREEDY_TOP_P
        if self.temperature != 0 and not quasi_greedy:
            raise ValueError(
                f"temperature {self.temperature} with top_p {self.top_p} samples, and parity of "
                "samples is undefined: use temperature 0, or temperature 1 with top_p 1.0e-6"
            )
        return self

    @model_validator(mode="after")
    def _workload_fits_together(self) -> "Params":
        for name in ("list_lengths", "closing_limit_tokens"):
            if len(getattr(self, name)) != self.prompts_per_step:
                raise ValueError(
                    f"{name} needs {self.prompts_per_step} entries, one for each prompt of a step"
                )
        if self.steps * self.prompts_per_step * self.generations_per_prompt > MOST_ROWS:
            raise ValueError(
                f"more than {MOST_ROWS} rows: steps x prompts_per_step x generations_per_prompt"
            )
        if any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in self.runs):
            raise ValueError(f"runs: {self.runs!r} cannot be the name of a folder")
        return self

    @model_validator(mode="after")
    def _engine_args_are_safe(self) -> "Params":
        try:
            json.dumps(self.engine_args)
        except (TypeError, ValueError):
            raise ValueError(
                "engine_args: only what JSON can hold: numbers, texts, true, false, lists, mappings"
            ) from None
        for name, value in self.engine_args.items():
            if name in OWN_ARGS:
                raise ValueError(
                    f"engine_args.{name}: set by the parameters themselves; leave it out"
                )
            if name in SHARED_CACHES or (name == "enable_prefix_caching" and value):
                raise ValueError(
                    f"engine_args.{name}: a cache could serve the restored run tokens that another "
                    "run computed, and nothing would be restored; leave it out"
                )
        return self

    @model_validator(mode="after")
    def _cuts_can_be_reached(self) -> "Params":
        rows = set()
        for name in self.cut_tokens:
            cut, limit = self._cut(name), self.cut_limit(name)
            if not 1 <= self.planned_tokens(name) <= limit:
                raise ValueError(
                    f"cut_tokens[{name}]: between 1 and the call's limit of {limit} tokens"
                )
            rows.add(cut.row)
        if len(rows) < len(self.cut_tokens):
            raise ValueError(
                "cut_tokens: a rollout has one open call at a time; two cuts name the same row"
            )
        return self

    def row_keys(self) -> list[Key]:
        """The keys of all rows, in order."""
        return [
            Key(step, prompt, generation)
            for step in range(1, self.steps + 1)
            for prompt in range(self.prompts_per_step)
            for generation in range(self.generations_per_prompt)
        ]

    def limit_tokens(self, key: Key, call_index: int) -> int:
        """A call's original limit: prefix and tail together."""
        if call_index == 0:
            return self.tool_limit_tokens
        return self.closing_limit_tokens[key.prompt_idx]

    def cut_limit(self, name: str) -> int:
        """The original limit of the call that `name` cuts. Raises ValueError: no such call."""
        cut = self._cut(name)
        return self.limit_tokens(cut.row, cut.call_index)

    def planned_tokens(self, name: str) -> int:
        """How many tokens of the call that `name` cuts the journal is to keep."""
        tokens = self.cut_tokens[name]
        if isinstance(tokens, int):
            return tokens
        if not (match := re.fullmatch(r"limit(?:-(\d{1,9}))?", tokens)):
            raise ValueError(
                f"cut_tokens[{name}]: a number of tokens, 'limit' or 'limit-1', not {tokens!r}"
            )
        return self.cut_limit(name) - int(match[1] or 0)

    def _cut(self, name: str) -> CutKey:
        try:
            cut = CutKey.parse(name)
        except ValueError:
            cut = None
        if cut is None or str(cut) != name or cut.call_index > 1 or not self._holds(cut.row):
            raise ValueError(
                f"cut_tokens[{name}]: no such call; write step/prompt/generation#call, as 1/0/1#1"
            )
        return cut

    def _holds(self, key: Key) -> bool:
        return (
            1 <= key.train_step <= self.steps
            and key.prompt_idx < self.prompts_per_step
            and key.generation_index < self.generations_per_prompt
        )

    @property
    def folder(self) -> Path:
        """Where the runs lie; a relative `runs` counts from the working directory."""
        return Path(self.runs)

    def workload(self) -> dict[str, Any]:
        """What decides the rows: not where they lie, when engines start, how they are judged."""
        return self.model_dump(exclude=JUDGING)

    def sha256(self) -> str:
        """SHA-256 of the workload, by which a saved run is known to be of these parameters."""
        return workload_sha256(self.model_dump())


# What does not decide the rows: where runs lie, when engines start, how long runs may take, how
# rows are judged.
JUDGING = {
    "runs",
    "reuse",
    "overlap_starts",
    "timeout_s",
    "near_tie_margin",
    "max_set_aside",
    "max_logprob_diff",
    "max_mean_logprob_diff",
    "max_policy_diff",
    "max_gap_increase",
    "vocabulary_tokens",
    "min_cut_groups",
    "thresholds_from",
}


def workload_sha256(values: dict[str, Any]) -> str:
    """SHA-256 of what decides the rows among the values of all parameters."""
    workload = {name: value for name, value in values.items() if name not in JUDGING}
    return hashlib.sha256(json.dumps(workload, sort_keys=True).encode()).hexdigest()


def validate(values: dict[str, Any], source: str) -> Params:
    """Parameters of a mapping.

    Raises UsageError with `source`, the parameter, and the nearest right one of a misspelt one.
    """
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        messages = [f"{source}: {_message(details)}" for details in error.errors()]
        raise UsageError("\n".join(messages)) from None


def _message(details: ErrorDetails) -> str:
    place = ".".join(map(str, details["loc"]))
    if details["type"] == "extra_forbidden":
        near = difflib.get_close_matches(place, Params.model_fields, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"unknown parameter {place!r}{hint}"
    message = details["msg"].removeprefix("Value error, ")
    return f"{place}: {message}, not {details['input']!r}" if place else message


def shipped(name: str) -> Path:
    """A file that comes with the package: inside an installed wheel, or in the checkout."""
    inside = PACKAGE / "shipped" / name
    return inside if inside.exists() else CHECKOUT / name


def profiles() -> dict[str, Path]:
    """The profiles that come with the package, by name."""
    return {file.stem: file for file in sorted(shipped("params").glob("*.yaml"))}


def profile_file(given: str) -> Path:
    """The file of a profile: a path as it is, else a profile of the package by its name.

    Raises UsageError where there is neither.
    """
    file = Path(given)
    # os.path's test is false, and raises nothing, for a name that is too long or out of reach
    if os.path.isfile(file) or file.suffix or len(file.parts) > 1:
        return file
    known = profiles()
    if given not in known:
        raise UsageError(
            f"{given}: no such file, and no profile of that name",
            f"give a file, or one of {', '.join(known)}",
        )
    return known[given]


def read_params(file: Path) -> Params:
    """Read a YAML file that holds what differs from the defaults. Raises UsageError."""
    return validate(read_yaml(file), str(file))


class OnceLoader(yaml.SafeLoader):
    """YAML's safe loader that refuses a key given twice: the first value would be lost unsaid."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Raises YAMLError where a key of the mapping is given twice."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: {key!r} is given twice")
        return super().construct_mapping(node, deep)


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping a YAML file holds. Raises UsageError."""
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), Loader=OnceLoader)
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror}", "give a file such as params/smoke.yaml"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    if values is not None and not isinstance(values, dict):
        kind = type(values).__name__
        raise UsageError(f"{file}: a mapping of parameters is wanted, not a {kind}")
    return values or {}
