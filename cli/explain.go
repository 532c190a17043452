package cli

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
)

// explanation is the time budget of --explain --json.
type explanation struct {
	Schema        int     `json:"schema"`
	Lease         float64 `json:"lease_seconds"`
	RenewDeadline float64 `json:"renew_deadline_seconds"`
	KillAfter     float64 `json:"kill_after_seconds"`
	Margin        float64 `json:"margin_seconds"`
	Drift         float64 `json:"drift_seconds"`
	TTL           float64 `json:"ttl_seconds"`
	Poll          float64 `json:"poll_seconds"`
	TakeOver      float64 `json:"take_over_of_a_dead_host_seconds"`
}

// explain prints the time budget that the dials make.
func explain(o RunOptions, d supervisor.Dials) error {
	// The first in the queue asks every second while the lock-delay runs.
	takeOver := 2*d.TTL + d.Lease + time.Second
	if o.JSON {
		return json.NewEncoder(o.Stdout).Encode(explanation{1, d.Lease.Seconds(), d.RenewDeadline().Seconds(), d.KillAfter.Seconds(),
			d.Margin().Seconds(), d.Drift().Seconds(), d.TTL.Seconds(), d.Poll.Seconds(), takeOver.Seconds()})
	}
	at := func(t time.Duration) string { return fmt.Sprintf("%6.1fs", t.Seconds()) }
	term, kill := d.RenewDeadline(), d.RenewDeadline()+d.KillAfter
	_, err := fmt.Fprintf(o.Stdout, `Time since the last proof that the lock is held (from before its request was sent):
%s  proof: a linearizable check of the lock, every %s (--poll)
%s  no newer proof: SIGTERM to the command and all that it started
%s  SIGKILL to everything (--kill-after %s)
%s  all is dead (margin %s)
%s  nobody else can have the lock before this (--lease %s, with %s for clocks that run at different rates)

The next host starts
  after a clean end, or when onlyone is killed: within milliseconds of the command's end
  after its host died or lost the network:      within %s (2 x --ttl %s + --lease + a second until that is noticed)
`, at(0), d.Poll, at(term), at(kill), d.KillAfter, at(kill+d.Margin()), d.Margin(), at(d.Lease), d.Lease, d.Drift(), takeOver, d.TTL)
	if err == nil && d.NeedsPatience() {
		_, err = fmt.Fprintf(o.Stdout, "\nAn election of a Consul leader (up to 13s) may outlast the %s in which there must be a new proof, and move the job: a lease of 20s or more rides it out.\n", term)
	}
	return err
}
