"""Throughput of OpenVINO GenAI; runs in its environment, work on standard input."""

import time

import openvino_genai
import workload


def prepare(work: dict) -> workload.Generate:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 4  # GiB
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": work["threads"]}
    pipeline = openvino_genai.ContinuousBatchingPipeline(work["model"], scheduler, "CPU", properties)
    tokenizer = pipeline.get_tokenizer()

    def generate(prompts: list[str], new_tokens: int) -> tuple[float, int]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        prompt_tokens = sum(tokenizer.encode(prompt).input_ids.shape[1] for prompt in prompts)
        start = time.perf_counter()
        pipeline.generate(prompts, [config] * len(prompts))
        return time.perf_counter() - start, prompt_tokens

    return generate


if __name__ == "__main__":
    workload.run(prepare)
