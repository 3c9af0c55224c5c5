"""Obligations: side effects in two steps, reserved and then settled, and the scan for leaks (OBL-1)."""

from gateway.obligations.leaks import LeakScan
from gateway.obligations.tracker import Tracker

__all__ = ["LeakScan", "Tracker"]
