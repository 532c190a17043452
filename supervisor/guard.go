package supervisor

import (
	"syscall"
	"time"
)

// Command is what the guard starts.
type Command struct {
	Path string   // absolute or relative path of the executable
	Args []string // argv, Args[0] included
	Env  []string
	// Records says which ends of it a guard writes down when it releases in the keeper's place.
	Records Records
}

// Records says which ends of a command are final.
type Records uint8

// Ends that are final: none, an exit with 0, or all. A hook isn't the guarded command.
const (
	RecordHook Records = iota
	RecordNone
	RecordSuccess
	RecordAll
)

// A tree is the command and everything that descends from it.
type tree interface {
	// Start forks the command. An error is final for this guard.
	Start(Command) (pid int, err error)
	// Signal sends sig to the command itself, if it hasn't ended.
	Signal(sig syscall.Signal)
	// Continue sends SIGCONT to the command: a stopped process would never see a stop signal.
	Continue()
	// TermAll sends SIGTERM (and SIGCONT) to every process of the tree but the command, best effort.
	TermAll()
	// Kill sends SIGKILL to everything that it can reach now; repeated until Reap says empty.
	Kill()
	// Reap collects what has ended: the command's status once, and whether nothing is left.
	Reap() (status *syscall.WaitStatus, empty bool)
	// Names describes what is alive, for a message: mostNames, then how many more.
	Names() []string
}

const mostNames = 10

// EventKind says what an Event of the guard is about.
type EventKind uint8

// The events that a guard sends.
const (
	GuardReady    EventKind = iota + 1 // it runs and holds its timer
	Armed                              // it acts by itself at Kill from now on
	Started                            // the command runs as Pid
	StartFailed                        // it could not be executed: Errno
	CommandEnded                       // the command ended with Status; Leftovers outlived it
	TreeGone                           // nothing that the command started is left
	StillAlive                         // SIGKILL has not ended Leftovers for the margin's time
	StopRequested                      // somebody sent the guard a stop signal
)

// Event is what the guard tells the keeper.
type Event struct {
	Kind      EventKind
	Kill      Instant            `json:",omitempty"` // Armed
	Pid       int                `json:",omitempty"` // Started
	Errno     syscall.Errno      `json:",omitempty"` // StartFailed
	Detail    string             `json:",omitempty"` // StartFailed
	Unforked  bool               `json:",omitempty"` // StartFailed: there is no process, so no TreeGone follows
	Status    syscall.WaitStatus `json:",omitempty"` // CommandEnded, TreeGone
	Leftovers []string           `json:",omitempty"` // CommandEnded, StillAlive
	Own       bool               `json:",omitempty"` // CommandEnded, TreeGone: the command ended before anybody told it to
	Killed    bool               `json:",omitempty"` // TreeGone: SIGKILL was needed
	Lost      bool               `json:",omitempty"` // TreeGone: the lease had ended
	At        Instant            `json:",omitempty"` // TreeGone: when that was seen
}

// Stop asks the guard to end the tree.
type Stop struct {
	Signal syscall.Signal // sent to the command; 0 sends none (a terminal did already)
	All    bool           // SIGTERM to everything else, too
	KillAt Instant        // SIGKILL to everything
}

type guardPhase uint8

const (
	guardIdle     guardPhase = iota // no command yet
	guardRunning                    // the command runs
	guardStopping                   // something was told to end; stopKill is armed
	guardKilling                    // SIGKILL until nothing is left
	guardGone                       // nothing is left; for good
)

// guard is the state machine of the guard process. It does no I/O of its own and never
// waits; guardLoop (real processes) and the simulation drive it. Every input is preceded
// by tick, so that a deadline that has passed acts before anything else is believed.
//
//	phase     deadline        term reached   kill reached   stop      kill     command ended  all gone  keeper gone
//	idle      armed, ack      -              -              -         -        -              -         release, exit
//	running   armed, ack      ->stopping     ->killing      ->stop    ->kill   ->stopping     ->gone    ->stopping
//	stopping  ack unless lost lost, TERM     ->killing      sooner    ->kill   TERM the rest  ->gone    sooner
//	killing   ignored         -              -              -         -        -              ->gone    -
//	gone      ignored         -              -              -         -        -              -         release, exit
type guard struct {
	killAfter  time.Duration  // G
	stopSignal syscall.Signal // for the command when the keeper is gone
	tree       tree
	send       func(Event)

	phase      guardPhase
	term, kill Instant // the lease's deadlines; only move forward
	stopKill   Instant // while stopping: when SIGKILL is due if the lease doesn't end sooner
	lost       bool    // the lease ended or the keeper is gone: no deadline is taken any more
	asked      bool    // the command was sent its stop signal
	ended      bool    // the command was reaped
	own        bool    // before anybody told it to
	records    Records
	killed     bool
	status     syscall.WaitStatus
	sayAt      Instant // when to say that killing doesn't help; 0 once said
	revive     bool    // a broken rule, for the simulation
}

// next is the instant at which tick must be called; 0 if only an input can change anything.
func (g *guard) next() Instant {
	switch g.phase {
	case guardRunning:
		return min(g.term, g.kill)
	case guardStopping:
		at := min(g.stopKill, g.kill)
		if !g.lost {
			at = min(at, g.term)
		}
		return at
	}
	return 0
}

