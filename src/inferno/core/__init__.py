"""The path of every request, whatever the model: schedule, run, sample, commit."""
