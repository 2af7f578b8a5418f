"""The norms once more, written straight from the paper's formulas: plain, slow, on real tokens alone, in float64.

Each ``step`` takes the real tokens X (B x d) and dL/dY, and returns Y and dL/dX; state lives in the object. gamma and
beta are given at construction. Nothing here is shared with the package.
"""

import math

import torch


def flat(x, mask):
    """The real tokens of x, one row each."""
    return x[~mask]


class Reference:
    """What the references share: affine parameters, width, step counter."""

    def __init__(self, gamma, beta, eps=1e-5):
        self.gamma, self.beta, self.eps = gamma, beta, eps
        self.d = gamma.numel()
        self.t = 0

    def columns(self):
        return range(self.d)


class BN(Reference):
    """Algorithm 1 and the lemma on the gradient of BN."""

    def __init__(self, gamma, beta, eps=1e-5, momentum=0.1, extra=0):
        super().__init__(gamma, beta, eps)
        self.momentum = momentum
        self.extra = extra  # padded positions in the count of the variance (release)
        self.mu = torch.zeros(self.d, dtype=torch.float64)
        self.var = torch.ones(self.d, dtype=torch.float64)

    def step(self, x, dy):
        b = x.shape[0]
        y, dx = torch.empty_like(x), torch.empty_like(x)
        for c in self.columns():
            mu = sum(float(v) for v in x[:, c]) / b
            var = sum((float(v) - mu) ** 2 for v in x[:, c]) / (b + self.extra)
            sigma = math.sqrt(var + self.eps)
            x_hat = (x[:, c] - mu) / sigma
            g = self.gamma[c] * dy[:, c]
            y[:, c] = self.gamma[c] * x_hat + self.beta[c]
            for i in range(b):
                from_mean = sum(g[j] for j in range(b)) / b
                from_var = sum(g[j] * x_hat[j] for j in range(b)) * x_hat[i] / (b + self.extra)
                dx[i, c] = (g[i] - from_mean - from_var) / sigma
            self.mu[c] = (1 - self.momentum) * self.mu[c] + self.momentum * mu
            self.var[c] = (1 - self.momentum) * self.var[c] + self.momentum * var
        return y, dx


class PNV(Reference):
    """PN-V: its definition and the lemma on its gradient."""

    def __init__(self, gamma, beta, eps=1e-5, alpha=0.9):
        super().__init__(gamma, beta, eps)
        self.alpha = alpha
        self.psi2 = torch.ones(self.d, dtype=torch.float64)

    def step(self, x, dy):
        b = x.shape[0]
        y, dx = torch.empty_like(x), torch.empty_like(x)
        for c in self.columns():
            psi2 = sum(float(v) ** 2 for v in x[:, c]) / b
            psi = math.sqrt(psi2 + self.eps)
            x_hat = x[:, c] / psi
            y[:, c] = self.gamma[c] * x_hat + self.beta[c]
            for i in range(b):
                shared = sum(dy[j, c] * x_hat[j] for j in range(b)) * x_hat[i] / b
                dx[i, c] = self.gamma[c] / psi * (dy[i, c] - shared)
            self.psi2[c] = self.alpha * self.psi2[c] + (1 - self.alpha) * psi2
        return y, dx


