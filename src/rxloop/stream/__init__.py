"""The stream of a run: the hub that is its one subject, the scope that owns its tasks, and the bridges to asyncio."""
