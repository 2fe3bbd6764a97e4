package inspect

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// confParser goes through the tokens of settings and fills in conf.
type confParser struct {
	tokens []string
	at     int
	conf   *Conf
}

// confTokens cuts text at , : [ and ], which are tokens of their own. White
// space is dropped wherever it stands.
func confTokens(text string) []string {
	var tokens []string
	text = strings.Join(strings.Fields(text), "")
	for text != "" {
		n := max(strings.IndexAny(text, ",:[]"), 1)
		if !strings.ContainsAny(text, ",:[]") {
			n = len(text)
		}
		tokens = append(tokens, text[:n])
		text = text[n:]
	}
	return tokens
}

func (p *confParser) more() bool { return p.at < len(p.tokens) }

// next gives the next token; empty at the end.
func (p *confParser) next() string {
	if !p.more() {
		return ""
	}
	p.at++
	return p.tokens[p.at-1]
}

// skip passes a token if it is the next one, and says so.
func (p *confParser) skip(token string) bool {
	if p.more() && p.tokens[p.at] == token {
		p.at++
		return true
	}
	return false
}

// pass goes behind the next comma.
func (p *confParser) pass() {
	for p.more() && p.next() != "," {
	}
}

// confOptions are all options with what reads their value.
var confOptions = map[string]func(p *confParser) error{
	"backend":                      (*confParser).backend,
	"max_split_size_mb":            megabytes(func(c *Conf) *uint64 { return &c.MaxSplit }, 20),
	"max_non_split_rounding_mb":    megabytes(func(c *Conf) *uint64 { return &c.MaxNonSplitRounding }, 20),
	"large_segment_size_mb":        megabytes(func(c *Conf) *uint64 { return &c.LargeSegment }, 11),
	"roundup_power2_divisions":     (*confParser).divisions,
	"garbage_collection_threshold": (*confParser).threshold,
	"per_process_memory_fraction":  (*confParser).fraction,
	"expandable_segments":          boolean(func(c *Conf) *bool { return &c.Expandable }),
	"expandable_segments_reserve":  (*confParser).reserve,
	"throw_on_cudamalloc_oom":      boolean(func(c *Conf) *bool { return &c.ThrowOnOOM }),

	// No effect on device memory.
	"expandable_segments_reserve_by_class": (*confParser).ignored,
	"release_lock_on_cudamalloc":           boolean(nil),
	"release_lock_on_hipmalloc":            boolean(nil),
	"graph_capture_record_stream_reuse":    boolean(nil),
	"pinned_use_cuda_host_register":        boolean(nil),
	"pinned_use_hip_host_register":         boolean(nil),
	"pinned_use_background_threads":        boolean(nil),
	"pinned_free_catch_all":                boolean(nil),
	"pinned_num_register_threads":          (*confParser).registerThreads,
	"pinned_reserve_segment_size_mb":       megabytes(nil, 0),
	"pinned_max_round_threshold_mb":        megabytes(nil, 0),
	"pinned_max_cached_size_mb":            megabytes(nil, 0),
}

// option reads one key with its value and the comma behind it.
func (p *confParser) option() error {
	key := p.next()
	read, known := confOptions[key]
	if !known {
		near := closestOption(key)
		if edits(key, near) > len(key)/3 {
			return fmt.Errorf("unknown option %q: write OPTION:VALUE as in PYTORCH_CUDA_ALLOC_CONF, such as expandable_segments:True", key)
		}
		return fmt.Errorf("unknown option %q: did you mean %s?", key, near)
	}
	if !p.skip(":") {
		return fmt.Errorf("%s has no value: write %s:VALUE", key, key)
	}
	if err := read(p); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	if p.more() && !p.skip(",") {
		return fmt.Errorf("%s: %q where a comma was expected", key, p.tokens[p.at])
	}
	return nil
}

// closestOption is the known key with the fewest edits to key.
func closestOption(key string) string {
	keys := slices.Sorted(maps.Keys(confOptions))
	return slices.MinFunc(keys, func(a, b string) int { return edits(key, a) - edits(key, b) })
}

// edits is the Levenshtein distance; what is longer than any key is far.
func edits(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// megabytes reads a number of MiB that is at least least. Larger ones than 64
// bits of bytes can count are cut to that.
func megabytes(field func(*Conf) *uint64, least uint64) func(*confParser) error {
	return func(p *confParser) error {
		n, err := p.number()
		if err != nil {
			return err
		}
		if n < least {
			return fmt.Errorf("%d MiB is too small, it takes at least %d", n, least)
		}
		if field != nil {
			*field(p.conf) = min(n, math.MaxUint64/mib) * mib
		}
		return nil
	}
}

func boolean(field func(*Conf) *bool) func(*confParser) error {
	return func(p *confParser) error {
		v := p.next()
		if v != "True" && v != "False" {
			return fmt.Errorf("%q is neither True nor False", v)
		}
		if field != nil {
			*field(p.conf) = v == "True"
		}
		return nil
	}
}

func (p *confParser) number() (uint64, error) {
	text := p.next()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", text)
	}
	return n, nil
}

