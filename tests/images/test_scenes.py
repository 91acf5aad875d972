"""Scenes drawn by a program: captions that are true, shapes that are small and apart, parts that differ."""

import numpy as np

from clearhead.images.scenes import COLOURS, KINDS, Scene, Shape, describe_shapes, make_pairs


def masks(scene: Scene) -> list[np.ndarray]:
    return [scene.covered(place, *scene.pixels.shape[:2]) for place in range(len(scene.shapes))]


def test_every_shape_is_drawn_in_its_colour_small_and_apart_from_the_others():
    for scene in make_pairs("train", 40):
        drawn = masks(scene)
        assert max(mask.mean() for mask in drawn) <= 0.1
        assert sum(drawn).max() == 1
        assert (scene.pixels[sum(drawn) == 0] == 255).all()
        for shape, mask in zip(scene.shapes, drawn, strict=True):
            assert (scene.pixels[mask] == COLOURS[shape.colour]).all(1).mean() > 0.5
            assert scene.pixels[int(shape.y), int(shape.x)].tolist() == list(COLOURS[shape.colour])


def test_captions_say_where_each_shape_is_to_the_next():
    relations = set()
    for scene in make_pairs("dev", 40):
        words = scene.text.split()
        for one, other in zip(scene.shapes, scene.shapes[1:], strict=False):
            relation = "left of" if other.x - one.x > other.y - one.y else "above"
            assert f"{one.text} {relation} {other.text}" in scene.text
            assert other.x - other.radius > one.x + one.radius if relation == "left of" else other.y > one.y
            relations.add(relation)
        assert {shape.kind for shape in scene.shapes} <= set(KINDS) & set(words)
        assert len(set(scene.shapes)) == len({shape.text for shape in scene.shapes})
    assert relations == {"left of", "above"}


def test_a_part_is_always_the_same_and_no_scene_is_in_two():
    first, again = (list(make_pairs("train", 30)) for _ in range(2))
    assert all(np.array_equal(one.pixels, other.pixels) for one, other in zip(first, again, strict=True))
    pictures = [scene.pixels.tobytes() for part in ("train", "dev", "test") for scene in make_pairs(part, 100)]
    assert len(set(pictures)) == 300


def test_the_cells_that_a_shape_covers_are_those_with_a_pixel_of_it():
    shapes = (Shape("red", "square", 12.0, 4.0, 3.0),)
    scene = Scene(np.zeros((16, 16, 3), np.uint8), describe_shapes(shapes), shapes)
    assert scene.covered(0, 2, 2).tolist() == [[False, True], [False, False]]  # from 9.3 to 14.7 and 1.3 to 6.7
    assert scene.covered(0, 1, 4).tolist() == [[False, False, True, True]]
