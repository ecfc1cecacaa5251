"""One thread for the tests, and no deadlines: both make them steady on a busy machine."""

from __future__ import annotations

import torch
from hypothesis import settings

# Tiny tensors gain nothing from more threads, and threads that wait cost a lot.
torch.set_num_threads(1)
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
