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
	// keeper's place; an error of ready ends it. When it returns an error, nothing is left
	// in the queue, as far as Consul answers.
	Acquire(ctx context.Context, ready func(info []byte) error) (Term, error)
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
	Check(ctx context.Context) error
	// Renew keeps the session alive. An error with Lost() says that the session is gone;
	// success proves nothing.
	Renew(ctx context.Context) error
	// Watch calls changed when something happened to the lock key, until ctx ends.
	Watch(ctx context.Context, changed func())
	// Release gives the lock back and ends the session; the tree must be gone.
	Release(ctx context.Context, r RunResult) error
}

// A lost error is proof that the lock isn't held any more.
type lost interface {
	error
	// Lost reports whether somebody else may hold the lock already (free: deleted,
	// unlocked, held by another), or the lock-delay still holds everybody off.
	Lost() (free bool)
}

// RunResult is what the release writes into the record of runs.
type RunResult struct {
	Started, Ended time.Time
	Exit           int    // as a shell shows it: 128 + n for signal n; -1 if it never ran
	Outcome        string // "exited", "signaled", "stopped", "timeout", "lost", "failed"
	Restarts       int
}

// Guard stops the command when the keeper can't. Its methods don't wait.
type Guard interface {
	Events() <-chan Event // closed when the guard is gone
	ReleaseInfo(info []byte)
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
// the command, too.
type Signal struct {
	Signal       syscall.Signal
	FromTerminal bool
}

// Config is what a supervisor needs.
type Config struct {
	Dials       Dials
	Command     Command
	StopSignal  syscall.Signal
	StopTimeout time.Duration
	Wait        time.Duration // how long to contend; negative: for ever

	Clock      Clock
	Lock       Lock
	StartGuard func() (Guard, error)
	Signals    <-chan Signal
	Jitter     func(most time.Duration) time.Duration // random, in [0, most)
	Log        zerolog.Logger
	// Changed is called on each change of state: "contending", "running", "stopping", "releasing".
	Changed func(state string)

	broken brokenRules
}

// brokenRules switches safety rules off, so that the simulation can show that it would
// notice. Only tests set it.
type brokenRules struct {
	countFromResponse  bool // the lease counts from the answer, not from the request
	trustRenewal       bool // a renewal's 200 extends the lease
	trustWatch         bool // a watch's answer extends the lease
	revive             bool // an answer after the lease's end counts, from now
	releaseBeforeGone  bool // a stop releases at once
	startOnLateAcquire bool // the lease of an acquire counts from its answer, however old
}

// Kind says how a run ended.
type Kind uint8

// The ways in which Run ends.
const (
	Ended       Kind = iota + 1 // the command ran to its end, by itself or because it was told to: Status
	NotAcquired                 // the lock wasn't acquired: Err
	Interrupted                 // a stop signal came while contending: Signal
	NotStarted                  // the command couldn't be executed: Errno, Err
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
}

// ErrWaitOver is wrapped in the outcome's Err when Config.Wait has passed.
var ErrWaitOver = errors.New("the wait is over")

// Limits of things that ought to take milliseconds.
const (
	// guardPatience is how long a guard may take to come up or to acknowledge.
	guardPatience = 5 * time.Second
	// enforceAfter is what the guard gets after the kill deadline before the keeper kills
	// by itself: a quarter of the margin, far above a working guard's 44 ms.
	enforceAfter = margin / 4
	// releaseLimit bounds the release: the command is done, and its caller waits.
	releaseLimit = 4 * time.Second
	// leaveLimit bounds leaving the queue after a stop signal: 100 ms are promised.
	leaveLimit = 80 * time.Millisecond
)

// Run contends for the lock, runs the command while the lock is provably held, and
// releases. It returns when nothing of the command is left, or says LostAlive.
func Run(ctx context.Context, c Config) Outcome {
	s := &supervisor{Config: c}
	return s.contend(ctx)
}

type supervisor struct {
	Config
	guard   Guard
	stopped bool // a stop signal was acted on
}

func (s *supervisor) changed(state string) {
	if s.Changed != nil {
		s.Changed(state)
	}
}

// contend: waiting for the lock. No command, and a guard only once the lock looks free.
func (s *supervisor) contend(ctx context.Context) Outcome {
	s.changed("contending")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type result struct {
		term Term
		err  error
	}
	results := make(chan result, 1)
	go func() {
		t, err := s.Lock.Acquire(ctx, s.ready)
		results <- result{t, err}
	}()
	var over <-chan time.Time
	if s.Wait >= 0 {
		timer := time.NewTimer(s.Wait)
		defer timer.Stop()
		over = timer.C
	}
	var stop Signal
	for {
		select {
		case r := <-results:
			switch {
			case r.err == nil && stop.Signal != 0:
				// Acquired in the very moment of the signal: give it back.
				s.release(r.term, RunResult{Exit: -1, Outcome: "stopped"})
				fallthrough
			case stop.Signal != 0:
				s.quitGuard()
				return Outcome{Kind: Interrupted, Signal: stop.Signal}
			case r.err == nil:
				return s.hold(r.term)
			}
			s.quitGuard()
			if errors.Is(context.Cause(ctx), ErrWaitOver) {
				return Outcome{Kind: NotAcquired, Err: ErrWaitOver}
			}
			if errors.Is(r.err, errGuard) {
				return Outcome{Kind: Failed, Err: r.err}
			}
			return Outcome{Kind: NotAcquired, Err: r.err}
		case <-over:
			over = nil
			cancel(ErrWaitOver)
		case sig := <-s.Signals:
			if !endsContender(sig.Signal) || stop.Signal != 0 {
				continue
			}
			stop = sig
			cancel(interrupted{})
		}
	}
}

// interrupted is the cause of a cancelled Acquire after a stop signal: it must return
// within LeaveLimit even if Consul doesn't answer.
type interrupted struct{}

func (interrupted) Error() string             { return "interrupted" }
func (interrupted) LeaveLimit() time.Duration { return leaveLimit }

// endsContender: with no command to forward them to, these have their usual effect.
func endsContender(s syscall.Signal) bool {
	switch s {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

var errGuard = errors.New("the guard failed")

// ready has the guard up and informed before an acquiring request is sent.
func (s *supervisor) ready(info []byte) error {
	if s.guard == nil {
		g, err := s.StartGuard()
		if err != nil {
			return fmt.Errorf("%w: %w", errGuard, err)
		}
		s.guard = g
		if _, err := s.awaitEvent(GuardReady, s.Clock.Now()+guardPatience); err != nil {
			return err
		}
	}
	s.guard.ReleaseInfo(info)
	return nil
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
		s.release(t, RunResult{Exit: -1, Outcome: "lost"})
		s.quitGuard()
		return Outcome{Kind: Lost, Err: err}
	}
	select {
	case sig := <-s.Signals:
		if endsContender(sig.Signal) {
			s.release(t, RunResult{Exit: -1, Outcome: "stopped"})
			s.quitGuard()
			return Outcome{Kind: Interrupted, Signal: sig.Signal}
		}
	default:
	}
	started := time.Now()
	cmd := s.Command
	cmd.Env = withEnv(cmd.Env, t.Env())
	s.guard.Start(cmd)
	s.changed("running")
	out := h.run()
	// The tree is gone, or out says LostAlive: then nothing is released.
	h.stopProving()
	if out.Kind != LostAlive {
		s.changed("releasing")
		s.release(t, runResult(out, started))
	}
	s.quitGuard()
	return out
}

// withEnv is env with the variables of set in the place of its own: with two of a name
// (onlyone inside onlyone), programs differ in which one they see.
func withEnv(env, set []string) []string {
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
	s.quitGuard()
	return Outcome{Kind: Failed, Err: err}
}

func runResult(o Outcome, started time.Time) RunResult {
	r := RunResult{Started: started, Ended: time.Now(), Exit: -1}
	switch o.Kind {
	case Ended:
		r.Exit, r.Outcome = o.Status.ExitStatus(), "exited"
		if o.Status.Signaled() {
			r.Exit, r.Outcome = 128+int(o.Status.Signal()), "signaled"
		}
	case Lost:
		r.Outcome = "lost"
	default:
		r.Outcome = "failed"
	}
	return r
}

// release gives the lock back, bounded in time. A failure isn't an error of the run: the
// session ends by itself.
func (s *supervisor) release(t Term, r RunResult) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	done := make(chan struct{})
	defer close(done)
	wg.Go(func() {
		// The first stop signal may be the one that has ended the command (a terminal sends
		// it to both); one more means: don't wait for Consul.
		stopped := s.stopped
		for {
			select {
			case sig := <-s.Signals:
				if stopped && endsContender(sig.Signal) {
					cancel()
				}
				stopped = stopped || endsContender(sig.Signal)
			case <-done:
				return
			}
		}
	})
	if err := t.Release(ctx, r); err != nil {
		s.Log.Warn().Err(err).Msgf("cannot release the lock; it is free when its session ends (within %s)", 2*s.Dials.TTL+s.Dials.Lease)
	}
}
