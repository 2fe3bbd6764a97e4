package trace

import (
	"cmp"
	"io"
	"strconv"
)

// nothingCompiled is what PyTorch writes where torch.compile was not at work.
const nothingCompiled = "N/A"

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
			t := s.Traces[i]
			p.list(t.Len(), func(j int) { p.entry(t.Entry(j)) })
		})
		if s.Settings.Known {
			p.str("allocator_settings")
			p.settings(&s.Settings)
		}
		p.str("external_annotations")
		p.list(len(s.Annotations), func(i int) { p.annotation(&s.Annotations[i]) })
	})
	return p.close()
}

func (p *pickler) segment(s *Segment) {
	totals := s.Totals
	if !totals.Known {
		totals = s.Sum()
	}
	kind := "large"
	if s.Small {
		kind = "small"
	}
	p.dict(func() {
		p.signed("device", int64(s.Device))
		p.item("address", s.Addr)
		p.item("total_size", s.Size)
		p.item("allocated_size", totals.Live)
		p.item("active_size", totals.Active)
		p.item("requested_size", totals.Requested)
		p.signed("stream", int64(s.Stream))
		p.text("segment_type", kind)
		p.str("segment_pool_id")
		p.pool(s.Pool)
		p.flag("is_expandable", s.Expandable)
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

func (p *pickler) entry(e Entry) {
	address, note := "addr", e.Note
	if e.Action == OOM {
		address = "device_free"
	}
	if e.Action.ofBlock() && note == "" {
		note = e.Purpose.String()
	}
	p.dict(func() {
		p.text("action", e.Action.String())
		p.item(address, e.Addr)
		p.item("size", e.Size)
		p.signed("stream", int64(e.Stream))
		p.signed("time_us", e.TimeUS)
		p.text("compile_context", cmp.Or(e.Compiled, nothingCompiled))
		p.text("user_metadata", note)
		if e.Action.ofBlock() || e.Purpose != Other {
			p.text("category", e.Purpose.String())
		}
		if e.Pool != (PoolID{}) {
			p.str("pool_id")
			p.pool(e.Pool)
		}
		p.stack(e.Stack)
	})
}

func (p *pickler) annotation(a *Annotation) {
	p.dict(func() {
		stage := "END"
		if a.Begin {
			stage = "START"
		}
		p.text("stage", stage)
		p.text("name", a.Name)
		p.signed("device", int64(a.Device))
		p.signed("time_us", a.TimeUS)
	})
}

func (p *pickler) pool(id PoolID) {
	p.uint(id[0])
	p.uint(id[1])
	p.op(opTuple2)
}

// item writes a key and a number.
func (p *pickler) item(key string, v uint64) {
	p.str(key)
	p.uint(v)
}

// signed writes a key and a number that may be negative.
func (p *pickler) signed(key string, v int64) {
	p.str(key)
	p.int(v)
}

// flag writes a key and a truth value.
func (p *pickler) flag(key string, v bool) {
	p.str(key)
	p.bool(v)
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
			p.signed("line", int64(f.Line))
			p.text("name", f.Func)
		})
	})
}

func (p *pickler) settings(s *Settings) {
	p.dict(func() {
		if s.Backend != "" {
			p.text("backend", s.Backend)
		}
		p.text("PYTORCH_CUDA_ALLOC_CONF", s.Conf)
		p.signed("max_split_size", s.MaxSplitSize)
		p.str("garbage_collection_threshold")
		p.float(s.GCThreshold)
		p.flag("expandable_segments", s.Expandable)
		p.item("pinned_num_register_threads", s.PinnedThreads)
		p.flag("release_lock_on_cudamalloc", s.ReleaseLock)
		p.flag("pinned_use_cuda_host_register", s.PinnedRegister)
		p.flag("graph_capture_record_stream_reuse", s.GraphReuse)
		p.str("roundup_power2_divisions")
		p.dict(func() {
			for i, n := range s.RoundupDivisions {
				p.item(strconv.Itoa(1<<i), n)
			}
		})
	})
}
