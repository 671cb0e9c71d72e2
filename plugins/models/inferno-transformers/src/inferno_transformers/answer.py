"""The subprocess of `config.ask`: a question on stdin, one line of JSON on stdout."""

from __future__ import annotations

import json
import sys

from inferno.errors import InfernoError
from inferno_transformers.config import called


def main() -> None:
    function, question = sys.argv[1], sys.stdin.read()
    try:
        answer = {"answer": called(function, question)}
    except InfernoError as error:
        answer = {"error": type(error).__name__, "cause": error.cause, "remedy": error.remedy}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
