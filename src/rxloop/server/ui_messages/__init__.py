"""The AI SDK's UI message stream: what `useChat` of a page speaks."""
