"""Answers from an OpenAI-compatible server that runs the target (vLLM, SGLang, llama.cpp).

Prompts go to `/completions` as token ids, encoded here with the target's own template, so that the
server's template does not matter. Token ids come back where the server gives them
(`return_token_ids`, as vLLM does); else its text is encoded again, which is refused where it does
not decode to the same text.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import httpx

from blockdraft.data.answer_sources import Asked, Reply, SourceInfo
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.errors import CheckpointError, ConfigError, UnsupportedError
from blockdraft.targets.load import source_info
from blockdraft.targets.sources import resolve

#: Failures that may pass: too many requests, and trouble behind the server's door.
_PASSING = frozenset({408, 429, 500, 502, 503, 504})

_FIRST_WAIT_S = 0.5


class ServerSource:
    """Asks a server, `concurrency` requests at a time.

    Only the target's tokenizer and config are loaded here. What the server runs cannot be seen
    from outside: it must be the recipe's target.

    Args:
        client: made if not given.
    Raises: ConfigError if the server does not answer or does not know the model.
    """

    def __init__(self, recipe: AnswersRecipe, log: Any, client: httpx.Client | None = None) -> None:
        assert recipe.server is not None
        self._server, self._max_tokens = recipe.server, recipe.max_tokens
        self._client = client or httpx.Client(
            timeout=recipe.server.timeout_s,
            limits=httpx.Limits(max_connections=recipe.server.concurrency),
        )
        files = resolve(recipe.target, progress=log)
        info = source_info(files)
        self._model = recipe.server.model or self._only_model()
        self.info = SourceInfo(
            codec=files.codec(),
            name=info.name,
            fingerprint=info.fingerprint,
            vocab_size=info.vocab_size,
            hidden_size=info.hidden_size,
            num_layers=info.num_layers,
            max_context_len=info.max_context_len,
            end_ids=info.end_ids,
            describe={"server": recipe.server.base_url, "model": self._model},
        )

    def replies(self, asked: Sequence[Asked]) -> Iterator[Reply]:
        """As `AnswerSource.replies`.

        Raises: UnsupportedError or ConfigError if the server refuses what every request needs.
        """
        todo = iter(asked)
        with ThreadPoolExecutor(self._server.concurrency) as pool:
            running: set[Future[Reply]] = set()
            try:
                while True:
                    for item in todo:
                        running.add(pool.submit(self._reply, item))
                        if len(running) >= 2 * self._server.concurrency:
                            break
                    if not running:
                        return
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
            finally:
                for future in running:
                    future.cancel()

    def _reply(self, asked: Asked) -> Reply:
        body = {
            "model": self._model,
            "prompt": list(asked.prompt_ids),
            "max_tokens": self._max_tokens,
            "temperature": asked.sample.temperature,
            "seed": asked.sample.seed % 2**31,  # servers take 32 signed bits
            "return_token_ids": True,
        }
        try:
            answer = self._call("POST", "/completions", body)
        except (httpx.HTTPError, CheckpointError) as error:
            return Reply(asked=asked, token_ids=(), finish_reason="error", error=str(error))
        choice = answer["choices"][0]
        reason = choice.get("finish_reason")
        if reason not in ("stop", "length"):
            return Reply(
                asked=asked,
                token_ids=(),
                finish_reason="error",
                error=f"the server ended the answer with finish_reason {reason!r}",
            )
        return Reply(asked=asked, token_ids=self._token_ids(choice, reason), finish_reason=reason)

    def _token_ids(self, choice: Mapping[str, Any], reason: str) -> tuple[int, ...]:
        """The answer's tokens, its end token at the end where it stopped."""
        ids = choice.get("token_ids")
        ids = self._encode(str(choice["text"])) if ids is None else [int(i) for i in ids]
        if reason == "stop" and (not ids or ids[-1] not in self.info.end_ids):
            ids.append(self._end_id(choice))
        return tuple(ids)

    def _encode(self, text: str) -> list[int]:
        codec = self.info.codec
        ids = codec.tokenizer.encode(text, add_special_tokens=False).ids
        if codec.decode(ids, skip_special=False) != text:
            raise UnsupportedError(
                f"{self._server.base_url} gives text alone, and this target's tokenizer does not "
                "give it back unchanged; use a server that returns token ids (return_token_ids)"
            )
        return list(ids)

    def _end_id(self, choice: Mapping[str, Any]) -> int:
        named = choice.get("stop_reason")
        if isinstance(named, int) and named in self.info.end_ids:
            return named
        if len(self.info.end_ids) == 1:
            return self.info.end_ids[0]
        raise UnsupportedError(
            f"{self._server.base_url} does not say with which of the target's end tokens "
            f"{list(self.info.end_ids)} an answer ended; use a server that returns token ids"
        )

    def _only_model(self) -> str:
        try:
            names = [str(entry["id"]) for entry in self._call("GET", "/models")["data"]]
        except (httpx.HTTPError, CheckpointError) as error:
            raise ConfigError(f"server.base_url {self._server.base_url}: {error}") from error
        if len(names) != 1:
            raise ConfigError(
                f"{self._server.base_url} has {len(names)} models ({', '.join(names)}); "
                "name one in server.model"
            )
        return names[0]

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One request, repeated while it fails for a passing reason."""
        url = self._server.base_url.rstrip("/") + path
        for attempt in range(self._server.num_retries + 1):
            is_last = attempt == self._server.num_retries
            try:
                response = self._client.request(method, url, json=body)
            except httpx.TransportError:
                if is_last:
                    raise
            else:
                if response.is_success:
                    return _json(response)
                if response.status_code not in _PASSING or is_last:
                    raise _refusal(response)
            time.sleep(_FIRST_WAIT_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise CheckpointError(f"{response.url} answered with no JSON") from error


def _refusal(response: httpx.Response) -> Exception:
    """A request that all others are like is the user's to change; the rest is this answer's."""
    text = f"{response.url} answered {response.status_code}: {response.text[:200].strip()}"
    if response.status_code in (401, 403, 404):
        return ConfigError(f"{text}; look at server.base_url and server.model")
    return CheckpointError(text)
