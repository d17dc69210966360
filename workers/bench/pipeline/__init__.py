"""What `gyre bench pipeline` measures: the open-ended pipeline beside Megatron's own schedule of a fixed count."""
