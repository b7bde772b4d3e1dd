"""Requests and answers of the vendor APIs."""
