package inspect

// The sentences of the reports about error texts; sentence says how a row reads.

// summaries: the first that applies is the summary; where none does, it is the
// verdict's meaning.
var summaries = []sentence{
	{Capacity, "pool", "{device} is full: {request} asked, {room} free + {cached} cached = {avail}, so that even perfect packing is {short} short."},
	{Capacity, "async", "{device} is full: {request} asked, {free} free of {total}, {allocated} live: {short} short."},
	{Capacity, "-tf", "{device} is full: {request} asked and {room} free: {short} short."},
	{Capacity, "tpu", "The program needs {request} of the {total} that {device} has: {over} too much."},
	{Capacity, "", "The compiled program needs {program} ({parameters} parameters, {outputs} outputs, {temporaries} temporary) and {request} of it could not be had."},
	{Capacity, "", "The model is projected to need {request} of the {total} there is: {missing} too much."},
	{Capacity, "tf", "{framework}'s pool of {limit} holds {allocated} and cannot give {request} more: {short} short."},
	{Capacity, "tf", "{framework} could not get {request} for one tensor: the device's pool is full."},
	{Capacity, "llama compute", "{framework} could not get its compute buffer of {request} on {device}; the weights were loaded before."},
	{Capacity, "", "{framework} could not get {request} on {device}: it is full."},
	{Capacity, "llama", "{framework} ran out of memory on {device} while it grew a buffer after the model was loaded."},
	{Capacity, "", "{framework} ran out of memory on {device}; the message holds no figures."},

	{Tight, "", "{device} is all but full: {request} asked, {room} free + {cached} cached = {avail} would just do, but the cached bytes are {cached/reserved} of the {reserved} reserved and in pieces; no setting can win more than those {cached}."},

	{Fragmentation, "tf", "{framework}'s pool of {limit} holds {allocated}, which leaves {room} for {request}: the bytes are there, in pieces that are too small."},
	{Fragmentation, "", "{cached} is reserved and free on {device}, {spare} more than the {request} asked, yet no piece of it is large enough: {cached/reserved} of the {reserved} reserved lies idle."},
	{Fragmentation, "", "{room} is free on {device} and {request} was refused: the free memory is in pieces that are too small."},

	{Limit, "mps", "PyTorch allows itself {limit}: it holds {allocated}, others hold {outside}, and {request} more would pass the limit."},
	{Limit, "mps", "Metal allows no single buffer of {request}."},
	{Limit, "piece", "{request} asked in one piece, and this runtime allocates at most {limit} at once; {device} has {total}, of which this process holds {held}."},
	{Limit, "hami", "The container may use {limit} of {device} and would use {allocated}: the limit stopped it, not the device."},
	{Limit, "dl4j", "The process may use {limit} of memory (maxPhysicalBytes) and uses {allocated}."},
	{Limit, "pytorch", "PyTorch is limited to {limit} of {total}: it has reserved {reserved} and asked for {request} more, while {free} of the device is free."},
	{Limit, "pytorch", "PyTorch is limited to {limit} of {total}: {allocated} is live and {request} more was asked."},
	{Limit, "", "{framework}'s limit is {limit}: it holds {allocated} and asked for {request} more."},
	{Limit, "onnx", "The arena has {free} left below its limit and {request} was asked."},
	{Limit, "jax ?program", "The program needs only {program}, and not even {request} of it could be had: the pool, or what others left of the device, is used up."},
	{Limit, "jax", "XLA's pool, a fixed part of the device, cannot give {request} more."},
	{Limit, "", "{framework}'s pool has reached its largest size, and {request} more was asked."},

	{OversizeRequest, "", "{request} asked in one piece, {over} more than the {total} that {device} has in all."},
	{OversizeRequest, "", "{allocated} is live on a device of {total}, {paged} more than it has, and {request} more was asked. What is too much may be paged to system memory, as some drivers do; the message does not say."},
	{OversizeRequest, "tf", "{request} asked in one piece from a pool of {limit}."},
	{OversizeRequest, "", "{request} asked in one piece: almost no accelerator has that much."},

	{Platform, "?free", "{device} has {free} free, {extra} more than the {request} asked, and the system refused: this is no lack of GPU memory."},
	{Platform, "", "{device} should have {room} free (the message does not say), {extra} more than the {request} asked, and the system refused: this is no lack of GPU memory."},

	{OutsidePool, "async", "{outside} of {total} on {device} is neither live in PyTorch ({allocated}) nor free ({free}): what is missing for {request} lies outside, or in what the driver's pool caches."},
	{OutsidePool, "", "{outside} of {total} on {device} lies outside {framework}'s pool, which holds {reserved} and has {cached} to spare: what is missing for {request} is there."},
	{OutsidePool, "nccl", "NCCL asked the driver for {request} and got nothing: the framework's pool, which NCCL does not use, holds the device."},
	{OutsidePool, "nccl", "NCCL asked the driver for memory and got nothing: the framework's pool, which NCCL does not use, holds the device."},

	{OtherProcess, "pool", "{outside} of {total} on {device} is held by others: this process has reserved only {held} ({held/total}), {free} is free and {request} was asked."},
	{OtherProcess, "vllm", "{free} of {total} on {device} was free at the start and {request} is wanted: somebody else holds the rest."},
	{OtherProcess, "tf", "TensorFlow wanted {request} for its pool at the start and the driver refused: somebody else holds a part of {device}."},

	{Corrupt, "", "The message speaks of {$impossible}, which is no size: the number is wrong, the memory is not at fault."},
	{Corrupt, "overfull", "The message says that {free} is free on a device of {total} in all: its figures cannot be true together."},
	{Corrupt, "nothing", "Nothing (0 bytes) was asked for, which cannot fail for want of memory: the size is wrong, the memory is not at fault."},
	{Corrupt, "wrapped", "The counter of used memory stands at {#allocated} bytes, which is a negative number that wrapped at 2^64: the accounting is broken, not the memory full."},
	{Corrupt, "", "{request} asked, {request:total} times what {device} has ({total}): the size is wrong, the memory is not at fault."},
	{Corrupt, "", "{#request} bytes ({request}) asked in one piece: the size is wrong, the memory is not at fault."},

	{Leak, "", "{framework}'s pool holds {allocated}, {allocated:request} times the {request} that it could not get: it has grown with memory that may be needed no more. The message alone cannot prove it."},

	{KVConfig, "vllm", "One request of {#tokens} tokens needs {request} of key-value cache ({per token} per token) and {free} is left for it: room for {#tokens fit} tokens."},
	{KVConfig, "vllm", "One request of {#tokens} tokens needs {request} of key-value cache ({per token} per token) and {free} is left for it."},
	{KVConfig, "vllm", "The longest request has {#tokens} tokens and the key-value cache holds {#tokens fit}."},
	{KVConfig, "vllm", "The weights and the trial run leave no memory for the key-value cache."},
	{KVConfig, "sglang", "After the weights are loaded, the static fraction leaves no memory for the key-value cache."},
	{KVConfig, "", "The server's settings do not leave enough memory for {#tokens} tokens."},

	{HostMemory, "killed", "The system killed the program. It does that when the computer's own memory runs out (dmesg tells whether it was that); the accelerator is not involved."},
	{HostMemory, "", "The system ended a program that held {resident} of the computer's own memory; the accelerator is not involved."},
	{HostMemory, "", "The computer's own memory could not give {request}, with {free} available; the accelerator is not involved."},
	{HostMemory, "", "The computer's own memory could not give {request}; the accelerator is not involved."},

	{Numeric, "", "The loss scale was lowered {$drops} times in a row, down to {$scale}: the gradients overflow at every scale, so no step is made."},

	{Symptom, "library", "A CUDA library could not start or get its workspace. That is nearly always memory: the framework's pool holds the device, and libraries allocate outside it."},
	{Symptom, "", "A request of {request} in the wake of a failed or timed-out collective: the size is garbage, and the collective's failure is the cause to look for."},

	{Benign, "ollama", "The model needs {request} and {free} is there: it fits."},
	{Benign, "scaler", "The loss scale was lowered to {$scale}: a dynamic loss scale starts too high on purpose and finds its level within some steps."},
	{Benign, "", "Nothing failed: {request} of workspace was not there, and the operation took a way that needs less, which may be slower."},

	{Unknown, "", "Memory ran out when {request} was asked; the message was cut before the figures that would say why."},
	{Unknown, "table", "{allocated} is live and {cached} of the {reserved} reserved is not; what was asked for, and what the device has, this table does not say."},
	{Unknown, "pytorch", "{total} on {device}, {allocated} live: the message was cut before the request."},
	{Unknown, "", "Memory ran out on {device}; the message holds no figures, so that it cannot say why."},
}

