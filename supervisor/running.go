package supervisor

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// incarnation is one command under the lease: the guarded one, or a hook.
type incarnation struct {
	main      bool   // the guarded command, no hook
	what      string // to say when it runs
	used      bool   // the guard has had its command
	alive     bool   // it may have processes
	stopping  bool   // an orderly stop is under way
	timedOut  bool   // it is stopped because its time is over
	own       bool   // it has ended by itself, and what it left behind is being ended
	gone      bool
	goneAt    Instant // when the guard saw that; 0 if it didn't
	status    syscall.WaitStatus
	killed    bool // SIGKILL was needed
	startErr  *Event
	guardDied bool
	giveUpAt  Instant // when to say that it isn't gone: endAt, or the margin after we began to kill
	lateBy    time.Duration
	enforced  chan bool
	abandon   chan struct{} // closed at giveUpAt
}

// work is what is done with the lock: the hooks and the command, with its restarts.
func (h *holding) work() Outcome {
	h.watch()
	h.heed()
	if err := h.fence(); err != nil {
		return Outcome{Kind: NotFenced, Err: err}
	}
	entered := !h.ending()
	if entered {
		h.sideHook("acquire", h.Hooks.OnAcquire)
	}
	out := h.command()
	if held := h.Clock.Now() - h.term.Sent(); out.Kind == Ended && h.MinHold > held && !h.ending() {
		h.rest("keeping the lock", h.MinHold-held)
	}
	// However the command fared: what the acquire hook has done is for this one to undo.
	if entered && out.Kind != LostAlive {
		h.sideHook("release", h.Hooks.OnRelease, fmt.Sprintf("ONLYONE_EXIT=%d", h.result(out).Exit))
		if h.undead { // the hook
			return h.unstarted()
		}
	}
	return out
}

// fence runs the fence command for each holder that did not release.
func (h *holding) fence() error {
	if h.Hooks.Fence.Path == "" {
		return nil
	}
	for _, env := range h.term.Unclean() {
		if h.ending() {
			return nil // command will say why
		}
		h.Log.Info().Msg("a holder before did not release: fencing it")
		if err := h.hook("fence", h.Hooks.Fence, env...); err != nil && !h.ending() {
			return err
		}
	}
	return nil
}

// command runs the command, again and again where that is asked for.
func (h *holding) command() Outcome {
	longest := max(longestDelay, h.Restart.Delay)
	for delay := h.Restart.Delay; ; {
		if h.StartBy > 0 && h.Clock.Now() > h.StartBy && h.begun.IsZero() {
			return Outcome{Kind: NotAcquired, Err: ErrTooLate}
		}
		select { // a stop that came while the lock was acquired
		case sig := <-h.Signals:
			if sig.endsContender() {
				h.told, h.toldBy, h.stopped = true, sig.Signal, true
			}
		default:
		}
		if h.ending() {
			return h.unstarted()
		}
		start := h.Clock.Now()
		if h.begun.IsZero() {
			h.begun = time.Now()
		}
		cmd := h.Command
		cmd.Records = h.Restart.records()
		h.Observer.State("running")
		out := h.run(cmd, true, "running", h.MaxRuntime)
		h.ended, h.cut = time.Now(), h.stopRequested() && !h.own
		if h.goneAt > 0 { // this process may have been stopped since
			// Round: Go's monotonic clock doesn't count suspends, goneAt does.
			h.ended = h.ended.Round(0).Add(h.goneAt - h.Clock.Now())
		}
		h.Observer.Ended(h.result(out))
		if h.Clock.Now()-start >= steadyRun {
			h.quick, delay = 0, h.Restart.Delay
		}
		if !h.again(out) {
			return h.handOver(out)
		}
		h.restarts, h.quick = h.restarts+1, h.quick+1
		wait := min(delay/2+h.Jitter(delay), longest)
		delay = min(2*delay, longest)
		h.Observer.State("restarting")
		h.Log.Warn().Msgf("the command ended (%s): starting it again in %s", ending(out), wait.Round(100*time.Millisecond))
		if !h.rest("restarting", wait) {
			h.cut = true
			h.restarts-- // it came to none
			end := h.unstarted()
			end.Status = out.Status
			return end
		}
	}
}

