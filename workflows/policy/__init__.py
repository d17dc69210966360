"""Scheduling decisions: pure functions on plain data, the same for the live scheduler and the simulator."""
