package trace

import "iter"

// The keys of snapshots that are read. Their order is the one of keyNames.
const (
	keyAction = iota
	keyAddr
	keyDeviceFree
	keySize
	keyStream
	keyTimeUS
	keyFrames
	keyCompileContext
	keyUserMetadata
	keyPoolID
	keyCategory
	keyFilename
	keyLine
	keyName
	keyAddress
	keyRequestedSize
	keyState
	keyHistory
	keyRealSize
	keyDevice
	keyTotalSize
	keyAllocatedSize
	keyActiveSize
	keySegmentType
	keySegmentPoolID
	keyIsExpandable
	keyBlocks
	keyStage
	keyBackend
	keyConf
	keyMaxSplitSize
	keyGCThreshold
	keyExpandable
	keyPinnedThreads
	keyReleaseLock
	keyPinnedRegister
	keyGraphReuse
	keyRoundup
	keySegments
	keyDeviceTraces
	keySettings
	keyAnnotations
	keyDivision // "1", and after it "2", "4" … "32768"
)

// keyNames are the keys as they stand in files.
var keyNames = [...]string{"action", "addr", "device_free", "size", "stream", "time_us", "frames", "compile_context", "user_metadata", "pool_id", "category",
	"filename", "line", "name", "address", "requested_size", "state", "history", "real_size",
	"device", "total_size", "allocated_size", "active_size", "segment_type", "segment_pool_id", "is_expandable", "blocks", "stage",
	"backend", "PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "garbage_collection_threshold", "expandable_segments", "pinned_num_register_threads",
	"release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "graph_capture_record_stream_reuse", "roundup_power2_divisions",
	"segments", "device_traces", "allocator_settings", "external_annotations",
	"1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768"}

// isKey says whether a value is one of keyNames.
func (v value) isKey() bool { return v.kind == kindText && v.n < uint64(len(keyNames)) }

// known gives the keys of a dictionary that are in keyNames, with their values.
func known(items []value) iter.Seq2[uint64, value] {
	return func(yield func(uint64, value) bool) {
		for i := 0; i+1 < len(items); i += 2 {
			if k := items[i]; k.isKey() && !yield(k.n, items[i+1]) {
				return
			}
		}
	}
}
