package consulsession

import (
	"encoding/json"
	"time"
)

// Schema is the version of the records in Consul.
const Schema = 1

// Record is the value of the lock key (and of a queue entry): who holds it, for people
// and for status. Nothing that is safe or unsafe depends on it.
type Record struct {
	Schema  int    `json:"schema"`
	State   string `json:"state"` // "held", "released", "unfenced" or "waiting"
	Host    string `json:"host"`
	Pid     int    `json:"pid"`
	Session string `json:"session"`
	Since   string `json:"since"` // RFC 3339, the writer's wall clock
	Command string `json:"command,omitempty"`
	// Unfenced are holders that did not release, as far as this one was to fence them.
	Unfenced []Unclean `json:"unfenced,omitempty"`
}

// stateUnfenced is a released lock before which somebody still has to be fenced.
const stateUnfenced = "unfenced"

// Unclean is a holder that didn't release the lock: it died, or lost the lock. Its work may
// still have an effect.
type Unclean struct {
	Host    string `json:"host"`
	Pid     int    `json:"pid"`
	Session string `json:"session"`
	Since   string `json:"since"`
	Token   uint64 `json:"token,omitempty"` // 0: not known
}

// ParseRecord reads a record; ok is false for what isn't one (the value of consul lock,
// an operator's note) or is of a newer schema.
func ParseRecord(b []byte) (r Record, ok bool) {
	err := json.Unmarshal(b, &r)
	return r, err == nil && r.Schema >= 1 && r.Schema <= Schema
}

// Run is one entry of the record of runs.
type Run struct {
	Token    uint64 `json:"token"`
	Host     string `json:"host"`
	Period   string `json:"period,omitempty"`
	Started  string `json:"started,omitempty"`
	Ended    string `json:"ended,omitempty"`
	Exit     int    `json:"exit"`
	Outcome  string `json:"outcome"` // "exited", "signaled", "stopped", "timeout", "lost" or "failed"
	Restarts int    `json:"restarts,omitempty"`
}

// Runs is the value of the key of runs: the newest last.
type Runs struct {
	Schema int   `json:"schema"`
	Runs   []Run `json:"runs"`
}

// maxRuns is how many runs are kept; what is larger than maxRunsSize isn't ours, and would
// bring the release near the 512 KiB that Consul takes.
const (
	maxRuns     = 20
	maxRunsSize = 64 << 10
)

// appendRun adds r to what old holds. What can't be read (garbage, too large) is replaced: it
// must not keep anybody from releasing. What a newer onlyone wrote stays as it is: nil.
func appendRun(old []byte, r Run) []byte {
	runs := parseRuns(old)
	if runs.Schema > Schema {
		return nil
	}
	runs.Schema = Schema
	runs.Runs = append(runs.Runs, r)
	if n := len(runs.Runs) - maxRuns; n > 0 {
		runs.Runs = runs.Runs[n:]
	}
	return encode(runs)
}

// parseRuns reads a record of runs; one that can't be read has none.
func parseRuns(b []byte) (runs Runs) {
	if len(b) > maxRunsSize || json.Unmarshal(b, &runs) != nil {
		return Runs{}
	}
	return runs
}

// Order is the value of .paused and .step-down: what an operator asks of holders and
// contenders.
type Order struct {
	Schema  int    `json:"schema"`
	By      string `json:"by"`                // user@host
	Since   string `json:"since"`             // RFC 3339, the writer's wall clock
	Until   string `json:"until,omitempty"`   // .paused: when it ends by itself; empty: when it is resumed
	Session string `json:"session,omitempty"` // .step-down: the session that is to step down; others ignore it
	Reason  string `json:"reason,omitempty"`
}

// ParseOrder reads an order. What can't be read is an order without a field: somebody has
// written the key, so it counts, and until somebody removes it.
func ParseOrder(b []byte) Order {
	var o Order
	if json.Unmarshal(b, &o) != nil {
		return Order{}
	}
	return o
}

// Over reports whether the time of the order has passed by the wall clock now.
func (o Order) Over(now time.Time) bool {
	until, err := time.Parse(time.RFC3339, o.Until)
	return err == nil && !now.Before(until)
}

func (o Order) String() string {
	s := "by an operator"
	if o.By != "" {
		s = "by " + o.By
	}
	if o.Until != "" {
		s += " until " + o.Until
	}
	if o.Reason != "" {
		s += " (" + o.Reason + ")"
	}
	return s
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
