"""The input cut into shards: every record in exactly one, whatever the sizes."""

from __future__ import annotations

import gzip
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.examples import FRAMING, File
from assay.shards import MOST_PIECES, TO_THE_END, TOGETHER, Range, cut, records_bytes

MEAN = 84.0  # so that a record takes 100 bytes


def files(*records: int) -> list[File]:
    return [File(f"file-{n}", "", count * 100) for n, count in enumerate(records)]


def ranges(shards, file: int) -> list[Range]:
    return sorted((r for s in shards for r in s.ranges if r.file == file), key=lambda r: r.start)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.integers(1, 20))
def test_every_record_is_in_exactly_one_shard(records, workers):
    shards = cut(files(*records), MEAN, workers)
    for number in range(len(records)):
        found = ranges(shards, number)
        assert found[0].start == 0 and found[-1].stop == TO_THE_END
        for left, right in itertools.pairwise(found):
            assert left.start < left.stop == right.start


@given(st.lists(st.integers(1000, 2000), min_size=1, max_size=12), st.integers(1, 12))
def test_there_are_shards_for_all_workers(records, workers):
    assert len(cut(files(*records), MEAN, workers)) >= workers


def test_one_file_for_two_workers_is_cut_in_the_middle():
    shards = cut(files(10), MEAN, 2)
    assert [s.ranges for s in shards] == [(Range(0, 0, 5),), (Range(0, 5, TO_THE_END),)]
    assert [s.bytes for s in shards] == [500, 500]


@pytest.mark.parametrize("records,expected", [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_few_records_make_few_shards(records, expected):
    assert len(cut(files(records), MEAN, 3)) == expected


def test_one_worker_reads_many_files_at_a_time():
    shards = cut(files(*[5] * 40), MEAN, 1)
    assert [len(s.ranges) for s in shards] == [TOGETHER, TOGETHER, 8]


def test_two_workers_get_whole_files_when_there_are_enough():
    shards = cut(files(*[5] * 40), MEAN, 2)
    assert all(r.start == 0 and r.stop == TO_THE_END for s in shards for r in s.ranges)
    assert len(shards) == 8


def test_a_large_file_is_cut_so_that_a_kill_costs_a_part_of_it():
    shards = cut(files(1 << 30), MEAN, 1)
    assert len(shards) == MOST_PIECES


@pytest.mark.parametrize("content,expected", [(bytes(5000), 5000), (b"x", 21)])
def test_gzip_says_how_much_it_holds(tmp_path, content, expected):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(content))
    assert records_bytes(File(str(path), "GZIP", path.stat().st_size)) == expected


def test_of_joined_gzip_files_the_packed_size_is_the_guess(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 9) + gzip.compress(b"x"))
    size = path.stat().st_size
    assert records_bytes(File(str(path), "GZIP", size)) == size


def test_gzip_above_four_gigabytes_is_not_taken_for_a_small_one(tmp_path):
    path, size = tmp_path / "a.gz", 1 << 29
    with path.open("wb") as handle:
        handle.seek(size - 4)
        handle.write((10).to_bytes(4, "little"))
    assert records_bytes(File(str(path), "GZIP", size)) == 2**32 + 10


def test_the_mean_counts_the_framing():
    assert len(cut([File("a", "", int(MEAN) + FRAMING)], MEAN, 4)) == 1
