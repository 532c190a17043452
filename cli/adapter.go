package cli

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
)

// consulLock makes a contender the supervisor's Lock. The two packages don't know each
// other; what passes between them passes here.
type consulLock struct {
	c       *consulsession.Contender
	kept    termStore
	drained func() bool // this host, at this moment
}

// Acquire looks at the drain once more before it asks for the lock: the watch that tells the
// supervisor of one looks only once a second, and what is stopped on this host just then
// mustn't begin here anew. When the watch has seen the drain, ctx ends.
func (l consulLock) Acquire(ctx context.Context, ready func([]byte) error, looks func(bool)) (supervisor.Term, error) {
	l.c.Looks = looks
	var info []byte
	t, err := l.c.Acquire(ctx, func(now []byte) error {
		if err := l.undrained(ctx); err != nil {
			return err
		}
		l.kept.keep(now)
		if !bytes.Equal(info, now) {
			l.kept.drop(info)
		}
		info = now
		return ready(now)
	})
	if err != nil {
		l.kept.drop(info)
		return nil, err
	}
	return consulTerm{t, l.kept, info}, nil
}

// drainPause is how often a contender that could have the lock looks whether the drain is over:
// a tenth of what the watch needs to notice one.
const drainPause = 100 * time.Millisecond

// undrained waits while this host is drained.
func (l consulLock) undrained(ctx context.Context) error {
	again := time.NewTicker(drainPause)
	defer again.Stop()
	for l.drained() {
		select {
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

type consulTerm struct {
	*consulsession.Term
	kept termStore
	info []byte
}

func (t consulTerm) Check(ctx context.Context) (supervisor.Order, error) {
	o, err := t.Term.Check(ctx)
	switch {
	case o.StepDown != nil:
		return supervisor.Order{Kind: supervisor.StepDown, Why: o.StepDown.String()}, err
	case o.Paused != nil:
		return supervisor.Order{Kind: supervisor.Pause, Why: o.Paused.String()}, err
	}
	return supervisor.Order{}, err
}

// Unclean tells a fence command who the holders were that did not release.
func (t consulTerm) Unclean() (env [][]string) {
	for _, u := range t.Term.Unclean() {
		token := ""
		if u.Token > 0 {
			token = strconv.FormatUint(u.Token, 10)
		}
		env = append(env, []string{
			"ONLYONE_OLD_HOST=" + u.Host,
			"ONLYONE_OLD_PID=" + strconv.Itoa(u.Pid),
			"ONLYONE_OLD_TOKEN=" + token,
			"ONLYONE_OLD_SESSION=" + u.Session,
			"ONLYONE_OLD_SINCE=" + u.Since,
		})
	}
	return env
}

func (t consulTerm) Unlock(ctx context.Context, r supervisor.RunResult) error {
	err := t.Term.Unlock(ctx, consulsession.Ended(r))
	if _, isLost := errors.AsType[*consulsession.LostError](err); err == nil || isLost {
		t.kept.drop(t.info) // there is nothing left to be released
	}
	return err
}
