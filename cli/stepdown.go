package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

// defaultStepDownTimeout is twice --stop-timeout of run: the command's time to end, and as
// much for the way there.
const defaultStepDownTimeout = 2 * defaultStopTimeout

func (in *invocation) stepDownCommand() *cli.Command {
	timeout := &durationValue{d: defaultStepDownTimeout}
	return in.operation(&cli.Command{
		Name:      "step-down",
		Usage:     "ask the holder to stop its command and hand over",
		ArgsUsage: "NAME",
		Description: `onlyone step-down [flags] NAME

  onlyone step-down --reason "kernel upgrade" --wait backup

The holder stops its command gracefully, releases the lock, and waits a while
before it contends again. With copies: NAME/2, or --all.
Exit codes: 0 done (without --wait: asked), 75 nobody holds it, 79 the holder
lost the lock instead of handing over, 124 it didn't stop in time, and isn't
asked to any more.
`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "reason", Usage: "tell it why: `TEXT`", EnvVars: variable("reason")},
			boolFlag("", "wait", "", "wait until it has handed over"),
			boolFlag("", "all", "", "the holders of all copies"),
			valueFlag("", "timeout", "", timeout, "with --wait: for `DUR`, then take it back (60s)"),
		},
	}, func(op *operation) error {
		name, err := op.name()
		if err != nil {
			return err
		}
		op.Timeout = min(timeout.d, defaultRequestTimeout)
		l, t, err := op.Find(op.ctx(), name)
		if err != nil {
			return op.problem(name, err)
		}
		targets, parties, err := holders(l, t, op.c.Bool("all"))
		if err != nil {
			return op.problem(name, err)
		}
		s := &stepDown{operation: op, now: time.Now}
		// All are asked before any is waited for.
		err = s.askAll(targets, parties)
		if op.c.Bool("wait") && len(s.moves) > 0 {
			ctx, done := context.WithTimeout(op.ctx(), timeout.d)
			defer done()
			if err2 := s.await(ctx, name, timeout.d); err2 != nil {
				err = err2
			}
		}
		if op.json && len(s.moves) > 0 {
			return errors.Join(err, op.encode(stepDownJSON{consulsession.Schema, s.moves}))
		}
		return err
	})
}

// stepDownJSON is what step-down prints with --json.
type stepDownJSON struct {
	Schema int     `json:"schema"`
	Asked  []*move `json:"asked"`
}

// A move is one holder that was asked to step down, and what became of it.
type move struct {
	Name    string               `json:"name"` // NAME, or NAME/I
	From    consulsession.Party  `json:"from"`
	Outcome string               `json:"outcome"` // "asked", "stepped down", "lost" (it didn't release) or "refused" (it held on)
	Exit    *int                 `json:"exit,omitempty"`
	Seconds float64              `json:"seconds,omitempty"` // from the request to its end, as far as this host saw it
	To      *consulsession.Party `json:"to,omitempty"`      // who took over

	asked   consulsession.Asked
	at      time.Time
	settled bool // who comes next is known
}

type stepDown struct {
	*operation
	now   func() time.Time
	moves []*move
}

// askAll asks each of them. One that can't be asked doesn't keep the others from it; the first such
// error is returned. That one of several has let go meanwhile is none.
func (s *stepDown) askAll(targets []consulsession.Target, parties []consulsession.Party) (first error) {
	for i, t := range targets {
		err := s.ask(t, parties[i])
		if gone, ok := errors.AsType[*consulsession.NotHeldError](err); ok && len(targets) > 1 && gone.Hold.Holder == nil {
			s.tell("%s: %s has just let go", t, parties[i])
			continue
		}
		if first == nil && err != nil {
			first = s.problem(t.String(), err)
		}
		if _, away := errors.AsType[*consulsession.UnreachableError](err); away {
			break
		}
	}
	return first
}

func (s *stepDown) ask(t consulsession.Target, from consulsession.Party) error {
	if from.Host == "" {
		return &exitError{code: exitConflict, what: fmt.Errorf("it is held by %s, which takes no requests", from),
			hint: "stop it where it runs; if all else fails: " + s.command(fmt.Sprintf("unlock %s --force", t))}
	}
	a, err := s.StepDown(s.ctx(), t, from, s.c.String("reason"))
	if err != nil {
		return err
	}
	s.moves = append(s.moves, &move{Name: t.String(), From: from, Outcome: "asked", asked: a, at: s.now()})
	s.tell("%s: asked %s to step down", t, from)
	return nil
}

