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
	State   string `json:"state"` // "held", "released" or "waiting"
	Host    string `json:"host"`
	Pid     int    `json:"pid"`
	Session string `json:"session"`
	Since   string `json:"since"` // RFC 3339, the writer's wall clock
	Command string `json:"command,omitempty"`
}

// ParseRecord reads a record; ok is false for what isn't one (the value of consul lock,
// an operator's note) or is of a newer schema.
func ParseRecord(b []byte) (r Record, ok bool) {
	err := json.Unmarshal(b, &r)
	return r, err == nil && r.Schema >= 1 && r.Schema <= Schema
}

// Run is one entry of the record of runs.
type Run struct {
	Token   uint64 `json:"token"`
	Host    string `json:"host"`
	Period  string `json:"period,omitempty"`
	Started string `json:"started,omitempty"`
	Ended   string `json:"ended,omitempty"`
	Exit    int    `json:"exit"`
	Outcome string `json:"outcome"`
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

// appendRun adds r to what old holds. What can't be read (garbage, too large, a newer schema) is
// replaced: it must not keep anybody from releasing.
func appendRun(old []byte, r Run) []byte {
	var runs Runs
	if len(old) > maxRunsSize || json.Unmarshal(old, &runs) != nil || runs.Schema > Schema {
		runs = Runs{}
	}
	runs.Schema = Schema
	runs.Runs = append(runs.Runs, r)
	if n := len(runs.Runs) - maxRuns; n > 0 {
		runs.Runs = runs.Runs[n:]
	}
	b, _ := json.Marshal(runs)
	return b
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
