"""Which sequences run next, with how many tokens and drafts."""
