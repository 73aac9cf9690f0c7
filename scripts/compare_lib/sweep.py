"""Learning rates: each attention's own is the best of several, tried on a seed that is not reported."""
from .settings import neighbour

MORE = 2  # tried beyond the ends of the list while the best is at an end


def cost(loss):
    return float("inf") if loss is None else loss


class Choice:
    """What the runs so far say: `tried` {rate: loss, None when it diverged}, `missing` rates, or the `best`."""

    def __init__(self, rates, outcome):
        """`outcome` gives (known, loss) of a rate."""
        self.best, rates = None, list(rates)
        for extra in range(MORE + 1):
            found = {rate: outcome(rate) for rate in rates}
            self.tried = {rate: loss for rate, (known, loss) in found.items() if known}
            self.missing = [rate for rate, (known, _) in found.items() if not known]
            if self.missing:
                return
            best = min(rates, key=lambda rate: cost(self.tried[rate]))
            at_an_end = [neighbour(rates[0], False)] if best == rates[0] else [neighbour(rates[-1], True)] if best == rates[-1] else []
            if not at_an_end or extra == MORE:
                self.best = best
                return
            rates = sorted(rates + at_an_end, key=float)

    @property
    def at_the_end(self):
        """Whether the best is the largest or the smallest that was tried."""
        return self.best in (min(self.tried, key=float), max(self.tried, key=float))
