"""Whether two programs differ: known answers, properties, edge cases, and how often intervals hold the true ratio."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walkthrough.compare.statistics import (
    ROUNDING,
    UNLIMITED,
    Mean,
    Ratio,
    decided,
    mean,
    of_pairs,
    of_windows,
    ratio,
    rounds_needed,
    t_quantile,
)

speeds = st.floats(1, 1e6)
runs = st.lists(speeds, min_size=2, max_size=12)
rounds = st.dictionaries(st.integers(0, 9), st.lists(speeds, min_size=1, max_size=6), min_size=3, max_size=8)
T_2 = 4.302652729749464  # Student's t at 97.5 %, 2 degrees of freedom: table of any textbook


def ends(answer):
    return answer.ratio, answer.low, answer.high


def test_three_rounds_by_hand():
    # logarithms of the ratios: 0.1, 0.2, 0.3; mean 0.2, standard deviation 0.1, standard error 0.1 / sqrt(3)
    slower = {1: [90.0, 100.0, 101.0], 2: [199.0, 200.0, 777.0], 3: [50.0, 50.0, 50.0]}
    faster = {number: [0.5, windows[1] * math.exp(number / 10), 1e4] for number, windows in slower.items()}
    reach = T_2 * 0.1 / math.sqrt(3)
    answer = ratio(faster, slower)
    assert ends(answer) == pytest.approx((math.exp(0.2), math.exp(0.2 - reach), math.exp(0.2 + reach)))
    assert answer.rounds == 3
    assert not answer.resolved
    reach = math.tan(0.475 * math.pi) * math.log(1.3 / 1.2)  # of one degree of freedom: the Cauchy distribution
    two = of_pairs([1.2 * 1.2 / 1.3, 1.3])
    assert ends(two) == pytest.approx((1.2, 1.2 * math.exp(-reach), 1.2 * math.exp(reach)))


def test_the_quantile_of_student_s_t_has_closed_forms_and_a_limit_and_is_scipy_s():
    assert t_quantile(1) == pytest.approx(math.tan(0.475 * math.pi), rel=1e-14)
    assert t_quantile(2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-14)
    assert t_quantile(1e6) == pytest.approx(1.959966, abs=1e-6)
    special = pytest.importorskip("scipy.special")
    for freedom in (*range(1, 201), 1.5, 2.4, 7 / 3, 31.7):
        assert t_quantile(freedom) == pytest.approx(float(special.stdtrit(freedom, 0.975)), rel=1e-14)
        assert t_quantile(freedom, 0.995) == pytest.approx(float(special.stdtrit(freedom, 0.9975)), rel=1e-13)


def test_five_windows_are_resampled_in_blocks_of_two_neighbours():
    # Blocks [w0 w1] … [w4 w0], three of them cut to five windows: all 125 resamples, each as likely as the others.
    windows = [96.0, 99.0, 100.0, 103.0, 105.0]
    blocks = [[windows[at], windows[(at + 1) % 5]] for at in range(5)]
    medians = [statistics.median((*a, *b, c[0])) for a in blocks for b in blocks for c in blocks]
    error = np.std(np.log(np.array(medians) / 100)) * math.sqrt(5 / 4)  # about their own median, so n / (n - 1)
    reach = t_quantile(2 * (5 / 2 - 1)) * math.sqrt(2) * error
    answer = of_windows(windows, windows)
    assert (math.log(answer.low), math.log(answer.high)) == pytest.approx((-reach, reach), rel=0.05)


def test_programs_are_compared_by_their_common_rounds_or_without_two_by_all_their_windows():
    assert ratio({1: [110.0], 3: [120.0], 9: [1.0]}, {0: [1e6], 1: [100.0], 3: [100.0]}) == of_pairs([1.1, 1.2])
    alone, recorded = [198.0, 200.0, 203.0], {1: [99.0, 100.0], 2: [101.0, 103.0], 3: [97.0, 98.0]}
    assert ratio({0: alone}, recorded) == of_windows(alone, [99.0, 100.0, 101.0, 103.0, 97.0, 98.0])
    assert ratio({2: alone}, recorded).rounds == 1


@settings(deadline=None, max_examples=40)
@given(rounds, rounds)
def test_the_ratio_the_other_way_round_is_the_inverse(a, b):
    other = ratio(b, a)
    assert ends(ratio(a, b)) == pytest.approx((1 / other.ratio, 1 / other.high, 1 / other.low))


@settings(deadline=None, max_examples=40)
@given(rounds, st.data())
def test_what_a_machine_does_to_a_whole_round_changes_nothing(a, data):
    windows = st.lists(speeds, min_size=1, max_size=6)
    b = {number: data.draw(windows) for number in a}
    factors = {number: data.draw(st.floats(0.1, 10)) for number in a}
    scaled = [{number: [factors[number] * x for x in run] for number, run in program.items()} for program in (a, b)]
    assert ends(ratio(*scaled)) == pytest.approx(ends(ratio(a, b)))


@settings(deadline=None, max_examples=40)
@given(runs, runs, st.floats(0.1, 10))
def test_a_gain_multiplies_the_ratio_and_both_ends(a, b, gain):
    one, other = of_windows(a, b), of_windows([gain * window for window in a], b)
    assert ends(other) == pytest.approx([gain * end for end in ends(one)])


def test_equal_speeds_are_not_resolved_and_the_same_gain_everywhere_is():
    assert of_windows([5.1] * 2, [5.1] * 7) == Ratio(1.0, 1.0, 1.0, 1)
    assert of_pairs([1.0] * 3) == Ratio(1.0, 1.0, 1.0, 3)
    sums, products = {n: [n * (0.1 + 0.2)] for n in range(1, 6)}, {n: [n * 0.3] for n in range(1, 6)}
    assert sums != products  # by rounding only
    assert not ratio(sums, products).resolved
    assert not of_windows(products[1] * 5, sums[1] * 5).resolved
    assert ends(of_windows([6.0] * 5, [4.0] * 5)) == pytest.approx((1.5, 1.5, 1.5))
    assert of_windows([6.0] * 5, [4.0] * 5).resolved
    assert of_pairs([1.01] * 4).resolved


def test_a_run_of_one_window_does_not_show_how_it_varies_and_huge_ratios_do_not_overflow():
    for windows in (([200.0], [100.0]), ([200.0], [99.0, 100.0, 101.0]), ([199.0, 201.0], [100.0])):
        assert of_windows(*windows) == Ratio(pytest.approx(2), 0, UNLIMITED, 1)
    assert ends(of_pairs([1e300, 1e-300])) == (pytest.approx(1), 0.0, UNLIMITED)
    assert of_windows([1e300] * 3, [1e-5] * 3).ratio == pytest.approx(1e305)


@pytest.mark.parametrize(
    ("answer", "text", "resolved"),
    [
        (Ratio(1.39, 1.31, 1.48, 5), "1.39x (1.31-1.48)", True),
        (Ratio(1.02, 0.97, 1.08, 5), "~1.02x (0.97-1.08)", False),
        (Ratio(1.2, 1 + ROUNDING, 1.4, 3), "~1.20x (1.00-1.40)", False),
        (Ratio(0.9, 0.8, 1 - ROUNDING, 3), "~0.90x (0.80-1.00)", False),
        (Ratio(1.25, 1.003, 1.56, 3), "1.25x (1.003-1.56)", True),  # one that rounds to 1 has more decimals
        (Ratio(0.9997, 0.99, 1 - 2 * ROUNDING, 3), "0.9997x (0.99-0.999999998)", True),
        (Ratio(2.0, 0.0, UNLIMITED, 1), "~2.00x (0.00-1000+)", False),
        (Ratio(9999.0, 999.0, 1000.0, 2), "9999.00x (999.00-1000+)", True),
        (Ratio(1e4, 1000.0, 2e4, 2), "1e+04x (1000+-1000+)", True),
    ],
)
def test_an_unresolved_ratio_is_marked(answer, text, resolved):
    assert str(answer) == text
    assert answer.resolved is resolved


def alike(generator, shape, correlation):
    """Noise of standard deviation 1, its last axis AR(1)."""
    noise = generator.standard_normal(shape)
    for at in range(1, shape[-1]):
        noise[..., at] = correlation * noise[..., at - 1] + math.sqrt(1 - correlation**2) * noise[..., at]
    return noise


def test_over_drifting_rounds_95_percent_of_intervals_hold_the_ratio():
    """`benchmarks/interval_coverage.py` shows it in full."""
    generator, trials, number = np.random.default_rng(1), 500, 4
    drift = 0.05 * np.cumsum(generator.standard_normal((trials, 1, number, 1)), axis=2)
    offsets = 0.02 * generator.standard_normal((trials, 2, number, 1))
    logarithms = drift + offsets + 0.03 * alike(generator, (trials, 2, number, 5), 0.6)
    logarithms[:, 0] += math.log(1.3)
    answers = [ratio(dict(enumerate(a)), dict(enumerate(b))) for a, b in np.exp(logarithms).tolist()]
    assert 0.9 < np.mean([answer.low <= 1.3 <= answer.high for answer in answers]) < 0.99


def from_1(errors):
    """Ratios of three rounds, whose mean logarithm is so many standard errors from 0."""
    return [math.exp(0.1 + deviation * 0.1 / errors) for deviation in (-math.sqrt(3), 0, math.sqrt(3))]


def off_1(shift):
    """Ratios of four rounds, whose logarithms are `shift` and one, plus and minus, in hundredths."""
    return [math.exp(0.01 * (shift + deviation)) for deviation in (1, -1, 1, -1)]


@pytest.mark.parametrize(
    ("ratios", "rounds", "answer"),
    [
        ([1.2, 1.21], 5, None),  # of two rounds, never
        ([1.2, 1.21, 1.2], 3, None),  # those were all
        (from_1(14.13), 5, True),  # t of 2 degrees of freedom at 99.5 %: 14.09; two looks, of 0.5 % each
        (from_1(14.05), 5, None),
        (from_1(10.0), 4, True),  # at 99 %, of the one look: 9.92
        ([1.2, 1.22, 1.17, 1.21], 10, True),
        ([1.2, 1.22, 1.17, 1.21], 1000, None),  # the more looks, the wider an interval each needs
        # Their spread s is 1.155. That of five will reach s / sqrt(5) * 2.776 = 1.434; until then the mean moves by
        # s * sqrt(1 / 4 - 1 / 5) * 3.182 = 0.822 at most: from 0.612 on it may be out of reach.
        (off_1(0.61), 5, False),
        (off_1(-0.61), 5, False),
        (off_1(0.615), 5, None),
        (off_1(0.61), 50, None),  # so many may show it
        ([1.0, 1.0, 1.0], 5, False),
    ],
)
def test_rounds_end_early_once_the_answer_is_settled(ratios, rounds, answer):
    assert decided(ratios, rounds) is answer


def test_the_rounds_needed_are_those_whose_interval_ends_at_1():
    ratios = [math.exp(0.01 + deviation) for deviation in (0.02, -0.02, 0.02, -0.02)]  # spread: 0.02 * sqrt(4 / 3)
    needed = rounds_needed(ratios, 20)
    assert needed == math.ceil((t_quantile(19) * 0.02 / 0.01) ** 2 * 4 / 3)
    assert rounds_needed(ratios, 1000) == 1000
    assert rounds_needed([1.1, 1 / 1.1], 5) > 1e9  # 1, but for rounding
    assert rounds_needed([1.0, 1.0], 5) == math.inf


def test_the_mean_of_values_has_students_interval():
    of_three = mean([1.0, 2.0, 3.0])  # t of 2 degrees of freedom: 4.302653; standard error: 1 / sqrt(3)
    assert of_three.mean == 2.0
    assert of_three.high == pytest.approx(2 + 4.302653 / 3**0.5)
    assert of_three.low == pytest.approx(2 - 4.302653 / 3**0.5)
    assert str(of_three) == "2 (-0.484 to 4.48)"
    assert mean([0.25]) == Mean(0.25, None, None, 1)
    assert str(mean([0.25])) == "0.25"
    assert mean([1.0, 3.0]) == Mean(2.0, pytest.approx(2 - 12.706205), pytest.approx(2 + 12.706205), 2)
