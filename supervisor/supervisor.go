package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// Lock is a contended lock.
type Lock interface {
	// Acquire contends until it holds the lock, ctx ends, or it can't go on. A cause of
	// ctx with a method LeaveLimit() bounds how long it may take to leave the queue. Before each
	// acquiring request it calls ready with what a guard needs to release the term in the
	// keeper's place; an error of ready ends it. It calls looks after each look at the lock: free if
	// it is about to acquire. Neither is called after it has returned. When it returns an error,
	// nothing is left in the queue, as far as Consul answers.
	Acquire(ctx context.Context, ready func(info []byte) error, looks func(free bool)) (Term, error)
}

// Term is one holding of the lock. Check and Renew are called one at a time; Watch runs
// beside them.
type Term interface {
	Token() uint64 // the fencing token
	Sent() Instant // the clock just before the acquiring request was sent
	Env() []string // the command's environment for this term, FENCE_TOKEN included
	// Check is a linearizable ownership check. nil proves that the lock was held at an
	// instant after the call; an error with Lost() says that it isn't any more; every
	// other error is silence.
	// The order is what an operator asks for; it comes again with each check.
	Check(ctx context.Context) (Order, error)
	// Renew keeps the session alive. An error with Lost() says that the session is gone;
	// success proves nothing.
	Renew(ctx context.Context) error
	// Watch calls changed when a check may have something new to say, until ctx ends.
	Watch(ctx context.Context, changed func())
	// Unclean is the environment that tells a fence command of a holder that didn't release
	// the lock, one for each, the oldest first.
	Unclean() [][]string
	// Unlock gives the lock back; the tree must be gone. An error with Lost() says that it was lost
	// before, and that how the command ended isn't on record. End follows, and ends the session.
	Unlock(ctx context.Context, r RunResult) error
	End(ctx context.Context)
}

// Order is what an operator asks of the holder; the zero Order is none.
type Order struct {
	Kind OrderKind
	Why  string // by whom and what for
}

// OrderKind says what is asked for.
type OrderKind uint8

// The orders. After each the command is stopped in order and the lock is released; what
// differs is when this supervisor contends again.
const (
	StepDown  OrderKind = iota + 1 // after stepDownPause
	Pause                          // at once: nobody may acquire before the pause ends
	DrainHost                      // when this host isn't drained any more
)

// Drain says whether this host is drained: it begins nothing new, and stops what runs
// unless Finish is set.
type Drain struct {
	On, Finish bool
	Why        string
}

// A lost error is proof that the lock isn't held any more.
type lost interface {
	error
	// Lost reports whether somebody else may hold the lock already (free: deleted,
	// unlocked, held by another), or the lock-delay still holds everybody off.
	Lost() (free bool)
}

// RunResult is what the release writes into the record of runs; without a start it leaves none.
type RunResult struct {
	Started, Ended time.Time
	Exit           int    // as a shell shows it: 128 + n for signal n; -1 if it never ran
	Outcome        string // "exited", "signaled", "stopped", "timeout", "lost", "failed", "unfenced"
	Restarts       int
}

// Guard stops the command when the keeper can't. Its methods don't wait. It serves one
// command.
type Guard interface {
	Events() <-chan Event // closed when the guard is gone
	// ReleaseInfo is what it needs to release the term in the keeper's place, and what it
	// then writes down of a command that ended before, or hasn't started; nil: what it knows itself.
	ReleaseInfo(info []byte, r *RunResult)
	Deadlines(term, kill Instant)
	Start(Command)
	Signal(syscall.Signal)
	Stop(Stop)
	Kill()
	// Enforce kills the guard and all that descends from this process; false if something
	// was left when giveUp was closed.
	Enforce(giveUp <-chan struct{}) bool
	// Quit ends the guard and waits for it.
	Quit()
}

// Signal is a signal that came to the keeper. FromTerminal: the terminal has sent it to
// the command, too. Reload: a service manager's word for the command, so that it ends nobody.
type Signal struct {
	Signal       syscall.Signal
	FromTerminal bool
	Reload       bool
}

