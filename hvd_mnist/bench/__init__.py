"""Measurements: every one proves its answer first, then gives median, spread and n."""
