"""Stands in for scipy in programs that tests start; tests/conftest.py says why."""