// tell is say, unless the result is to be JSON.
func (s *stepDown) tell(format string, a ...any) {
	if !s.json {
		s.say(format, a...)
	}
}

// await follows what was asked until it is done or ctx ends. A holder counts as having obeyed
// if Consul says that it released, and in no other case.
func (s *stepDown) await(ctx context.Context, name string, limit time.Duration) error {
	look := func(l consulsession.Lock, _ consulsession.Target) bool {
		open := false
		for _, m := range s.moves {
			s.look(m, l)
			open = open || !m.settled
		}
		return open
	}
	for {
		err := s.WatchOne(ctx, name, look, func(error) {})
		_, away := errors.AsType[*consulsession.UnreachableError](err)
		switch {
		case err == nil:
			return s.verdict()
		case ctx.Err() != nil:
			return s.timeUp(limit)
		case !away: // else it may come back in time
			return s.problem(name, err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// look is what a read of the lock says of one holder.
func (s *stepDown) look(m *move, l consulsession.Lock) {
	h := l.At(m.asked.Target.Copy)
	if m.Outcome == "asked" {
		s.ended(m, h)
	}
	if m.Outcome == "asked" || m.settled {
		return
	}
	switch next := h.Holder; {
	case next != nil:
		m.To, m.settled = next, true
		s.tell("%s: %s took over (token %d)", m.Name, next, next.Token)
	case l.Paused != nil:
		m.settled = true
		s.tell("%s: free, and paused %s", m.Name, l.Paused)
	case len(l.Waiting) == 0:
		m.settled = true
		s.tell("%s: free, nobody waits", m.Name)
	}
}

// ended finds out whether, and how, the holder has let go of the lock.
func (s *stepDown) ended(m *move, h consulsession.Hold) {
	if h.Holder != nil && h.Holder.Session == m.From.Session {
		return
	}
	took := s.now().Sub(m.at)
	m.Seconds = took.Seconds()
	lost := slices.ContainsFunc(h.Before, func(u consulsession.Unclean) bool { return u.Session == m.From.Session }) // somebody has it already
	if lost || h.Unclean != nil && h.Unclean.Session == m.From.Session {
		m.Outcome = "lost"
		s.tell("%s: %s lost the lock after %s without releasing it: it died or was cut off, and isn't known to have obeyed", m.Name, m.From, formatDuration(took.Round(time.Millisecond)))
		return
	}
	m.Outcome = "stepped down"
	text := ""
	for _, r := range h.Runs {
		if r.Token == m.From.Token {
			m.Exit, text = &r.Exit, ": "+outcome(r)
		}
	}
	s.tell("%s: %s has released it after %s%s", m.Name, m.From, formatDuration(took.Round(time.Millisecond)), text)
}

// verdict is the exit code when all is settled.
func (s *stepDown) verdict() error {
	for _, m := range s.moves {
		if m.Outcome == "lost" {
			return &exitError{code: exitLost, what: fmt.Errorf("%s: %s lost the lock instead of handing over", m.Name, m.From),
				hint: "its command is stopped by its lease, if that host is alive"}
		}
	}
	return nil
}

// timeUp takes back what wasn't obeyed: nobody waits for it any more, and it must not end a
// command in an hour.
func (s *stepDown) timeUp(limit time.Duration) error {
	var still error
	for _, m := range s.moves {
		if m.Outcome != "asked" {
			if !m.settled {
				s.tell("%s: free, but nobody has taken it yet", m.Name)
			}
			continue
		}
		ctx, done := context.WithTimeout(context.WithoutCancel(s.ctx()), s.Timeout)
		held, err := s.TakeBack(ctx, m.asked)
		done()
		switch {
		case err != nil:
			e := s.problem(m.Name, err).(*exitError)
			e.what = fmt.Errorf("it isn't known whether %s has stepped down, and the request couldn't be taken back: %w", m.From, e.what)
			return e
		case held:
			m.Outcome = "refused"
			still = &exitError{code: exitTimeout, what: fmt.Errorf("%s: %s has not stopped within %s, and isn't asked to any more", m.Name, m.From, formatDuration(limit)),
				hint: "wait longer: --timeout 5m; or look: " + s.command("status "+m.Name)}
		default:
			l, t, err := s.Find(context.WithoutCancel(s.ctx()), m.Name)
			if err != nil {
				return s.problem(m.Name, err)
			}
			s.ended(m, l.At(t.Copy))
		}
	}
	if still != nil {
		return still
	}
	return s.verdict()
}
