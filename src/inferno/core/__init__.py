"""What every request walks through, whatever the model: schedule, run, sample, commit."""
