package cli

import (
	"context"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
	"github.com/a-seed-0bc5ead7/onlyone/systemd"
)

// Helper runs this process if it is one of onlyone's own: the guard, which outlives a
// killed onlyone and stops its command, or the exec shim between guard and command.
func Helper(args []string) (code int, ok bool) {
	switch {
	case supervisor.IsShim(args):
		return supervisor.ShimMain(args), true
	case supervisor.IsGuard(args):
		return supervisor.GuardMain(args, func(ctx context.Context, info []byte, r supervisor.RunResult) error {
			err := consulsession.ReleaseTerm(ctx, info, consulsession.Ended(r), nil)
			if err == nil {
				_ = systemd.DropTerm(systemd.RuntimeDir(), info)
			}
			return err
		}), true
	}
	return 0, false
}
