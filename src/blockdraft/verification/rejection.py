"""Which drafted tokens stand, and which token follows them. No model and no cache: tensors only.

Greedy: a draft stands while it is what the target would say. Sampling: rejection sampling, whose
output has exactly the target's law whatever the drafter proposed, as long as q is the law the
drafts were really drawn from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from blockdraft.sampling.warp import draw
from blockdraft.types import Verdict


def greedy_rule(
    draft_ids: Sequence[int], target_choices: Sequence[int], end_ids: Collection[int]
) -> tuple[list[int], int]:
    """The greedy rule for one row.

    Args:
        draft_ids: k drafted tokens.
        target_choices: what the target says after 0, 1, .., k of them: k + 1 tokens.
        end_ids: tokens that end the text; nothing is emitted behind the first one.
    Returns: the emitted ids, and how many of them are accepted drafts.
    Raises: ValueError if there are not exactly k + 1 choices.
    """
    if len(target_choices) != len(draft_ids) + 1:
        raise ValueError(
            f"{len(draft_ids)} drafts and {len(target_choices)} target choices; "
            f"give {len(draft_ids) + 1} choices, one more than drafts"
        )
    accepted_len = _matching_len(draft_ids, target_choices)
    emitted = [*draft_ids[:accepted_len], target_choices[accepted_len]]
    end = next((i for i, token_id in enumerate(emitted) if token_id in end_ids), len(emitted) - 1)
    return emitted[: end + 1], min(accepted_len, end + 1)


def accept_greedy(
    draft_ids: Int64[Tensor, "b k"], lens: Sequence[int], target_ids: Int64[Tensor, "b k+1"]
) -> Verdict:
    """Accept the drafts that are the target's own choices; end tokens do not cut here.

    Args:
        draft_ids: drafts; entries at and beyond a row's length are ignored.
        lens: drafts of each row, 0..k.
        target_ids: the target's choice after 0, 1, .., k drafts.
    Raises: ValueError if shapes or lengths disagree.
    """
    _check_block(draft_ids, lens, target_ids)
    rows = zip(draft_ids.tolist(), lens, target_ids.tolist(), strict=True)
    decided = [
        (accepted_len := _matching_len(drafts[:length], choices), choices[accepted_len])
        for drafts, length, choices in rows
    ]
    return Verdict(*zip(*decided, strict=True)) if decided else Verdict((), ())


def accept_sampled(
    draft_ids: Int64[Tensor, "b k"],
    lens: Sequence[int],
    p: Float[Tensor, "b k+1 v"],
    q_ids: Int64[Tensor, "b k c"] | None,
    q_probs: Float[Tensor, "b k c"] | None,
    u_accept: Float64[Tensor, "b k"],
    u_residual: Float64[Tensor, "b"],
    u_bonus: Float64[Tensor, "b"],
) -> Verdict:
    """Accept a prefix of each row's drafts and draw the token that follows it.

    Draft y_i is accepted if u * q_i(y_i) < p_i(y_i), strictly: with u in [0, 1), a token of
    probability 0 is never accepted and one with p >= q always is. After the first rejection the
    token comes from max(p_i - q_i, 0), normalised, or from p_i if rounding left nothing of that;
    if all drafts stand, it comes from the row of p behind them. A greedy row is the case of a
    one-hot p.

    Args:
        draft_ids: drafts; entries at and beyond a row's length are ignored.
        lens: drafts of each row, 0..k; 0 is plain decoding (a draw from p_1 with `u_bonus`).
        p: the target's law after 0, 1, .., k drafts; rows behind a row's length are ignored.
        q_ids: support of q at each slot. An id may occur more than once: its masses add up.
        q_probs: q on that support. Both None: every q is a point mass at its draft.
        u_accept: coins in [0, 1).
        u_residual, u_bonus: uniforms in [0, 1) of the token after a rejection, and after none.
            They must be independent of the coins and of the draws that made the drafts.
    Raises: ValueError if shapes or lengths disagree, a draft has q = 0 (it cannot have been drawn
        from q), or p has no mass (or NaN) where a token must be drawn.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), Alg. 1; Chen et al. 2023 (arXiv 2302.01318).
    """
    if (q_ids is None) != (q_probs is None):
        raise ValueError("q_ids and q_probs go together; give both or neither")
    if q_ids is None or q_probs is None:
        q_ids, q_probs = draft_ids[..., None], torch.ones_like(draft_ids, dtype=p.dtype)[..., None]
    _check_block(draft_ids, lens, p[..., 0])
    block, rows = draft_ids.shape, draft_ids.shape[:1]
    _check_shapes(q_ids=(q_ids, (*block, q_ids.shape[-1])), q_probs=(q_probs, q_ids.shape))
    _check_shapes(u_accept=(u_accept, block))
    _check_shapes(u_residual=(u_residual, rows), u_bonus=(u_bonus, rows))
    row_lens = torch.tensor(lens, dtype=torch.long, device=p.device)
    accepted = _accepted_lens(draft_ids, row_lens, p, q_ids, q_probs, u_accept)
    is_rejected = accepted < row_lens
    weights = p[torch.arange(len(lens), device=p.device), accepted]
    if bool(is_rejected.any()):
        weights = weights.double()
        _take_residuals(weights, q_ids, q_probs, accepted, is_rejected)
    next_ids = draw(weights, torch.where(is_rejected, u_residual, u_bonus))
    return Verdict(tuple(accepted.tolist()), tuple(next_ids.tolist()))


def _matching_len(draft_ids: Sequence[int], choices: Sequence[int]) -> int:
    """Drafts before the first that is not the target's choice."""
    for index, draft_id in enumerate(draft_ids):
        if draft_id != choices[index]:
            return index
    return len(draft_ids)


