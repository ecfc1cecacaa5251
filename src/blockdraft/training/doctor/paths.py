"""The same blocks on both paths: as training computes them, and as serving does.

A block is a sample and an anchor in it. Both paths get the same states; what they make of them must
agree, quantity by quantity: final rows, candidates, choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from blockdraft.data.collate import BlockBatch, collate
from blockdraft.data.feature_shards import FeatureSample
from blockdraft.drafters.base import DraftBatch
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.training.doctor.subject import Subject
from blockdraft.training.make_objective import TargetTables, make_objective, target_tables
from blockdraft.training.module import DrafterModule
from blockdraft.training.objectives.dflash import DFlashObjective
from blockdraft.training.objectives.dflash2 import selector_scores
from blockdraft.training.recipe import ObjectiveRecipe


@dataclass(frozen=True)
class Blocks:
    """Blocks of some samples: `anchors[i]` are positions in sample i, ascending."""

    samples: Sequence[FeatureSample]
    anchors: Sequence[Sequence[int]]

    def batch(self, block_size: int) -> BlockBatch:
        """As training packs them."""
        return collate(self.samples, [torch.tensor(each) for each in self.anchors], block_size)

    def pairs(self) -> list[tuple[FeatureSample, int]]:
        """Each block, in the order of the batch."""
        each = zip(self.samples, self.anchors, strict=True)
        return [(sample, anchor) for sample, anchors in each for anchor in anchors]


@dataclass(frozen=True)
class Rows:
    """What a path gives for the slots of all blocks, k of each.

    Attributes:
        hidden: final-normed rows.
        candidates: token ids of each slot's candidates, the best first.
        choices: the token each slot takes.
        accepted_len: drafts of each block that are the sample's own tokens, up to the first that
            is not.
        logprob: mean log-probability of the sample's own tokens in each block, of the head alone;
            the training path tells it.
    """

    hidden: Float[Tensor, "n k m"]
    candidates: Int64[Tensor, "n k c"]
    choices: Int64[Tensor, "n k"]
    accepted_len: Int64[Tensor, "n"]
    logprob: Float[Tensor, "n"] | None = None


class TrainingPath:
    """The trained module and the objective, in float32.

    Args:
        config: of the drafter; the weights must fit it.
    """

    def __init__(
        self, subject: Subject, config: DFlashConfig, tables: TargetTables | None = None
    ) -> None:
        cpu = torch.device("cpu")
        self.tables = tables or target_tables(subject.source, torch.float32, cpu)
        self.config = config
        self._module = DrafterModule.from_tensors(config, subject.tensors, self.tables.embedding)
        self._vocab_ids = subject.tensors.get(DRAFT_VOCAB_IDS)
        # Nothing is injected: these are the candidates that serving has.
        objective = make_objective(
            ObjectiveRecipe(missing_target="drop"),
            config,
            self.tables,
            subject.source,
            self._vocab_ids,
        )
        assert isinstance(objective, DFlashObjective)
        self._objective = objective

    @torch.no_grad()
    def run(self, blocks: Blocks) -> tuple[Rows, Bool[Tensor, "n k"]]:
        """Rows, and which slots were computed: those whose token can be drafted."""
        batch = blocks.batch(self.config.block_size)
        unary = self._objective.unary(self._module, batch)
        slots, ids = unary.slots, unary.rows.ids
        place = torch.zeros(len(ids), dtype=torch.long)
        if self.config.has_selector:
            place = selector_scores(self._module.candidate_selector, unary).argmax(-1)
        chosen = ids.gather(1, place[:, None])[:, 0]
        used = slots.is_used[:, 1:]
        right = slots.spread(chosen == slots.labels)[:, 1:]
        rows = Rows(
            _spread(used, unary.hidden.float()),
            _spread(used, self._tokens(ids)),
            _spread(used, self._tokens(chosen)),
            right.long().cumprod(1).sum(1),
            slots.spread(unary.rows.label_logprob)[:, 1:].sum(1) / used.sum(1).clamp_min(1),
        )
        return rows, used

    def _tokens(self, rows: Tensor) -> Tensor:
        return rows if self._vocab_ids is None else self._vocab_ids[rows]


def _spread(used: Tensor, rows: Tensor) -> Tensor:
    """Values of the used slots at their places [n, k, ...]."""
    out = rows.new_zeros(*used.shape, *rows.shape[1:])
    out[used] = rows
    return out


class ServingPath:
    """The drafter as the decoding loop calls it: a context, one pass, one choice."""

    #: Blocks of a pass.
    GROUP = 8

    def __init__(self, drafter: BlockDrafter) -> None:
        self.drafter = drafter

    @torch.inference_mode()
    def run(self, blocks: Blocks) -> Rows:
        """Greedy drafts of every block, each on the states before its anchor."""
        pairs = blocks.pairs()
        groups = [pairs[i : i + self.GROUP] for i in range(0, len(pairs), self.GROUP)]
        parts = [self._group(group) for group in groups]
        columns = zip(*parts, strict=True)
        hidden, candidates, choices = (torch.cat(column).clone() for column in columns)
        truth = torch.stack([_truth(sample, a, choices.shape[1]) for sample, a in pairs])
        accepted = (choices == truth).long().cumprod(1).sum(1)
        return Rows(hidden.float(), candidates, choices, accepted)

    def _group(self, pairs: Sequence[tuple[FeatureSample, int]]) -> tuple[Tensor, Tensor, Tensor]:
        drafter, lens = self.drafter, [anchor for _, anchor in pairs]
        model = drafter.model
        context = drafter.new_context(len(pairs), max(lens) + 1)
        states = torch.zeros(len(pairs), max(lens), pairs[0][0].features.shape[1])
        for i, (sample, anchor) in enumerate(pairs):
            states[i, :anchor] = sample.features[:anchor]
        states = states.to(model.device, model.target.info.dtype)
        context.append(states, 0, [0] * len(pairs), lens)
        batch = _draft_batch(pairs, drafter.num_draft_tokens, model.device)
        drafted = drafter.draft(context, batch)
        _, rows = drafted.best(max(1, model.config.selector_top_k))
        proposal = drafter.select(drafted, batch)
        return drafted.hidden.cpu(), model.vocab.tokens(rows).cpu(), proposal.ids.cpu()


def _draft_batch(
    pairs: Sequence[tuple[FeatureSample, int]], num_draft_tokens: int, device: torch.device
) -> DraftBatch:
    return DraftBatch(
        anchor_ids=torch.stack([sample.token_ids[a] for sample, a in pairs]).to(device),
        positions=tuple(a for _, a in pairs),
        token_ids=[sample.token_ids[: a + 1].tolist() for sample, a in pairs],
        max_lens=(num_draft_tokens,) * len(pairs),
        temperatures=(0.0,) * len(pairs),
    )


def _truth(sample: FeatureSample, anchor: int, num: int) -> Tensor:
    """The sample's own tokens after an anchor; -1 beyond its end."""
    rest = sample.token_ids[anchor + 1 : anchor + 1 + num]
    return torch.nn.functional.pad(rest, (0, num - len(rest)), value=-1)
