package trace

import "io"

// WritePickle writes the snapshot as PyTorch's torch.cuda.memory._snapshot
// does (pickle protocol 4), for memory_viz, _memory_viz.py and every other
// reader of such files. Addresses and sizes are exact whatever their size. The
// purpose of blocks and events stands under an additional key, "category",
// by which memory_viz chooses colours, and as an event's user_metadata, which
// it shows. It returns the first error of w.
func (s *Snapshot) WritePickle(w io.Writer) error {
	p := newPickler(w)
	p.dict(func() {
		p.str("segments")
		p.list(len(s.Segments), func(i int) { p.segment(&s.Segments[i]) })
		p.str("device_traces")
		p.list(len(s.Traces), func(i int) {
			trace := s.Traces[i]
			p.list(len(trace), func(j int) { p.entry(&trace[j]) })
		})
		p.str("allocator_settings")
		p.settings(s.expandable())
		p.str("external_annotations")
		p.list(0, nil)
	})
	return p.close()
}

// expandable says whether a segment is made of mapped handles.
func (s *Snapshot) expandable() bool {
	for i := range s.Segments {
		if s.Segments[i].Expandable {
			return true
		}
	}
	return false
}

func (p *pickler) segment(s *Segment) {
	live, active, requested := s.sizes()
	kind := "large"
	if s.Small {
		kind = "small"
	}
	p.dict(func() {
		p.item("device", uint64(s.Device))
		p.item("address", s.Addr)
		p.item("total_size", s.Size)
		p.item("allocated_size", live)
		p.item("active_size", active)
		p.item("requested_size", requested)
		p.item("stream", uint64(s.Stream))
		p.text("segment_type", kind)
		p.str("segment_pool_id")
		p.op(opBinInt1, 0, opBinInt1, 0, opTuple2)
		p.str("is_expandable")
		p.bool(s.Expandable)
		p.stack(s.Stack)
		p.str("blocks")
		p.list(len(s.Blocks), func(i int) { p.block(&s.Blocks[i]) })
	})
}

func (p *pickler) block(b *Block) {
	p.dict(func() {
		p.item("address", b.Addr)
		p.item("size", b.Size)
		p.item("requested_size", b.Requested)
		p.text("state", b.State.String())
		p.stack(b.Stack)
		if b.State != Free {
			p.text("category", b.Purpose.String())
		}
	})
}

func (p *pickler) entry(e *Entry) {
	address, metadata := "addr", ""
	if e.Action == OOM {
		address = "device_free"
	}
	if e.Action.ofBlock() {
		metadata = e.Purpose.String()
	}
	p.dict(func() {
		p.text("action", e.Action.String())
		p.item(address, e.Addr)
		p.item("size", e.Size)
		p.item("stream", uint64(e.Stream))
		p.item("time_us", uint64(e.TimeUS))
		p.text("compile_context", "N/A")
		p.text("user_metadata", metadata)
		if e.Action.ofBlock() {
			p.text("category", metadata)
		}
		p.stack(e.Stack)
	})
}

// item writes a key and a number.
func (p *pickler) item(key string, v uint64) {
	p.str(key)
	p.uint(v)
}

// text writes a key and a string.
func (p *pickler) text(key, v string) {
	p.str(key)
	p.str(v)
}

// stack writes the key "frames" and the list of frames, once for each stack.
func (p *pickler) stack(s *Stack) {
	p.str("frames")
	share(p, p.stacks, s, func() {
		frames := s.Frames()
		p.list(len(frames), func(i int) { p.frame(frames[i]) })
	})
}

func (p *pickler) frame(f Frame) {
	share(p, p.frames, f, func() {
		p.dict(func() {
			p.text("filename", f.File)
			p.item("line", uint64(f.Line))
			p.text("name", f.Func)
		})
	})
}

// settings writes what PyTorch writes for default settings, and whose file
// this is.
func (p *pickler) settings(expandable bool) {
	p.dict(func() {
		p.text("backend", "headroom")
		p.text("PYTORCH_CUDA_ALLOC_CONF", "")
		p.str("max_split_size")
		p.op(opBinInt, 0xff, 0xff, 0xff, 0xff) // −1: no limit
		p.str("garbage_collection_threshold")
		p.float(0)
		p.str("expandable_segments")
		p.bool(expandable)
		p.item("pinned_num_register_threads", 1)
		for _, key := range [...]string{"release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "graph_capture_record_stream_reuse"} {
			p.str(key)
			p.bool(false)
		}
		p.str("roundup_power2_divisions")
		p.dict(func() {
			for _, key := range [...]string{"1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768"} {
				p.item(key, 0)
			}
		})
	})
}
