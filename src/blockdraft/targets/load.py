"""From a name to a target ready to run, with its tokenizer."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blockdraft.errors import CheckpointError, ConfigError, UnsupportedError
from blockdraft.kernels.choose import choose_backend, choose_kernels
from blockdraft.kernels.grouped_weight import GroupedWeight
from blockdraft.targets.base import Target
from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.decoder import DecoderTarget
from blockdraft.targets.exact import ExactTarget
from blockdraft.targets.sources import SourceFiles, load_grouped_weights, load_weights, resolve
from blockdraft.targets.tokenizer import TextCodec
from blockdraft.types import ROUNDED_FROM, TargetInfo

if TYPE_CHECKING:
    from blockdraft.targets.native import NativeTarget

Log = Callable[[str], None]

#: What can be asked of the weights by name: the matrices rounded to 8 bits, or expanded to bfloat16
#: in memory where they would be read as the file holds them.
WEIGHTS = ("int8", "bfloat16")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class LoadedTarget:
    """A target and its text codec; `kernels` names what its layers run on."""

    target: Target
    codec: TextCodec
    kernels: str

    @property
    def weights(self) -> str:
        """Numbers of the target's matrices."""
        info = self.target.info
        return str(info.extra.get("weights", _dtype_name(info.dtype)))

    @property
    def weights_in_memory(self) -> str:
        """How the matrices lie in memory; kernels expand groups of integers to their numbers."""
        formats = getattr(self.target, "weight_formats", (self.weights,))
        return " and ".join(formats)


def load_target(
    name: str,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    kernels: str = "auto",
    weights: str | None = None,
    exact: bool = False,
    log: Log,
) -> LoadedTarget:
    """Find, check and load a target.

    With `weights="int8"` its matrices are rounded to 8 bits with one scale an output, and the
    quantised model is the target: it has a fingerprint of its own. With `weights="bfloat16"` they
    are expanded at once, where native kernels would read them as a GGUF file holds them and expand
    them when they are used: the same target, the same bits, more bytes to read.

    Models of the Llama, Mistral, Qwen2 and Qwen3 families run on our own decoder, all others on
    transformers.

    Raises: UserError of the kind that fits: no such model, damaged files, not supported.
    """
    place = find_device(device)
    number_type = find_dtype(dtype, place)
    if weights is not None:
        _check_weights(weights, number_type, place, kernels)
    source = resolve(name, progress=log)
    codec = source.codec()
    why_not = _why_not_decoder(source)
    if why_not is not None:
        return _load_other(source, why_not, number_type, place, kernels, weights, exact, log)
    if weights == "int8":
        native = _load_quantised(source, number_type, place, log)
        return LoadedTarget(native, codec, f"native-{native.native_pass.isa}")
    target, name_of_kernels = _load_decoder(
        source, number_type, place, kernels, log, expands=weights == "bfloat16"
    )
    if exact and isinstance(target, DecoderTarget):  # native kernels are exact as they are
        target, name_of_kernels = ExactTarget(target), f"{name_of_kernels}-exact"
    return LoadedTarget(target, codec, name_of_kernels)


def _load_other(
    source: SourceFiles,
    why_not: str,
    dtype: torch.dtype,
    device: torch.device,
    kernels: str,
    weights: str | None,
    exact: bool,
    log: Log,
) -> LoadedTarget:
    """A model that our own decoder does not run, on transformers."""
    if exact:
        raise UnsupportedError(
            f"--exact needs our own decoder, which does not run {source.name} ({why_not}); "
            "use --dtype float32 instead"
        )
    if weights == "int8":
        raise UnsupportedError(
            f"weights {weights!r} need our own decoder, which does not run {source.name} "
            f"({why_not}); leave weights out"
        )
    if kernels != "auto":
        raise UnsupportedError(
            f"kernels {kernels!r} need our own decoder, which does not run {source.name} "
            f"({why_not}); leave kernels at 'auto'"
        )
    log(f"{source.name}: runs on transformers ({why_not})")
    # Imported late: transformers takes seconds, and most targets do not need it.
    from blockdraft.targets.transformers import load_transformers_target

    other = load_transformers_target(source, dtype, device)
    if "context_note" in other.info.extra:
        log(str(other.info.extra["context_note"]))
    return LoadedTarget(other, source.codec(), "transformers")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_weights(weights: str, dtype: torch.dtype, device: torch.device, kernels: str) -> None:
    if weights not in WEIGHTS:
        raise ConfigError(
            f"weights {weights!r} are not offered; choose {' or '.join(WEIGHTS)}, or leave the "
            "option out for the target's own"
        )
    if weights == "int8" and kernels not in ("auto", "native"):
        raise ConfigError(f"weights {weights!r} need the native kernels, not {kernels!r}")
    if dtype != torch.bfloat16 or (weights == "int8" and device.type != "cpu"):
        raise ConfigError(
            f"weights {weights!r} are computed with in bfloat16"
            f"{' on a CPU' if weights == 'int8' else ''}, not in {_dtype_name(dtype)} on "
            f"{device.type}; give --dtype bfloat16"
        )


