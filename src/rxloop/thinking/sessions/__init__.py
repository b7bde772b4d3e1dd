"""Sequential thinking: thoughts in sessions, with revisions and branches."""
