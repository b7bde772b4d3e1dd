"""Sent model requests and their compact records."""