// actions: what to do, all that apply in this order.
var actions = []sentence{
	{Capacity, "pool server", "Leave at least {short} more beside the key-value cache: a lower --gpu-memory-utilization (vLLM) or --mem-fraction-static (SGLang), fewer requests at a time (--max-num-seqs, --max-running-requests), smaller prefills (--max-num-batched-tokens, --chunked-prefill-size)."},
	{Capacity, "pool server", "{allocated} is live, the weights in it: take a quantised model or more devices (--tensor-parallel-size, --tp), or do without CUDA graphs (--enforce-eager, --disable-cuda-graph)."},
	{Capacity, "pool -server", "Save at least {short} at this point of the program ({allocated} is live): a smaller batch or shorter sequences, with gradient accumulation to keep the effective batch."},
	{Capacity, "outside", "{outside} lies outside PyTorch's pool, more than a context needs: see with nvidia-smi who holds it. Freeing it alone is not enough."},
	{Capacity, "tpu", "Save at least {over}: a smaller batch per device, jax.checkpoint around the layers, more devices to shard over."},
	{Capacity, "tpu -?over", "Save at least {short}: a smaller batch per device, jax.checkpoint around the layers, arrays deleted that are no longer used."},
	{Capacity, "jax -tpu", "Save memory in the program: jax.checkpoint (remat) around the layers, donate_argnums for buffers that are replaced, a smaller batch."},
	{Capacity, "jax -tpu", "The outputs are {outputs}: return less, or donate the inputs that they replace."},
	{Capacity, "tf", "Use a smaller batch, and feed data through tf.data: an array given to a layer or function whole becomes one constant on the device."},
	{Capacity, "tf", "Set TF_GPU_ALLOCATOR=cuda_malloc_async if the log shows much free memory in small chunks."},
	{Capacity, "llama compute", "Lower the compute buffer: a smaller -ub (physical batch), -fa (flash attention), a smaller -c (context)."},
	{Capacity, "llama", "Keep less on the device: a smaller -c (context), -ctk q8_0 -ctv q8_0 (smaller key-value cache), fewer layers with -ngl, a smaller quantisation."},
	{Capacity, "ollama", "Lower num_ctx or num_gpu, set OLLAMA_FLASH_ATTENTION=1 and OLLAMA_KV_CACHE_TYPE=q8_0, or take a smaller quantisation."},
	{Capacity, "paddle", "Use a smaller batch, and see with nvidia-smi that no other process uses {device}."},
	{Capacity, "julia", "Call GC.gc() and CUDA.reclaim() between phases, and process the data in smaller batches."},
	{Capacity, "rmm", "Give the pool a maximum below what is free (rmm.reinitialize(pool_allocator=True, maximum_pool_size=…)), or use managed memory (managed_memory=True)."},
	{Capacity, "cupy", "Process the data in pieces, and free the pool between phases: cupy.get_default_memory_pool().free_all_blocks()."},
	{Capacity, "onnx", "Use a smaller batch or input, and set arena_extend_strategy=kSameAsRequested so that the arena does not double."},
	{Capacity, "mxnet", "Use a smaller batch, and set MXNET_GPU_MEM_POOL_TYPE=Round for inputs of varying sizes."},
	{Capacity, "dl4j", "Use a smaller minibatch, and workspaces (WorkspaceMode.ENABLED) for training and inference."},
	{Capacity, "pytorch -server", "Recompute activations in backward: torch.utils.checkpoint around each block (model.gradient_checkpointing_enable() in transformers)."},
	{Capacity, "pytorch -server", "Halve what is stored: autocast to bfloat16, a fused attention (scaled_dot_product_attention), an 8-bit optimizer; with several devices, shard parameters and optimizer state (FSDP, ZeRO)."},
	{Capacity, "pytorch -server", "If {allocated} live is more than the model should need, something is kept: record torch.cuda.memory._record_memory_history(), write torch.cuda.memory._dump_snapshot(\"oom.pickle\") and run: headroom explain oom.pickle"},

	{Tight, "server", "Leave more beside the key-value cache: a lower --gpu-memory-utilization (vLLM) or --mem-fraction-static (SGLang), fewer requests at a time (--max-num-seqs, --max-running-requests), smaller prefills (--max-num-batched-tokens, --chunked-prefill-size)."},
	{Tight, "-server", "Save memory at this point of the program: {allocated} is live. One item less per batch, or recomputed activations, helps more than any setting."},
	{Tight, "-server", "Compare {allocated} with what the model should need, and the figure of two steps: more than that, or growing, is a leak (kept losses, outputs with their graph, a second copy of the model)."},
	{Tight, "pytorch -server", "To see what is live: torch.cuda.memory._record_memory_history(), torch.cuda.memory._dump_snapshot(\"oom.pickle\"), then: headroom explain oom.pickle"},

	{Fragmentation, "tf", "Set TF_GPU_ALLOCATOR=cuda_malloc_async, which maps memory together from pieces."},
	{Fragmentation, "hip -old", "Set PYTORCH_HIP_ALLOC_CONF=expandable_segments:True: pieces of the {cached} can then serve one request."},
	{Fragmentation, "npu", "Set PYTORCH_NPU_ALLOC_CONF=expandable_segments:True: pieces of the {cached} can then serve one request."},
	{Fragmentation, "pytorch -hip -npu -xpu -old", "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_ALLOC_CONF from 2.9 on): pieces of the {cached} can then serve one request."},
	{Fragmentation, "pytorch old -npu", "Set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:{#split}, so that large blocks are not cut up for small requests, or update PyTorch to 2.1 or later and set expandable_segments:True."},
	{Fragmentation, "pytorch", "Run the largest batch (the longest sequence) first, or pad to few lengths: blocks made for it then serve all smaller ones."},
	{Fragmentation, "pytorch", "If the cached memory comes from a phase that is over (loading a checkpoint, evaluation), call gc.collect() and torch.cuda.empty_cache() once after it."},
	{Fragmentation, "pytorch", "To see which blocks keep the large holes apart, write a memory snapshot and run: headroom explain snapshot.pickle"},
	{Fragmentation, "tpu", "Free arrays that are no longer used before the program is loaded (del, jax.clear_caches()), and load the largest program first."},
	{Fragmentation, "julia", "Call GC.gc() and CUDA.reclaim() between phases."},

	{Limit, "mps", "Free what other programs hold ({outside}), or save memory in this one: a smaller batch or model, bfloat16."},
	{Limit, "mps", "Set PYTORCH_MPS_HIGH_WATERMARK_RATIO to more than its default, or to 0.0 for no limit; the system then swaps, and may stop the program."},
	{Limit, "piece", "Split the tensor so that no piece reaches {limit} (smaller batches, chunked attention or logits)."},
	{Limit, "piece", "Set UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1, and take a PyTorch (2.8 or later) that is built for larger buffers."},
	{Limit, "pytorch -mps -piece", "Raise the limit: torch.cuda.set_per_process_memory_fraction, or per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF. {limit} of {total} is {limit/total}."},
	{Limit, "jax -?program", "Change the share that XLA takes at the start: XLA_PYTHON_CLIENT_MEM_FRACTION=0.9 (0.75 unless set), lower where other libraries need the device."},
	{Limit, "jax", "Start with XLA_PYTHON_CLIENT_PREALLOCATE=false and look at nvidia-smi, to see whether others hold the device."},
	{Limit, "jax", "Save memory in the program: jax.checkpoint around the layers, donated buffers, a smaller batch."},
	{Limit, "julia", "Raise JULIA_CUDA_HARD_MEMORY_LIMIT (JULIA_CUDA_MEMORY_LIMIT in old versions) or remove it; call GC.gc() and CUDA.reclaim() between phases."},
	{Limit, "cupy", "Raise the limit: cupy.get_default_memory_pool().set_limit(size=…), or CUPY_GPU_MEMORY_LIMIT."},
	{Limit, "rmm", "Raise maximum_pool_size, or leave it unset; without one, the device refused to let the pool grow, and the job needs less memory."},
	{Limit, "onnx", "Raise gpu_mem_limit (max_mem of the arena)."},
	{Limit, "hami", "Raise nvidia.com/gpumem of the container (its limit is {limit}), or save memory in the job."},
	{Limit, "dl4j", "Raise -Dorg.bytedeco.javacpp.maxphysicalbytes and maxbytes, above the heap (-Xmx) plus what is used outside it."},

	{OversizeRequest, "?paged", "Bring the live {allocated} below {total}: a smaller model or batch, a quantised model, offload."},
	{OversizeRequest, "", "Find the tensor of {request}: attention scores grow with the square of the sequence, logits with sequence × vocabulary, pairwise distances with the square of the batch."},
	{OversizeRequest, "-llama", "Compute it in pieces: fused attention (scaled_dot_product_attention, FlashAttention) never holds the scores; chunk logits and losses; lower the resolution, length or batch."},
	{OversizeRequest, "llama", "Lower -c (context) and -ub (physical batch) and turn on -fa (flash attention); with many devices build without pipeline copies or use -sm layer."},

	{Platform, "hip", "Try without expandable segments, and raise the limit on mappings: sysctl vm.max_map_count=1048576; look into dmesg for amdgpu errors."},
	{Platform, "xpu", "Under WSL2 give the virtual machine more memory (.wslconfig: [wsl2] memory=…) or run natively; set UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1 for single allocations of {request}."},
	{Platform, "-xpu", "On Windows, enlarge the page file to more than the GPU's memory ({total}): the driver must commit as much there."},
	{Platform, "-xpu", "Under WSL2 raise memory= in .wslconfig; in a container look at its memory limit; elsewhere at ulimit -v."},
	{Platform, "", "Watch nvidia-smi (rocm-smi, xpu-smi) while the job runs: another process may have held the memory for a moment."},

	{OutsidePool, "nccl", "Leave at least 1GiB to the driver: torch.cuda.set_per_process_memory_fraction(0.95), or lower the server's memory share."},
	{OutsidePool, "nccl", "Call torch.cuda.empty_cache() once before the first collective (or after loading a checkpoint), so that the pool gives back what it does not need."},
	{OutsidePool, "nccl", "Set NCCL_BUFFSIZE=2097152 and fewer channels (NCCL_MAX_NCHANNELS) to lower what NCCL needs."},
	{OutsidePool, "-nccl", "List who holds the device: nvidia-smi --query-compute-apps=pid,used_memory --format=csv; end what does not belong there, dead processes too (fuser -v /dev/nvidia*)."},
	{OutsidePool, "-nccl", "See that every rank uses its own device: torch.cuda.set_device before anything else, torch.load(map_location=\"cpu\"), no CUDA in data-loader workers. Each stray context costs about 500MiB."},
	{OutsidePool, "-nccl", "Lower what libraries in this process take: CUBLAS_WORKSPACE_CONFIG=:16:8, NCCL_BUFFSIZE=2097152, fewer captured CUDA graphs, a smaller share for an inference server beside the training."},
	{OutsidePool, "async", "Trim the driver's pool with torch.cuda.empty_cache() between phases, or compare with the default backend: what it caches is counted here too."},

	{OtherProcess, "", "List who holds the device: nvidia-smi --query-compute-apps=pid,used_memory --format=csv, and end it; dead processes may hold memory that only fuser -v /dev/nvidia* shows."},
	{OtherProcess, "-vllm", "Take another device: CUDA_VISIBLE_DEVICES=…, or ask the scheduler for a whole one."},
	{OtherProcess, "tf", "To share the device, let the pool grow on demand: TF_FORCE_GPU_ALLOW_GROWTH=true, or set a memory_limit."},
	{OtherProcess, "vllm", "Set --gpu-memory-utilization below {free:total}, or end the other processes."},

	{Corrupt, "wrapped", "Restart the container or the sharing layer, so that its counters start again, and update it; the device's true use is in nvidia-smi on the host."},
	{Corrupt, "-wrapped -overfull", "Look for the size at the failing line: a wrong shape or broadcast, an index or length read from garbage, an integer that overflowed, data that is damaged."},
	{Corrupt, "-wrapped -overfull", "Print the shapes just before it, and run once on the CPU (CUDA_LAUNCH_BLOCKING=1 on the GPU) to get the true line."},

	{Corrupt, "overfull", "Compare with nvidia-smi on the host: a driver, a virtual machine or a sharing layer reports wrong figures, or the message was put together from two."},

	{Leak, "cupy", "Look whether the pool grows from step to step: cupy.get_default_memory_pool().used_bytes() and total_bytes() after each."},
	{Leak, "cupy", "Used bytes that grow: arrays or graphs are kept (losses, hooks, caches). Only total bytes that grow: call free_all_blocks() between phases, and update CuPy and Chainer."},
	{Leak, "", "Compare the figures of two steps: what grows between them is what is kept."},

	{KVConfig, "vllm ?tokens_fit", "Set --max-model-len {#tokens fit} (or less), if no request is longer."},
	{KVConfig, "vllm", "Raise --gpu-memory-utilization, if nothing else needs the device; shard with --tensor-parallel-size; store the cache in 8 bits with --kv-cache-dtype fp8."},
	{KVConfig, "vllm", "Lower --max-num-batched-tokens and --max-num-seqs, so that the trial run takes less."},
	{KVConfig, "sglang", "Raise --mem-fraction-static by steps of 0.01; if the next step ends in an out-of-memory error, no value is right: the model does not fit with its activations."},
	{KVConfig, "sglang", "Make room: --tp for more devices, a quantised model, --chunked-prefill-size 2048, --cuda-graph-max-bs 8."},
	{KVConfig, "tgi", "Lower --max-batch-prefill-tokens and --max-batch-total-tokens, or shard over more devices."},

	{HostMemory, "", "See how much memory the computer has (free -h) and what takes it; in a container, its limit; in a Slurm job, what --mem asks for."},
	{HostMemory, "", "Check the size of {request}: a wrong shape often shows here first. Otherwise process the data in pieces or map it from a file."},
	{HostMemory, "", "Use fewer data-loader workers and less prefetching; give a container more shared memory (--shm-size=8g)."},

	{Numeric, "", "Look for inf or NaN in the loss and in the inputs of the first bad step: a learning rate that is too high, a division by zero, a mask of -inf over a whole row."},
	{Numeric, "", "Train in bfloat16, which has float32's range and needs no loss scale; keep softmax, norms and the loss in float32."},
	{Numeric, "", "Clip gradients, warm the learning rate up, and restart from the last checkpoint before the scale began to fall."},

	{Symptom, "library", "Look at the memory of the device when it fails (nvidia-smi), and further up in the log for out of memory."},
	{Symptom, "library", "Leave about 1GiB to the driver: a smaller batch, torch.cuda.set_per_process_memory_fraction(0.95), TF_FORCE_GPU_ALLOW_GROWTH=true, or no other process on the device."},
	{Symptom, "library", "If memory is free, the library does not match: compare the versions of driver, CUDA and framework; an index out of range in an earlier kernel shows like this too (CUDA_LAUNCH_BLOCKING=1)."},
	{Symptom, "-library", "Find which rank failed first and why: look for the earliest error over all ranks, with NCCL_DEBUG=WARN and TORCH_NCCL_TRACE_BUFFER_SIZE=2000."},

	{Benign, "", "Go on; look for another message if the program stopped."},
	{Benign, "tf", "A smaller batch gives the faster algorithm the room it wants."},

	{Unknown, "table", "Paste the error that came before the table with it: the sizes of request, total and free stand there."},
	{Unknown, "-table", "Paste the whole message: the sizes of request, total, free and allocated say why."},
	{Unknown, "-table", "Look at the device when it fails: nvidia-smi (or nvidia-smi --query-compute-apps=pid,used_memory --format=csv), and print(torch.cuda.memory_summary()) in PyTorch."},
	{Unknown, "", "With another process on the device, end it; alone on it, use a smaller batch."},
}

