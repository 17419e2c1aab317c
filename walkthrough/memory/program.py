"""The process that predicts: `python -m walkthrough.memory.program JSON`. See `prediction`."""

import json
import sys

import torch

from walkthrough.compare.isolated import print_answer
from walkthrough.results.errors import printable
from walkthrough.results.progress import end_with_reader


def main(settings: str) -> None:
    """Predict the programs that a line of JSON describes, {"wanted": [the fields of a `record.Wanted`, …]}.

    Answers {"predictions": […]}, for each the fields of a `Prediction`, or {"failed": why, in a line} where it cannot
    be predicted; {"moved": …} where this torch has not what a prediction needs. Each prediction is a line {"predicted":
    …} as soon as it is there, so that none is lost where the process is ended.
    """
    try:
        from walkthrough.memory import prediction

        prediction.check_tools()
    except Exception as error:  # imports, attributes, signatures: none of these tools is part of a stable interface
        why = printable(f"{type(error).__name__}: {error}", 120)
        print_answer({"moved": f"torch {torch.__version__} lacks what a prediction needs, or has moved it ({why})"})
        return
    predictions = []
    for wanted in json.loads(settings)["wanted"]:
        predictions.append(prediction.predicted(wanted))
        print(json.dumps({"predicted": predictions[-1]}), flush=True)
    print_answer({"predictions": predictions})


if __name__ == "__main__":
    end_with_reader()
    main(sys.argv[1])
