"""OpenAI's Responses, as OpenAI, Azure, gateways and servers of open models speak it."""
