"""Requests and responses of the vendor APIs."""
