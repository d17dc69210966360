"""Measurements: ratios and costs, taken side by side in one run; the commands are `gyre bench ...`."""
