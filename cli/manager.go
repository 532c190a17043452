package cli

import (
	"sync"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/systemd"
)

// What --notify chooses: when the unit is up, and who says so.
const (
	notifyStandby = "standby" // when this host contends: a standby must not hang the boot
	notifyRunning = "running" // when the command runs
	notifyChild   = "child"   // the command itself speaks with the manager; onlyone says nothing
)

const (
	// beatEvery is often, since systemd forgets an extension at each daemon-reload.
	beatEvery  = 2 * time.Second
	extendBy   = 15 * time.Second
	statusAge  = time.Minute      // "since 4m" is a minute old at most
	readyLimit = 10 * time.Second // a standby is up by then, even if Consul hasn't told its place
)

// A manager tells the service manager what the run does.
type manager struct {
	to    *systemd.Notifier
	mode  string
	turns chan<- struct{} // received from by the supervisor's loop
	since time.Time

	mu     sync.Mutex
	up     bool // READY was said
	phase  phase
	text   func(now time.Time) string
	told   string
	toldAt time.Time
}

type phase uint8

const (
	contending phase = iota
	running
	ending // this process was told to end
)

// newManager makes a manager and the channel that the supervisor's loop receives from
// whenever it turns.
func newManager(mode string) (*manager, <-chan struct{}) {
	turns := make(chan struct{})
	return &manager{to: systemd.New(), mode: mode, turns: turns, since: time.Now()}, turns
}

// close waits until all is told.
func (m *manager) close() { m.to.Close() }

// env is the command's environment, out of onlyone's.
func (m *manager) env(env []string) []string {
	if m.mode == notifyChild {
		return systemd.WithNotify(env)
	}
	return systemd.WithoutNotify(env)
}

// speaks: there is a manager, and it is onlyone that tells it.
func (m *manager) speaks() bool { return m.to.Active() && m.mode != notifyChild }

// contend: this host contends. It isn't up yet: Consul may refuse it.
func (m *manager) contend(text string) { m.enter(contending, false, always(text)) }

// wait: Consul has told this host its place in the queue.
func (m *manager) wait(text func(time.Time) string) {
	m.enter(contending, m.mode == notifyStandby, text)
}

// run: the command is being started.
func (m *manager) run(text string) { m.enter(running, m.mode == notifyStandby, always(text)) }

// started: it was executed.
func (m *manager) started() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.speaks() {
		m.ready()
	}
}

// stop: the command is being stopped or started anew, or the lock released. last: this process
// ends with it, and doesn't go on to contend again.
func (m *manager) stop(text string, last bool) {
	p := running
	if last {
		p = ending
		if m.speaks() {
			m.to.Stopping()
		}
	}
	m.enter(p, false, always(text))
}

func always(text string) func(time.Time) string { return func(time.Time) string { return text } }

func (m *manager) enter(p phase, up bool, text func(time.Time) string) {
	if !m.speaks() {
		m.mu.Lock()
		m.phase = p
		m.mu.Unlock()
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase, m.text = p, text
	m.tell(time.Now())
	if up {
		m.ready()
	}
}

// tell sends the status line if it is another one; the caller holds mu.
func (m *manager) tell(now time.Time) {
	if text := m.text(now); text != m.told {
		m.told, m.toldAt = text, now
		m.to.Status(text)
	}
}

func (m *manager) ready() {
	if !m.up {
		m.up = true
		m.to.Ready()
	}
}

// reload is a SIGHUP: forward hands it to the command, if there is one. A standby has
// nothing to reload, and it would lose its place in the queue by the signal's usual effect.
// It reports whether it took the signal.
func (m *manager) reload(forward func()) bool {
	if !m.to.Active() {
		return false
	}
	m.mu.Lock()
	p := m.phase
	m.mu.Unlock()
	if m.speaks() {
		m.to.Reloading()
	}
	if p != contending {
		forward()
	}
	if m.speaks() {
		m.to.Ready()
	}
	return true
}

// beat tells what has to be told again and again, until stop is called. Each time it first
// waits for the supervisor's loop to turn: one that hangs is not alive, and gets no more time.
func (m *manager) beat() (stop func()) {
	if !m.speaks() {
		return func() {}
	}
	every := beatEvery
	if w := m.to.Watchdog(); w > 0 {
		every = min(every, w/2)
	}
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-done:
				return
			}
			select {
			case m.turns <- struct{}{}:
			case <-done:
				return
			}
			m.pulse(time.Now())
		}
	}()
	return func() { close(done); <-gone }
}

// pulse is one beat of a loop that turns.
func (m *manager) pulse(now time.Time) {
	if m.to.Watchdog() > 0 {
		m.to.Alive()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.phase == ending || m.phase == contending && m.mode == notifyRunning && !m.up {
		m.to.ExtendTimeout(extendBy)
	}
	if m.phase == contending && m.mode == notifyStandby && now.Sub(m.since) >= readyLimit {
		m.ready()
	}
	if m.text != nil && now.Sub(m.toldAt) >= statusAge {
		m.tell(now)
	}
}
