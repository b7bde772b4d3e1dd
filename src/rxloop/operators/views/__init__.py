"""Views: operators for those who read a run."""
