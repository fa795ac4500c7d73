"""What a step of a run is told in: a few of its numbers.

    reward 0.641  ± 0.480  chunks 2  turns 3.0  sampled 41  1,820 tok/s

Guaranteed: text of models never reaches a display from here.
"""

from __future__ import annotations

from collections.abc import Mapping

_LINE = (
    ("reward/mean", "reward {:.3f}"),
    ("reward/std", "± {:.3f}"),
    ("policy/nll", "nll {:.4f}"),
    ("curriculum/chunks", "chunks {:.0f}"),
    ("curriculum/objectives", "objectives {:.0f}"),
    ("episode/turns", "turns {:.1f}"),
    ("episode/sampled_tokens", "sampled {:.0f}"),
    ("eval/accuracy", "eval {:.3f}"),
    ("rollout_tokens_per_s", "{:,.0f} tok/s"),
    ("learn_tokens_per_s", "{:,.0f} trained/s"),
)


def summary_line(metrics: Mapping[str, float], timings: Mapping[str, float]) -> str:
    """One line of what matters; what isn't known is left out.

    >>> summary_line({"reward/mean": 0.5, "curriculum/chunks": 2}, {"rollout_tokens_per_s": 1820.4})
    'reward 0.500  chunks 2  1,820 tok/s'
    """
    known = {**metrics, **timings}
    return "  ".join(form.format(known[name]) for name, form in _LINE if name in known)
