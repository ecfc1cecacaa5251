"""Which parameter is updated how: groups by role, AdamW and Muon, one rate schedule for all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from blockdraft.training.recipe import OptimizerRecipe

#: Parameters of heads: sparse and small gradients; decay or a small rate leaves them dead.
HEAD_PREFIX = "candidate_selector."

#: Under Muon these stay with AdamW: they start at zero, and their size is what is learned.
_SMALL_MATRICES = ("kernel_projection.weight",)


class Optimizers:
    """The optimisers of a run, as one.

    Attributes:
        names: each parameter's name, for checkpoints and messages.
    """

    def __init__(self, optimizers: list[Optimizer], names: dict[Tensor, str]) -> None:
        self.optimizers = optimizers
        self.names = names
        self._owner = {
            parameter: optimizer
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def step(self, rate_share: float) -> None:
        """Update every parameter that has a gradient, at this share of its peak rate."""
        for group in self._groups():
            group["lr"] = group["peak_lr"] * rate_share
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def rates(self) -> dict[str, float]:
        """The rate of the last update, by group."""
        return {group["name"]: float(group["lr"]) for group in self._groups()}

    def parameters(self) -> list[Tensor]:
        """Every parameter, in a fixed order."""
        return list(self._owner)

    def state_of(self, parameter: Tensor) -> dict[str, Any]:
        """The optimiser's state of a parameter, to be read or filled."""
        return self._owner[parameter].state[parameter]  # type: ignore[no-any-return]

    def _groups(self) -> Iterable[dict[str, Any]]:
        return (group for optimizer in self.optimizers for group in optimizer.param_groups)


def role(name: str, parameter: Tensor) -> str:
    """The group of a parameter: "heads", "vectors" (norms, biases, kernels) or "matrices"."""
    if name.startswith(HEAD_PREFIX):
        return "heads"
    return "matrices" if parameter.ndim == 2 else "vectors"


def make_optimizers(module: nn.Module, recipe: OptimizerRecipe) -> Optimizers:
    """Optimisers over the module's trainable parameters.

    Decay is for the backbone's matrices alone. Muon (Jordan et al. 2024; torch.optim.Muon) takes
    those matrices if the recipe asks, with its updates scaled to the size of AdamW's
    (Liu et al. 2025, arXiv 2502.16982), so rates of the two mean the same.
    """
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    groups: dict[str, list[Tensor]] = {"matrices": [], "vectors": [], "heads": [], "muon": []}
    for name, parameter in named:
        kind = role(name, parameter)
        is_muon = recipe.name == "muon" and kind == "matrices"
        is_muon = is_muon and not name.endswith(_SMALL_MATRICES)
        groups["muon" if is_muon else kind].append(parameter)
    optimizers: list[Optimizer] = []
    if groups["muon"]:
        optimizers.append(_muon(groups.pop("muon"), recipe))
    adamw = [_adamw_group(kind, groups.get(kind, []), recipe) for kind in _ADAMW_KINDS]
    adamw = [group for group in adamw if group["params"]]
    if adamw:
        betas = (recipe.beta1, recipe.beta2)
        optimizers.append(AdamW(adamw, betas=betas, eps=recipe.eps, fused=True))
    return Optimizers(optimizers, {parameter: name for name, parameter in named})


_ADAMW_KINDS = ("matrices", "vectors", "heads")


def _adamw_group(kind: str, parameters: list[Tensor], recipe: OptimizerRecipe) -> dict[str, Any]:
    rate = recipe.head_lr if kind == "heads" else recipe.lr
    decay = recipe.weight_decay if kind == "matrices" else 0.0
    return {
        "name": kind,
        "params": parameters,
        "lr": rate,
        "peak_lr": rate,
        "weight_decay": decay,
    }


def _muon(parameters: list[Tensor], recipe: OptimizerRecipe) -> Muon:
    group = {
        "name": "muon",
        "params": parameters,
        "lr": recipe.muon_lr,
        "peak_lr": recipe.muon_lr,
        "weight_decay": recipe.weight_decay,
    }
    return Muon([group], momentum=recipe.momentum, adjust_lr_fn="match_rms_adamw")


def clip_gradients(parameters: Iterable[Tensor], scale: float, max_norm: float) -> float:
    """Multiply the gradients by `scale`, then shrink them to `max_norm` at most.

    Returns: the norm of the whole gradient (over all shards) before it was shrunk; not finite if
        one of its numbers is not, and then nothing is shrunk.
    """
    grads = [each.grad for each in parameters if each.grad is not None]
    torch._foreach_mul_(grads, scale)
    total = torch.nn.utils.get_total_norm(grads)
    norm = float(total.full_tensor() if hasattr(total, "full_tensor") else total)
    if norm > max_norm:
        torch._foreach_mul_(grads, max_norm / (norm + 1e-6))
    return norm
