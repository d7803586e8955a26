"""Shows that a run killed mid-generation and restored trains on the same rows as without."""
