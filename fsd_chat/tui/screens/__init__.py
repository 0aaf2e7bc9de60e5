"""Screens connect the widgets to the talk, the store and the engine."""
