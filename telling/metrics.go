package telling

import (
	"bytes"
	"slices"
	"sync"
	"time"
)

// The states of a contender. State takes any word; these are always shown.
const (
	Contending = "contending" // it waits for the lock
	Running    = "running"    // the command runs
	Stopping   = "stopping"   // the command was told to stop
	Restarting = "restarting" // the lock is held, and the command will be started again
	Releasing  = "releasing"  // the command is gone
)

// What a check or a renewal came to.
const (
	OK     = "ok"     // still ours
	Silent = "silent" // no usable answer in time
	Gone   = "gone"   // proof that the lock, or the session, isn't ours any more
)

// Why a lock was lost.
const (
	LostBySilence = "silence" // no proof until the renew deadline
	LostByProof   = "proof"   // Consul says that it isn't ours any more
	LostByGuard   = "guard"   // the guard was gone
)

// other is every word that isn't one of the known ones: a label has few values.
const other = "other"

var (
	states  = []string{Contending, Running, Stopping, Restarting, Releasing}
	results = []string{OK, Silent, Gone, other}
	causes  = []string{LostBySilence, LostByProof, LostByGuard, other}
)

// Metrics is what a process can be asked about the lock that it contends for, until it ends
// and through all of its terms. Its methods don't wait and may be called by any goroutine;
// with a nil receiver they do nothing.
type Metrics struct {
	name, version string

	mu           sync.Mutex
	state        string
	held         bool
	token        uint64
	position, of int
	leaseEnd     time.Time // zero: not held; by Go's clock, which stands still in a suspend
	runs         map[string]uint64
	lost         map[string]uint64
	checks       map[string]uint64
	renewals     map[string]uint64
	restarts     uint64
	skipped      uint64
	checkSeconds histogram
	renewSeconds histogram
}

// NewMetrics is for the lock name. It begins in no state.
func NewMetrics(name, version string) *Metrics {
	return &Metrics{name: name, version: version,
		runs: map[string]uint64{}, lost: map[string]uint64{}, checks: map[string]uint64{}, renewals: map[string]uint64{}}
}

// State says what the contender does from now on: one of the constants.
func (m *Metrics) State(state string) { m.change(func() { m.state = state }) }

// Queue says which place of how many the contender has; 0 of n: it has none.
func (m *Metrics) Queue(position, of int) {
	m.change(func() { m.position, m.of = position, of })
}

// Acquired says that the lock is held, and that the place in the queue is gone.
func (m *Metrics) Acquired(token uint64) {
	m.change(func() { m.held, m.token, m.position, m.of = true, token, 0, 0 })
}

// Released says that the lock isn't held any more, for whatever reason.
func (m *Metrics) Released() {
	m.change(func() { m.held, m.token, m.leaseEnd = false, 0, time.Time{} })
}

// Lease says that the lease has remaining left, at each extension. The first one may come before
// Acquired: the command isn't started sooner.
func (m *Metrics) Lease(remaining time.Duration) {
	m.change(func() {
		m.leaseEnd = time.Now().Add(remaining)
	})
}

// Check counts a linearizable check of the lock.
func (m *Metrics) Check(result string, took time.Duration) {
	m.change(func() { m.checks[known(results, result)]++; m.checkSeconds.observe(took.Seconds()) })
}

// Renew counts a renewal of the session.
func (m *Metrics) Renew(result string, took time.Duration) {
	m.change(func() { m.renewals[known(results, result)]++; m.renewSeconds.observe(took.Seconds()) })
}

// Run counts a run by its outcome, one of the constants of [Run].
func (m *Metrics) Run(outcome string) { m.change(func() { m.runs[known(outcomes, outcome)]++ }) }

// Lost counts a lost lock. [Metrics.Released] follows when it isn't kept any more.
func (m *Metrics) Lost(cause string) { m.change(func() { m.lost[known(causes, cause)]++ }) }

// Restarted counts a start of the command after the first one under a lock.
func (m *Metrics) Restarted() { m.change(func() { m.restarts++ }) }

// PeriodSkipped counts a period in which another host had run the command already.
func (m *Metrics) PeriodSkipped() { m.change(func() { m.skipped++ }) }

func (m *Metrics) change(f func()) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// leading reports whether the command runs under a lease that isn't over, and the state.
// The supervisor, which doesn't read this, has stopped the command by the end of the lease.
func (m *Metrics) leading() (bool, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == Running && m.leaseLeft() > 0, m.state
}

