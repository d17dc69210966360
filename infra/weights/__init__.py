"""Model weights as data: architecture, names, flat layout, checksum. Importing this package does not import torch."""
