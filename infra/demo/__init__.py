"""The demo's own world: generated repository repairs, demonstrations of them, and the policy warm-started on these."""
