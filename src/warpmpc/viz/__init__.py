"""Pictures for people: what the analysis found, drawn (needs the extra `viz`)."""

from warpmpc.viz.analysis import PatternAnalysis, analyse
from warpmpc.viz.pattern_figures import FIGURES, plot_pattern

__all__ = ["FIGURES", "PatternAnalysis", "analyse", "plot_pattern"]
