"""Small and dumb: each renders state and says what the user did."""
