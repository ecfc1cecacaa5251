"""One thread for the tests: tiny tensors gain nothing from more, and waiting threads cost a lot."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
