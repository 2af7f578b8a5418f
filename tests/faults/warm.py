"""Loads, when imported, everything that the processes under test need; the plugin they load by themselves."""

import pytest  # noqa: F401  multiprocessing loads the main module of the tests in each process
import torch

from tests.faults import programs  # noqa: F401

torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimizer loads torch's compiler
