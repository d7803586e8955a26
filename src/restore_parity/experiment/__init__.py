"""The experiment: three workloads over an engine; it judges nothing."""
