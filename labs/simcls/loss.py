"""The loss of SimCLS (Liu and Liu 2021): scores in the order of ROUGE, with a margin that grows with the difference."""

import torch

MARGIN = 0.01  # per rank; the paper's


def ranking_loss(scores: torch.Tensor, reference_scores: torch.Tensor, margin: float = MARGIN) -> torch.Tensor:
    """The mean over documents of the paper's loss, a tensor of one element.

    scores: [batch, candidates], cosine similarities, the candidate of the highest ROUGE first. reference_scores:
    [batch]. For every two candidates, of which the one is `gap` ranks below the other, max(0, its score - the other's
    + gap * margin); and for every candidate max(0, its score - the reference's), the gold term.
    """
    candidates = scores.shape[1]
    rank = torch.arange(candidates, device=scores.device)
    gap = rank[None, :] - rank[:, None]  # how many ranks column j is below row i
    excess = scores[:, None, :] - scores[:, :, None] + margin * gap
    pairs = (excess.clamp(min=0) * (gap > 0)).sum(dim=(1, 2))
    gold = (scores - reference_scores[:, None]).clamp(min=0).sum(dim=1)
    return (pairs + gold).mean()