// Config is what a supervisor needs.
type Config struct {
	Dials       Dials
	Command     Command
	StopSignal  syscall.Signal
	StopTimeout time.Duration

	NoWait  bool          // don't contend a second time
	Wait    time.Duration // how long to contend; negative: for ever
	Splay   time.Duration // wait so long before contending
	StartBy Instant       // don't start the command later; 0: whenever

	MaxRuntime time.Duration // of the command, then it is stopped with Dials.KillAfter; 0: as long as it likes
	MinHold    time.Duration // keep the lock for so long at least, if the command ends by itself
	Restart    Restart
	OnLostWait bool // contend again when the lock was lost and the command stopped in time
	Hooks      Hooks

	Clock      Clock
	Lock       Lock
	StartGuard func() (Guard, error)
	Signals    <-chan Signal
	Turns      <-chan struct{}                        // received from whenever the loop turns: who can send to it knows that it does
	Drained    Drain                                  // at the start
	Drains     <-chan Drain                           // its changes
	Jitter     func(most time.Duration) time.Duration // random, in [0, most)
	Log        zerolog.Logger
	Observer   Observer // nil: nobody

	broken brokenRules
}

// Restart says when a command that ended is started again while the lock is kept.
type Restart struct {
	Policy RestartPolicy
	Delay  time.Duration // before the first one; it doubles up to a minute
	Most   int           // restarts without a minute of running between them, then the lock is released; negative: no limit
}

// RestartPolicy says after which ends there is a restart.
type RestartPolicy uint8

// The policies. A command that was told to stop isn't restarted.
const (
	RestartNo        RestartPolicy = iota
	RestartOnFailure               // after an exit other than 0, a signal or the maximum of time
	RestartAlways
)

// Hooks are commands around the command, each with the lock held but the last. They run under a
// guard like the command itself: bounded by Timeout and by the lease, with all that they start.
type Hooks struct {
	Fence     Command // before the command, if the last holder didn't release; unless it exits with 0, nothing is started
	OnAcquire Command // before the command
	OnRelease Command // after the command, before the release
	OnLoss    Command // when the lock was lost and the command is gone
	Timeout   time.Duration
}

// An Observer is told what happens, in order and from one goroutine. Its methods must not block.
type Observer interface {
	State(state string) // "contending", "drained", "running", "stopping", "restarting", "releasing", "released"
	Acquired(t Term)
	Started(pid int)   // the command was executed
	Ended(r RunResult) // it and all that it started is gone
	Lost(cause error)  // the lock
	// Checked: an ownership check or a renewal was answered (nil), or proves the loss, or was not answered.
	Checked(renewal bool, err error, took time.Duration)
	Extended(left time.Duration) // the lease
}

type nobody struct{}

func (nobody) State(string)                       {}
func (nobody) Acquired(Term)                      {}
func (nobody) Started(int)                        {}
func (nobody) Ended(RunResult)                    {}
func (nobody) Lost(error)                         {}
func (nobody) Checked(bool, error, time.Duration) {}
func (nobody) Extended(time.Duration)             {}

// brokenRules switches safety rules off, so that the simulation can show that it would
// notice. Only tests set it.
type brokenRules struct {
	countFromResponse  bool // the lease counts from the answer, not from the request
	trustRenewal       bool // a renewal's 200 extends the lease
	trustWatch         bool // a watch's answer extends the lease
	revive             bool // an answer after the lease's end counts, from now
	releaseBeforeGone  bool // a stop releases at once
	startOnLateAcquire bool // the lease of an acquire counts from its answer, however old
	restartUnproven    bool // a restart counts as a proof
}

// Kind says how a run ended.
type Kind uint8

// The ways in which Run ends.
const (
	Ended       Kind = iota + 1 // the command ran to its end, by itself or because it was told to: Status
	NotAcquired                 // the lock wasn't acquired: Err
	Interrupted                 // a stop signal came while contending: Signal
	NotStarted                  // the command couldn't be executed: Errno, Err
	NotFenced                   // the fence command said no, so nothing was started: Err
	HandedOver                  // the command was stopped by an order, and there is no waiting: Status, Err
	Lost                        // the lock was lost, the command was stopped, in time unless LateBy: Err
	LostAlive                   // the lock was lost, the command isn't known to be dead: Err
	Failed                      // onlyone itself failed: Err
)

// Outcome is how a run ended.
type Outcome struct {
	Kind   Kind
	Status syscall.WaitStatus
	Signal syscall.Signal
	Errno  syscall.Errno
	LateBy time.Duration // Lost: the command may have run for so long after the lease
	Err    error

	TimedOut bool // Ended: after Config.MaxRuntime
	Killed   bool // Ended: SIGKILL was needed
	Order    Order
	Result   RunResult // what the record of runs says
}

