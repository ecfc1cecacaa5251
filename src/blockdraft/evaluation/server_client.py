"""Answers from an OpenAI-compatible server (vLLM, SGLang, llama.cpp), streamed and timed."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from blockdraft.errors import ConfigError, UserError
from blockdraft.evaluation.answers import Answer, ChunkRun
from blockdraft.evaluation.server_metrics import (
    ServerCounts,
    add_server_counts,
    counts_of_reply,
    parse_metrics,
)
from blockdraft.evaluation.tasks import EvalPrompt
from blockdraft.json_text import parse_json
from blockdraft.types import SamplingParams

#: Sent as the bearer token where it is set.
KEY_VARIABLE = "OPENAI_API_KEY"

_TIMEOUT = httpx.Timeout(600.0, connect=10.0)


class ServerEngine:
    """A server as a method. Its clock is ours: seconds as a client sees them.

    Args:
        base_url: up to and including `/v1`, as OpenAI clients take it.
        model: None asks the server for its first one.
    Raises: UserError if the server does not answer; ConfigError if it has no model.
    """

    def __init__(self, base_url: str, model: str | None = None) -> None:
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base url is {base_url!r}; it must begin with http:// or https://")
        self.base_url = base_url.rstrip("/")
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.Client(headers=headers, timeout=_TIMEOUT, limits=limits)
        self.model = model or self._first_model()

    def describe(self) -> dict[str, Any]:
        """See `Engine`."""
        return {"server": {"base_url": self.base_url, "model": self.model}, "drafter": None}

    def run(
        self, prompts: Sequence[EvalPrompt], params: Sequence[SamplingParams], concurrency: int
    ) -> ChunkRun:
        """See `Engine`. A conversation's turns follow one another in one of the places."""
        before, start = self._metrics(), time.perf_counter()
        with ThreadPoolExecutor(concurrency) as pool:
            found = list(pool.map(self._converse, prompts, params))
        wall, after = time.perf_counter() - start, self._metrics()
        counts = [count for _, counted in found for count in counted]
        drafting = add_server_counts(counts)
        if before is not None and after is not None:
            drafting = after.since(before)
        return ChunkRun(
            answers=tuple(answer for answers, _ in found for answer in answers),
            wall_s=wall,
            phase_s=None,
            num_passes=None,
            server_counts=drafting,
        )

    def _converse(
        self, prompt: EvalPrompt, params: SamplingParams
    ) -> tuple[list[Answer], list[ServerCounts]]:
        chat: list[dict[str, str]] = []
        answers, counted = [], []
        for turn, text in enumerate(prompt.turns):
            chat.append({"role": "user", "content": text})
            answer, counts = self._ask(prompt.id, turn, chat, params)
            chat.append({"role": "assistant", "content": answer.text})
            answers.append(answer)
            counted += [counts] if counts else []
        return answers, counted

    def _ask(
        self, prompt_id: str, turn: int, chat: list[dict[str, str]], params: SamplingParams
    ) -> tuple[Answer, ServerCounts | None]:
        start, arrivals, text, reason = time.perf_counter(), [], "", "stop"
        usage: dict[str, Any] = {}
        counts = None
        for piece in self._stream(chat, params):
            for choice in piece.get("choices") or ():
                delta = choice.get("delta") or {}
                new = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
                if new:
                    text += new
                    arrivals.append(time.perf_counter() - start)
                reason = choice.get("finish_reason") or reason
            usage = piece.get("usage") or usage
            counts = counts_of_reply(piece) or counts
        total = time.perf_counter() - start
        if usage.get("completion_tokens") is None:
            # Pieces are no tokens: a server that drafts sends several in one.
            raise UserError(
                f"{self.base_url} does not say how many tokens an answer has, so no speed can be "
                "given; measure a server that sends `usage` with stream_options.include_usage"
            )
        answer = Answer(
            prompt_id=prompt_id,
            turn=turn,
            token_ids=(),
            num_tokens=int(usage["completion_tokens"]),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            text=text,
            finish_reason=reason,
            error=None,
            ttft_s=arrivals[0] if arrivals else None,
            decode_s=total - arrivals[0] if arrivals else 0.0,
            gaps_s=tuple(b - a for a, b in itertools.pairwise(arrivals)),
            cycles=None,
        )
        return answer, counts

    def _stream(
        self, chat: list[dict[str, str]], params: SamplingParams
    ) -> Iterator[dict[str, Any]]:
        """The pieces of a streamed reply."""
        body = {
            "model": self.model,
            "messages": chat,
            "stream": True,
            "stream_options": {"include_usage": True},
            **_sampling(params),
        }
        url = f"{self.base_url}/chat/completions"
        try:
            with self._client.stream("POST", url, json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise UserError(f"{url} answers {response.status_code}: {_reason(response)}")
                for line in response.iter_lines():
                    data = line.removeprefix("data:").strip()
                    if line.startswith("data:") and data != "[DONE]":
                        yield parse_json(data)
        except (httpx.HTTPError, ValueError) as error:
            raise UserError(f"{url} failed: {error or type(error).__name__}") from error

    def _first_model(self) -> str:
        url = f"{self.base_url}/models"
        try:
            response = self._client.get(url)
            response.raise_for_status()
            models = [entry["id"] for entry in response.json()["data"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            reason = str(error).split("\n")[0] or type(error).__name__
            raise UserError(
                f"{url} does not list models ({reason}); check that the server runs, and --base-url"
            ) from error
        if not models:
            raise ConfigError(f"{url} lists no model")
        return str(models[0])

    def _metrics(self) -> ServerCounts | None:
        url = self.base_url.removesuffix("/v1") + "/metrics"
        try:
            response = self._client.get(url)
        except httpx.HTTPError:  # not every server has the page, and none needs it
            return None
        return parse_metrics(response.text) if response.status_code == 200 else None


def _sampling(params: SamplingParams) -> dict[str, Any]:
    """Fields of the request; those that only some servers know are sent where they matter."""
    fields: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "seed": params.seed,
    }
    if params.top_p != 1.0:
        fields["top_p"] = params.top_p
    if params.top_k:
        fields["top_k"] = params.top_k
    return fields


def _reason(response: httpx.Response) -> str:
    try:
        error = response.json().get("error", response.text)
        message = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        message = response.text
    return (str(message).strip().splitlines() or ["no reason given"])[0]


def server_engines(base_url: str, model: str | None = None) -> dict[str, Any]:
    """Methods of `--base-url`: one URL, or `name=URL` parts separated by commas.

    Raises: ConfigError for two of one name.
    """
    engines: dict[str, Any] = {}
    for part in base_url.split(","):
        is_named = "=" in part and not part.startswith(("http://", "https://"))
        name, url = part.split("=", 1) if is_named else ("server", part)
        if name in engines:
            raise ConfigError(f"--base-url names {name!r} twice; write name=URL for each")
        engines[name] = ServerEngine(url, model)
    return engines