def _load_quantised(
    source: SourceFiles, dtype: torch.dtype, device: torch.device, log: Log
) -> NativeTarget:
    """The model of int8 matrices. Its fingerprint is made of the source's and the format."""
    from blockdraft.targets.native import NativeTarget

    config = DecoderConfig.from_dict(source.config)
    try:
        choose_backend(dtype, device, "native", config.head_dim, log)
    except ConfigError as error:
        reason = str(error).removeprefix("kernels 'native' cannot run here: ")
        raise ConfigError(f"weights 'int8' need the native kernels: {reason}") from error
    weights = load_weights(source, dtype=dtype)
    info = source_info(source, dtype, _count(weights))
    name = hashlib.sha256(f"{info.fingerprint} int8".encode()).hexdigest()
    extra = {**info.extra, "weights": "int8", ROUNDED_FROM: info.fingerprint}
    info = dataclasses.replace(info, fingerprint=name, extra=extra)
    return NativeTarget(config, weights, info, torch.int8)


def _count(weights: Mapping[str, Tensor] | Mapping[str, Tensor | GroupedWeight]) -> int:
    return sum(weight.numel() for weight in weights.values())


def _why_not_decoder(source: SourceFiles) -> str | None:
    """Why our own decoder does not run a model; None if it does."""
    try:
        DecoderConfig.from_dict(source.config)
    except UnsupportedError as error:
        return str(error)
    return None


def _load_decoder(
    source: SourceFiles,
    dtype: torch.dtype,
    device: torch.device,
    kernels: str,
    log: Log,
    expands: bool,
) -> tuple[Target, str]:
    config = DecoderConfig.from_dict(source.config)
    backend = choose_backend(dtype, device, kernels, config.head_dim, log)
    if backend == "native":
        from blockdraft.targets.native import NativeTarget, expands_quickly

        is_grouped = expands_quickly() and not expands
        load = load_grouped_weights if is_grouped else load_weights
        loaded = load(source, dtype=dtype)
        native = NativeTarget(config, loaded, source_info(source, dtype, _count(loaded)))
        return native, f"native-{native.native_pass.isa}"
    weights = load_weights(source, dtype=dtype)
    info = source_info(source, dtype, _count(weights))
    packed = choose_kernels(dtype, device, backend)
    return DecoderTarget(config, weights, packed, info, device), packed.name


def source_info(
    source: SourceFiles, dtype: torch.dtype = torch.float32, num_parameters: int = 0
) -> TargetInfo:
    """What a target will be, from its files alone.

    Raises: CheckpointError naming a key of the config that is missing or no positive number.
    """
    sizes = {}
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"):
        value = source.config.get(key)
        if not isinstance(value, int) or value < 1:
            raise CheckpointError(
                f"{source.name}: {key} is {value!r} in its config; it must be a positive number"
            )
        sizes[key] = value
    return TargetInfo(
        name=source.name,
        source=source.source,
        fingerprint=source.fingerprint,
        model_type=str(source.config.get("model_type")),
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_size"],
        num_layers=sizes["num_hidden_layers"],
        max_context_len=sizes["max_position_embeddings"],
        end_ids=source.end_ids,
        dtype=dtype,
        num_parameters=num_parameters,
    )


def describe_source(name: str, log: Log) -> dict[str, Any]:
    """Fetch and check a target without loading it; says what it is."""
    source = resolve(name, progress=log)
    config = source.config
    own = _why_not_decoder(source) is None
    return {
        "name": source.name,
        "source": source.source,
        "type": f"{config.get('model_type')} ({'our decoder' if own else 'transformers'})",
        "layers": config.get("num_hidden_layers"),
        "width": config.get("hidden_size"),
        "vocabulary": config.get("vocab_size"),
        "context": config.get("max_position_embeddings"),
        "end ids": ", ".join(map(str, source.end_ids)) or "none",
        "chat template": "yes" if source.chat_template else "no",
        "fingerprint": source.fingerprint,
        "files": ", ".join(str(path) for path in source.weight_paths),
    }


def find_device(name: str) -> torch.device:
    """Raises: ConfigError if there is no such device here."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r} does not exist; use cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for, but no GPU is usable here; use cpu")
    return device


def find_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """The dtype asked for; by default bfloat16 where the hardware computes in it, else float32.

    Raises: ConfigError for another name.
    """
    if name is not None:
        if name not in _DTYPES:
            raise ConfigError(f"dtype {name!r} is not offered; choose {' or '.join(_DTYPES)}")
        return _DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    flags = torch.cpu.get_capabilities()
    native = any(flags.get(flag) for flag in ("avx512_bf16", "amx_bf16", "bf16"))
    return torch.bfloat16 if native else torch.float32