// unhelpful: what will not help, all that apply.
var unhelpful = []sentence{
	{Capacity, "pytorch", "expandable_segments:True, max_split_size_mb: they could win at most the {cached} that is cached, and {short} would still be missing."},
	{Capacity, "pytorch", "torch.cuda.empty_cache(): the allocator returned its unused segments before it gave up."},
	{Capacity, "tf", "TF_FORCE_GPU_ALLOW_GROWTH: it changes when memory is taken, not how much is needed."},
	{Capacity, "jax ?program", "XLA_PYTHON_CLIENT_PREALLOCATE=false: the program needs {program} either way."},
	{Capacity, "", "Running it again: the same step asks for the same memory."},

	{Tight, "-?spare", "expandable_segments:True, max_split_size_mb: they win at most the {cached} cached, less than the {request} asked."},
	{Tight, "?spare", "expandable_segments:True, max_split_size_mb: they win at most the {cached} cached ({cached/reserved} of the pool); this request may pass, and a later one fails."},
	{Tight, "pytorch", "torch.cuda.empty_cache(): the allocator returned its unused segments before it gave up."},

	{Fragmentation, "pytorch", "torch.cuda.empty_cache() in every step: partly used segments cannot be returned, and the rest was returned before the error."},
	{Fragmentation, "pytorch", "A larger card alone: {cached} idle of {reserved} reserved grows with it."},

	{Limit, "?free", "expandable_segments:True, max_split_size_mb: the limit counts reserved memory, and {cached} is all that packing could win."},
	{Limit, "piece", "torch.xpu.empty_cache(): {total} of memory is not the problem, the size of one allocation is."},
	{Limit, "", "A device with more memory, as long as the limit stays."},

	{OversizeRequest, "pytorch", "expandable_segments:True, max_split_size_mb, empty_cache(): an empty device of {total} could not give {request} either."},
	{OversizeRequest, "-?total", "Allocator settings: no device could give {request}."},
	{OversizeRequest, "", "A slightly smaller batch, unless the size falls with it {request:total}-fold."},

	{Platform, "pytorch", "expandable_segments:True, max_split_size_mb, empty_cache(): {extra} more than needed is free already; fragmentation cannot be the reason."},
	{Platform, "", "A smaller batch: the request was {request} with {room} there."},

	{OutsidePool, "pytorch", "expandable_segments:True, max_split_size_mb: they win at most the {cached} cached in the pool, not the {outside} outside it."},
	{OutsidePool, "nccl", "Tuning the framework's allocator for fragmentation: NCCL asks the driver, and gets nothing that the pool has reserved."},

	{OtherProcess, "pool", "A smaller batch or allocator settings: this process holds only {held}."},

	{Corrupt, "", "More memory, a smaller batch or allocator settings: no device fits a wrong number."},

	{KVConfig, "vllm", "Allocator settings: the cache is one planned block, not fragments."},
	{HostMemory, "", "GPU settings such as expandable_segments or a card with more memory."},
	{Numeric, "", "More memory or allocator settings; raising the minimum loss scale hides the overflow and stops the run sooner."},
	{Symptom, "-library", "A smaller batch: the request is garbage."},
	{Benign, "", "Allocator settings: there is no failure to cure."},
	{Unknown, "", "Trying allocator settings blindly: in most reports the memory was full, limited or held by others."},
}
