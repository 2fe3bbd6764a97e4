package trace

import (
	"cmp"
	"slices"
	"strings"
)

// rows are the tables that a file is read into.
type rows struct {
	*stackReader
	strings   []string // the keys are the first
	stringIDs map[string]uint32

	stage       *Trace // events that no list has yet
	traces      []*Trace
	blocks      []blockRow
	segments    []Segment
	annotations []Annotation
	histories   []historyRow
	pools       []PoolID
	poolIDs     map[PoolID]uint64
	lists       [][]value
	numbers     []value
	settings    Settings
	divisions   [16]uint64
	root        value
	op          int64 // offset of the current instruction
	oddities    Oddities
}

// blockRow is a block. The oldest files do not say where it is.
type blockRow struct {
	Block
	placed bool
}

// historyRow is an allocation as old files note it at a block.
type historyRow struct {
	size  uint64
	stack uint32
}

func newRows() *rows {
	r := &rows{stackReader: newStackReader(), stringIDs: make(map[string]uint32), poolIDs: make(map[PoolID]uint64)}
	r.stage = r.newTrace()
	for _, name := range keyNames {
		r.intern([]byte(name))
	}
	return r
}

// intern gives equal strings one number.
func (r *rows) intern(b []byte) uint32 {
	id, known := r.stringIDs[string(b)]
	if !known {
		s := strings.ToValidUTF8(string(b), "\uFFFD")
		id = uint32(len(r.strings))
		r.strings = append(r.strings, s)
		r.stringIDs[string(b)] = id
	}
	return id
}

// string gives a value's text, empty if it is none.
func (r *rows) string(v value) string {
	if v.kind != kindText {
		return ""
	}
	return r.strings[v.n]
}

// row makes a dictionary a row of the table that its keys tell, and gives the
// row. It is kindOther if they tell none, or the outermost dictionary.
func (r *rows) row(items []value) value {
	var keys uint64
	for key := range known(items) {
		keys |= 1 << key
	}
	has := func(key int) bool { return keys>>key&1 != 0 }
	switch {
	case has(keySegments), has(keyDeviceTraces):
		return value{}
	case has(keyAction):
		return r.event(items)
	case has(keyFilename), has(keyLine) && has(keyName):
		return r.frame(items)
	case has(keyBlocks), has(keyTotalSize):
		return r.segment(items)
	case has(keyState):
		return r.block(items)
	case has(keyRealSize):
		return r.history(items)
	case has(keyStage):
		return r.annotation(items)
	case has(keyRoundup), has(keyMaxSplitSize), has(keyConf):
		return r.setting(items)
	case keys>>keyDivision != 0:
		return r.division(items)
	}
	return value{}
}

// event appends to the stage.
func (r *rows) event(items []value) value {
	var e row
	var o origin
	var category string
	const what = "event"
	sized := false
	e.action = Unknown
	for key, v := range known(items) {
		switch key {
		case keyAction:
			e.action = actionOf(r.string(v))
		case keyAddr:
			e.addr = r.number(what, key, v)
		case keyDeviceFree:
			e.addr = r.size(what, key, v)
		case keySize:
			e.size, sized = r.size(what, key, v), true
		case keyStream:
			o.stream = int(int64(r.number(what, key, v)))
		case keyTimeUS:
			e.timeUS = int64(r.number(what, key, v))
		case keyFrames:
			e.stack = stackOf(v)
		case keyCompileContext:
			o.compiled = r.string(v)
		case keyUserMetadata:
			o.note = r.string(v)
		case keyPoolID:
			o.pool = r.pool(v)
		case keyCategory:
			category = r.string(v)
		}
	}
	if !sized && e.action <= OOM {
		r.odd(what, keySize, value{})
	}
	e.purpose = purposeOf(category)
	if o.compiled == nothingCompiled {
		o.compiled = ""
	}
	if o.note == e.purpose.String() { // ours
		o.note = ""
	}
	e.origin = r.shared.originID(o)
	r.stage.add(e)
	return value{kindEvent, uint64(r.stage.Len()-1)<<32 | 1}
}

// actionOf gives the action of PyTorch's name.
func actionOf(name string) Action {
	for a, n := range actionNames {
		if n == name {
			return Action(a)
		}
	}
	if name == "free" {
		return FreeCompleted
	}
	return Unknown
}

