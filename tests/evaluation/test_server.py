"""A server is measured as a client sees it; what it says of drafting is read."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from blockdraft.errors import ConfigError, UserError
from blockdraft.evaluation.benchmark import Settings
from blockdraft.evaluation.evaluate import evaluate
from blockdraft.evaluation.server_client import ServerEngine, server_engines
from blockdraft.evaluation.server_metrics import (
    ServerCounts,
    add_server_counts,
    counts_of_reply,
    parse_metrics,
)
from blockdraft.types import SamplingParams
from tests.evaluation.runs import out_in, prompts, task


class FakeServer(ThreadingHTTPServer):
    """Streams a few words to every request and says they are 9 tokens: one of its prompt, two
    cycles that accept 2 of 3 drafts, and two that draft nothing, which its counters leave out."""

    daemon_threads = True

    def __init__(self, **options: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.options = {"metrics": True, "usage": True, "pause_s": 0.0, "status": 200, "word": "w"}
        self.options |= options
        self.asked: list[dict[str, Any]] = []
        self.num_now = self.most_at_once = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(json.dumps({"data": [{"id": "toy"}]}))
        elif self.path == "/metrics" and self.server.options["metrics"]:
            n = len(self.server.asked) * 2
            self._send(
                "# HELP vllm:spec_decode_num_drafts_total Drafts.\n"
                f'vllm:spec_decode_num_drafts_total{{engine="0"}} {n}.0\n'
                f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {3 * n}.0\n'
                f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {2 * n}.0\n'
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {n}\n'
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="1"}} {n}\n'
                'vllm:other{le="+Inf"} 3\n'
            )
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server, options = self.server, self.server.options
        with server.lock:
            server.asked.append({**body, "key": self.headers.get("Authorization")})
            server.num_now += 1
            server.most_at_once = max(server.most_at_once, server.num_now)
        try:
            if options["status"] != 200:
                self._send(json.dumps({"error": {"message": "no such\nmodel"}}), options["status"])
                return
            self._send("".join(self._pieces(options)), kind="text/event-stream")
        finally:
            with server.lock:
                server.num_now -= 1

    def _pieces(self, options: dict[str, Any]) -> Iterator[str]:
        for i in range(4):
            time.sleep(options["pause_s"])
            delta = {"role": "assistant", "content": "" if i == 0 else f" {options['word']}{i}"}
            yield self._data({"choices": [{"delta": delta, "finish_reason": None}]})
        yield self._data({"choices": [{"delta": {}, "finish_reason": "length"}]})
        usage = {"prompt_tokens": 5, "completion_tokens": 9}
        if options["usage"]:
            yield self._data({"choices": [], "usage": usage, **options.get("last", {})})
        yield "data: [DONE]\n\n"

    def _data(self, piece: dict[str, Any]) -> str:
        return f"data: {json.dumps(piece)}\n\n"

    def _send(self, text: str, status: int = 200, kind: str = "application/json") -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def serve() -> Iterator[Any]:
    running: list[FakeServer] = []

    def start(**options: Any) -> FakeServer:
        server = FakeServer(**options)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def test_an_answer_as_a_client_sees_it(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server = serve()
    params = SamplingParams(max_tokens=9, temperature=0.5, top_k=7, top_p=0.9, seed=3)
    run = ServerEngine(server.url).run(prompts(1, turns=2), [params], 1)
    first, second = run.answers
    assert (first.text, first.num_tokens, first.prompt_tokens) == (" w1 w2 w3", 9, 5)
    assert (first.finish_reason, first.turn, second.turn) == ("length", 0, 1)
    assert first.cycles is None
    assert first.ttft_s is not None
    assert len(first.gaps_s) == 2
    one, two = server.asked
    assert one["model"] == "toy"
    fields = ("max_tokens", "temperature", "top_k", "top_p", "seed", "stream", "key")
    assert [one[key] for key in fields] == [9, 0.5, 7, 0.9, 3, True, "Bearer secret"]
    assert [message["role"] for message in two["messages"]] == ["user", "assistant", "user"]
    assert two["messages"][1]["content"] == first.text
    # What the counters gained during the run: two answers of 2 cycles that drafted.
    assert run.server_counts == ServerCounts(
        drafted=12, accepted=8, cycles=4, accepted_by_position=(4, 4)
    )


def test_requests_run_at_once(serve: Any) -> None:
    server = serve(pause_s=0.02)
    ServerEngine(server.url).run(prompts(5), [SamplingParams(max_tokens=9)] * 5, 3)
    assert server.most_at_once == 3


def test_two_servers_are_compared(serve: Any, tmp_path: Path) -> None:
    plain, spec = serve(pause_s=0.02, metrics=False), serve()
    engines = server_engines(f"plain={plain.url},spec={spec.url}")
    settings = Settings(max_tokens=9)
    result = evaluate(
        engines, [task(3)], settings, out_in(tmp_path), must_be_equal=False, log=lambda _: None
    )
    rows = {row["method"]: row for row in result["rows"]}
    assert rows["spec"]["speedup"] > 1.5
    assert (rows["spec"]["cycles"], rows["spec"]["tau_pooled"]) == (3 * 4, 2.0)
    assert rows["spec"]["tau"] is None
    assert rows["spec"]["accepted_by_position"] == (6, 6)
    assert rows["plain"]["tau_pooled"] is None
    assert rows["spec"]["divergence_rate"] == 0.0
    assert json.loads(out_in(tmp_path).read_text())["provenance"]["server"]["model"] == "toy"


def test_texts_are_compared_where_there_are_no_tokens(serve: Any, tmp_path: Path) -> None:
    engines = server_engines(f"plain={serve().url},spec={serve(word='v').url}")
    result = evaluate(
        engines,
        [task(2)],
        Settings(max_tokens=9),
        out_in(tmp_path),
        must_be_equal=False,
        log=lambda _: None,
    )
    assert [row["divergence_rate"] for row in result["rows"]] == [0.0, 1.0]


def test_counts_of_replies(serve: Any) -> None:
    timings = {"timings": {"draft_n": 10, "draft_n_accepted": 7}}
    server = serve(metrics=False, last=timings)
    run = ServerEngine(server.url).run(prompts(2), [SamplingParams(max_tokens=9)] * 2, 1)
    assert run.server_counts == ServerCounts(drafted=20, accepted=14)
    details = {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 1}
    reply = {"usage": {"completion_tokens_details": details}}
    assert counts_of_reply(reply) == ServerCounts(drafted=4, accepted=3)
    assert counts_of_reply({"usage": {"completion_tokens": 3}}) is None
    assert counts_of_reply({"usage": None, "timings": None}) is None


def test_metrics_pages() -> None:
    assert parse_metrics("python_info 1\n") is None
    two_engines = "".join(
        f'vllm:spec_decode_num_{name}_total{{engine="{i}"}} {value}\n'
        for i in range(2)
        for name, value in (("drafts", 5), ("draft_tokens", 1.5e1), ("accepted_tokens", 7))
    )
    assert parse_metrics(two_engines) == ServerCounts(drafted=30, accepted=14, cycles=10)


def test_server_counts_add_up() -> None:
    one = ServerCounts(drafted=6, accepted=4, cycles=2, accepted_by_position=(2, 2))
    two = ServerCounts(drafted=3, accepted=0, cycles=1, accepted_by_position=(0,))
    added = ServerCounts(drafted=9, accepted=4, cycles=3, accepted_by_position=(2, 2))
    assert add_server_counts([one, two]) == added
    assert added.since(one) == ServerCounts(
        drafted=3, accepted=0, cycles=1, accepted_by_position=(0, 0)
    )
    assert add_server_counts([one, ServerCounts(drafted=1, accepted=1)]).cycles is None  # type: ignore[union-attr]
    assert add_server_counts([]) is None


def test_what_servers_refuse_is_one_line(serve: Any) -> None:
    server = serve(status=400)
    engine = ServerEngine(server.url, "other")
    with pytest.raises(UserError, match=r"/chat/completions answers 400: no such$"):
        engine.run(prompts(1), [SamplingParams(max_tokens=9)], 1)


def test_pieces_are_not_taken_for_tokens(serve: Any) -> None:
    engine = ServerEngine(serve(usage=False).url)
    with pytest.raises(UserError, match=r"/v1 does not say how many tokens an answer has.*usage"):
        engine.run(prompts(1), [SamplingParams(max_tokens=9)], 1)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"127.0.0.1:9/v1/models does not list models"):
        ServerEngine("http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match="must begin with http"):
        ServerEngine("localhost:8000/v1")


def test_names_of_servers(serve: Any) -> None:
    url = serve().url
    assert list(server_engines(url)) == ["server"]
    assert list(server_engines(f"{url}?a=b", "m")) == ["server"]
    with pytest.raises(ConfigError, match="names 'a' twice"):
        server_engines(f"a={url},a={url}")
