"""Stands in for scikit-learn in programs that tests start; tests/conftest.py says why."""
