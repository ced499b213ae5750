"""Puts questions to a model through a real `headrace serve`, and keeps what it answers."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from live_fleet import answers
from live_fleet.answers import Answer
from live_fleet.questions import Question

CONCURRENCY = 32
_SECONDS = 1800.0


def ask_all(
    url: str,
    model: str,
    questions: Sequence[Question],
    path: Path,
    samples: int = 0,
) -> None:
    """Asks what is not in the file yet: greedily, or `samples` times at temperature 0.7, numbered from 1."""
    known = {(answer.question, answer.sample) for answer in answers.read(path)}
    numbers = range(1, samples + 1) if samples else range(1)
    open_ones = [(question, n) for question in questions for n in numbers if (question.name, n) not in known]
    writing = threading.Lock()

    def one(question: Question, sample: int) -> None:
        answer = ask(url, model, question, sample)
        with writing:
            answers.append(path, answer)

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        for asked in [pool.submit(one, question, sample) for question, sample in open_ones]:
            asked.result()


def ask(url: str, model: str, question: Question, sample: int = 0) -> Answer:
    """One answer, with its tokens' log-probabilities."""
    sampling: dict[str, Any] = {"temperature": 0.7, "seed": sample} if sample else {"temperature": 0}
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question.prompt}],
        "max_tokens": question.max_tokens,
        "logprobs": True,
        **sampling,
    }
    begun = time.monotonic()
    reply = post(f"{url}/v1/chat/completions", body)
    choice, usage = reply["choices"][0], reply["usage"]
    content = (choice.get("logprobs") or {}).get("content") or []
    return Answer(
        question.name,
        model,
        sample,
        choice["message"]["content"] or "",
        choice["finish_reason"],
        usage["prompt_tokens"],
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        usage["completion_tokens"],
        round(time.monotonic() - begun, 3),
        [token["token"] for token in content],
        [round(token["logprob"], 4) for token in content],
    )


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the server answers to this, as JSON. Raises urllib.error.HTTPError."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=_SECONDS) as reply:
        read: dict[str, Any] = json.load(reply)
        return read
