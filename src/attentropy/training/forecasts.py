"""Forecasts: a line through the latest samples of every head, and how far it may be wrong.

For samples at steps t_1 .. t_n, the least-squares line a + b (t - mean t) has residuals of variance
s^2 = sum r^2 / (n - 2). A new sample at step t then lies, with the given confidence, above

    a + b (t - mean t) - q s sqrt(1 + 1/n + (t - mean t)^2 / sum (t_i - mean t)^2)

where q is the quantile of Student's t with n - 2 degrees of freedom. This is the lower end of the
forecast. It falls with the noise of the samples and with the distance to look ahead.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

Array = np.ndarray


@dataclass(frozen=True)
class Lines:
    """Least-squares lines through the courses of heads.

    Attributes:
        centre: the mean step.
        spread: sum of squares of the steps around it.
        count: number of samples.
        level: value of each line at the centre [H].
        slope: of each line, per step [H].
        noise: standard deviation of the residuals of each line [H].
    """

    centre: float
    spread: float
    count: int
    level: Array
    slope: Array
    noise: Array

    @classmethod
    def through(cls, steps: Array, values: Array) -> "Lines":
        """Fit a line to every column; NaN for columns with a value that is not finite.

        Args:
            steps: three or more, increasing [S].
            values: one column for each head [S,H].
        """
        centre = steps.mean()
        around = (steps - centre)[:, None]
        spread = float((around**2).sum())
        known = np.where(np.isfinite(values).all(0), values, np.nan)
        level = known.mean(0)
        slope = (around * known).sum(0) / spread
        left = known - level - around * slope
        noise = np.sqrt((left**2).sum(0) / (len(steps) - 2))
        return cls(float(centre), spread, len(steps), level, slope, noise)

    def lower_end(self, step: float, confidence: float) -> Array:
        """What a sample at `step` exceeds with the given confidence [H].

        Args:
            step: a later step.
            confidence: between 0.5 and 1.
        """
        away = step - self.centre
        quantile = float(stdtrit(self.count - 2, confidence))
        error = np.sqrt(1 + 1 / self.count + away**2 / self.spread)
        return self.level + self.slope * away - quantile * self.noise * error

    def reach(self, value: float) -> Array:
        """The step at which each line comes to a value [H]; inf for lines that do not rise.

        Args:
            value: the same for all lines.
        """
        rising = self.slope > 0
        away = (value - self.level) / np.where(rising, self.slope, 1.0)
        return np.where(rising, self.centre + away, np.inf)
