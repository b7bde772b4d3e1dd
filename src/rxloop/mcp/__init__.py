"""Servers: what rxloop offers to other programs. Each needs an extra, and its module says which."""
