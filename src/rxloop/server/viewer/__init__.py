"""Web page for inspecting active and finished runs through the HTTP API."""
