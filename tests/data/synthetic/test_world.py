"""The facts of the synthetic world and their sentences."""

from palimpsest.data.synthetic.world import ATTRIBUTES, PEOPLE, RELATIONS, Fact, read_fact


def test_a_value_belongs_to_one_relation() -> None:
    values = [value for relation in ATTRIBUTES for value in relation.values]
    assert len(values) == len(set(values))
    assert not set(values) & set(PEOPLE)


def test_every_statement_is_read_as_its_fact() -> None:
    for relation in RELATIONS:
        value = relation.values[3]
        for statement in relation.statements:
            assert read_fact(statement.format(s="Zoe", v=value)) == Fact("Zoe", relation.name, value)
