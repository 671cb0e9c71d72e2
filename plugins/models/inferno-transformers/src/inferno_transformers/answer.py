"""The subprocess of `config.Answering`: a question is a line on stdin, its answer a line on stdout,
both JSON."""

from __future__ import annotations

import json
import os
import select
import sys

from inferno.errors import InfernoError
from inferno_transformers.config import called

PATIENCE = 20.0
"""Seconds without a question after which it ends, and gives back its memory."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # modelling code may print
    while select.select([0], [], [], PATIENCE)[0] and (line := sys.stdin.readline()):
        function, question = json.loads(line)
        try:
            answer = {"answer": called(function, question)}
        except InfernoError as error:
            answer = {"error": type(error).__name__, "cause": error.cause, "remedy": error.remedy}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