// records is which ends of the command a guard may write down when the keeper is gone: those
// after which there is no restart.
func (r Restart) records() Records {
	switch r.Policy {
	case RestartAlways:
		return RecordNone
	case RestartOnFailure:
		return RecordSuccess
	}
	return RecordAll
}

// final reports whether there is no restart after an exit with code.
func (r Restart) final(code int) bool {
	return r.Policy == RestartNo || r.Policy == RestartOnFailure && code == 0
}

// after reports whether the policy wants a restart after such an end.
func (r Restart) after(out Outcome) bool {
	failed := out.TimedOut || !out.Status.Exited() || out.Status.ExitStatus() != 0
	return r.Policy == RestartAlways || r.Policy == RestartOnFailure && failed
}

// again reports whether the command is to be started once more.
func (h *holding) again(out Outcome) bool {
	if out.Kind != Ended || h.ending() || !h.Restart.after(out) {
		return false
	}
	if h.Restart.Most >= 0 && h.quick >= h.Restart.Most {
		if h.Restart.Most > 0 {
			h.Log.Error().Msgf("the command ended (%s) after %d %s: leaving the lock to others", ending(out), h.quick, plural(h.quick, "restart", "restarts"))
		}
		return false
	}
	if h.drained.On { // it was let finish; a restart would be something new
		h.obey(Order{DrainHost, h.drained.Why})
	}
	return !h.ending()
}

// ending says how a command ended, for people.
func ending(out Outcome) string {
	switch {
	case out.TimedOut:
		return "its time was over"
	case out.Status.Signaled():
		return fmt.Sprintf("signal %d", out.Status.Signal())
	}
	return fmt.Sprintf("exit %d", out.Status.ExitStatus())
}

// handOver turns the end of a command that was stopped by an order, or would have been started
// again without it, into that.
func (h *holding) handOver(out Outcome) Outcome {
	if out.Kind == Ended && h.order.Kind != 0 && !h.told && (h.cut || h.Restart.after(out)) {
		return Outcome{Kind: HandedOver, Status: out.Status, Order: h.order, Err: errors.New(h.order.String()), Killed: out.Killed}
	}
	return out
}

// unstarted is why the command isn't started (again).
func (h *holding) unstarted() Outcome {
	switch {
	case h.undead:
		return Outcome{Kind: LostAlive, Err: h.cause}
	case h.dead:
		return Outcome{Kind: Lost, Err: h.cause, LateBy: h.lateBy}
	case h.guardDied:
		return Outcome{Kind: Failed, Err: h.cause}
	case h.told:
		return Outcome{Kind: Interrupted, Signal: h.toldBy}
	case h.asked:
		return Outcome{Kind: Interrupted, Signal: h.StopSignal}
	}
	return Outcome{Kind: HandedOver, Order: h.order, Err: errors.New(h.order.String())}
}

// sideHook runs a hook whose failure changes nothing.
func (h *holding) sideHook(name string, c Command, env ...string) {
	if c.Path == "" || h.dead || h.guardDied {
		return
	}
	if err := h.hook(name, c, env...); err != nil {
		h.Log.Warn().Err(err).Msgf("the on-%s command failed; going on", name)
	}
}

// hook runs a hook under the lease.
func (h *holding) hook(name string, c Command, env ...string) error {
	c.Env = WithEnv(c.Env, append(env, "ONLYONE_HOOK="+name))
	return hookError(h.run(c, false, "running the "+name+" command", h.Hooks.Timeout), h.Hooks.Timeout)
}

