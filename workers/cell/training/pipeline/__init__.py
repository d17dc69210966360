"""Pipeline parallelism inside a cell: stages in processes of their own, fed micro-steps one by one, for as long as any
come (docs/training.md)."""
