package bench

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/headroom-go/headroom/internal/remat"
)

// dtrLine is one line of an operator log of DTR's simulator. Numbers come as
// numbers or as text.
type dtrLine struct {
	Instruction string    `json:"INSTRUCTION"`
	Annotation  string    `json:"ANNOTATION"`
	Name        string    `json:"NAME"`
	Memory      dtrNumber `json:"MEMORY"`
	Alias       dtrNumber `json:"ALIAS"`
	Time        dtrNumber `json:"TIME"`
	Dst         string    `json:"DST"`
	Src         string    `json:"SRC"`
	Args        []string  `json:"ARGS"`
	Result      []string  `json:"RESULT"`
	Mutate      []int     `json:"MUTATE"`
}

type dtrNumber int64

func (n *dtrNumber) UnmarshalJSON(b []byte) error {
	x, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	*n = dtrNumber(x)
	return err
}

// dtrReader turns the lines of a log into a program. Names are references: COPY
// adds one, RELEASE takes one away, and a tensor without references is let go.
type dtrReader struct {
	p     remat.Program
	of    map[string]int // name → value
	order []string       // names as they first appeared
	root  []int          // value → value whose memory it shares
	refs  []int          // of values
}

// readDTRLog reads a log, plain or packed by gzip.
func readDTRLog(file string) (*remat.Program, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewReader(f)
	var r io.Reader = in
	if magic, _ := in.Peek(2); string(magic) == "\x1f\x8b" {
		if r, err = gzip.NewReader(in); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	var lines []dtrLine
	for d := json.NewDecoder(r); ; {
		var l dtrLine
		if err := d.Decode(&l); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", file, len(lines)+1, err)
		}
		lines = append(lines, l)
	}
	d := dtrReader{of: map[string]int{}}
	if err := d.read(lines); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &d.p, d.p.Check()
}

func (d *dtrReader) read(lines []dtrLine) error {
	for i, l := range lines {
		if l.Instruction == "ANNOTATE" && l.Annotation == "START" {
			lines = lines[i+1:]
			break
		}
	}
	for i := 0; i < len(lines); {
		n, err := d.line(lines[i:])
		if err != nil {
			return fmt.Errorf("instruction %d: %w", i+1, err)
		}
		i += n
	}
	for _, name := range d.order {
		if v := d.of[name]; d.refs[v] > 0 {
			d.p.Outputs = append(d.p.Outputs, v)
			d.refs[v] = 0 // once
		}
	}
	return nil
}

// line reads one instruction and returns how many lines it took.
func (d *dtrReader) line(ls []dtrLine) (int, error) {
	switch l := ls[0]; l.Instruction {
	case "CONSTANT":
		if len(ls) < 2 || ls[1].Instruction != "MEMORY" {
			return 0, fmt.Errorf("CONSTANT %s without its MEMORY", l.Name)
		}
		v := d.value(int64(ls[1].Memory), -1)
		d.p.Values[v].Pinned = true
		d.name(l.Name, v)
		d.p.Ops = append(d.p.Ops, remat.Op{Name: "constant", Outs: []int{v}})
		return 2, nil
	case "CALL":
		return d.call(ls)
	case "MUTATE":
		return 1, d.mutate(l)
	case "COPY":
		v, err := d.lookup(l.Src)
		if err == nil {
			d.name(l.Dst, v)
			d.refs[v]++
		}
		return 1, err
	case "COPY_FROM":
		v, err := d.lookup(l.Src)
		old, err2 := d.lookup(l.Dst)
		if err != nil || err2 != nil {
			return 0, fmt.Errorf("%v %v", err, err2)
		}
		d.release(old)
		d.name(l.Dst, v)
		d.refs[v]++
		return 1, nil
	case "RELEASE":
		if v, ok := d.of[l.Name]; ok {
			d.release(v)
		}
		return 1, nil
	case "ANNOTATE":
		return 1, nil
	default:
		return 0, fmt.Errorf("unknown instruction %q", l.Instruction)
	}
}

func (d *dtrReader) call(ls []dtrLine) (int, error) {
	l := ls[0]
	n := len(l.Result)
	if len(ls) < 1+2*n {
		return 0, fmt.Errorf("CALL %s ends within its results", l.Name)
	}
	op := remat.Op{Name: l.Name, Cost: int64(l.Time)}
	var err error
	if op.Args, err = d.lookups(l.Args); err != nil {
		return 0, err
	}
	for k, name := range l.Result {
		memory, alias := ls[1+2*k], int(ls[2+2*k].Alias)
		if memory.Name != name || ls[2+2*k].Instruction != "ALIAS" {
			return 0, fmt.Errorf("CALL %s: result %s without MEMORY and ALIAS", l.Name, name)
		}
		if alias >= 0 && (len(op.Args) != 1 || k > 0 && !op.View) || alias < 0 && op.View {
			return 0, fmt.Errorf("CALL %s: views beside other arguments or results", l.Name)
		}
		op.View = alias >= 0
		if op.View {
			op.Outs = append(op.Outs, d.value(0, op.Args[0]))
		} else {
			op.Outs = append(op.Outs, d.value(int64(memory.Memory), -1))
		}
		d.name(name, op.Outs[k])
	}
	d.p.Ops = append(d.p.Ops, op)
	return 1 + 2*n, nil
}

// mutate makes a value of its own for each argument that changes.
func (d *dtrReader) mutate(l dtrLine) error {
	op := remat.Op{Name: l.Name, Cost: int64(l.Time)}
	var err error
	if op.Args, err = d.lookups(l.Args); err != nil {
		return err
	}
	for _, m := range l.Mutate {
		if m < 0 || m >= len(op.Args) {
			return fmt.Errorf("MUTATE %s: argument %d of %d", l.Name, m, len(op.Args))
		}
		op.Outs = append(op.Outs, d.value(d.p.Values[d.root[op.Args[m]]].Bytes, -1))
	}
	d.p.Ops = append(d.p.Ops, op)
	for k, m := range l.Mutate {
		d.release(d.of[l.Args[m]])
		d.of[l.Args[m]] = op.Outs[k]
	}
	return nil
}

// value adds a value with one reference; base ≥ 0 is what it is a view of.
func (d *dtrReader) value(bytes int64, base int) int {
	v := len(d.p.Values)
	d.p.Values = append(d.p.Values, remat.Value{Bytes: bytes})
	d.refs = append(d.refs, 1)
	if base < 0 {
		d.root = append(d.root, v)
	} else {
		d.root = append(d.root, d.root[base])
	}
	return v
}

func (d *dtrReader) name(name string, v int) {
	if _, ok := d.of[name]; !ok {
		d.order = append(d.order, name)
	}
	d.of[name] = v
}

// release takes a reference of v away.
func (d *dtrReader) release(v int) {
	d.refs[v]--
	if d.refs[v] <= 0 {
		d.p.Values[v].Held = len(d.p.Ops)
	}
}

func (d *dtrReader) lookup(name string) (int, error) {
	v, ok := d.of[name]
	if !ok {
		return 0, fmt.Errorf("%s is not defined", name)
	}
	return v, nil
}

func (d *dtrReader) lookups(names []string) ([]int, error) {
	var out []int
	for _, n := range names {
		v, err := d.lookup(n)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}