func hookError(out Outcome, limit time.Duration) error {
	switch {
	case out.Kind != Ended:
		return fmt.Errorf("cannot run it: %w", out.Err)
	case out.TimedOut:
		return fmt.Errorf("it took longer than %s", limit)
	case out.Status.Signaled() || out.Status.ExitStatus() != 0:
		return errors.New(ending(out))
	}
	return nil
}

// freshGuard takes the place of a guard that has had its command, unless the term is over.
// Nothing is alive meanwhile; if the keeper dies after that, the new guard releases, and
// writes down how the command ended.
func (h *holding) freshGuard() bool {
	var err error
	if h.used {
		r := h.finished()
		h.quitGuard()
		h.used = false
		if err = h.startGuard(h.StartGuard); err == nil {
			h.guard.ReleaseInfo(h.info, r)
			kill := h.killAt
			if h.broken.restartUnproven {
				kill = h.Clock.Now() + h.Dials.RenewDeadline() + h.Dials.KillAfter
			}
			err = h.armGuard(kill)
		}
	}
	switch {
	case h.Clock.Now() >= h.termAt:
		h.lose(h.unproven(), h.killAt)
	case err != nil:
		h.cause, h.guardDied = err, true
	}
	return !h.dead && !h.guardDied
}

// finished is what a guard that was started in the course of the term does not see itself: that
// the command was started and, once it has ended for good, how. nil if it wasn't started.
func (h *holding) finished() *RunResult {
	unexecuted := h.main && h.startErr != nil // and so without a status
	if h.begun.IsZero() || unexecuted && h.restarts == 0 {
		return nil
	}
	r := h.result(Outcome{Kind: Ended, Status: h.status, TimedOut: h.timedOut, Killed: h.killed})
	if h.ended.IsZero() || unexecuted || !h.Restart.final(r.Exit) {
		return &RunResult{Started: h.begun, Ended: h.ended, Restarts: h.restarts}
	}
	return &r
}

// run runs c under the lease, for at most limit (0: as long as it likes), until nothing of
// it is left.
func (h *holding) run(c Command, main bool, what string, limit time.Duration) Outcome {
	if !h.freshGuard() {
		return h.unstarted()
	}
	h.incarnation = incarnation{main: main, what: what, used: true, alive: true, giveUpAt: h.endAt,
		enforced: make(chan bool, 1), abandon: make(chan struct{})}
	c.Env = WithEnv(c.Env, h.term.Env())
	h.guard.Start(c)
	over, stop := after(limit, limit > 0)
	defer stop()
	defer func() { h.alive = false }()
	for {
		if out, ended := h.deadlines(h.Clock.Now()); ended {
			h.undead = out.Kind == LostAlive
			return out
		}
		if h.turn(over) {
			h.timeout(limit)
		}
		if h.gone {
			return h.outcome()
		}
	}
}

// timeout stops a command whose time is over.
func (h *holding) timeout(limit time.Duration) {
	if h.stopping || h.own || h.dead || h.gone {
		return
	}
	h.timedOut, h.stopping = true, true
	h.Log.Warn().Msgf("%s: its time of %s is over: stopping it, SIGKILL in %s", h.what, limit, h.Dials.KillAfter)
	h.Observer.State("stopping")
	h.guard.Stop(Stop{Signal: h.StopSignal, KillAt: h.Clock.Now() + h.Dials.KillAfter})
}

// rest keeps the lock for d without a command; false if something ended that sooner.
func (h *holding) rest(what string, d time.Duration) bool {
	if !h.freshGuard() {
		return false
	}
	h.what = what
	over, stop := after(d, true)
	defer stop()
	for !h.ending() {
		if h.Clock.Now() >= h.termAt {
			h.lose(h.unproven(), h.killAt)
			return false
		}
		if h.turn(over) {
			return true
		}
	}
	return false
}