// Causes of an Outcome's Err.
var (
	ErrWaitOver = errors.New("the wait is over")           // Config.Wait has passed
	ErrTooLate  = errors.New("the start deadline is over") // Config.StartBy has passed
	ErrDrained  = errors.New("this host is drained")
)

// Limits of things that ought to take milliseconds.
const (
	// guardPatience is how long a guard may take to come up or to acknowledge.
	guardPatience = 5 * time.Second
	// enforceAfter is what the guard gets after the kill deadline before the keeper kills
	// by itself: a quarter of the margin, far above a working guard's 44 ms.
	enforceAfter = margin / 4
	// releaseLimit bounds the release: the command is done, and its caller waits.
	releaseLimit = 4 * time.Second
	// stepDownPause is how long a holder that stepped down leaves the lock to others: Vault's
	// "operator step-down" has the same.
	stepDownPause = 10 * time.Second
	// steadyRun is how long a command must run for its restarts to begin anew, and longestDelay
	// the longest pause before one.
	steadyRun    = time.Minute
	longestDelay = time.Minute
	// leaveLimit bounds leaving the queue after a stop signal: 100 ms are promised.
	leaveLimit = 80 * time.Millisecond
)

// Run contends for the lock, runs the command while the lock is provably held, and
// releases. It returns when nothing of the command is left, or says LostAlive. After an
// order, and after a loss if it is to wait then, it contends again.
func Run(ctx context.Context, c Config) Outcome {
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	s := &supervisor{Config: c, drained: c.Drained}
	pause := c.Splay
	for {
		if sig, stopped := s.idle(pause); stopped {
			return Outcome{Kind: Interrupted, Signal: sig.Signal}
		}
		out := s.contend(ctx)
		switch {
		case s.stopped: // also by a signal that came in the last moment
			return out
		case out.Kind == HandedOver && !s.NoWait:
			pause = 0
			if out.Order.Kind == StepDown {
				pause = stepDownPause
			}
		case out.Kind == Lost && s.OnLostWait && out.LateBy == 0:
			pause = s.Jitter(s.Dials.Poll)
		default:
			return out
		}
	}
}

type supervisor struct {
	Config
	guard   Guard
	info    []byte // for the guard, to release
	drained Drain
	stopped bool // a stop signal was acted on
}

// idle waits without contending; a stop signal ends it.
func (s *supervisor) idle(d time.Duration) (stop Signal, stopped bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for d > 0 {
		select {
		case <-s.Turns:
		case <-timer.C:
			return Signal{}, false
		case sig := <-s.Signals:
			if sig.endsContender() {
				return sig, true
			}
		case s.drained = <-s.Drains:
		}
	}
	return Signal{}, false
}

// after is a timer that may be none.
func after(d time.Duration, set bool) (c <-chan time.Time, stop func() bool) {
	if !set {
		return nil, func() bool { return true }
	}
	timer := time.NewTimer(d)
	return timer.C, timer.Stop
}

// acquiring is one call of Lock.Acquire.
type acquiring struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	result chan acquired
}

type acquired struct {
	term Term
	err  error
}

func (s *supervisor) acquire(ctx context.Context) *acquiring {
	a := &acquiring{result: make(chan acquired, 1)}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	go func() {
		e := earlyGuard{s: s}
		t, err := s.Lock.Acquire(a.ctx, func(info []byte) error { return s.ready(info, &e) }, e.looks)
		e.drop()
		e.wg.Wait()
		a.result <- acquired{t, err}
	}()
	return a
}

// earlyGuard is a guard that comes up as soon as the lock looks free, beside what must be asked
// of Consul before the lock is acquired. Who has to wait needs none, and is smaller without.
type earlyGuard struct {
	s        *supervisor
	starting chan started  // nil if none is; one comes
	dropped  chan struct{} // closed when the last one that was dropped is gone; a keeper has one guard at a time
	wg       sync.WaitGroup
}

type started struct {
	guard Guard
	err   error
}

func (e *earlyGuard) looks(free bool) {
	switch {
	case !free:
		e.drop()
	case e.starting == nil && e.s.guard == nil:
		c, before := make(chan started, 1), e.dropped
		e.starting = c
		e.wg.Go(func() {
			if before != nil {
				<-before
			}
			g, err := e.s.StartGuard()
			c <- started{g, err}
		})
	}
}

