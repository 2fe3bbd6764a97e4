package inspect

import (
	"slices"
	"strconv"
	"strings"
)

// place is a call site by name, apart from its lines.
type place struct {
	name  string
	text  string // the name without the numbers of lines
	lines []int
}

// placeOf takes the numbers of lines out of the name of a site: of
// "net.py:42 forward (called from train.py:30 <module>)" remains
// "net.py forward (called from train.py <module>)".
func placeOf(s Share) place {
	p := place{name: s.What}
	words := strings.Split(s.What, " ")
	for i, w := range words {
		at := strings.LastIndexByte(w, ':')
		if n, err := strconv.Atoi(w[at+1:]); at > 0 && err == nil {
			words[i] = w[:at]
			p.lines = append(p.lines, n)
		}
	}
	p.text = strings.Join(words, " ")
	return p
}

// moved pairs call sites whose lines were moved by a change elsewhere in their
// file: sites that are in one record only, of which both records have equally
// many in the same files and functions, in the order of their lines. It gives
// the old names by the new ones.
func moved(before, after []Share) map[string]string {
	gone, come := alone(before, after), alone(after, before)
	was := map[string]string{}
	for text, old := range gone {
		if now := come[text]; len(old) == len(now) {
			for i := range old {
				was[now[i].name] = old[i].name
			}
		}
	}
	return was
}

// alone lists the sites of one list that the other has not, by their places, in
// the order of their lines.
func alone(list, other []Share) map[string][]place {
	in := map[string]bool{}
	for _, s := range other {
		in[s.What] = true
	}
	out := map[string][]place{}
	for _, s := range list {
		if p := placeOf(s); !in[s.What] && len(p.lines) > 0 {
			out[p.text] = append(out[p.text], p)
		}
	}
	for _, places := range out {
		slices.SortFunc(places, func(a, b place) int { return slices.Compare(a.lines, b.lines) })
	}
	return out
}

// renamed gives the shares of the old record with the names that moved sites
// have in the new one, and those names with the old ones.
func renamed(before, after []Share) ([]Share, map[string]string) {
	was := moved(before, after)
	now := map[string]string{}
	for n, old := range was {
		now[old] = n
	}
	out := slices.Clone(before)
	for i := range out {
		if n, ok := now[out[i].What]; ok {
			out[i].What = n
		}
	}
	return out, was
}