// purposeOf gives the purpose of our own names and of the categories of
// PyTorch's profiler.
func purposeOf(category string) Purpose {
	if category == "" {
		return Other
	}
	category = strings.ToLower(category)
	if category == "temporary" {
		return Workspace
	}
	return Purpose(max(0, slices.Index(purposeNames[:], category)))
}

// stackOf gives the index of the stack of the key "frames".
func stackOf(v value) uint32 {
	if v.kind != kindStack {
		return 0
	}
	return uint32(v.n)
}

// pool gives a pool's name, the default pool if the value is none.
func (r *rows) pool(v value) PoolID {
	if v.kind != kindPool {
		return PoolID{}
	}
	return r.pools[v.n]
}

func (r *rows) frame(items []value) value {
	var f Frame
	for key, v := range known(items) {
		switch key {
		case keyFilename:
			f.File = r.string(v)
		case keyLine:
			f.Line = int(v.int())
		case keyName:
			f.Func = r.string(v)
		}
	}
	return value{kindFrame, uint64(r.frames.id(f))}
}

func (r *rows) block(items []value) value {
	var b blockRow
	var past historyRow
	const what = "block"
	asked, sized := false, false
	for key, v := range known(items) {
		switch key {
		case keyAddress:
			b.Addr, b.placed = r.number(what, key, v), true
		case keySize:
			b.Size, sized = r.size(what, key, v), true
		case keyRequestedSize:
			b.Requested, asked = r.size(what, key, v), true
		case keyState:
			b.State = stateOf(r.string(v))
		case keyFrames:
			b.Stack = r.shared.stacks[stackOf(v)]
		case keyCategory:
			b.Purpose = purposeOf(r.string(v))
		case keyHistory:
			past = r.lastOf(v)
		}
	}
	if !sized {
		r.odd(what, keySize, value{})
	}
	if b.Stack == nil {
		b.Stack = r.shared.stacks[past.stack]
	}
	switch {
	case b.State == Free: // PyTorch leaves there what was asked for last
		b.Requested = 0
	case !asked:
		b.Requested = cmp.Or(past.size, b.Size)
	}
	r.blocks = append(r.blocks, b)
	return value{kindBlock, uint64(len(r.blocks) - 1)}
}

// lastOf gives the last allocation of a block's history, which stands first.
func (r *rows) lastOf(v value) historyRow {
	if v.kind == kindList && r.lists[v.n][0].kind == kindHistory {
		return r.histories[r.lists[v.n][0].n]
	}
	return historyRow{}
}

// stateOf gives the state of PyTorch's name.
func stateOf(name string) State {
	switch name {
	case "inactive":
		return Free
	case "active_pending_free", "active_awaiting_free":
		return Pending
	}
	return Live
}

func (r *rows) history(items []value) value {
	var h historyRow
	for key, v := range known(items) {
		switch key {
		case keyRealSize:
			h.size = r.size("history of a block", key, v)
		case keyFrames:
			h.stack = stackOf(v)
		}
	}
	r.histories = append(r.histories, h)
	return value{kindHistory, uint64(len(r.histories) - 1)}
}

func (r *rows) segment(items []value) value {
	var s Segment
	var blocks value
	const what = "segment"
	sized := false
	for key, v := range known(items) {
		switch key {
		case keyDevice:
			s.Device = int(int64(r.number(what, key, v)))
		case keyAddress:
			s.Addr = r.number(what, key, v)
		case keyTotalSize:
			s.Size, sized = r.size(what, key, v), true
		case keyStream:
			s.Stream = int(int64(r.number(what, key, v)))
		case keySegmentType:
			s.Small = r.string(v) == "small"
		case keySegmentPoolID:
			s.Pool = r.pool(v)
		case keyIsExpandable:
			s.Expandable = v.uint() != 0
		case keyFrames:
			s.Stack = r.shared.stacks[stackOf(v)]
		case keyBlocks:
			blocks = v
		}
	}
	if !sized {
		r.odd(what, keyTotalSize, value{})
	}
	s.Blocks = r.blocksOf(blocks, s.Addr)
	s.Totals = r.totalsOf(items, &s)
	r.segments = append(r.segments, s)
	return value{kindSegment, uint64(len(r.segments) - 1)}
}