// take is the guard, or a new one if none comes.
func (e *earlyGuard) take() (Guard, error) {
	if e.starting == nil {
		e.wg.Wait()
		return e.s.StartGuard()
	}
	g := <-e.starting
	e.starting = nil
	return g.guard, g.err
}

// drop quits the guard if nobody has taken it. It doesn't wait.
func (e *earlyGuard) drop() {
	c := e.starting
	if c == nil {
		return
	}
	e.starting, e.dropped = nil, make(chan struct{})
	e.wg.Go(func() {
		defer close(e.dropped)
		if g := <-c; g.err == nil {
			g.guard.Quit()
		}
	})
}

// contend: waiting for the lock. No command, and no guard while others have the lock.
// While this host is drained it isn't even contended for.
func (s *supervisor) contend(ctx context.Context) Outcome {
	over, stopOver := after(s.Wait, s.Wait >= 0)
	defer stopOver()
	late, stopLate := after(s.StartBy-s.Clock.Now(), s.StartBy > 0)
	defer stopLate()
	var stop Signal
	var end error // why it is over; the acquire that runs may still have an answer
	for {
		if s.drained.On && s.NoWait {
			return Outcome{Kind: NotAcquired, Err: fmt.Errorf("%w: %s", ErrDrained, s.drained.Why)}
		}
		var a *acquiring
		var results chan acquired
		if s.drained.On {
			s.Observer.State("drained")
			s.Log.Info().Msgf("waiting: %s", Order{DrainHost, s.drained.Why})
		} else {
			s.Observer.State("contending")
			a = s.acquire(ctx)
			results = a.result
		}
		for again := false; !again; {
			var because error
			select {
			case <-s.Turns:
			case r := <-results:
				a.cancel(nil)
				if r.err == nil && (end == nil || errors.Is(end, ErrWaitOver)) {
					return s.hold(r.term)
				}
				if r.err == nil { // acquired in the very moment: give it back
					s.release(r.term, RunResult{Exit: -1, Outcome: "stopped"})
				}
				s.quitGuard()
				switch {
				case stop.Signal != 0:
					return Outcome{Kind: Interrupted, Signal: stop.Signal}
				case errors.Is(end, ErrDrained) && s.stopped:
					return Outcome{Kind: Interrupted, Signal: s.StopSignal}
				case errors.Is(end, ErrDrained):
					end, again = nil, true
					continue
				case end != nil:
					return Outcome{Kind: NotAcquired, Err: end}
				case errors.Is(r.err, errGuard):
					return Outcome{Kind: Failed, Err: r.err}
				}
				return Outcome{Kind: NotAcquired, Err: r.err}
			case <-over:
				because = ErrWaitOver
			case <-late:
				because = ErrTooLate
			case sig := <-s.Signals:
				if sig.endsContender() && stop.Signal == 0 {
					stop, because = sig, interrupted{}
				}
			case s.drained = <-s.Drains:
				switch {
				case a == nil && !s.drained.On:
					again = true
				case a != nil && s.drained.On:
					because = ErrDrained
				}
			}
			switch {
			case because == nil:
			case a != nil:
				if end == nil || errors.Is(end, ErrDrained) { // of what ends for good the first counts
					end = because
				}
				a.cancel(because)
			case stop.Signal != 0:
				return Outcome{Kind: Interrupted, Signal: stop.Signal}
			default:
				return Outcome{Kind: NotAcquired, Err: because}
			}
		}
	}
}

// interrupted is the cause of a cancelled Acquire after a stop signal: it must return
// within LeaveLimit even if Consul doesn't answer.
type interrupted struct{}

func (interrupted) Error() string             { return "interrupted" }
func (interrupted) LeaveLimit() time.Duration { return leaveLimit }

// endsContender: with no command to forward them to, these have their usual effect.
func (s Signal) endsContender() bool {
	switch s.Signal {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
		return !s.Reload
	}
	return false
}

var errGuard = errors.New("the guard failed")

// ready has the guard up and informed before an acquiring request is sent.
func (s *supervisor) ready(info []byte, early *earlyGuard) error {
	s.info = info
	if s.guard != nil {
		select {
		case _, ok := <-s.guard.Events():
			if !ok { // it died while we were waiting: nothing of ours was under it
				s.quitGuard()
			}
		default:
		}
	}
	if s.guard == nil {
		if err := s.startGuard(early.take); err != nil {
			return err
		}
	}
	s.guard.ReleaseInfo(info, nil)
	return nil
}

