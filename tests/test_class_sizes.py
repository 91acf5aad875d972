"""No class answers to more methods than a reader can keep in mind, inherited ones of ours counted."""

import ast

from tests.test_layout import files, module_of


def methods_of_classes() -> dict[str, set[str]]:
    """By module and name of each class: the methods and properties that it and its base classes of ours define."""
    own, bases, origins = dict[str, set[str]](), dict[str, list[str]](), dict[str, str]()
    for path in files():
        module = module_of(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                origins |= {
                    f"{module}.{alias.asname or alias.name}": f"{node.module}.{alias.name}" for alias in node.names
                }
            elif isinstance(node, ast.ClassDef):
                own[f"{module}.{node.name}"] = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                names = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
                bases[f"{module}.{node.name}"] = [f"{module}.{ast.unparse(name)}" for name in names]

    def collect(name: str) -> set[str]:
        while name in origins:
            name = origins[name]
        return own.get(name, set()).union(*map(collect, bases.get(name, ())))

    return {name: collect(name) for name in own}


def test_no_class_answers_to_more_than_twenty_methods():
    """But masks, whose operators and constructors are what users compose, and the tokenizer."""
    methods = methods_of_classes()
    mask = methods["clearhead.attention.masks.Mask"]
    exempt = {name for name in methods if methods[name] >= mask} | {"clearhead.text.tokenizer.Tokenizer"}
    assert len(methods) > 200
    assert len(mask) > 20
    assert not {name: len(methods[name]) for name in methods.keys() - exempt if len(methods[name]) > 20}


def test_inherited_methods_and_properties_count():
    methods = methods_of_classes()
    base = methods["clearhead.tasks.processor.Processor"]
    assert (
        {"load", "settings", "prepare", "build"} <= base < methods["clearhead.tasks.translation.TranslationProcessor"]
    )