class PN(Reference):
    """Algorithm 2 with the warm-up of the appendix; ``release`` for the released departures from it.

    In the release, the backward means run over all positions, so ``step`` also takes the values at padding and the
    gradient there.
    """

    def __init__(self, gamma, beta, eps=1e-5, alpha_fwd=0.9, alpha_bwd=0.9, warmup=0, release=False):
        super().__init__(gamma, beta, eps)
        self.alpha_fwd, self.alpha_bwd, self.warmup, self.release = alpha_fwd, alpha_bwd, warmup, release
        self.psi2 = torch.ones(self.d, dtype=torch.float64)
        self.nu = torch.zeros(self.d, dtype=torch.float64)

    def step(self, x, dy, padded_x=None, padded_dy=None):
        self.t += 1
        b = x.shape[0]
        y, dx = torch.empty_like(x), torch.empty_like(x)
        for c in self.columns():
            batch_psi2 = sum(float(v) ** 2 for v in x[:, c]) / b
            used_psi2 = batch_psi2 if self.t <= self.warmup else float(self.psi2[c])
            psi = math.sqrt(used_psi2 + self.eps)
            x_hat = x[:, c] / psi
            y[:, c] = self.gamma[c] * x_hat + self.beta[c]
            self._move_psi2(c, batch_psi2)

            g = self.gamma[c] * dy[:, c]
            divisor = math.sqrt(batch_psi2 + self.eps) if self.release else psi
            nu = float(self.nu[c])
            dx[:, c] = (g - nu * x_hat) / divisor
            if self.release and padded_x is not None:
                x_hat = torch.cat([x_hat, padded_x[:, c] / psi])
                g = torch.cat([g, self.gamma[c] * padded_dy[:, c]])
            big_gamma = sum(float(v) ** 2 for v in x_hat) / len(x_hat)
            big_lambda = sum(float(v) * float(w) for v, w in zip(g, x_hat)) / len(x_hat)
            self.nu[c] = nu * (1 - (1 - self.alpha_bwd) * big_gamma) + (1 - self.alpha_bwd) * big_lambda
        return y, dx

    def _move_psi2(self, c, batch_psi2):
        old = float(self.psi2[c])
        average = (old * (self.t - 1) + batch_psi2) / self.t
        if self.release:
            old = average if self.t < self.warmup else old
            self.psi2[c] = self.alpha_fwd * old + (1 - self.alpha_fwd) * batch_psi2
        elif self.t <= self.warmup:
            self.psi2[c] = average
        else:
            self.psi2[c] = self.alpha_fwd * old + (1 - self.alpha_fwd) * batch_psi2


class BRN(Reference):
    """Batch renormalisation; r and d carry no gradient."""

    def __init__(self, gamma, beta, eps=1e-5, momentum=0.1, warmup=0, rise=0):
        super().__init__(gamma, beta, eps)
        self.momentum, self.warmup, self.rise = momentum, warmup, rise
        self.mu = torch.zeros(self.d, dtype=torch.float64)
        self.var = torch.ones(self.d, dtype=torch.float64)

    def limits(self):
        if self.t <= self.warmup:
            return 1.0, 0.0
        risen = 1.0 if self.rise == 0 else min(1.0, (self.t - self.warmup) / self.rise)
        return 1 + 2 * risen, 5 * risen

    def step(self, x, dy):
        self.t += 1
        b = x.shape[0]
        r_max, d_max = self.limits()
        y, dx = torch.empty_like(x), torch.empty_like(x)
        for c in self.columns():
            mu_b = float(x[:, c].mean())
            var_b = float(((x[:, c] - mu_b) ** 2).mean())
            sigma_b = math.sqrt(var_b + self.eps)
            sigma = math.sqrt(float(self.var[c]) + self.eps)
            r = min(max(sigma_b / sigma, 1 / r_max), r_max)
            d = min(max((mu_b - float(self.mu[c])) / sigma, -d_max), d_max)
            x_hat = (x[:, c] - mu_b) / sigma_b
            y[:, c] = self.gamma[c] * (x_hat * r + d) + self.beta[c]
            g = r * self.gamma[c] * dy[:, c]
            dx[:, c] = (g - g.sum() / b - x_hat * (g * x_hat).sum() / b) / sigma_b
            self.mu[c] = (1 - self.momentum) * self.mu[c] + self.momentum * mu_b
            self.var[c] = (1 - self.momentum) * self.var[c] + self.momentum * var_b
        return y, dx


class MABN(Reference):
    """Moving-average BN over a window of mini-batches, kept here as a plain list."""

    def __init__(self, gamma, beta, eps=1e-5, momentum=0.02, warmup=0, window=16):
        super().__init__(gamma, beta, eps)
        self.momentum, self.warmup, self.window = momentum, warmup, window
        self.running = torch.ones(self.d, dtype=torch.float64)
        self.psi2s, self.means = [], []

    def step(self, x, dy):
        self.t += 1
        own = self.t <= max(self.warmup, self.window)
        batch_psi2 = (x**2).mean(0)
        self.psi2s.append(batch_psi2)
        chi2 = batch_psi2 if own else torch.stack(self.psi2s[-self.window :]).mean(0)
        chi = (chi2 + self.eps).sqrt()
        z = x / chi
        r = torch.ones(self.d, dtype=torch.float64)
        if self.t > self.warmup:
            r = (chi / (self.running + self.eps).sqrt()).clamp(0.2, 5.0)
        y = self.gamma * r * z + self.beta
        g = r * self.gamma * dy
        self.means.append((g * z).mean(0))
        mean = self.means[-1] if own else torch.stack(self.means[-self.window :]).mean(0)
        dx = (g - z * mean) / chi
        self.running = (1 - self.momentum) * self.running + self.momentum * chi2
        return y, dx


