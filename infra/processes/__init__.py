"""Processes of an execution: who they are, how they are limited, captured and ended.

Everything the runner needs (all modules here but `launch`) imports the standard library alone, so that starting a
runner costs tens of milliseconds.
"""
