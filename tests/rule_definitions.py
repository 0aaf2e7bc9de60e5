"""What every rule is, written down once more: in plain Python, token by token, from the formulas.

Nothing here is shared with the package. P and Q are lists of probabilities, D their divergence, T
the knob and x the drafted token.
"""

from __future__ import annotations

import math

Row = list[float]


def chance(rule: str, P: Row, Q: Row, D: float, T: float, x: int) -> float:
    """Probability that the drafted x stays."""
    match rule:
        case "exact":
            return at_most_one(P[x], Q[x])
        case "fsd":
            return 1.0 if 0 < T >= D else at_most_one(P[x], Q[x])
        case "fsd-paper":
            return 1.0 if D <= T else 0.0
        case "lenient":
            return at_most_one(P[x], (1 - T) * Q[x])
        case "typical":
            epsilon = 1 - T
            entropy = -sum(p * math.log(p) for p in P if p > 0)
            return 1.0 if P[x] > min(epsilon, math.sqrt(epsilon) * math.exp(-entropy)) else 0.0
        case "cactus":
            return at_most_one(cactus_row(P, T, x)[x], Q[x])
        case "cascade-token":
            return at_most_one(cascade_row(P, Q, T)[x], Q[x])
    raise ValueError(rule)


def replacement(rule: str, P: Row, Q: Row, T: float, x: int) -> Row:
    """The distribution that the replacement of a rejected x is drawn from."""
    match rule:
        case "exact" | "fsd" | "lenient":
            return positive_part(P, Q, otherwise=P)
        case "fsd-paper" | "typical":
            return P
        case "cactus":
            return positive_part(cactus_row(P, T, x), Q, otherwise=P)
        case "cascade-token":
            return positive_part(cascade_row(P, Q, T), Q, otherwise=P)
    raise ValueError(rule)


def law(rule: str, P: Row, Q: Row, D: float, T: float) -> Row:
    """The distribution of the token at a drafted position, x drawn from Q."""
    match rule:
        case "exact":
            return P
        case "fsd":
            return Q if 0 < T >= D else P
        case "fsd-paper":
            return Q if D <= T else P
        case "cascade-token":
            return cascade_row(P, Q, T)
    outcome = [0.0] * len(P)
    for x, q in enumerate(Q):
        stays = chance(rule, P, Q, D, T, x)
        outcome[x] += q * stays
        for y, r in enumerate(replacement(rule, P, Q, T, x)):
            outcome[y] += q * (1 - stays) * r
    return outcome


def acceptance(rule: str, P: Row, Q: Row, D: float, T: float) -> float:
    return sum(q * chance(rule, P, Q, D, T, x) for x, q in enumerate(Q))


def at_most_one(numerator: float, denominator: float) -> float:
    if numerator == 0:
        return 0.0
    return 1.0 if numerator >= denominator else numerator / denominator


def positive_part(A: Row, B: Row, otherwise: Row) -> Row:
    differences = [max(0.0, a - b) for a, b in zip(A, B, strict=True)]
    total = sum(differences)
    return [d / total for d in differences] if total > 1e-7 else otherwise


def cactus_row(P: Row, delta: float, x: int) -> Row:
    h = min(1.0, P[x] + math.sqrt(2 * delta * P[x] * (1 - P[x])))
    rest = 1 - P[x]
    return [h if v == x else (p * (1 - h) / rest if rest else 0.0) for v, p in enumerate(P)]


def cascade_row(P: Row, Q: Row, alpha: float) -> Row:
    trusted = [p >= (1 - alpha) * max(P) for p in P]
    eta = 1 - sum(q for q, in_set in zip(Q, trusted, strict=True) if in_set)
    return [(q if in_set else 0) + eta * p for p, q, in_set in zip(P, Q, trusted, strict=True)]


def js(P: Row, Q: Row) -> float:
    total = 0.0
    for p, q in zip(P, Q, strict=True):
        m = (p + q) / 2
        total += (p * math.log(p / m) if p else 0) / 2 + (q * math.log(q / m) if q else 0) / 2
    return total
