package watch

import "time"

// level is where a value lies between the thresholds of a rule.
type level int

const (
	unknown level = iota // not measured
	below                // the closing threshold
	between              // the two
	above                // the opening threshold, or at it
)

func levelOf(s Setting, value float64, known bool) level {
	switch {
	case !known:
		return unknown
	case value >= s.Open:
		return above
	case value < s.Close:
		return below
	}
	return between
}

// move is what a scan does to an alarm.
type move int

const (
	keep  move = iota // nothing
	reset             // forget the scans that were counted
	count             // one more scan in a row that speaks for a change
)

// moves is the whole machine: by closed (0) or open (1), and level. A count that
// is full changes the state and begins anew.
var moves = [2][4]move{
	{unknown: keep, below: reset, between: reset, above: count},
	{unknown: keep, below: count, between: reset, above: reset},
}

// alarm is the state of a rule for a device.
type alarm struct {
	Alarm
	open    bool
	counted int // scans in a row that speak for a change
}

// move takes the level of one scan and says whether the alarm opened or closed.
func (a *alarm) move(s Setting, l level) bool {
	state, enough := 0, s.OpenScans
	if a.open {
		state, enough = 1, s.CloseScans
	}
	switch moves[state][l] {
	case reset:
		a.counted = 0
	case count:
		a.counted++
		if a.counted >= enough {
			a.open, a.counted = !a.open, 0
			return true
		}
	}
	return false
}

// HostGPU is the GPU of alarms that are about the scan as a whole.
const HostGPU = -1

// Alarm says that something is wrong with a GPU.
type Alarm struct {
	Rule  Rule      `json:"rule"`
	GPU   int       `json:"gpu"` // its index, or HostGPU
	UUID  string    `json:"uuid,omitempty"`
	Since time.Time `json:"since"`
	Value float64   `json:"value"` // in the unit of the rule, when it was last measured
	Text  string    `json:"text"`  // for people
}

// Event is what happened to an alarm.
type Event string

// The events.
const (
	Opened Event = "opened"
	Closed Event = "closed"
)

// Change is an alarm that opened or closed.
type Change struct {
	Event Event     `json:"event"`
	Time  time.Time `json:"time"`
	Host  string    `json:"host,omitempty"`
	Alarm
}
