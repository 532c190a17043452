package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"
)

// holding is the time from a successful acquire to the release.
//
// One goroutine owns it. The lease is the pair (termAt, killAt), counted from before the
// request that proved ownership was sent, and only what the guard has acknowledged
// counts. Each turn of a loop looks at the clock before it believes anything: what the
// lease's end demands happens first, and no later success takes it back.
type holding struct {
	*supervisor
	incarnation
	term  Term
	alarm Alarm

	termAt, killAt Instant // acknowledged by the guard; 0 before
	endAt          Instant // when the tree must be gone: killAt of the lease + margin
	dead           bool    // the lease is over: nothing extends it any more
	cause          error   // why the tree is being ended by us; nil if it isn't
	told           bool    // a stop signal came to this process itself: toldBy
	toldBy         syscall.Signal
	asked          bool  // one came to the guard
	undead         bool  // something of a hook or the command cannot be killed: nothing is released
	order          Order // what an operator asked for first

	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	answers  chan answer
	changes  chan struct{}
	next     *time.Timer // the next attempt
	inflight bool
	missed   bool    // a change that came while something was under way: a check follows at once
	silent   bool    // the last check brought no proof
	warned   bool    // one line for each silence
	renewed  Instant // the last successful renewal was sent
	retried  Instant // the last renewal in a silence was sent

	begun    time.Time // when the first command of the term was started, by the wall clock
	ended    time.Time // when the last one ended
	cut      bool      // it was told to, or it would have been started again
	restarts int       // of the command in this term
	quick    int       // of these, those since it last ran for a while
}

// answer is what an attempt brought.
type answer struct {
	renewal bool
	sent    Instant
	took    time.Duration
	order   Order
	err     error
}

func newHolding(s *supervisor, t Term) (*holding, error) {
	alarm, err := s.Clock.NewAlarm()
	if err != nil {
		return nil, err
	}
	h := &holding{supervisor: s, term: t, alarm: alarm,
		answers: make(chan answer, 1), changes: make(chan struct{}, 1), renewed: t.Sent()}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.next = time.NewTimer(s.Dials.Poll)
	return h, nil
}

func (h *holding) close() {
	h.stopProving()
	h.alarm.Close()
}

// stopProving ends all requests of this term and waits for them.
func (h *holding) stopProving() {
	h.cancel()
	h.next.Stop()
	h.wg.Wait()
}

// arm makes the lease count: the guard acknowledges the deadlines of the acquire, or of
// a check if the acquire is too old to start on.
func (h *holding) arm() error {
	sent := h.term.Sent()
	if h.broken.startOnLateAcquire {
		sent = h.Clock.Now()
	}
	for h.Clock.Now()-sent >= h.Dials.Poll {
		// Started on an old answer, the command could run beside the next holder's.
		if h.Clock.Now() >= h.term.Sent()+h.Dials.RenewDeadline() {
			return errors.New("the lease ended before its first proof was young enough")
		}
		ctx, cancel := context.WithTimeout(h.ctx, h.Dials.Poll)
		sent = h.Clock.Now()
		order, err := h.term.Check(ctx)
		cancel()
		h.obey(order)
		if l, ok := errors.AsType[lost](err); ok {
			return l
		}
		if err != nil {
			sent = h.term.Sent()
			if sig, stopped := h.idle(h.Dials.Poll/40 + h.Jitter(h.Dials.Poll/8)); stopped {
				h.told, h.toldBy, h.stopped = true, sig.Signal, true
				return nil // work starts nothing
			}
		}
	}
	return h.armGuard(sent + h.Dials.RenewDeadline() + h.Dials.KillAfter)
}

// armGuard has the guard acknowledge a lease that ends with SIGKILL at kill.
func (h *holding) armGuard(kill Instant) error {
	term := kill - h.Dials.KillAfter
	h.guard.Deadlines(term, kill)
	for {
		e, err := h.awaitEvent(Armed, min(h.Clock.Now()+guardPatience, term))
		if err != nil {
			return err
		}
		if e.Kill == kill {
			break
		}
	}
	h.extend(kill)
	return nil
}

// extend takes an acknowledged deadline for ours.
func (h *holding) extend(kill Instant) {
	if h.dead || kill <= h.killAt {
		return
	}
	h.killAt, h.termAt, h.endAt = kill, kill-h.Dials.KillAfter, kill+margin
	h.giveUpAt = h.endAt
	h.setAlarm()
	h.Observer.Extended(kill - h.Clock.Now())
}

