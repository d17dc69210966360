"""The run's database: one schema by URL, SQLite by default, PostgreSQL on a cluster."""
