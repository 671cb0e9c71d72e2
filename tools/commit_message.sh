#!/bin/sh
# Checks a commit message: a subject of at most 72 characters, then an empty line, then why.
subject=$(sed -n 1p "$1")
if [ "${#subject}" -gt 72 ]; then
    echo "the subject has ${#subject} characters: at most 72, and the reason into the body" >&2
    exit 1
fi
if ! grep -v '^#' "$1" | sed 1d | grep -q '[^[:space:]]'; then
    echo "the message has no body: say why, what was tried, and figures" >&2
    exit 1
fi
