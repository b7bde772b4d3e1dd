"""How bytes travel: clients and their connections, timeouts, and the frames that an answer comes in."""
