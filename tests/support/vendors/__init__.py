"""Vendor requests and responses."""
