"""Model calls: requests, their records, and the events of answers."""
