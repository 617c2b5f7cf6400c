"""Benchmarks: measured, never imported by the package."""
