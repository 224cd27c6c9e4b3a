"""Schedules in memory: their definitions, their ticks, and the schedules of code."""
