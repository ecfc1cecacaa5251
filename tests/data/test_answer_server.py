"""Answers of an OpenAI-compatible server: what is sent, what comes back, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from blockdraft.data import answer_server
from blockdraft.data.answer_server import ServerSource
from blockdraft.data.answer_sources import Asked
from blockdraft.data.answers import read_answers
from blockdraft.data.prompts import Sample
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.data.regenerate import regenerate
from blockdraft.engine.llm import LLM
from blockdraft.errors import ConfigError, UnsupportedError, UserError
from blockdraft.types import SamplingParams
from tests.data.conftest import PROMPTS, MakeRecipe, silent

Handler = Callable[[httpx.Request], httpx.Response]

URL = "http://host/v1"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_server, "_FIRST_WAIT_S", 0.0)


@pytest.fixture
def make_source(make_recipe: MakeRecipe) -> Callable[..., ServerSource]:
    def make(handler: Handler, **server: Any) -> ServerSource:
        server = {"base_url": URL, "model": "m", "concurrency": 3, **server}
        server = {key: value for key, value in server.items() if value is not None}
        recipe = make_recipe(features={}, server=server)
        client = httpx.Client(transport=httpx.MockTransport(handler))
        return ServerSource(recipe, silent, client)

    return make


def choice(**fields: object) -> httpx.Response:
    return httpx.Response(200, json={"choices": [{"finish_reason": "length", **fields}]})


ASKED = Asked(Sample("p/0@0#0", "p", "x", 0.5), (1, 2, 3))


def test_a_server_that_runs_the_target_gives_the_same_file(
    make_recipe: MakeRecipe, llm: LLM
) -> None:
    """A server that answers as vLLM does, with our engine's tokens: the rows hold those."""
    server = {"base_url": URL, "model": "m", "concurrency": 2}
    recipe: AnswersRecipe = make_recipe(
        features={}, server=server, sources=[{"name": "p", "file": "p.jsonl"}]
    )
    prompts = [llm.loaded.codec.encode_chat([{"role": "user", "content": t}]) for t in PROMPTS]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=10))
    answers = dict(zip(map(tuple, prompts), outputs, strict=True))

    def handler(request: httpx.Request) -> httpx.Response:
        output = answers[tuple(json.loads(request.content)["prompt"])]
        return choice(token_ids=list(output.token_ids), finish_reason=output.finish_reason)

    client = httpx.Client(transport=httpx.MockTransport(handler))
    source = ServerSource(recipe, silent, client)
    assert regenerate(recipe, log=silent, source=source).num_answered == 12
    for row in read_answers(recipe.out / "answers.jsonl"):
        output = answers[row.prompt_ids]
        assert (row.token_ids, row.finish_reason) == (output.token_ids, output.finish_reason)


def test_what_is_sent(make_source: Callable[..., ServerSource]) -> None:
    sent = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append((str(request.url), json.loads(request.content)))
        return choice(token_ids=[5])

    [reply] = make_source(handler).replies([ASKED])
    assert (reply.token_ids, reply.finish_reason, reply.error) == ((5,), "length", None)
    [(url, body)] = sent
    assert url == f"{URL}/completions"
    assert (body["model"], body["prompt"], body["temperature"]) == ("m", [1, 2, 3], 0.5)
    assert (body["max_tokens"], body["return_token_ids"]) == (10, True)
    assert 0 <= body["seed"] < 2**31


def test_many_are_under_way_and_each_comes_once(make_source: Callable[..., ServerSource]) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return choice(token_ids=json.loads(request.content)["prompt"])

    asked = [Asked(ASKED.sample, (i,)) for i in range(50)]
    replies = list(make_source(handler).replies(asked))
    assert sorted(reply.token_ids for reply in replies) == [(i,) for i in range(50)]
    assert all(reply.token_ids == reply.asked.prompt_ids for reply in replies)


def test_text_alone_is_encoded_and_ended(make_source: Callable[..., ServerSource]) -> None:
    source = make_source(lambda _: choice(text="hello all", finish_reason="stop"))
    [end_id] = source.info.end_ids
    [reply] = source.replies([ASKED])
    assert reply.token_ids[-1] == end_id
    assert source.info.codec.decode(reply.token_ids[:-1]) == "hello all"


def test_text_that_cannot_be_encoded_back_is_refused(
    make_source: Callable[..., ServerSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(lambda _: choice(text="hello"))
    monkeypatch.setattr(source.info.codec, "decode", lambda *_, **__: "hullo")
    with pytest.raises(UnsupportedError, match="use a server that returns token ids"):
        list(source.replies([ASKED]))


def test_an_unknown_end_token_is_refused(make_source: Callable[..., ServerSource]) -> None:
    import dataclasses

    source = make_source(lambda _: choice(token_ids=[5], finish_reason="stop"))
    source.info = dataclasses.replace(source.info, end_ids=(7, 8))
    with pytest.raises(UnsupportedError, match=r"with which of the target's end tokens \[7, 8\]"):
        list(source.replies([ASKED]))
    named = make_source(lambda _: choice(token_ids=[5], finish_reason="stop", stop_reason=8))
    named.info = source.info
    assert next(iter(named.replies([ASKED]))).token_ids == (5, 8)


def test_passing_trouble_is_waited_out(make_source: Callable[..., ServerSource]) -> None:
    troubles = [httpx.Response(503), httpx.Response(429), httpx.ConnectError("refused")]

    def handler(_: httpx.Request) -> httpx.Response:
        if troubles:
            trouble = troubles.pop()
            if isinstance(trouble, Exception):
                raise trouble
            return trouble
        return choice(token_ids=[5])

    assert next(iter(make_source(handler).replies([ASKED]))).token_ids == (5,)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (httpx.Response(503, text="busy"), "answered 503: busy"),
        (httpx.Response(400, text="too long"), "answered 400: too long"),
        (httpx.Response(200, text="<html>"), "answered with no JSON"),
        (choice(token_ids=[1], finish_reason="abort"), "finish_reason 'abort'"),
    ],
)
def test_an_answer_that_fails_is_told(
    make_source: Callable[..., ServerSource], response: httpx.Response, error: str
) -> None:
    source = make_source(lambda _: response, num_retries=1)
    [reply] = source.replies([ASKED])
    assert reply.error is not None
    assert error in reply.error


def test_a_server_that_is_gone_is_told(make_source: Callable[..., ServerSource]) -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    [reply] = make_source(handler, num_retries=0).replies([ASKED])
    assert reply.error == "refused"


def test_a_wrong_address_or_model_ends_the_run(make_source: Callable[..., ServerSource]) -> None:
    source = make_source(lambda _: httpx.Response(404, text="no such model"))
    with pytest.raises(ConfigError, match=r"answered 404: no such model; look at server"):
        list(source.replies([ASKED]))


@pytest.mark.parametrize(
    ("names", "message"), [([], r"has 0 models"), (["a", "b"], r"has 2 models \(a, b\)")]
)
def test_the_model_is_asked_for(
    make_source: Callable[..., ServerSource], names: list[str], message: str
) -> None:
    def models(*ids: str) -> Handler:
        return lambda _: httpx.Response(200, json={"data": [{"id": name} for name in ids]})

    assert make_source(models("only"), model=None).info.describe["model"] == "only"
    with pytest.raises(ConfigError, match=message):
        make_source(models(*names), model=None)


def test_a_server_that_does_not_answer_is_named(make_source: Callable[..., ServerSource]) -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(UserError, match=r"server\.base_url http://host/v1: refused"):
        make_source(handler, model=None, num_retries=0)