def _accepted_lens(
    draft_ids: Int64[Tensor, "b k"],
    lens: Int64[Tensor, "b"],
    p: Float[Tensor, "b k+1 v"],
    q_ids: Int64[Tensor, "b k c"],
    q_probs: Float[Tensor, "b k c"],
    u_accept: Float64[Tensor, "b k"],
) -> Int64[Tensor, "b"]:
    """Drafts of each row before its first rejection; in float64, where u * q < q for every u."""
    is_drafted = torch.arange(draft_ids.shape[1], device=p.device) < lens[:, None]
    ids = draft_ids.masked_fill(~is_drafted, 0)[..., None]
    p_at = p[:, :-1].gather(-1, ids)[..., 0].double()
    q_at = (q_probs.double() * (q_ids == ids)).sum(-1)
    if bool((is_drafted & ~(q_at > 0.0)).any()):
        raise ValueError("a draft has no probability under the q it is said to be drawn from")
    stands = (u_accept * q_at < p_at) & is_drafted
    return stands.long().cumprod(-1).sum(-1)


def _take_residuals(
    weights: Float64[Tensor, "b v"],
    q_ids: Int64[Tensor, "b k c"],
    q_probs: Float[Tensor, "b k c"],
    accepted: Int64[Tensor, "b"],
    is_rejected: Bool[Tensor, "b"],
) -> None:
    """Turn p into max(p - q, 0) in the rejected rows, in place; only q's support is touched."""
    rows = is_rejected.nonzero()[:, 0]
    slots = accepted[rows]
    support, masses = q_ids[rows, slots], q_probs[rows, slots].double()
    laws = weights[rows]
    left = laws.scatter_add(-1, support, -masses)  # adds up: a support may name an id twice
    left.scatter_(-1, support, left.gather(-1, support).clamp_(min=0.0))
    is_empty = left.amax(-1, keepdim=True) <= 0.0  # p equals q but for rounding
    weights[rows] = torch.where(is_empty, laws, left)


def _check_block(draft_ids: Tensor, lens: Sequence[int], target_rows: Tensor) -> None:
    num_rows, num_slots = draft_ids.shape
    if target_rows.shape != (num_rows, num_slots + 1) or len(lens) != num_rows:
        raise ValueError(
            f"drafts of shape {tuple(draft_ids.shape)}, {len(lens)} lengths and target rows of "
            f"shape {tuple(target_rows.shape)}; the target has one row more than drafts"
        )
    if not all(0 <= length <= num_slots for length in lens):
        raise ValueError(f"lengths {tuple(lens)}; each must be 0 to {num_slots}")


def _check_shapes(**named: tuple[Tensor, tuple[int, ...]]) -> None:
    for name, (tensor, shape) in named.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {tuple(shape)}")