class RBN(BN):
    """BN with a penalty; ``release``: the variance is raised to eps, and the running values move before the penalty."""

    def __init__(self, gamma, beta, eps=1e-5, momentum=0.05, weights=(0.1, 0.01), release=False):
        super().__init__(gamma, beta, eps, momentum)
        self.weights, self.release = weights, release

    def step(self, x, dy, dpenalty):
        """Y, dL/dX and the penalty, which counts ``dpenalty`` times in the loss."""
        b, penalty = x.shape[0], 0.0
        old_mu, old_var = self.mu.clone(), self.var.clone()
        if self.release:
            y, dx = self.clamped_step(x, dy)
        else:
            y, dx = super().step(x, dy)
        for c in self.columns():
            mu_b = sum(float(v) for v in x[:, c]) / b
            var_b = sum((float(v) - mu_b) ** 2 for v in x[:, c]) / b
            mu, var = (self.mu, self.var) if self.release else (old_mu, old_var)
            penalty += self.weights[0] * (float(mu[c]) - mu_b) ** 2 + self.weights[1] * abs(float(var[c]) - var_b)
            for i in range(b):
                from_mean = self.weights[0] * 2 * (mu_b - float(mu[c])) / b
                from_var = self.weights[1] * math.copysign(1, var_b - float(var[c])) * 2 * (float(x[i, c]) - mu_b) / b
                dx[i, c] += dpenalty * (from_mean + from_var)
        return y, dx, penalty

    def clamped_step(self, x, dy):
        b = x.shape[0]
        y, dx = torch.empty_like(x), torch.empty_like(x)
        for c in self.columns():
            mu, var = x[:, c].mean(), x[:, c].var(unbiased=False)
            sigma = max(float(var), self.eps) ** 0.5
            x_hat, g = (x[:, c] - mu) / sigma, self.gamma[c] * dy[:, c]
            y[:, c] = self.gamma[c] * x_hat + self.beta[c]
            through_var = x_hat * (g * x_hat).sum() / b if var > self.eps else 0.0
            dx[:, c] = (g - g.sum() / b - through_var) / sigma
            self.mu[c] = (1 - self.momentum) * self.mu[c] + self.momentum * mu
            self.var[c] = (1 - self.momentum) * self.var[c] + self.momentum * var
        return y, dx


class UN(Reference):
    """Unified normalisation, with its windows as plain lists; ``first``: steps that have r = 1 at least."""

    def __init__(self, gamma, beta, eps=1e-5, momentum=0.1, warmup=0, window=4, outliers=False, first=1000):
        super().__init__(gamma, beta, eps)
        self.momentum, self.warmup, self.size, self.outliers, self.first = momentum, warmup, window, outliers, first
        self.running = torch.ones(self.d, dtype=torch.float64)
        self.e = torch.zeros(self.d, dtype=torch.float64)
        self.psi2s, self.qs, self.left_out = [], [], 0

    def step(self, x, dy):
        self.t += 1
        own = self.t <= self.size or self.t < self.warmup
        psi2 = (x**2).mean(0)
        before = torch.stack(self.psi2s[-self.size :]) if self.psi2s else None
        self.psi2s.append(psi2)
        latest = torch.stack(self.psi2s[-self.size :])
        geometric = latest.prod(0) ** (1 / len(latest))
        outlier = False
        if self.outliers and not own:
            roots = before.sqrt().flatten()
            variance = float(((roots - roots.mean()) ** 2).mean())
            outlier = any(float(a - g) > self.size * variance for a, g in zip(latest.mean(0), geometric))
        s = psi2 if own or outlier else geometric
        sigma = (s + self.eps).sqrt()
        z = x / sigma
        y = self.gamma * z + self.beta
        r = torch.ones(self.d, dtype=torch.float64)
        if self.t > max(self.first, self.warmup) and not outlier:
            r = (sigma / (self.running + self.eps).sqrt()).clamp(0.2, 5.0)
        g = r * self.gamma * dy
        q = (g * z).mean(0)
        self.qs.append(q)
        q_bar = q if own or outlier else torch.stack(self.qs[-self.size :]).mean(0)
        if outlier:
            self.psi2s[-1], self.qs[-1], self.left_out = self.running, self.e, self.left_out + 1
        self.running = (1 - self.momentum) * self.running + self.momentum * s
        self.e = (1 - self.momentum) * self.e + self.momentum * q_bar
        self.of_gamma = (dy * r * z).sum(0)
        return y, (g - self.e * z) / sigma
