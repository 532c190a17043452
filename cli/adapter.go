package cli

import (
	"bytes"
	"context"
	"strconv"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
)

// consulLock makes a contender the supervisor's Lock. The two packages don't know each
// other; what passes between them passes here.
type consulLock struct {
	c    *consulsession.Contender
	kept termStore
}

func (l consulLock) Acquire(ctx context.Context, ready func([]byte) error, looks func(bool)) (supervisor.Term, error) {
	l.c.Looks = looks
	var info []byte
	t, err := l.c.Acquire(ctx, func(now []byte) error {
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
	if err == nil {
		t.kept.drop(t.info)
	}
	return err
}
