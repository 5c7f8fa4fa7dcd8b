"""What several ranks found, in one line."""

from hvd_mnist.keras.nan import VARIABLE, in_words


def finding(rank, step, what="loss (nan)", **more):
    return {"rank": rank, "host": f"h{rank}", "step": step, "what": what, "first_variable": "dense/kernel", **more}


def test_the_earliest_step_is_the_cause():
    line = in_words([finding(0, 6), finding(1, 5, file="logs/nan-rank-1.json"), finding(2, 6)])
    assert line == (
        "loss (nan) is not finite on rank 1, h1, at step 5; first variable that is not: 'dense/kernel'; "
        "samples in logs/nan-rank-1.json"
    )


def test_a_loss_comes_before_the_variables_that_it_spoiled():
    assert in_words([finding(0, 5, VARIABLE), finding(1, 5)]).startswith("loss (nan) is not finite on rank 1, h1")


def test_everybody_at_once_means_that_the_variables_were_spoiled():
    line = in_words([finding(rank, 5) for rank in range(4)])
    assert "on rank 0, h0, at step 5 (and on 3 more: the variables were not finite before)" in line
