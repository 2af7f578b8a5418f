"""Functions of others, replaced by ones that call them."""

from powernorm_fairseq.around import around


class Task:
    def step(self, number, scale=1):
        """As it was."""
        return number * scale


def add_one(original, *args, **more):
    return original(*args, **more) + 1


def test_the_replacement_gets_what_was_there_on_a_class_and_on_an_object():
    class Own(Task):
        pass

    around(Own, "step")(add_one)
    assert Own().step(3, scale=2) == 7 and Own.step.__doc__ == "As it was."
    task = Own()
    around(task, "step")(add_one)
    assert task.step(3) == 5 and Own().step(3) == 4


def test_a_mark_makes_it_once():
    task = Task()
    for _ in range(3):
        around(task, "step", mark="adds_one")(add_one)
    assert task.step(3) == 4
    around(task, "step")(add_one)  # wrapped by another, it still has the mark
    around(task, "step", mark="adds_one")(add_one)
    assert task.step(3) == 5
