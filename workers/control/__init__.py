"""The control worker: hosts the workflows and the light activities of one run."""
