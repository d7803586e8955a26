"""vLLM's data parallelism in the manner of its LLMEngine, which is one rank: AsyncLLM starts them all and balances."""

import asyncio
from typing import Any


class Ranks:
    """Every rank of `data_parallel_size`, each in a process of its own; a request goes where vLLM's balancer sends it."""

    def __init__(self, **args: Any):
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._loop = asyncio.new_event_loop()
        self._outputs: asyncio.Queue = asyncio.Queue()
        self._followed: set[asyncio.Task] = set()  # a loop alone does not keep a task

        async def start() -> AsyncLLM:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**args))

        self._llm = self._loop.run_until_complete(start())
        self.vllm_config = self._llm.vllm_config

    def add_request(self, request_id: str, prompt: dict[str, Any], sampling: Any) -> None:
        task = self._loop.create_task(self._follow(self._llm.generate(prompt, sampling, request_id)))
        self._followed.add(task)
        task.add_done_callback(self._followed.discard)

    async def _follow(self, outputs) -> None:
        try:
            async for output in outputs:
                self._outputs.put_nowait(output)
        except Exception as error:  # of a rank that died, too
            self._outputs.put_nowait(error)

    def step(self) -> list[Any]:
        """Wait for an output of any rank; all that have come by then. Raises what a rank failed of."""
        came = [self._loop.run_until_complete(self._outputs.get())]
        while not self._outputs.empty():
            came.append(self._outputs.get_nowait())
        for output in came:
            if isinstance(output, Exception):
                raise output
        return came
