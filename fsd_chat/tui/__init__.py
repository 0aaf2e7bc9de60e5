"""The terminal app: widgets that render what they are given, screens that connect them."""
