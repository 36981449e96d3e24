"""Logits of some target ids of each sentence, in place of all, and what all others together would come to.

What is left out is not nothing: smoothed labels give a tenth of the probability to it, and scores that are shares of
the ids that are listed rank other translations first. So the sum of the exponentials of its logits is estimated. If the
rows w of the output matrix were normally distributed, the mean of exp(h · w) would be exp(h · mean + h · covariance · h
/ 2), their moment generating function; and they nearly are, the frequent ones and the others each by themselves.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Normals(NamedTuple):
    """Groups of rows of an output matrix, each as if normally distributed.

    mean: (D, G). covariance: (D, G·D), those of the groups side by side.
    """

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, weight: Tensor, group: Tensor) -> "Normals":
        """weight: (V, D). group: (V,) that of each row, from 0 on; none is empty."""
        means, covariances = [], []
        exact = torch.promote_types(weight.dtype, torch.float32)
        for number in range(int(group.max()) + 1):
            rows = weight[group == number].to(exact)
            means.append(rows.mean(0))
            centred = rows - means[-1]
            covariances.append(centred.T @ centred / len(rows))
        return cls(torch.stack(means, 1).to(weight.dtype), torch.cat(covariances, 1).to(weight.dtype))

    def log_mean_exp(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., G) the logarithm of the mean of exp(hidden · w) over the rows w of each group, in fp32 or
        more."""
        exact = torch.promote_types(hidden.dtype, torch.float32)
        along = (hidden @ self.covariance).view(*hidden.shape[:-1], -1, hidden.size(-1)).to(exact)
        spread: Tensor = (along * hidden.unsqueeze(-2)).sum(-1)
        return (hidden @ self.mean).to(exact) + spread / 2


class Narrow(NamedTuple):
    """What to have logits of: columns, (B, n) target ids.

    log_other: (B, G) the logarithm of how many ids of each group are not among them. normals: from an output matrix
    (V, D) to what the groups of its rows are like.
    """

    columns: Tensor
    log_other: Tensor
    normals: Callable[[Tensor], Normals]


def narrow_logits(hidden: Tensor, rows: Tensor, log_other: Tensor, normals: Normals) -> Tensor:
    """(B, K, D) states, scaled, (B, n, D) rows of the output matrix -> (B, K, n + 1) logits in fp32 or more, of which
    the last stands for all others: the logarithm of the sum of their exponentials."""
    listed = torch.bmm(hidden, rows.transpose(1, 2))
    means = normals.log_mean_exp(hidden)
    others = (means + log_other.unsqueeze(1)).logsumexp(-1, keepdim=True)
    return torch.cat([listed.to(others.dtype), others], -1)