func (m *Metrics) leaseLeft() time.Duration {
	if !m.held { // an extension may still have been on its way when the lock was released
		return 0
	}
	return max(time.Until(m.leaseEnd), 0)
}

func known(words []string, word string) string {
	if slices.Contains(words, word) {
		return word
	}
	return other
}

// A liveMetric is a metric that a process serves, and how it is made of its Metrics.
type liveMetric struct {
	Desc
	write func(m *Metrics, s series)
}

// liveMetrics is all that /metrics has.
var liveMetrics = []liveMetric{
	{Desc{"onlyone_build_info", "gauge", []string{"version"}, "1; the label has the version."},
		func(m *Metrics, s series) { s.set(1, m.version) }},
	{Desc{"onlyone_held", "gauge", byName, "1 while this process holds the lock, else 0."},
		func(m *Metrics, s series) { s.set(flag(m.held), m.name) }},
	{Desc{"onlyone_state", "gauge", []string{"name", "state"}, "1 for the state that this process is in, 0 for the others."},
		func(m *Metrics, s series) {
			for _, state := range states {
				s.set(flag(m.state == state), m.name, state)
			}
		}},
	{Desc{"onlyone_queue_position", "gauge", byName, "This process's place in the queue, 1 is next; 0: it has none."},
		func(m *Metrics, s series) { s.set(float64(m.position), m.name) }},
	{Desc{"onlyone_waiters", "gauge", byName, "How many contenders are in the queue, as far as this process saw when it last looked; a holder doesn't look."},
		func(m *Metrics, s series) { s.set(float64(m.of), m.name) }},
	{Desc{"onlyone_fence_token", "gauge", byName, "The fencing token of this process's term; 0: it doesn't hold the lock."},
		func(m *Metrics, s series) { s.set(float64(m.token), m.name) }},
	{Desc{"onlyone_lease_remaining_seconds", "gauge", byName, "Seconds until SIGKILL if no newer proof comes; 0: none."},
		func(m *Metrics, s series) { s.set(m.leaseLeft().Seconds(), m.name) }},
	{Desc{"onlyone_runs_total", "counter", []string{"name", "outcome"}, "Runs of this process that have ended, by outcome."},
		func(m *Metrics, s series) { s.each(m.runs, append(slices.Clone(outcomes), other), m.name) }},
	{Desc{"onlyone_restarts_total", "counter", byName, "How often the command was started again under the same lock."},
		func(m *Metrics, s series) { s.set(float64(m.restarts), m.name) }},
	{Desc{"onlyone_lost_total", "counter", []string{"name", "cause"}, "How often the lock was lost."},
		func(m *Metrics, s series) { s.each(m.lost, causes, m.name) }},
	{Desc{"onlyone_period_skipped_total", "counter", byName, "Periods whose run another host had done already."},
		func(m *Metrics, s series) { s.set(float64(m.skipped), m.name) }},
	{Desc{"onlyone_checks_total", "counter", []string{"name", "result"}, "Linearizable checks of the lock."},
		func(m *Metrics, s series) { s.each(m.checks, results, m.name) }},
	{Desc{"onlyone_check_seconds", "histogram", byName, "How long the checks took."},
		func(m *Metrics, s series) { m.checkSeconds.write(s, m.name) }},
	{Desc{"onlyone_renewals_total", "counter", []string{"name", "result"}, "Renewals of the session."},
		func(m *Metrics, s series) { s.each(m.renewals, results, m.name) }},
	{Desc{"onlyone_renew_seconds", "histogram", byName, "How long the renewals took."},
		func(m *Metrics, s series) { m.renewSeconds.write(s, m.name) }},
}

// LiveMetrics describes all metrics that a process serves.
func LiveMetrics() []Desc {
	var all []Desc
	for _, m := range liveMetrics {
		all = append(all, m.Desc)
	}
	return all
}

// each writes a sample for every word, those that never happened as 0: of a counter that
// begins with 1 Prometheus sees no increase.
func (s series) each(counts map[string]uint64, words []string, name string) {
	for _, word := range words {
		s.set(float64(counts[word]), name, word)
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *Metrics) text() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out bytes.Buffer
	for _, l := range liveMetrics {
		s := series{l.Desc, &out}
		s.head()
		l.write(m, s)
	}
	return out.Bytes()
}
