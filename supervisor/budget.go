package supervisor

import (
	"fmt"
	"time"
)

// Limits of Consul that the budget rests on.
const (
	// MaxLease is the longest lock-delay that Consul applies: a longer one is
	// accepted and shown, but clamped when it is used (agent/consul/state/session.go).
	MaxLease = 60 * time.Second
	// MinTTL and MaxTTL bound a session's TTL (session_ttl_min's default and
	// structs.SessionTTLMax in Consul).
	MinTTL = 10 * time.Second
	MaxTTL = 24 * time.Hour
	// MinPoll keeps a holder from flooding its agent.
	MinPoll = 50 * time.Millisecond
)

// margin is K of the budget: what lies between SIGKILL and the instant at which
// somebody else could hold the lock. Measured from deadline to all dead: 4-44 ms,
// 2-3 s only on a machine starved by nice -20 work where SCHED_FIFO isn't allowed;
// a process that was sent SIGKILL runs no more user code in any case.
const margin = time.Second

// electionGap is the longest time without a leader of an ordinary election on Consul
// with its default raft_multiplier (12.8 s were measured), rounded up. A renew deadline below it
// lets one move the job. With split votes it takes longer: 16.7 s were seen.
const electionGap = 13 * time.Second

// Dials are the durations that bound what a holder may believe.
// The zero value isn't usable; see DefaultDials.
type Dials struct {
	Lease     time.Duration // L: sent to Consul as the session's lock-delay; at most MaxLease
	KillAfter time.Duration // G: from SIGTERM to SIGKILL
	TTL       time.Duration // the session's TTL: how soon a silent host is noticed; not safety
	Poll      time.Duration // P: time between ownership checks, and the longest one attempt may take
}

// DefaultDials returns the defaults of the command line.
func DefaultDials() Dials {
	return Dials{Lease: 20 * time.Second, KillAfter: 4 * time.Second, TTL: 10 * time.Second, Poll: 2 * time.Second}
}

// Margin is K: the time kept between SIGKILL and the end of the lease.
func (d Dials) Margin() time.Duration { return margin }

// Drift is what two clocks may differ in rate over one lease (2%).
func (d Dials) Drift() time.Duration { return d.Lease / 50 }

// RenewDeadline is D: how long after the last proof of ownership (counted from
// before its request was sent) the child is told to stop.
func (d Dials) RenewDeadline() time.Duration {
	return d.Lease - d.KillAfter - margin - d.Drift()
}

// NeedsPatience reports whether an ordinary election of a Consul leader may last
// longer than the renew deadline, so that it could move the job.
func (d Dials) NeedsPatience() bool { return d.RenewDeadline() < electionGap }

// A BudgetError says which dial breaks the rule and what works instead.
type BudgetError struct {
	Problem string
	Fix     string // what to type, e.g. "--lease 16s"
}

func (e *BudgetError) Error() string { return e.Problem }

// Validate checks D > 2P and D + G + K + drift <= L <= 60s, and the ranges that
// Consul sets. The error is a *BudgetError.
func (d Dials) Validate() error {
	switch {
	case d.TTL < MinTTL:
		return &BudgetError{fmt.Sprintf("--ttl %s is below Consul's minimum of %s", d.TTL, MinTTL), "--ttl " + flagString(MinTTL)}
	case d.TTL > MaxTTL:
		return &BudgetError{fmt.Sprintf("--ttl %s is above Consul's maximum of %s", d.TTL, MaxTTL), "--ttl 24h"}
	case d.Poll < MinPoll:
		return &BudgetError{fmt.Sprintf("--poll %s is too short (at least %s)", d.Poll, MinPoll), "--poll 2s"}
	case d.KillAfter < 0:
		return &BudgetError{fmt.Sprintf("--kill-after %s is negative", d.KillAfter), "--kill-after 4s"}
	case d.Lease > MaxLease:
		return &BudgetError{fmt.Sprintf("--lease %s is above %s, the longest lock-delay that Consul keeps", d.Lease, MaxLease), "--lease " + flagString(MaxLease)}
	case d.RenewDeadline() > 2*d.Poll:
		return nil
	}
	need := d.KillAfter + margin + 2*d.Poll // L - drift must be greater than this
	problem := fmt.Sprintf("a lease of %s leaves %s for renewing after --kill-after %s, a margin of %s and 2%% clock drift; it must be more than twice --poll %s",
		flagString(d.Lease), max(d.RenewDeadline(), 0), flagString(d.KillAfter), margin, flagString(d.Poll))
	if lease := (need * 50 / 49).Truncate(time.Second) + time.Second; lease <= MaxLease {
		return &BudgetError{problem, "--lease " + flagString(lease)}
	}
	// No lease is long enough: the longest one, and what it has room for.
	most := MaxLease - MaxLease/50 - margin
	if kill := (most - 2*d.Poll - 1).Truncate(time.Second); kill >= 0 && d.KillAfter > kill {
		return &BudgetError{problem, "--lease 60s --kill-after " + flagString(kill)}
	}
	return &BudgetError{problem, "--lease 60s --kill-after 4s --poll 2s"}
}

// flagString prints a duration as one would type it: 60s, not 1m0s.
func flagString(d time.Duration) string {
	if d%time.Second == 0 {
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return d.String()
}
