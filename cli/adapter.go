package cli

import (
	"context"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
)

// consulLock makes a contender the supervisor's Lock. The two packages don't know each
// other; what passes between them passes here.
type consulLock struct{ c *consulsession.Contender }

func (l consulLock) Acquire(ctx context.Context, ready func([]byte) error) (supervisor.Term, error) {
	t, err := l.c.Acquire(ctx, ready)
	if err != nil {
		return nil, err
	}
	return consulTerm{t}, nil
}

type consulTerm struct{ *consulsession.Term }

func (t consulTerm) Watch(ctx context.Context, changed func()) {
	t.Term.Watch(ctx, func(consulsession.Change) { changed() })
}

func (t consulTerm) Release(ctx context.Context, r supervisor.RunResult) error {
	return t.Term.Release(ctx, consulsession.Ended(r))
}
