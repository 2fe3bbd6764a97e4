"""Measures PyTorch's caching allocator on GPU 0 and prints one line of JSON.

    python3 driver_step.py latency       microseconds of what TestDriver measures of Headroom's
    python3 driver_step.py replay FILE BYTES
                                         what it makes of a program in so many bytes: rows of
                                         three int64, which are a number, the bytes (-1: it is
                                         freed) and a stream

Settings of the allocator are taken from the environment, as always.
"""

import array
import json
import statistics
import sys
import time

import torch

MIB, GIB = 1 << 20, 1 << 30
NAMES = {4096: "4KiB", 2 * MIB: "2MiB", 64 * MIB: "64MiB", GIB: "1GiB"}
allocate, delete = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete


def tensor(n):
    return torch.empty(n, dtype=torch.uint8, device="cuda")


def timed(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e6


def median(rounds, one):
    """The median of what rounds of one give, each with an empty cache; the first doesn't count."""
    took = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        took.append(one())
    return statistics.median(took[1:])


def hits(n, stream, pairs=2000):
    hole = allocate(n, stream)
    neighbour = allocate(n, stream)
    delete(hole)

    def work():
        for _ in range(pairs):
            delete(allocate(n, stream))

    took = timed(work) / pairs
    delete(neighbour)
    return took


def tensors(n, other, pairs=2000):
    def work():
        for _ in range(pairs):
            x = tensor(n)
            if other:
                x.record_stream(other)
            del x

    tensor(n)
    return timed(work) / pairs


def cuts(back, stream, n=512):
    delete(allocate(n * 2 * MIB, stream))
    blocks = []

    def take():
        for _ in range(n):
            blocks.append(allocate(2 * MIB, stream))

    def free():
        for p in blocks:
            delete(p)

    took = timed(take), timed(free)
    return took[back] / n


def miss(n, stream):
    blocks = []
    took = timed(lambda: blocks.append(allocate(n, stream)))
    delete(blocks[0])
    return took


def give_back(n, stream):
    delete(allocate(n, stream))
    return timed(torch.cuda.empty_cache)


def holes(k, stream):
    blocks = [allocate(2 * MIB, stream) for _ in range(2 * k)]
    for p in blocks[::2]:
        delete(p)
    large = []
    took = timed(lambda: large.append(allocate(2 * k * MIB, stream)))
    for p in blocks[1::2] + large:
        delete(p)
    return took


def latency():
    stream, other = torch.cuda.current_stream().cuda_stream, torch.cuda.Stream()
    us = {}
    for n, name in NAMES.items():
        us["hit and free, " + name] = median(5, lambda: hits(n, stream))
        us["torch.empty and del, " + name] = median(5, lambda: tensors(n, None))
        if n > 4096:
            us["miss, new memory, " + name] = median(9, lambda: miss(n, stream))
            us["cached memory given back, " + name] = median(9, lambda: give_back(n, stream))
    us["hit and free, used by another stream, 2MiB"] = median(5, lambda: tensors(2 * MIB, other))
    us["hit that cuts a larger block, 2MiB"] = median(9, lambda: cuts(False, stream))
    us["free that joins neighbours, 2MiB"] = median(9, lambda: cuts(True, stream))
    for k in (2, 8, 64, 512):
        us[f"miss, {k} holes of 2MiB"] = median(7, lambda: holes(k, stream))
    return {"micros": us}


def calls():
    s = torch.cuda.memory_stats()
    return s.get("num_device_alloc", 0) + s.get("num_device_free", 0)


def replay(file, most):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, most / total))
    rows = array.array("q")
    with open(file, "rb") as f:
        rows.frombytes(f.read())
    numbers, sizes, places = rows[0::3], rows[1::3], rows[2::3]
    streams = [torch.cuda.current_stream()] + [torch.cuda.Stream() for _ in range(max(places))]
    handles, blocks = [s.cuda_stream for s in streams], {}
    torch.cuda.synchronize()
    before, first, took = torch.cuda.mem_get_info()[0], calls(), []
    middle = len(sizes) // 2
    for part in (range(middle), range(middle, len(sizes))):
        half = calls()
        start = time.perf_counter()
        for i in part:
            n = sizes[i]
            if n < 0:
                delete(blocks.pop(numbers[i]))
            else:
                blocks[numbers[i]] = allocate(n, handles[places[i]])
        took.append(time.perf_counter() - start)
    return {
        "peak_live_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "held_bytes": before - torch.cuda.mem_get_info()[0],
        "seconds": sum(took),
        "late_seconds": took[1],
        "calls": calls() - first,
        "late_calls": calls() - half,
    }


def main():
    torch.cuda.init()
    tensor(1)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    print(json.dumps(latency() if sys.argv[1] == "latency" else replay(sys.argv[2], int(sys.argv[3]))))


if __name__ == "__main__":
    main()
