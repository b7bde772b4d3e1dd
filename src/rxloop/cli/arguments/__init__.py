"""Parsers and error messages for command line arguments."""
