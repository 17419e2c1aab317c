"""Offline preprocessing: JPEGs are decoded and resized once, and packed into shards.

    python labs/scale/preprocess.py --data DIR [--out DIR] [--size 64] [--engine spark] [--master local[*]]

Spark does it on all cores of this machine, or on a cluster, whose machines must see both folders under the same path;
--engine processes does it without Spark and makes the same shards. A shard is there whole or not at all: after a cut
the same command goes on, and makes again only shards that are missing or broken. At the end all shards are read back.
"""

import json
from dataclasses import asdict
from pathlib import Path

from labs.scale.jpegs import Engine, Listing, image_folder, listed, on_all_cores
from labs.scale.order import shards_of
from labs.scale.packing import packed_shard
from labs.scale.shards import INDEX, Index, Shard, check
from labs.scale.spark import spark_engine
from walkthrough.results import result
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, OneLineParser, folder, printable, whole_number


def shard_folder(data: Path, size: int) -> Path:
    """Where shards of a folder of JPEGs lie unless another folder is named: DIR/shards-64px, with train/ and val/."""
    return data / f"shards-{size}px"


def preprocess(data: Path, out: Path, size: int, engine: Engine = on_all_cores) -> list[Index]:
    """Make shards of DIR/train, and of DIR/val if there is one, in OUT/train and OUT/val; their indices.

    data: a folder of JPEGs. size: px. engine: what does the work. Raises InputError for a folder that cannot be read
    or written, and where too many JPEGs are corrupt.
    """
    parts = [part for part in ("train", "val") if (data / part).is_dir()]
    return [_of_part(listed(data, part, engine), out / part, size, engine) for part in parts]


def _of_part(listing: Listing, out: Path, size: int, engine: Engine) -> Index:
    with result.writing(out):
        out.mkdir(parents=True, exist_ok=True)
    shards = shards_of(len(listing))
    answers = [json.loads(answer) for answer in engine(packed_shard, _jobs(listing, out, size), 1)]
    if failed := [answer["failed"] for answer in answers if "failed" in answer]:
        raise InputError(f"cannot make {len(failed)} of {len(shards)} shards in {out}: {printable(failed[0], 160)}")
    index = Index(
        schema=1,
        size=size,
        source=listing.source,
        classes=list(listing.classes),
        made_from=listing.digest,
        corrupt=dict(listing.corrupt),
        shards=[Shard(**answer) for answer in answers],
    )
    result.write_json(out / INDEX, asdict(index))
    return check(out)


def _jobs(listing: Listing, out: Path, size: int) -> list[str]:
    """What `packed_shard` takes, for each shard."""
    return [
        json.dumps(
            {
                "out": str(out.resolve()),
                "name": f"{number:06d}.tar",
                "size": size,
                "of": listing.digest,
                "samples": [
                    (f"{index:08d}", listing.labels[index], str(Path(listing.path(index)).resolve()))
                    for index in images.tolist()
                ],
            }
        )
        for number, images in enumerate(shards_of(len(listing)))
    ]


def train_shards(data: Path, size: int) -> tuple[Path, Index]:
    """(folder, index) of the training shards that --data means, all of them whole.

    They are those of the folder itself, where it is one that `preprocess` wrote; else those of `shard_folder`, which
    are made at the first time, and again where the JPEGs have changed. Raises InputError.
    """
    if (data / "train" / INDEX).exists():
        index = check(data / "train")
        if index.size != size:
            raise InputError(f"the shards in {data} are of {index.size} px: --image-size {index.size} reads them")
        return data / "train", index
    jpegs = image_folder(data)
    out = shard_folder(jpegs, size)
    if (out / "train" / INDEX).exists():
        index = check(out / "train")
        if index.made_from == listed(jpegs).digest:
            return out / "train", index
    print(f"making shards of {size} px in {out}, once; labs/scale/preprocess.py does it with Spark", flush=True)
    return out / "train", preprocess(jpegs, out, size)[0]


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument(
        "--data",
        type=folder,
        default=ROOT / "data",
        metavar="DIR",
        help="folder of train/CLASS/*.jpg and val/CLASS/*.jpg (without one: pictures that are drawn)",
    )
    parser.add_argument(
        "--out", type=folder, default=None, metavar="DIR", help="folder of the shards (default: DIR/shards-64px)"
    )
    parser.add_argument(
        "--size", type=whole_number(16, 1024), default=64, metavar="PX", help="of the images (default: %(default)s)"
    )
    parser.add_argument("--engine", choices=("spark", "processes"), default="spark", help="default: %(default)s")
    parser.add_argument(
        "--master",
        default="local[*]",
        metavar="URL",
        help="Spark's: local[N], or a cluster's, such as spark://HOST:7077 (default: %(default)s)",
    )
    args = parser.parse_args()
    data = image_folder(args.data)
    out = args.out or shard_folder(data, args.size)
    if args.engine == "spark":
        with spark_engine(args.master) as engine:
            indices = preprocess(data, out, args.size, engine)
    else:
        indices = preprocess(data, out, args.size)
    for index in indices:
        skipped = f", {len(index.corrupt)} corrupt JPEGs left out" if index.corrupt else ""
        print(
            f"{out}: {index.samples} images of {index.size} px in {len(index.shards)} shards, "
            f"{index.bytes / 1e6:.1f} MB{skipped}; all read back and whole"
        )


if __name__ == "__main__":
    main()