// startGuard waits until the guard that start starts is up.
func (s *supervisor) startGuard(start func() (Guard, error)) error {
	g, err := start()
	if err != nil {
		return fmt.Errorf("%w: %w", errGuard, err)
	}
	s.guard = g
	_, err = s.awaitEvent(GuardReady, s.Clock.Now()+guardPatience)
	return err
}

func (s *supervisor) quitGuard() {
	if s.guard != nil {
		s.guard.Quit()
		s.guard = nil
	}
}

// awaitEvent waits for the one event that a guard without a command can send.
func (s *supervisor) awaitEvent(kind EventKind, until Instant) (Event, error) {
	timer := time.NewTimer(until - s.Clock.Now())
	defer timer.Stop()
	for {
		select {
		case <-s.Turns:
		case e, ok := <-s.guard.Events():
			if !ok {
				return e, fmt.Errorf("%w: it ended", errGuard)
			}
			if e.Kind == kind {
				return e, nil
			}
		case <-timer.C:
			return Event{}, fmt.Errorf("%w: it does not answer", errGuard)
		}
	}
}

// hold: the lock is ours by a successful acquiring transaction. Arms the guard, starts
// the command, and sees it to its end.
func (s *supervisor) hold(t Term) Outcome {
	h, err := newHolding(s, t)
	if err != nil {
		return s.giveUp(t, err)
	}
	defer h.close()
	if err := h.arm(); err != nil {
		if errors.Is(err, errGuard) {
			return s.giveUp(t, err)
		}
		s.Log.Warn().Err(err).Msg("the lock was lost before the command was started")
		s.Observer.Lost(err)
		s.release(t, RunResult{Exit: -1, Outcome: "lost"})
		return Outcome{Kind: Lost, Err: err}
	}
	s.Observer.Acquired(t)
	out := h.work()
	// The tree is gone, or out says LostAlive: then nothing is released.
	h.stopProving()
	out.Result = h.result(out)
	if out.Kind != LostAlive {
		s.Observer.State("releasing")
		s.release(t, out.Result)
		s.Observer.State("released")
	}
	s.quitGuard()
	if out.Kind == Lost {
		s.afterLoss(t, out.Err)
	}
	return out
}

// WithEnv is env with the variables of set in the place of its own: with two of a name
// (onlyone inside onlyone), programs differ in which one they see.
func WithEnv(env, set []string) []string {
	name := func(kv string) string { n, _, _ := strings.Cut(kv, "="); return n }
	ours := map[string]bool{}
	for _, kv := range set {
		ours[name(kv)] = true
	}
	out := make([]string, 0, len(env)+len(set))
	for _, kv := range env {
		if !ours[name(kv)] {
			out = append(out, kv)
		}
	}
	return append(out, set...)
}

// giveUp releases a term whose command never started.
func (s *supervisor) giveUp(t Term, err error) Outcome {
	s.release(t, RunResult{Exit: -1, Outcome: "failed"})
	return Outcome{Kind: Failed, Err: err}
}

// release gives the lock back, bounded in time, and quits the guard when it isn't needed any
// more. A failure isn't an error of the run: the session ends by itself.
func (s *supervisor) release(t Term, r RunResult) {
	s.unlock(t, r, true)
	s.quitGuard()
}

func (s *supervisor) unlock(t Term, r RunResult, last bool) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	done := make(chan struct{})
	defer close(done)
	wg.Go(func() {
		// The first stop signal may be the one that has ended the command (a terminal sends
		// it to both); one more means: don't wait for Consul.
		for {
			select {
			case <-s.Turns:
			case sig := <-s.Signals:
				if s.stopped && sig.endsContender() {
					cancel()
				}
				s.stopped = s.stopped || sig.endsContender()
			case <-done:
				return
			}
		}
	})
	err := t.Unlock(ctx, r)
	if g := s.guard; g != nil && err == nil && last {
		s.guard = nil
		wg.Go(g.Quit) // there is nothing left that it could release
	}
	t.End(ctx)
	switch gone, isLost := errors.AsType[lost](err); {
	case isLost:
		s.Log.Warn().Err(gone).Msg("the lock was lost before it was released: how the command ended isn't on record, and a period may be run again")
	case err != nil:
		s.Log.Warn().Err(err).Msgf("cannot release the lock; it is free when its session ends (within %s)", 2*s.Dials.TTL+s.Dials.Lease)
	}
}