// outcome: the tree is gone.
func (h *holding) outcome() Outcome {
	switch {
	case h.startErr != nil:
		return Outcome{Kind: NotStarted, Errno: h.startErr.Errno, Err: errors.New(h.startErr.Detail)}
	case h.dead:
		return Outcome{Kind: Lost, Err: h.cause, LateBy: h.lateBy}
	case h.guardDied:
		return Outcome{Kind: Failed, Err: h.cause}
	}
	return Outcome{Kind: Ended, Status: h.status, TimedOut: h.timedOut, Killed: h.killed}
}

// Exit codes of a command whose time was over, as those of timeout(1).
const (
	exitTimedOut = 124
	exitKilled   = 137
)

// result is what the record of runs says. A command that never started leaves none.
func (h *holding) result(o Outcome) RunResult {
	r := RunResult{Started: h.begun, Ended: h.ended, Exit: -1, Restarts: h.restarts}
	switch o.Kind {
	case Ended, HandedOver, Interrupted:
		r.Exit, r.Outcome = exitOf(o.Status)
		switch {
		case o.TimedOut && o.Killed:
			r.Exit, r.Outcome = exitKilled, "timeout"
		case o.TimedOut:
			r.Exit, r.Outcome = exitTimedOut, "timeout"
		case r.Exit != 0 && h.cut:
			r.Outcome = "stopped"
		}
	case Lost, Failed:
		r.Outcome = map[Kind]string{Lost: "lost", Failed: "failed"}[o.Kind]
		// Lost while what the command left behind was being ended: how it ended itself is known, and
		// Consul takes it only if the lock is still ours.
		if code, outcome := exitOf(h.status); h.main && h.own && h.Restart.final(code) {
			r.Exit, r.Outcome = code, outcome
		}
	case NotFenced:
		r.Outcome = "unfenced"
	case NotStarted:
		r.Outcome = "failed"
		if h.restarts == 0 { // it has never run
			r.Started = time.Time{}
		}
	default:
		r.Outcome = "failed"
	}
	return r
}

// exitOf is a status as a shell shows it, and its word.
func exitOf(s syscall.WaitStatus) (code int, outcome string) {
	if s.Signaled() {
		return 128 + int(s.Signal()), "signaled"
	}
	return s.ExitStatus(), "exited"
}

// afterLoss runs the on-loss hook: the lock is gone, and so is the command.
func (s *supervisor) afterLoss(t Term, cause error) {
	c := s.Hooks.OnLoss
	if c.Path == "" {
		return
	}
	c.Env = WithEnv(c.Env, append(t.Env(), "ONLYONE_HOOK=loss", "ONLYONE_LOST="+cause.Error()))
	if err := s.unleased(c, s.Hooks.Timeout); err != nil {
		s.Log.Warn().Err(err).Msg("the on-loss command failed")
	}
}

// unleased runs c under a guard of its own for at most limit. No lease is needed; a stop
// signal kills it.
func (s *supervisor) unleased(c Command, limit time.Duration) error {
	if err := s.startGuard(s.StartGuard); err != nil {
		return err
	}
	defer s.quitGuard()
	end := s.Clock.Now() + limit
	s.guard.Deadlines(end, end+s.Dials.KillAfter)
	if _, err := s.awaitEvent(Armed, end); err != nil {
		return err
	}
	s.guard.Start(c)
	over, stop := after(limit+s.Dials.KillAfter+margin, true)
	defer stop()
	for {
		select {
		case <-s.Turns:
		case e, ok := <-s.guard.Events():
			switch {
			case !ok:
				return errGuard
			case e.Kind == StartFailed:
				return errors.New(e.Detail)
			case e.Kind == TreeGone:
				return hookError(Outcome{Kind: Ended, Status: e.Status, TimedOut: e.Lost}, limit)
			}
		case sig := <-s.Signals:
			if sig.endsContender() {
				s.stopped = true
				s.guard.Kill()
			}
		case <-over:
			return errors.New("cannot kill what it started")
		}
	}
}
