"""What is measured, on which engines, and the lines of the report it fills."""

from __future__ import annotations

from side_by_side import vllm
from side_by_side.ours import Headrace
from side_by_side.process import PeerError
from side_by_side.work import Case, Engine, Figures, Load, Measure, Row, Run

SMOL, QWEN_SMALL, QWEN_LARGE = "smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"
BATCHES = (1, 4, 8, 16, 32)
DEPTH = 4096


def throughput(model: str, *batches: int) -> Measure:
    return lambda engine, run: engine.throughput(model, batches, run)


def long_prompt(model: str, *batches: int) -> Measure:
    """A prompt of 512 tokens and one sequence, then the batches."""

    def measure(engine: Engine, run: Run) -> Figures:
        figures = engine.long_prompt(model, run)
        return figures | engine.throughput(model, batches, run) if batches else figures

    return measure


def at_depth(model: str, *batches: int) -> Measure:
    return lambda engine, run: engine.at_depth(model, DEPTH, batches, run)


def speculation(model: str) -> Measure:
    def measure(engine: Engine, run: Run) -> Figures:
        assert isinstance(engine, Headrace), "a case of ours alone"
        return engine.speculation(model, run)

    return measure


def http(model: str, load: Load) -> Measure:
    def measure(engine: Engine, run: Run) -> Figures:
        with engine.serving(model, load, run) as address:
            # What is compiled or allocated at the first request is not what is asked here.
            few = Load(4, 4, 16, 8)
            vllm.measure_server(address, model, few, run)
            figures = vllm.measure_server(address, model, load, run)
        if figures["failed"] == load.requests:
            raise PeerError("every request failed")
        return figures

    return measure


def _decode(*batches: int) -> tuple[Row, ...]:
    return tuple(Row(f"decode, batch {batch}", f"decode {batch}") for batch in batches)


SERVER_ROWS = (
    Row("output", "output tok/s"),
    Row("requests", "requests/s", "1/s"),
    Row("mean TTFT", "mean TTFT ms", "ms", lower_is_better=True),
    Row("p99 TTFT", "p99 TTFT ms", "ms", lower_is_better=True),
    Row("mean TPOT", "mean TPOT ms", "ms", lower_is_better=True),
)

CASES = (
    Case(
        "smollm2",
        "SmolLM2-135M Q4_1, prompts of 137 tokens, 64 tokens each",
        ("headrace", "llama.cpp", "OpenVINO", "vLLM"),
        (
            Row("prefill, 1 prompt", "prefill 1"),
            Row("prefill, 32 prompts", "prefill 32"),
            *_decode(*BATCHES),
        ),
        throughput(SMOL, *BATCHES),
    ),
    Case(
        "avx2",
        "The same, Headrace held to AVX2, the peer as it is",
        ("headrace", "llama.cpp"),
        (Row("prefill, 32 prompts", "prefill 32"), *_decode(1, 32)),
        throughput(SMOL, 1, 32),
        isa="avx2",
    ),
    Case(
        "portable",
        "The same, Headrace held to its portable kernels, the peer as it is",
        ("headrace", "llama.cpp"),
        (Row("prefill, 32 prompts", "prefill 32"), *_decode(1, 32)),
        throughput(SMOL, 1, 32),
        isa="portable",
        default=False,
    ),
    Case(
        "qwen-0.5b",
        "Qwen2.5-Coder-0.5B Q4_K_M",
        ("headrace", "llama.cpp"),
        (
            Row("prefill, 512 tokens", "prefill"),
            Row("decode, batch 1", "decode"),
            Row("decode, batch 32", "decode 32"),
        ),
        long_prompt(QWEN_SMALL, 32),
    ),
    Case(
        "qwen-1.5b",
        "Qwen2.5-Coder-1.5B Q4_K_M",
        ("headrace", "llama.cpp"),
        (Row("prefill, 512 tokens", "prefill"), Row("decode, batch 1", "decode")),
        long_prompt(QWEN_LARGE),
    ),
    Case(
        "speculation",
        "Qwen2.5-Coder-1.5B Q4_K_M with prompt lookup, HumanEval's 164 prompts, 256 greedy tokens each",
        ("headrace",),
        (
            Row("decode, plain", "plain"),
            Row("decode, speculating", "speculating"),
            Row("ratio", "speedup", "times"),
        ),
        speculation(QWEN_LARGE),
        rounds=1,
        seconds=7200.0,
        default=False,  # it takes half an hour
    ),
    Case(
        "depth",
        f"SmolLM2-135M Q4_1 behind {DEPTH} tokens of context",
        ("headrace", "llama.cpp"),
        _decode(1, 8),
        at_depth(SMOL, 1, 8),
        rounds=1,  # filling the cache takes llama.cpp minutes
        seconds=900.0,
    ),
    Case(
        "http",
        "HTTP, SmolLM2-135M Q4_1: 64 requests of 256 random tokens, 64 tokens each, 16 at a time",
        ("headrace", "llama.cpp", "vLLM"),
        SERVER_ROWS,
        http(SMOL, Load(requests=64, concurrency=16, own_tokens=256, output_tokens=64)),
    ),
    Case(
        "http-shared",
        "HTTP, SmolLM2-135M Q4_1: 64 requests of 1024 shared and 64 own tokens, 64 tokens each, 16 at a time",
        ("headrace", "llama.cpp"),
        SERVER_ROWS,
        http(SMOL, Load(requests=64, concurrency=16, own_tokens=64, output_tokens=64, shared_tokens=1024)),
    ),
)
