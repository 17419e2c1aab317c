"""Pictures that are drawn, where no real ones are at hand: a shape on a noisy ground, in the sizes of photographs.

A class is a shape, a texture and a colour; where the shape lies, how large it is, how it is turned and what the ground
looks like are drawn at random, so that no single pixel tells the class. From the same seed the same pictures.
"""

import io

import numpy as np
from PIL import Image

SHAPES = ("disc", "square", "triangle", "ring", "cross")
TEXTURES = ("plain", "stripes", "checks", "dots")
COLOURS = ((205, 60, 50), (60, 170, 70), (65, 90, 215), (215, 190, 55), (170, 70, 190))
SIDES = (200, 500)  # px, of most pictures; one in LARGE_SHARE is up to LARGE_SIDE px
LARGE_SHARE, LARGE_SIDE = 16, 900
QUALITY = 88  # of the JPEG


def kind_of(label: int) -> tuple[int, int, int]:
    """(shape, texture, colour) of a class from 0 to 9: no two have all three in common."""
    return label % 5, label % 4, (label // 5 + label % 5 % 2) % 5


def drawn_jpeg(label: int, seed: tuple[int, ...]) -> bytes:
    """A JPEG file of a picture of that class. seed: whole numbers that no other picture has."""
    generator = np.random.default_rng(seed)
    large = generator.integers(LARGE_SHARE) == 0
    low, high = (SIDES[1], LARGE_SIDE) if large else SIDES
    width, height = (int(side) for side in generator.integers(low, high + 1, 2))
    shape, texture, colour = kind_of(label)
    inside, u, v = _placed_shape(SHAPES[shape], width, height, generator)
    light = _texture(TEXTURES[texture], u, v, generator)
    paint = np.array(COLOURS[colour]) + generator.normal(0, 18, 3)
    ground = _ground(width, height, generator)
    values = np.where(inside[..., None], light[..., None] * paint, ground)
    values += generator.normal(0, 11, (height, width, 1))
    image = Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def _ground(width: int, height: int, generator: np.random.Generator) -> np.ndarray:
    """float [height, width, 3]: random colours that run into each other."""
    cells = np.clip(generator.normal(118, 50, (6, 6, 3)), 0, 255).astype(np.uint8)
    return np.asarray(Image.fromarray(cells).resize((width, height), Image.Resampling.BICUBIC), np.float64)


def _placed_shape(
    name: str, width: int, height: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(inside: bool [height, width], u, v: float [height, width], the shape's own coordinates: -1 to 1 across it)."""
    side = min(width, height)
    radius = generator.uniform(0.15, 0.3) * side
    middle_x, middle_y = (
        length / 2 + generator.uniform(-1, 1) * (side / 2 - radius) for length in (width, height)
    )  # within the middle square, which is what is left of a picture that is made small
    angle = generator.uniform(0, 2 * np.pi)
    y, x = np.mgrid[0:height, 0:width]
    x, y = (x - middle_x) / radius, (y - middle_y) / radius
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    distance = np.hypot(u, v)
    inside = {
        "disc": distance < 0.9,
        "square": np.maximum(abs(u), abs(v)) < 0.72,
        "triangle": (v < 0.5) & (np.sqrt(3) * abs(u) - v < 1),
        "ring": (distance < 1) & (distance > 0.55),
        "cross": (np.minimum(abs(u), abs(v)) < 0.28) & (np.maximum(abs(u), abs(v)) < 0.95),
    }[name]
    return inside, u, v


def _texture(name: str, u: np.ndarray, v: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """float [height, width]: how light the shape is, about 0.4 to 1."""
    u, v = ((along * 3 + generator.uniform(0, 1)) % 1 for along in (u, v))
    dark = {
        "plain": np.zeros(u.shape, bool),
        "stripes": u < 0.5,
        "checks": (u < 0.5) ^ (v < 0.5),
        "dots": np.hypot(u - 0.5, v - 0.5) < 0.3,
    }[name]
    return np.where(dark, 0.4, 1.0)
