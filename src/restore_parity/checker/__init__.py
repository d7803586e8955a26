"""The verdict on saved runs: needs neither engine, torch, pandas nor Jupyter."""
