"""What the sections share: engines to start, prompts to ask, and the JSON they write."""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.decode_speed import SUMMARISE
from benchmarks.harness import write_result
from benchmarks.rivals.process import Rival
from blockdraft.errors import ConfigError
from blockdraft.targets.sources import load_weights, resolve

SETS = ("gsm8k", "math500", "humaneval", "mbpp", "mt_bench")


def write_folder(target: str, folder: Path) -> None:
    """The target as a transformers folder in bfloat16, without tokenizer."""
    source = resolve(target)
    weights = load_weights(source, dtype=torch.bfloat16)
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", **source.config}
    (folder / "config.json").write_text(json.dumps(config))


def start_ours(args: argparse.Namespace, stack: ExitStack, *more: str) -> Rival:
    """Our own engine, with more options of `benchmarks.rivals.ours`."""
    rival = Rival("ours", "--target", args.target, *more, threads=args.threads)
    return stack.enter_context(rival)


def start_llama(args: argparse.Namespace, stack: ExitStack) -> Rival:
    """llama.cpp. Raises: ConfigError if its model or its Python is not given."""
    if args.gguf is None or args.llama_python is None:
        raise ConfigError(
            "this section needs --gguf (benchmarks.write_bf16_gguf) and --llama-python"
        )
    return stack.enter_context(_llama(args, args.gguf.resolve()))


def start_llama_on_file(args: argparse.Namespace, stack: ExitStack) -> Rival:
    """llama.cpp on the target's own file: its integers times activations rounded to 8 bits.

    Another computation than the dequantised model's, so its texts may be other ones.

    Raises: ConfigError if its Python is not given, or the target is no GGUF file.
    """
    path, *others = resolve(args.target).weight_paths
    if args.llama_python is None or others or path.suffix != ".gguf":
        raise ConfigError("this section needs --llama-python, and a target out of a GGUF file")
    return stack.enter_context(_llama(args, path, "no-repacking"))


def _llama(args: argparse.Namespace, path: Path, *more: str) -> Rival:
    python, threads = args.llama_python, args.threads
    return Rival("llama", str(path), str(threads), *more, python=python, threads=threads)


def text_ids(args: argparse.Namespace, length: int) -> list[int]:
    """Real text of a given length."""
    text = " ".join([SUMMARISE] * (length // 60 + 1))
    return resolve(args.target).codec().encode(text)[:length]


def first_prompts(args: argparse.Namespace, number: int) -> list[list[int]]:
    """First turns of the five evaluation sets in turns, in $BLOCKDRAFT_DATA/eval."""
    folder = Path(os.environ.get("BLOCKDRAFT_DATA", "../shared/data")) / "eval"
    codec = resolve(args.target).codec()
    turns = zip(*(_first_turns(folder / f"{name}.jsonl") for name in SETS), strict=False)
    chats = ([{"role": "user", "content": text}] for text in itertools.chain.from_iterable(turns))
    return [codec.encode_chat(chat) for chat in itertools.islice(chats, number)]


def _first_turns(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["turns"][0]


def write(args: argparse.Namespace, engines: dict[str, Rival], result: dict[str, Any]) -> None:
    """The JSON of a section: our provenance, what the others are, settings without paths."""
    about = {name: engine.about for name, engine in engines.items()}
    ours = next(engine for engine in engines.values() if engine.name == "ours")
    origin = {key: value for key, value in ours.about.items() if key != "end_ids"}
    others = {name: value for name, value in about.items() if engines[name].name != "ours"}
    paths = ("out", "gguf", "llama_python", "vllm_python")
    settings = {key: value for key, value in vars(args).items() if key not in paths}
    write_result(args.out, {**origin, "rivals": others}, settings, result)
