"""What attention backends share: the tokens of a batch, gathered from a paged cache."""
