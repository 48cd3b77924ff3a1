"""Colours of plots and animations, legible on light and on dark pages."""

SERIES = ("#2f7ed8", "#e4792b", "#3f9b6c", "#a05ec2", "#c8434f", "#7a8793", "#b8932a", "#2a9aa5")
"""One colour for each curve or robot, in order."""