// setAlarm wakes us when deadlines has the next thing to do.
func (h *holding) setAlarm() {
	switch {
	case !h.dead:
		h.alarm.Set(h.termAt)
	case !h.guardDied:
		h.alarm.Set(h.killAt + enforceAfter)
	default:
		h.alarm.Set(h.giveUpAt)
	}
}

// watch looks for changes while the lock is held.
func (h *holding) watch() {
	h.wg.Go(func() {
		// The first look comes a poll later: a run that ends at once shouldn't pay for it.
		wait := time.NewTimer(h.Dials.Poll)
		defer wait.Stop()
		select {
		case <-wait.C:
			h.term.Watch(h.ctx, func() {
				select {
				case h.changes <- struct{}{}:
				default:
				}
			})
		case <-h.ctx.Done():
		}
	})
}

// turn waits for the next thing that happens and takes it in; true if it was the timer.
func (h *holding) turn(timer <-chan time.Time) (fired bool) {
	select {
	case <-h.Turns:
	case <-timer:
		return true
	case <-h.alarm.C():
	case e, ok := <-h.events():
		h.event(e, ok)
	case a := <-h.answers:
		h.answer(a)
	case <-h.changes:
		if h.broken.trustWatch {
			h.proven(h.Clock.Now())
		}
		h.attempt()
	case <-h.next.C:
		h.attempt()
	case sig := <-h.Signals:
		h.signal(sig)
	case h.drained = <-h.Drains:
		h.heed()
	case empty := <-h.enforced:
		if empty {
			h.killedHere()
		}
	}
	return false
}

// heed looks whether this host was drained.
func (h *holding) heed() {
	if h.drained.On && !h.drained.Finish {
		h.obey(Order{DrainHost, h.drained.Why})
	}
}

// obey stops the command in order. A stop that is under way goes on as it is.
func (h *holding) obey(o Order) {
	if o.Kind == 0 || h.order.Kind != 0 || h.told || h.asked || h.dead {
		return
	}
	h.order = o
	h.Log.Info().Msgf("%s: handing over", o)
	if h.alive && !h.stopping {
		h.stop(Signal{Signal: h.StopSignal})
	}
}

func (o Order) String() string {
	what := map[OrderKind]string{StepDown: "asked to step down", Pause: "paused", DrainHost: "this host is drained"}[o.Kind]
	if o.Why != "" {
		what += " " + o.Why
	}
	return what
}

// stopRequested reports whether somebody has asked for the command's end.
func (h *holding) stopRequested() bool { return h.told || h.asked || h.order.Kind != 0 }

// ending reports whether nothing more may be started in this term.
func (h *holding) ending() bool { return h.stopRequested() || h.dead || h.guardDied }

// events is the guard's channel, or nil when it has died.
func (h *holding) events() <-chan Event {
	if h.guardDied {
		return nil
	}
	return h.guard.Events()
}

// deadlines does what is due. It ends the run only if the tree can't be emptied.
func (h *holding) deadlines(now Instant) (Outcome, bool) {
	// A keeper that was stopped may find that the command had ended before, under the lease.
	if !h.dead && now >= h.termAt {
		if h.heard(); !h.gone && now >= h.termAt {
			h.lose(h.unproven(), h.killAt)
		}
	}
	if h.dead && now >= h.killAt+enforceAfter && !h.guardDied && !h.heard() {
		h.Log.Error().Msg("the guard did not act in time: killing everything from here")
		h.enforce()
	}
	if h.dead && now >= h.giveUpAt && !h.gone {
		close(h.abandon)
		if h.guardDied && <-h.enforced {
			h.killedHere()
			return h.outcome(), true
		}
		return Outcome{Kind: LostAlive, Err: h.cause}, true
	}
	if h.gone {
		return h.outcome(), true
	}
	return Outcome{}, false
}

// heard takes what the guard has to say and reports whether the tree is gone: a keeper
// that was stopped and comes late finds the guard's work done.
func (h *holding) heard() bool {
	patience := time.NewTimer(enforceAfter / 10)
	defer patience.Stop()
	for !h.gone && !h.guardDied {
		select {
		case e, ok := <-h.events():
			h.event(e, ok)
		case <-patience.C:
			return false
		}
	}
	return true
}

// killedHere: the keeper itself has emptied the tree.
func (h *holding) killedHere() {
	h.gone = true
	if now := h.Clock.Now(); h.dead && now > h.endAt {
		h.lateBy = now - h.endAt
	}
}

func (h *holding) unproven() error {
	return fmt.Errorf("ownership could not be proven for %s", h.Dials.RenewDeadline())
}

