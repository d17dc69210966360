"""The account of a run: every decision with what came of it, the totals, and the page that `gyre report` writes.

Everything is computed from the records when it is asked for, by functions of plain rows; nothing is written back.
"""
