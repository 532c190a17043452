package consulsession

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Period is what a contender of a periodic job wants to run: once, whoever does it.
type Period struct {
	ID    string    // the same on every host: the start in RFC 3339, or the caller's own
	Spec  string    // what the period was computed from
	Start time.Time // zero where periods have no order
	Retry Retry
}

// Retry says which period that was begun may be run again.
type Retry string

// OnCrash: one that was begun and never ended (its holder died, lost the lock or was told
// to stop). OnFailure: also one that ended with another exit than 0, by each host at most
// once. Never: none.
const (
	OnCrash   Retry = "on-crash"
	OnFailure Retry = "on-failure"
	Never     Retry = "never"
)

// PeriodRecord is the value of .period: what is known of the last period.
type PeriodRecord struct {
	Schema  int      `json:"schema"`
	Period  string   `json:"period"`
	Spec    string   `json:"spec"`
	State   string   `json:"state"` // "begun", "stopped" (not by itself: it may be run again, as if it had died) or "ended"
	Token   uint64   `json:"token,omitempty"`
	Host    string   `json:"host"`
	Pid     int      `json:"pid"`
	Session string   `json:"session"`
	Begun   string   `json:"begun"` // RFC 3339, by the wall clock of Host
	Ended   string   `json:"ended,omitempty"`
	Seconds float64  `json:"seconds,omitempty"` // how long it ran
	Exit    int      `json:"exit"`
	Attempt int      `json:"attempt"`          // 1 is the first
	Failed  []string `json:"failed,omitempty"` // hosts on which it ended with another exit than 0
	Past    []string `json:"past,omitempty"`   // periods that ended before, the newest last

	PastFailed []PastFailure `json:"past_failed,omitempty"` // those that may be run again, with --retry on-failure
}

// PastFailure is what is kept of a period without an order that failed and wasn't the last one.
type PastFailure struct {
	Period string   `json:"period"`
	Hosts  []string `json:"hosts"`
}

// failed are the hosts on which period id failed before another one was begun.
func (r PeriodRecord) failed(id string) []string {
	for _, f := range r.PastFailed {
		if f.Period == id {
			return f.Hosts
		}
	}
	return nil
}

// States of a period.
const (
	periodBegun   = "begun"
	periodStopped = "stopped"
	periodEnded   = "ended"
)

// maxPast is how many ended periods are remembered. Only periods without an order can come
// back after others (builds, customers); those with one are in order anyway.
const maxPast = 50

// maxPastFailed is how many bytes are kept of periods that failed, with a name for each host: the
// record must stay below the 512 KiB that Consul takes, or nobody could acquire the lock any more.
const maxPastFailed = 64 << 10

// DoneError says that there is nothing to run: the period is done.
type DoneError struct {
	Period string
	Record PeriodRecord // its record, or that of a later period
	Why    string       // "": it ended; "tried": this host had its turn; "never": it was begun and may not be run again
}

func (e *DoneError) Error() string {
	r := e.Record
	switch {
	case r.Period != e.Period && e.Why == "tried":
		return fmt.Sprintf("period %s failed on this host before, and isn't tried here again", e.Period)
	case r.Period != e.Period:
		return fmt.Sprintf("period %s already done", e.Period)
	case e.Why == "tried" && r.State != periodEnded:
		return fmt.Sprintf("period %s was begun by %s and did not end; it failed on this host before, and isn't tried here again", e.Period, r.Host)
	case e.Why == "tried":
		return fmt.Sprintf("period %s failed on %s (exit %d), and this host has tried it", e.Period, r.Host, r.Exit)
	case e.Why == "never":
		return fmt.Sprintf("period %s was begun by %s at %s and did not end; it isn't run again (--retry never)", e.Period, r.Host, r.Begun)
	}
	return fmt.Sprintf("period %s already done by %s (exit %d, %s, ended %s)", e.Period, r.Host, r.Exit,
		time.Duration(r.Seconds*float64(time.Second)).Round(100*time.Millisecond), r.Ended)
}

// MissedError says that a later period was begun before this one: to run it now would be
// out of order.
type MissedError struct {
	Period string
	Record PeriodRecord
}

func (e *MissedError) Error() string {
	return fmt.Sprintf("period %s is over: %s has begun %s", e.Period, e.Record.Host, e.Record.Period)
}

// RecordError says that a record can't be used: nothing is run, and nothing is overwritten.
type RecordError struct {
	Key string
	Why string
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("cannot use the record %s: %s", e.Key, e.Why)
}

func newerRecord(key string, schema int) *RecordError {
	return &RecordError{key, fmt.Sprintf("its schema is %d, written by a newer onlyone; this one knows %d", schema, Schema)}
}

