"""The default target as our engine runs it, in bfloat16, as a GGUF file that llama.cpp loads.

    python -m benchmarks.write_bf16_gguf --out smollm2-bf16.gguf

Every tensor holds the dequantised weights rounded to bfloat16: matrices as BF16, vectors (which
llama.cpp wants in float32) with the same rounded values. Metadata and tokenizer are copied.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from blockdraft.errors import ConfigError
from blockdraft.targets.sources import resolve
from blockdraft.targets.sources.gguf_header import read_header
from blockdraft.targets.sources.gguf_quants import read_tensor

#: What the writer sets by itself.
_OWN = {"general.architecture", "general.file_type", "general.quantization_version"}


def write_bf16_gguf(name: str, out: Path) -> Path:
    """Write target `name`, which must come from a GGUF file, to `out`; returns the source's path.

    Raises: ConfigError if the target is no GGUF file.
    """
    [path] = resolve(name).weight_paths
    if path.suffix != ".gguf":
        raise ConfigError(f"{name} is no GGUF file ({path}); give one, or the default target")
    header, reader = read_header(path), gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, header.metadata["general.architecture"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in _OWN:
            _copy_field(writer, field)
    for tensor_name, place in header.tensors.items():
        _write_tensor(writer, tensor_name, read_tensor(path, tensor_name, place))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _copy_field(writer: gguf.GGUFWriter, field: Any) -> None:
    kind, *inner = field.types
    writer.add_key_value(field.name, field.contents(), kind, inner[-1] if inner else None)


def _write_tensor(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor) -> None:
    rounded = tensor.to(torch.bfloat16)
    if tensor.ndim == 1:
        writer.add_tensor(name, rounded.float().numpy())
        return
    raw = rounded.contiguous().view(torch.uint8).numpy()
    kind = gguf.GGMLQuantizationType.BF16
    writer.add_tensor(name, np.ascontiguousarray(raw), raw_shape=raw.shape, raw_dtype=kind)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write_bf16_gguf(args.target, args.out)
    print(args.out)


if __name__ == "__main__":
    main()