func (p *confParser) float() (float64, error) {
	text := p.next()
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return f, nil
}

func (p *confParser) threshold() error {
	f, err := p.float()
	switch {
	case err != nil:
		return err
	case f <= 0 || f >= 1:
		return fmt.Errorf("%v is not between 0 and 1", f)
	}
	p.conf.GCThreshold = f
	return nil
}

func (p *confParser) fraction() error {
	f, err := p.float()
	switch {
	case err != nil:
		return err
	case f < 0 || f > 1:
		return fmt.Errorf("%v is not from 0 to 1", f)
	}
	p.conf.MemoryFraction = f
	return nil
}

func (p *confParser) backend() error {
	switch v := p.next(); v {
	case "native":
		p.conf.Backend = v
	case "cudaMallocAsync", "hipMallocAsync":
		p.conf.Backend = "cudaMallocAsync"
	default:
		return fmt.Errorf("%q is neither native nor cudaMallocAsync", v)
	}
	return nil
}

func (p *confParser) registerThreads() error {
	n, err := p.number()
	if err == nil && (n == 0 || n > 128 || n&(n-1) != 0) {
		err = fmt.Errorf("%d is no power of two of at most 128", n)
	}
	return err
}

// reserve reads a share of the device, as in 0.5, or gigabytes, as in 40G.
// PyTorch warns of values that are neither and goes on without them.
func (p *confParser) reserve() error {
	text := p.next()
	if n, err := strconv.ParseUint(strings.TrimSuffix(text, "G"), 10, 32); err == nil && n > 0 && strings.HasSuffix(text, "G") {
		p.conf.ReserveBytes, p.conf.ReserveFraction = n<<30, 0
	} else if f, err := strconv.ParseFloat(text, 64); err == nil && f > 0 && f < math.MaxInt32 {
		p.conf.ReserveFraction, p.conf.ReserveBytes = f, 0
	}
	return nil
}

// ignored passes a value or a list.
func (p *confParser) ignored() error {
	if !p.skip("[") {
		p.next()
		return nil
	}
	for p.more() {
		if p.next() == "]" {
			return nil
		}
	}
	return errors.New("the list has no closing bracket")
}

// divisions reads a number for all sizes, or a list of the numbers by size in
// MiB. The first of a list holds for smaller sizes as well, the one after >
// for all larger ones.
func (p *confParser) divisions() error {
	d := &p.conf.Divisions
	if !p.skip("[") {
		n, err := p.powerOfTwo(1)
		for i := range d {
			d[i] = n
		}
		return err
	}
	last := -1
	for !p.skip("]") {
		if !p.more() {
			return errors.New("the list has no closing bracket")
		}
		i, n, err := p.division()
		if err != nil {
			return err
		}
		from, to := i, i
		switch {
		case i == len(d): // >
			from, to = min(last+1, len(d)), len(d)-1
		case last < 0:
			from = 0
		}
		for k := from; k <= to; k++ {
			d[k] = n
		}
		last = min(i, len(d)-1)
		if p.more() && p.tokens[p.at] != "]" && !p.skip(",") {
			return fmt.Errorf("%q where a comma was expected", p.tokens[p.at])
		}
	}
	return nil
}

// division reads an element of the list: the index of the size, which is 16
// for >, and the number of divisions.
func (p *confParser) division() (int, uint64, error) {
	i := len(p.conf.Divisions)
	if !p.skip(">") {
		size, err := p.powerOfTwo(1)
		if err != nil {
			return 0, 0, fmt.Errorf("size in MiB: %w", err)
		}
		i = min(len(strconv.FormatUint(size, 2)), i) - 1
	}
	if !p.skip(":") {
		return 0, 0, errors.New("a size in the list has no number: write SIZE_IN_MIB:DIVISIONS")
	}
	n, err := p.powerOfTwo(0)
	return i, n, err
}

// powerOfTwo reads a power of two, or 0 if least is 0.
func (p *confParser) powerOfTwo(least uint64) (uint64, error) {
	n, err := p.number()
	if err == nil && (n < least || n&(n-1) != 0) {
		return 0, fmt.Errorf("%d is no power of two", n)
	}
	return n, err
}
