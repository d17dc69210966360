"""The demo: the whole loop for real on one machine, measured before and after, with a table, a plot and a summary."""
