"""Measurements: everything that times the program or turns the knob and reports."""
