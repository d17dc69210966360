"""Owns workspaces and harness processes."""
