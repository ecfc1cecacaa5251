"""BC-26 through the public door: a hybrid is refused in one line, whatever the drafter."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockdraft import LLM
from blockdraft.errors import UnsupportedError
from tests.targets.tiny_models import save, tiny_model
from tests.targets.tiny_tokenizers import byte_level_tokenizer


@pytest.mark.parametrize("drafter", ["none", "ngram", "auto"])
def test_a_folder_with_recurrent_layers(drafter: str, tmp_path: Path) -> None:
    folder = tmp_path / "hybrid"
    kinds = ["conv", "full_attention", "conv"]
    tokenizer = byte_level_tokenizer()
    keys = {"layer_types": kinds, "block_ff_dim": 96, "vocab_size": tokenizer.get_vocab_size()}
    save(tiny_model("Lfm2", **keys), folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(UnsupportedError, match=r"hybrid.*layer 0 keeps a state.*roll back") as said:
        LLM(str(folder), drafter)
    assert "\n" not in str(said.value)