// tick lets everything happen that is due at now.
func (g *guard) tick(now Instant) {
	if g.phase == guardIdle || g.phase == guardGone {
		return
	}
	if g.phase != guardKilling && !g.lost && now >= g.term {
		g.lost = true
		g.end(g.kill)
		g.stopAll(g.stopSignal)
	}
	if g.phase != guardKilling && now >= min(g.kill, g.killAt()) {
		g.phase, g.killed, g.sayAt = guardKilling, true, now+margin
	}
	if g.phase == guardKilling {
		g.tree.Kill()
	}
	g.reap(now)
	if g.phase == guardKilling && g.sayAt > 0 && now >= g.sayAt {
		g.sayAt = 0
		g.send(Event{Kind: StillAlive, Leftovers: g.tree.Names()})
	}
}

func (g *guard) killAt() Instant {
	if g.phase == guardStopping {
		return g.stopKill
	}
	return g.kill
}

// reap collects what has ended and moves on accordingly.
func (g *guard) reap(now Instant) {
	status, empty := g.tree.Reap()
	if status != nil {
		g.ended, g.status = true, *status
		g.own = !g.lost && !g.asked && g.phase == guardRunning
		if !empty {
			g.send(Event{Kind: CommandEnded, Status: g.status, Own: g.own, Leftovers: g.tree.Names()})
			// What outlives the command gets the rest of a running stop, or else G.
			if g.phase == guardRunning {
				g.end(now + g.killAfter)
			}
			if g.phase == guardStopping {
				g.tree.TermAll()
			}
		}
	}
	if empty && g.ended {
		g.phase = guardGone
		g.send(Event{Kind: TreeGone, Status: g.status, Own: g.own, Killed: g.killed, Lost: g.lost, At: now})
	}
}

// end goes into stopping, or brings the kill of a running stop forward.
func (g *guard) end(killAt Instant) {
	if g.phase == guardRunning {
		g.phase, g.stopKill = guardStopping, killAt
	} else if g.phase == guardStopping {
		g.stopKill = min(g.stopKill, killAt)
	}
}

// deadlines moves the lease forward and acknowledges, unless the lease has ended:
// no later success takes back a kill that has begun.
func (g *guard) deadlines(term, kill Instant) {
	if g.revive && g.lost && g.phase == guardStopping {
		g.lost, g.phase = false, guardRunning
	}
	if g.lost || g.phase == guardKilling || g.phase == guardGone || kill < g.kill {
		return
	}
	g.term, g.kill = term, kill
	g.send(Event{Kind: Armed, Kill: kill})
}

// start forks the command: no armed deadline, no child.
func (g *guard) start(now Instant, c Command) {
	if g.phase != guardIdle || now >= g.term {
		g.send(Event{Kind: StartFailed, Unforked: true, Errno: syscall.ETIMEDOUT, Detail: "the lease ended before the start"})
		return
	}
	if _, err := g.tree.Start(c); err != nil {
		errno, _ := err.(syscall.Errno)
		g.send(Event{Kind: StartFailed, Unforked: true, Errno: errno, Detail: err.Error()})
		return
	}
	g.phase, g.records = guardRunning, c.Records
}

// result is what is known of the command when the keeper is gone: nothing, if it wasn't
// started; and how it ended, if that was its end for good, and not because it was told to. An exit
// of 0 is always its own word: a periodic job that is done must not be done again. before is
// what the keeper knew when it started this guard in the course of the term: all that is known
// of the command if this guard has had none or a hook, and else when it began.
func (g *guard) result(started, ended time.Time, before *RunResult) (r RunResult) {
	if g.phase == guardIdle || g.records == RecordHook {
		if before != nil {
			r = *before
		}
		return r
	}
	r.Started, r.Ended = started, ended
	if before != nil && !before.Started.IsZero() {
		r.Started, r.Restarts = before.Started, before.Restarts
	}
	code, outcome := exitOf(g.status)
	if (g.own || code == 0) && (g.records == RecordAll || g.records == RecordSuccess && code == 0) {
		r.Exit, r.Outcome = code, outcome
	}
	return r
}

// stop is the keeper's order to end the tree by s.KillAt.
func (g *guard) stop(s Stop) {
	if g.phase != guardRunning && g.phase != guardStopping {
		return
	}
	g.end(s.KillAt)
	switch {
	case s.All && !g.lost: // the keeper knows that the lease is over, sooner than our timer
		g.lost = true
		g.stopAll(s.Signal)
	case !s.All && s.Signal != 0:
		g.ask(s.Signal)
	}
}

// ask sends the command its stop signal, once: many programs give up their clean end at a
// second one.
func (g *guard) ask(sig syscall.Signal) {
	if !g.asked {
		g.asked = true
		g.tree.Signal(sig)
		g.tree.Continue()
	}
}

// stopAll asks the command and everything else to end.
func (g *guard) stopAll(sig syscall.Signal) {
	g.ask(sig)
	g.tree.TermAll()
}

// signal forwards sig to the command.
func (g *guard) signal(sig syscall.Signal) {
	if g.phase == guardRunning || g.phase == guardStopping {
		g.tree.Signal(sig)
	}
}

// keeperGone stops the tree: TERM, G, KILL, never later than the lease's kill.
func (g *guard) keeperGone(now Instant) {
	if g.lost && g.phase == guardStopping {
		return // already on its way, and not later than kill
	}
	g.lost = true
	if g.phase == guardRunning || g.phase == guardStopping {
		g.end(now + g.killAfter)
		g.stopAll(g.stopSignal)
	}
}
