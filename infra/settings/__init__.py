"""Settings people write (the fleet file) and what a running stack records about itself (the run manifest)."""
