"""Rank the candidate summaries of one's own documents with the weights that `train.py` kept.

    python labs/simcls/rank.py FOLDER FILE > ranked.jsonl

FOLDER: the --logdir of the training. FILE: a JSON object on each line, with "article", a text, and "candidates", a list
of texts; without, candidates are cut from the article. Each line gets another one on stdout: "id", of the object or
the number of its line; "best", the number of the candidate with the highest score, from 0; "summary", its text; and
"scores", of all candidates.
"""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from common.device import autocast_dtype, checked_device
from labs.shared.extras import imported
from labs.shared.training import BEST, unpacked
from labs.simcls.data import Candidates, PlacedTokens
from labs.simcls.documents import Document, document_in, json_lines
from labs.simcls.model import SIZES, ReRanker, re_ranker, size_of
from labs.simcls.train import RANKER, TOKENIZER, scores_of
from walkthrough.results.errors import InputError, OneLineParser, folder, printable
from walkthrough.results.result import read_json

import torch


def loaded(kept: Path, device: torch.device) -> tuple[ReRanker, PlacedTokens, tuple[int, int]]:
    """The model of a training's best epoch, its tokenizer, and how many tokens it reads: (document, summary).

    Raises InputError where the folder does not hold them.
    """
    tokenizers = imported("tokenizers", "simcls", "reading a tokenizer")
    try:
        about = read_json(kept / RANKER)
        tokens = PlacedTokens(tokenizers.Tokenizer.from_file(str(kept / TOKENIZER)), about["pad"])
        name = about["model"] if about["model"] in SIZES else str(kept)
        model = re_ranker(name, tokens.vocabulary, tokens.pad_id, pretrained=False)
        model.load_state_dict(unpacked((kept / BEST).read_bytes())["model"])
    except InputError:
        raise
    except Exception as error:  # of files that are not there, cut off or another's
        reason = printable(f"{type(error).__name__}: {error}", 120)
        raise InputError(f"{kept} holds no weights of labs/simcls/train.py ({reason})") from error
    return model.to(device), tokens, size_of(about["model"]).lengths


def documents_in(path: Path) -> list[tuple[object, Document]]:
    """(id, or number of the line; document) of each line of a file. Raises InputError for one that cannot be ranked."""
    documents = []
    for number, row in json_lines(path):
        document = document_in(row, f"{path}, line {number}", reference=False)
        if document is None:
            raise InputError(f'{path}, line {number}: too short to cut candidates from it: give "candidates"')
        documents.append((row.get("id", number), document))
    return documents


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument("folder", type=folder, metavar="FOLDER", help="--logdir of labs/simcls/train.py")
    parser.add_argument("file", type=folder, metavar="FILE", help="JSON lines: article, candidates")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the GPU if there is one)")
    args = parser.parse_args()
    device = torch.device(checked_device(args.device))
    model, tokens, lengths = loaded(args.folder, device)
    documents = documents_in(args.file)
    with redirect_stdout(sys.stderr):  # what is said about the precision
        dtype = autocast_dtype(device, "auto")
    for name, document in documents:
        unordered = Candidates([document], tokens, lengths, ordered=False)
        (scores,) = scores_of(model, unordered, device, dtype, batch_size=1)  # other documents may have more candidates
        best = scores.index(max(scores))
        line = {"id": name, "best": best, "summary": document.candidates[best], "scores": scores}
        print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main()
