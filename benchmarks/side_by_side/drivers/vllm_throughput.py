"""Throughput of vLLM; runs in its environment, work on standard input."""

import time

import workload
from vllm import LLM, SamplingParams


def prepare(work: dict) -> workload.Generate:
    llm = LLM(
        work["model"],
        dtype="bfloat16",
        max_model_len=4096,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
    )

    def generate(prompts: list[str], new_tokens: int) -> tuple[float, int]:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start, sum(len(output.prompt_token_ids) for output in outputs)

    return generate


if __name__ == "__main__":
    workload.run(prepare)
