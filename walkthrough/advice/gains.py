"""What to do about a trace: its costs, those worth treating with their gains, its findings and a verdict."""

from msgspec import Struct

from walkthrough.advice import advice, bottlenecks
from walkthrough.advice.estimates import Combination, Estimates
from walkthrough.advice.findings import findings
from walkthrough.advice.findings.finding import Finding, Look
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.outliers import is_outlier


class Advised(Struct, frozen=True):
    """What to do about the typical steps of a trace.

    costs: all bottlenecks. advice: those worth treating, the largest gain first. together: pieces of advice followed
    together. findings: what stands out; [] for a trace without a GPU.
    """

    costs: list[advice.Advice]
    advice: list[advice.Advice]
    together: list[Combination]
    findings: list[Finding]
    verdict: str


def advise(analysis: Analysis) -> Advised:
    """What to do about an analysed trace."""
    trace, a, usual = analysis.trace, analysis, analysis.typical
    costs = bottlenecks.bottlenecks(
        trace, usual.steps, a.phases, a.gpus, usual.idle, a.tensor_cores, usual.communication, usual.workload
    )
    found, together, worth = [], [], advice.ranked(costs)
    if len(trace.kernels) and not trace.partial and not usual.workload.unusable:
        look = Look(trace, usual.steps, a.phases, usual.idle, usual.communication, usual.workload, a.outliers, a.steps)
        estimates = Estimates(look, a.tensor_cores, ~is_outlier(a.steps))
        costs = estimates.advice(costs)
        found = estimates.findings(findings(look), costs)
        worth, together = estimates.worth_following(advice.ranked(costs))
    if advice.stalled(usual.steps, usual.idle):
        worth = advice.despite_a_stall(worth)
    subject = "a typical step" if a.outliers else "the step"
    verdict = advice.verdict(trace, usual.steps, worth, a.tensor_cores, usual.idle, usual.workload, subject)
    return Advised(costs, worth, together, found, verdict)
