"""From text to tokens and back, and from chats to prompts."""
