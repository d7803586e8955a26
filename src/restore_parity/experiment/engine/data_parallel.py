"""vLLM's data parallelism in the manner of its LLMEngine, which is one rank.

vLLM's AsyncLLM starts all ranks and balances the requests.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any


class Ranks:
    """Every rank of `data_parallel_size`, each in a process of its own.

    A request goes where vLLM's balancer sends it.
    """

    def __init__(self, **args: Any):
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._loop = asyncio.new_event_loop()
        self._outputs: asyncio.Queue[Any] = asyncio.Queue()  # outputs and exceptions
        self._followed: set[asyncio.Task[None]] = set()  # a loop alone does not keep a task

        async def start() -> AsyncLLM:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**args))

        self._llm = self._loop.run_until_complete(start())
        self.vllm_config = self._llm.vllm_config

    def add_request(self, request_id: str, prompt: Any, sampling: Any) -> None:
        """Request what LLMEngine's method of this name does."""
        outputs = self._llm.generate(prompt, sampling, request_id)
        task = self._loop.create_task(self._follow(outputs))
        self._followed.add(task)
        task.add_done_callback(self._followed.discard)

    async def _follow(self, outputs: AsyncGenerator[Any, None]) -> None:
        try:
            async for output in outputs:
                self._outputs.put_nowait(output)
        except Exception as error:  # that of a rank that died, too
            self._outputs.put_nowait(error)

    def step(self) -> list[Any]:
        """Wait for an output of any rank, and return all that have come by then.

        Raises the exception that ended a rank.
        """
        came = [self._loop.run_until_complete(self._outputs.get())]
        while not self._outputs.empty():
            came.append(self._outputs.get_nowait())
        for output in came:
            if isinstance(output, Exception):
                raise output
        return came
