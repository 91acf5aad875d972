"""Scenes drawn by a program: captions that are true, shapes that are small and apart, parts that differ."""

import numpy as np

from clearhead.images.scenes import COLOURS, KINDS, Scene, draw_shapes, make_pairs


def masks(scene: Scene) -> list[np.ndarray]:
    return [(draw_shapes((shape,)) != 255).any(2) for shape in scene.shapes]


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