// lose ends the lease: TERM now, SIGKILL at killAt or earlier. The guard does both by
// itself when the renew deadline passes; here it is told in case that it came sooner.
func (h *holding) lose(cause error, killAt Instant) {
	if h.dead {
		return
	}
	h.dead, h.cause = true, cause
	if !h.broken.revive {
		h.cancel() // no renewal may keep a lost session alive
	}
	h.killAt = min(h.killAt, killAt)
	h.setAlarm()
	h.Observer.Lost(cause)
	if !h.alive {
		h.Log.Error().Err(cause).Msg("the lock is lost")
		return
	}
	h.guard.Stop(Stop{Signal: h.StopSignal, All: true, KillAt: h.killAt})
	h.Observer.State("stopping")
	h.Log.Error().Err(cause).Msgf("the lock is lost: stopping the command, SIGKILL in %s", max(h.killAt-h.Clock.Now(), 0).Round(10*time.Millisecond))
}

// enforce kills from the keeper because the guard can't.
func (h *holding) enforce() {
	h.guardDied = true
	// Not late: at endAt. Late (the keeper was stopped): with the time that it would have had.
	h.giveUpAt = max(h.endAt, h.Clock.Now()+margin-enforceAfter-enforceAfter/10)
	h.setAlarm()
	h.wg.Go(func() { h.enforced <- h.guard.Enforce(h.abandon) })
}

func (h *holding) event(e Event, ok bool) {
	if !ok {
		if h.cause == nil {
			h.cause = fmt.Errorf("%w: it died", errGuard)
		}
		h.Log.Error().Msg("the guard died: killing the command")
		h.enforce()
		return
	}
	switch e.Kind {
	case Armed:
		if h.dead && h.alive { // acknowledged before the guard acted: by then it had to be done
			h.endAt = max(h.endAt, e.Kill+margin)
		}
		h.extend(e.Kill)
	case Started:
		h.Log.Info().Uint64("token", h.term.Token()).Int("pid", e.Pid).Msg(h.what)
		if h.main {
			h.Observer.Started(e.Pid)
		}
	case StartFailed:
		h.startErr = &e
		h.gone = h.gone || e.Unforked
	case CommandEnded:
		h.status = e.Status
		h.ownEnd(e)
		switch n := len(e.Leftovers); {
		case n == 0: // the last one has ended in this moment
		case n > mostNames:
			h.Log.Warn().Msgf("more than %d processes outlived the command: %s; stopping before the lock is released", mostNames, strings.Join(e.Leftovers, ", "))
		default:
			h.Log.Warn().Msgf("%d %s the command: %s; stopping before the lock is released", n, plural(n, "process outlived", "processes outlived"), strings.Join(e.Leftovers, ", "))
		}
	case TreeGone:
		h.status, h.gone, h.goneAt, h.killed = e.Status, true, e.At, e.Killed
		h.ownEnd(e)
		if h.dead && e.At > h.endAt {
			h.lateBy = e.At - h.endAt
		}
		if e.Lost && !h.dead { // the guard's clock was a moment ahead of ours
			h.dead, h.cause = true, h.unproven()
		}
	case StillAlive:
		h.Log.Error().Msgf("cannot kill %s (another user's, in uninterruptible I/O, or held by a debugger): the lock is not released while it lives", strings.Join(e.Leftovers, ", "))
	case StopRequested:
		if !h.stopping && h.alive {
			h.stop(Signal{Signal: h.StopSignal})
			h.stopped, h.asked = true, true
		}
	}
}

