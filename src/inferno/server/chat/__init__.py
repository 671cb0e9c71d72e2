"""Conversations: their prompts, tools, reasoning and structured output."""