// parsePeriod reads the value of key; a missing one is the zero record.
func parsePeriod(key string, value []byte, exists bool) (r PeriodRecord, err error) {
	if !exists {
		return r, nil
	}
	if err := json.Unmarshal(value, &r); err != nil {
		return r, &RecordError{key, "it isn't JSON of onlyone's"}
	}
	switch {
	case r.Schema > Schema:
		return r, newerRecord(key, r.Schema)
	case r.Schema < 1 || r.Period == "" || !slices.Contains([]string{periodBegun, periodStopped, periodEnded}, r.State):
		return r, &RecordError{key, "it isn't a record of onlyone's"}
	}
	return r, nil
}

// due says whether the holder of the lock (session, on host) may run period p, given the record r:
// nil, or why not. While the lock is somebody else's, a period that was begun isn't done.
func (p Period) due(r PeriodRecord, session, host string) error {
	switch {
	case p.Retry == OnFailure && slices.Contains(r.failed(p.ID), host):
		return &DoneError{p.ID, r, "tried"}
	case slices.Contains(r.Past, p.ID) && (p.Retry != OnFailure || r.failed(p.ID) == nil):
		return &DoneError{Period: p.ID, Record: r}
	case r.Period != p.ID:
		if start, err := time.Parse(time.RFC3339, r.Period); err == nil && r.Spec == p.Spec && !p.Start.IsZero() && start.After(p.Start) {
			return &MissedError{p.ID, r}
		}
		return nil
	case r.State == periodEnded && (p.Retry != OnFailure || r.Exit == 0):
		return &DoneError{Period: p.ID, Record: r}
	case p.Retry == OnFailure && slices.Contains(r.Failed, host): // also if another one has died since
		return &DoneError{p.ID, r, "tried"}
	case r.State != periodEnded && p.Retry == Never && r.Session != session:
		return &DoneError{p.ID, r, "never"}
	}
	return nil
}

// begin is the record after r once p is begun.
func (p Period) begin(r PeriodRecord, host string, pid int, session string, now time.Time) PeriodRecord {
	n := PeriodRecord{Schema: Schema, Period: p.ID, Spec: p.Spec, State: periodBegun, Host: host, Pid: pid, Session: session,
		Begun: stamp(now.Truncate(time.Millisecond)), Attempt: 1, Past: r.Past, PastFailed: r.PastFailed}
	switch {
	case r.Period == p.ID && r.Session == session && r.State == periodBegun:
		return r // an acquire of ours whose answer was lost
	case r.Period == p.ID:
		n.Attempt, n.Failed = r.Attempt+1, r.Failed
		return n
	case r.State == periodEnded:
		n.Past = append(slices.Clone(r.Past), r.Period)
		n.Past = n.Past[max(0, len(n.Past)-maxPast):]
	}
	if p.Retry != OnFailure || !p.Start.IsZero() { // what has an order doesn't come back
		return n
	}
	if len(r.Failed) > 0 && (r.State != periodEnded || r.Exit != 0) {
		n.PastFailed = append(slices.Clone(r.PastFailed), PastFailure{r.Period, r.Failed})
		n.PastFailed = n.PastFailed[max(0, len(n.PastFailed)-maxPast):]
		for len(n.PastFailed) > 1 && len(encode(n.PastFailed)) > maxPastFailed {
			// Forgotten altogether, as one of many periods before: it isn't done.
			n.Past = slices.DeleteFunc(slices.Clone(n.Past), func(id string) bool { return id == n.PastFailed[0].Period })
			n.PastFailed = n.PastFailed[1:]
		}
	}
	if hosts := n.failed(p.ID); hosts != nil { // this one comes back
		n.Attempt, n.Failed = len(hosts)+1, hosts
		n.Past = slices.DeleteFunc(slices.Clone(n.Past), func(id string) bool { return id == p.ID })
		n.PastFailed = slices.DeleteFunc(slices.Clone(n.PastFailed), func(f PastFailure) bool { return f.Period == p.ID })
	}
	return n
}

// end is the record after a run that was begun as r.
func (r PeriodRecord) end(token uint64, e Ended) PeriodRecord {
	r.State, r.Token, r.Exit = periodEnded, token, e.Exit
	// Where a guard wrote the end, or the machine was suspended before we saw it, it is by a clock that jumps.
	r.Ended, r.Seconds = stamp(e.Ended.Truncate(time.Millisecond)), max(e.Ended.Sub(e.Started).Seconds(), 0)
	switch e.Outcome {
	case "stopped", "lost", "failed": // not its own end: another may begin it again
		r.State = periodStopped
	default:
		if e.Exit != 0 && !slices.Contains(r.Failed, r.Host) {
			r.Failed = append(slices.Clone(r.Failed), r.Host)
		}
	}
	return r
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("cannot encode %T: %v", v, err)) // only our own plain structs
	}
	return b
}