// totalsOf gives the totals that a file tells of a segment. If it leaves one out
// (old ones do), that is counted.
func (r *rows) totalsOf(items []value, s *Segment) Totals {
	const what = "segment"
	t, told := s.Sum(), false
	for key, v := range known(items) {
		switch key {
		case keyAllocatedSize:
			t.Live, told = r.size(what, key, v), true
		case keyActiveSize:
			t.Active, told = r.size(what, key, v), true
		case keyRequestedSize:
			t.Requested, told = r.size(what, key, v), true
		}
	}
	if !told {
		return Totals{}
	}
	return t
}

// blocksOf gives the blocks of the segment at addr. Where a file does not say
// where a block is, it follows the one before.
func (r *rows) blocksOf(v value, addr uint64) []Block {
	var blocks []Block
	for _, v := range r.elements(v, kindBlock) {
		b := r.blocks[v.n]
		if !b.placed {
			b.Addr = addr
		}
		addr = b.Addr + b.Size
		blocks = append(blocks, b.Block)
	}
	return blocks
}

// annotation is kindOther where it is neither a begin nor an end.
func (r *rows) annotation(items []value) value {
	var a Annotation
	stage := ""
	for key, v := range known(items) {
		switch key {
		case keyName:
			a.Name = r.string(v)
		case keyStage:
			stage = r.string(v)
			a.Begin = stage == "START"
		case keyDevice:
			a.Device = int(v.int())
		case keyTimeUS:
			a.TimeUS = v.int()
		}
	}
	if stage != "START" && stage != "END" {
		return value{}
	}
	r.annotations = append(r.annotations, a)
	return value{kindAnnotation, uint64(len(r.annotations) - 1)}
}

func (r *rows) setting(items []value) value {
	s := Settings{Known: true, MaxSplitSize: -1}
	for key, v := range known(items) {
		switch key {
		case keyBackend:
			s.Backend = r.string(v)
		case keyConf:
			s.Conf = r.string(v)
		case keyMaxSplitSize:
			s.MaxSplitSize = v.int()
		case keyGCThreshold:
			s.GCThreshold = v.float()
		case keyExpandable:
			s.Expandable = v.uint() != 0
		case keyPinnedThreads:
			s.PinnedThreads = v.uint()
		case keyReleaseLock:
			s.ReleaseLock = v.uint() != 0
		case keyPinnedRegister:
			s.PinnedRegister = v.uint() != 0
		case keyGraphReuse:
			s.GraphReuse = v.uint() != 0
		case keyRoundup:
			if v.kind == kindDivisions {
				s.RoundupDivisions = r.divisions
			}
		}
	}
	r.settings = s
	return value{kind: kindSettings}
}

func (r *rows) division(items []value) value {
	r.divisions = [16]uint64{}
	for key, v := range known(items) {
		if key >= keyDivision {
			r.divisions[key-keyDivision] = v.uint()
		}
	}
	return value{kind: kindDivisions}
}

// list makes a filled list a value: a trace, a stack, a pool, or a list of rows.
func (r *rows) list(o *object) value {
	switch {
	case o.trace != nil:
		r.traces = append(r.traces, o.trace)
		return value{kindTrace, uint64(len(r.traces) - 1)}
	case len(o.items) == 0:
		return value{kind: kindStack} // of no frames; as good as an empty list of anything else
	case o.items[0].kind == kindFrame:
		return value{kindStack, uint64(r.stackOfFrames(o.items))}
	case len(o.items) == 2 && o.items[0].kind >= kindInt && o.items[1].kind >= kindInt:
		return r.poolValue(PoolID{o.items[0].uint(), o.items[1].uint()})
	}
	r.lists = append(r.lists, slices.Clone(o.items))
	return value{kindList, uint64(len(r.lists) - 1)}
}

// stackOfFrames gives the index of the stack of the frames in items.
func (r *rows) stackOfFrames(items []value) uint32 {
	r.key = r.key[:0]
	for _, v := range items {
		if v.kind == kindFrame {
			r.keyFrame(uint32(v.n))
		}
	}
	return r.stack()
}

func (r *rows) poolValue(p PoolID) value {
	id, known := r.poolIDs[p]
	if !known {
		id = uint64(len(r.pools))
		r.pools = append(r.pools, p)
		r.poolIDs[p] = id
	}
	return value{kindPool, id}
}

// elements gives the elements of a list that are of one kind.
func (r *rows) elements(v value, k kind) []value {
	if v.kind != kindList {
		return nil
	}
	of := r.lists[v.n]
	return slices.DeleteFunc(slices.Clone(of), func(v value) bool { return v.kind != k })
}
