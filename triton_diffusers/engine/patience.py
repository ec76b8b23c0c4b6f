# SPDX-License-Identifier: Apache-2.0
"""How long a run may go without a step before it counts as stuck: told, or learned from runs."""

UNKNOWN_S = 1800.0
"""Before any run was seen to end."""
MARGIN = 20.0
"""How many times longer than was seen a run may go without a step."""
LEAST_S = 300.0
"""Kernels are chosen, files read and GPUs shared meanwhile, whatever was seen before."""


class Patience:
    """What the operator says, else many times the longest pause that runs were seen to make."""

    def __init__(self, told_s: float | None = None, least_s: float = LEAST_S) -> None:
        """`least_s`: the least that is learned, where a run may compile something new."""
        self._told_s = told_s
        self._least_s = least_s
        self._longest_s = 0.0
        self._per_amount_s = 0.0
        self._largest = 0.0

    def saw(self, amount: float, longest_gap_s: float) -> None:
        """Learn from a run that ended well: how much a step of it computes, its longest pause."""
        self._longest_s = max(self._longest_s, longest_gap_s)
        self._per_amount_s = max(self._per_amount_s, longest_gap_s / amount)
        self._largest = max(self._largest, amount)

    def of(self, amount: float) -> float:
        """Return the seconds for a run.

        One that computes more than any before may take longer by the square of that, as attention
        does; nothing is learned that is shorter than `least_s`, and for runs of any size it ends
        where UNKNOWN_S and the margin over the longest pause end.
        """
        if self._told_s is not None:
            return self._told_s
        if not self._largest:
            return max(UNKNOWN_S, self._least_s)
        growth = max(1.0, amount / self._largest)
        learned = MARGIN * self._per_amount_s * amount * growth
        most = max(UNKNOWN_S, MARGIN * self._longest_s)
        return min(max(learned, self._least_s), most)
