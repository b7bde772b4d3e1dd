"""MCP, both ways: tools of other programs (planned), and sequential thinking for them."""