// ownEnd: what was ordered since, or in the same moment, is not how the command ended. A stop
// signal may be, though we didn't pass it on: a terminal and systemd send it to the command, too.
func (h *holding) ownEnd(e Event) {
	if e.Own {
		h.timedOut = false
		h.own = h.own || !h.told && !h.asked
	}
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// attempt sends an ownership check if the lease isn't over; when what is under way is answered,
// since that may have been read before the change for which this one is.
func (h *holding) attempt() {
	if h.dead {
		return
	}
	if h.missed = h.inflight; h.missed {
		return
	}
	h.request(false, h.Dials.Poll, h.term.Check)
}

// renew sends a renewal of the session.
func (h *holding) renew(limit time.Duration) {
	h.request(true, limit, func(ctx context.Context) (Order, error) { return Order{}, h.term.Renew(ctx) })
}

func (h *holding) request(renewal bool, limit time.Duration, f func(context.Context) (Order, error)) {
	h.inflight = true
	h.wg.Go(func() {
		ctx, cancel := context.WithTimeout(h.ctx, limit)
		defer cancel()
		sent := h.Clock.Now()
		order, err := f(ctx)
		took := h.Clock.Now() - sent
		if h.broken.countFromResponse {
			sent = h.Clock.Now()
		}
		h.answers <- answer{renewal, sent, took, order, err}
	})
}

// answer takes what a check or a renewal brought and sets the next attempt.
//
// A good check is followed by a renewal. While there is silence, checks follow each other
// without a pause but a jitter, since a proof may come until the last moment; a short
// renewal goes between them when the session would otherwise be near its TTL.
func (h *holding) answer(a answer) {
	h.inflight = false
	h.Observer.Checked(a.renewal, a.err, a.took)
	if h.dead && h.broken.revive && a.err == nil && !a.renewal {
		h.dead, h.cause = false, nil
		now := h.Clock.Now()
		h.proven(now)
		h.extend(now + h.Dials.RenewDeadline() + h.Dials.KillAfter)
	}
	if h.dead {
		return
	}
	l, isLost := errors.AsType[lost](a.err)
	switch {
	case isLost:
		killAt := h.Clock.Now() + h.Dials.KillAfter
		if l.Lost() {
			killAt = h.Clock.Now() // somebody else may have it already
		}
		h.lose(l, killAt)
		return
	case a.renewal && a.err == nil:
		h.renewed = a.sent
		if h.broken.trustRenewal {
			h.proven(a.sent)
		}
	case a.renewal:
		h.Log.Debug().Err(a.err).Msg("cannot renew the session")
	case a.err == nil:
		h.proven(a.sent)
		h.obey(a.order)
	default:
		h.silence(a.err)
	}
	now := h.Clock.Now()
	switch {
	case a.renewal:
	case a.err == nil:
		h.renew(h.Dials.Poll)
		return
	case now-max(h.renewed, h.retried) > h.Dials.TTL/2:
		h.retried = now
		h.renew(h.Dials.Poll / 4)
		return
	}
	wait := h.Dials.Poll
	switch {
	case h.silent:
		wait = h.Dials.Poll/40 + h.Jitter(h.Dials.Poll/8)
	case h.missed:
		wait = 0
	}
	h.next.Reset(wait)
}

// proven: a check that was sent at this instant succeeded. It counts when the guard has
// acknowledged.
func (h *holding) proven(sent Instant) {
	if h.silent && h.warned {
		h.Log.Warn().Msg("ownership proven again; nothing was moved")
	}
	h.silent, h.warned = false, false
	term := sent + h.Dials.RenewDeadline()
	if term > h.termAt {
		h.guard.Deadlines(term, term+h.Dials.KillAfter)
	}
}

func (h *holding) silence(err error) {
	h.silent = true
	h.Log.Debug().Err(err).Msg("cannot prove ownership")
	// One lost packet isn't news; half of the time is.
	if left := h.termAt - h.Clock.Now(); !h.warned && left < h.Dials.RenewDeadline()*3/4 {
		h.warned = true
		h.Log.Warn().Err(err).Msgf("cannot prove ownership of the lock: retrying, the command is stopped in %s", left.Round(100*time.Millisecond))
	}
}

// signal: TERM and INT stop in order, a second one kills; the rest is forwarded.
func (h *holding) signal(s Signal) {
	switch s.Signal {
	case syscall.SIGTERM, syscall.SIGINT:
		if h.told && h.alive {
			h.Log.Warn().Msg("second stop signal: killing the command")
			h.guard.Kill()
			return
		}
		h.told, h.toldBy, h.stopped = true, s.Signal, true
		if h.alive && !h.stopping { // else the guard was told, too (systemd's KillMode=control-group), and a moment sooner
			h.stop(s)
		}
	default: // meant for the command: a hook would be ended half-way by it
		switch {
		case !h.alive && s.endsContender(): // resting, with nobody to forward it to
			h.told, h.toldBy, h.stopped = true, s.Signal, true
		case !s.FromTerminal && h.main:
			h.guard.Signal(s.Signal)
		}
	}
}

// stop ends the tree in order; the lease is kept all the while.
func (h *holding) stop(s Signal) {
	h.stopping = true
	h.Observer.State("stopping")
	h.Log.Info().Msgf("stopping the command, SIGKILL in %s", h.StopTimeout)
	if h.broken.releaseBeforeGone {
		h.unlock(h.term, RunResult{}, false)
	}
	sig := h.StopSignal
	if s.FromTerminal {
		sig = 0
	}
	h.guard.Stop(Stop{Signal: sig, KillAt: h.Clock.Now() + h.StopTimeout})
}
