"""Writes the pickles of this folder with Python's own pickle, protocols 2 to 5.

Each file is the snapshot that pythonSnapshot in python_test.go describes.
"""
import gzip
import pickle


def frames(i):
    return [FRAMES[(i + j) % len(FRAMES)] for j in range(1 + i % 3)]


FRAMES = [{"name": "f%d" % i, "filename": "model%d.py" % (i % 2), "line": 10 * i} for i in range(5)]
ACTIONS = ["alloc", "free_requested", "free_completed", "segment_map", "oom", "snapshot", "user_defined", "renamed"]


def event(device, i):
    e = {"action": ACTIONS[i % len(ACTIONS)], "addr": 2**46 + 512 * i, "size": 1000 * i, "stream": 2**40 * (i % 2), "time_us": 1795970916755653 + i,
         "compile_context": "N/A" if i % 5 else "0/%d" % device, "user_metadata": "", "pool_id": (device, i % 2), "frames": frames(i), "forward_frames": ["a", "b"]}
    if e["action"] == "oom":
        e["device_free"] = e.pop("addr")
    return e


def block(addr, i):
    return {"address": addr, "size": 1024, "requested_size": 1000 - i, "state": ["active_allocated", "active_pending_free", "inactive"][i % 3], "frames": frames(i)}


def segment(i):
    addr = 2**47 + 2**21 * i
    blocks = [block(addr + 1024 * j, j) for j in range(i)]
    return {"device": i % 2, "address": addr, "total_size": 1024 * i, "allocated_size": 0, "active_size": 0, "requested_size": 0, "stream": 0,
            "segment_type": "small" if i % 2 else "large", "segment_pool_id": (0, i), "is_expandable": i == 2, "frames": frames(i), "blocks": blocks}


SNAPSHOT = {
    "segments": [segment(i) for i in range(4)],
    "device_traces": [[], [], [event(2, 0)]],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,roundup_power2_divisions:[256:1,>:8]", "max_split_size": 64 * 2**20,
                           "garbage_collection_threshold": 0.75, "expandable_segments": False, "pinned_num_register_threads": 1,
                           "release_lock_on_cudamalloc": True, "pinned_use_cuda_host_register": False, "some_future_setting": [1, {"a": (1, 2)}],
                           "roundup_power2_divisions": {str(2**i): (1 if i <= 8 else 8) for i in range(16)}},
    "external_annotations": [{"stage": "START" if i % 2 == 0 else "END", "name": "step", "device": 0, "time_us": 1795970916755653 + 10 * i} for i in range(4)],
    "trace_alloc_overflowed": False,
    "some_future_key": {"nested": [[1, 2], None], 7: -(2**70), 8: 2**64, 9: "x" * 300},
}

for protocol in range(2, 6):
    # One file has more events than Python writes at once.
    events = 1203 if protocol == 4 else 40
    SNAPSHOT["device_traces"][0] = [event(0, i) for i in range(events)]
    # Before protocol 4 sets and bytes are written as calls.
    odd = [3.5, None]
    if protocol >= 4:
        odd += [b"bytes", {1, 2}, frozenset({3})]
    if protocol == 5:
        odd += [bytearray(b"array")]
    SNAPSHOT["some_future_key"]["nested"][1] = odd
    data = pickle.dumps(SNAPSHOT, protocol=protocol)
    with open("python%d.pickle.gz" % protocol, "wb") as f:
        f.write(gzip.compress(data, mtime=0))

with open("unsafe.pickle", "wb") as f:
    pickle.dump({"segments": [], "device_traces": [], "extra": print}, f, protocol=4)
