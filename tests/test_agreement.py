"""The arithmetic of agreement: what differs, in a table and in one line."""

from hvd_mnist.runtime.agreement import Difference, differences, in_one_line, software, table

HOSTS = ["h1", "h1", "h2"]


def test_alike_is_no_difference():
    facts = {"setting": {"seed": "1"}, "steps": {"steps": "10"}}
    assert differences([facts, dict(facts), dict(facts)]) == []


def test_every_difference_in_the_order_of_the_aspects():
    told = [
        {"steps": {"steps": "10"}, "version": {"keras": "3.15"}, "model": {"0 dense/kernel": "(4, 3) float32"}},
        {"steps": {"steps": "10"}, "version": {"keras": "3.15"}, "model": {"0 dense/kernel": "(4, 3) float32"}},
        {"steps": {"steps": "9"}, "version": {"keras": "3.14"}, "model": {}},
    ]
    found = differences(told)
    assert [(d.aspect, d.name) for d in found] == [
        ("version", "keras"),
        ("model", "0 dense/kernel"),
        ("steps", "steps"),
    ]
    assert found[1].told == ("(4, 3) float32", "(4, 3) float32", "nothing")
    assert in_one_line(found, HOSTS) == (
        "version: rank 2 on h2 has keras=3.14, rank 0 has keras=3.15 (and 2 more differences, in rank 0's table)"
    )
    assert table(found, HOSTS).splitlines() == [
        "ranks differ:",
        "  what                  value           where",
        "  version keras         3.15            ranks 0, 1 on h1",
        "                        3.14            rank 2 on h2",
        "  model 0 dense/kernel  (4, 3) float32  ranks 0, 1 on h1",
        "                        nothing         rank 2 on h2",
        "  steps steps           10              ranks 0, 1 on h1",
        "                        9               rank 2 on h2",
    ]


def test_a_table_of_many_differences_is_short():
    found = [Difference("setting", f"knob{n}", ("a" * 500, "b")) for n in range(40)]
    text = table(found, HOSTS)
    assert "and 28 more" in text and max(map(len, text.splitlines())) < 130


def test_software_of_this_process_names_what_matters():
    found = software(script=True)
    assert {"python", "tensorflow", "keras", "numpy"} <= set(found["version"])
    assert "tensorflow-cpu" not in found["version"]
    assert {"hvd_mnist/trainer.py", "hvd_mnist/keras/optimizer.py"} <= set(found["code"])
    assert not any("launch" in name for name in found["code"])
    assert software(script=True) == found
