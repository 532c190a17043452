package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/systemd"
)

const (
	// killLimit is for what SIGKILL ends in milliseconds: what is alive then can't be killed.
	killLimit = 5 * time.Second
	// lateReleaseLimit is what an orderly release has (supervisor's releaseLimit).
	lateReleaseLimit = 4 * time.Second
)

// releaseCommand is for ExecStopPost= of a unit: the last part of a run whose processes were
// killed before they could release.
func (in *invocation) releaseCommand() *cli.Command {
	return &cli.Command{
		Name:  "release",
		Usage: "for ExecStopPost= of a unit: release the lock of a run that was killed",
		Description: `onlyone release

  ExecStopPost=/usr/local/bin/onlyone release     in a unit, nowhere else

If onlyone was killed before it could release its lock: sees to it that nothing
of the service is alive, then releases. Else it does nothing.
`,
		Action: func(c *cli.Context) error {
			if c.Args().Present() || in.dashes {
				return usageError("in a unit: ExecStopPost=/usr/local/bin/onlyone release", "nothing may follow")
			}
			log, _ := newOutput(outputConfig{stderr: in.stderr}, "")
			in.log = &log
			// These two say where we are: this kills every other process of its service.
			if os.Getenv("SERVICE_RESULT") == "" || os.Getenv("MAINPID") != "" {
				return usageError("in a unit: ExecStopPost=/usr/local/bin/onlyone release", "this runs after the main process of a systemd service has ended, nowhere else")
			}
			dir := systemd.RuntimeDir()
			if dir == "" {
				return usageError("in the unit: RuntimeDirectory=onlyone-%i", "the unit has no RuntimeDirectory=")
			}
			return releaseTerms(c.Context, dir, func(text string) { log.Warn().Msg(text) })
		},
	}
}

// releaseTerms does nothing if every term was released in order. Else it kills what is left
// of the service and then releases: Consul refuses that if the session has ended meanwhile.
func releaseTerms(ctx context.Context, dir string, say func(string)) error {
	terms, err := systemd.Terms(dir)
	if err != nil {
		return fmt.Errorf("cannot read what the run has left: %w", err)
	}
	if len(terms) == 0 {
		return nil
	}
	var marks []string
	for _, kept := range terms {
		var term struct{ Session string }
		if err := json.Unmarshal(kept.Info, &term); err != nil || term.Session == "" {
			return fmt.Errorf("cannot read what the run has left in %s", dir)
		}
		marks = append(marks, "ONLYONE_SESSION="+term.Session)
	}
	kill, done := context.WithTimeout(ctx, killLimit)
	defer done()
	if err := systemd.KillRest(kill, marks); err != nil {
		return &exitError{code: exitLostAlive, what: fmt.Errorf("the lock isn't released, something of the command may be alive: %w", err),
			hint: "it is free when its session ends"}
	}
	for _, kept := range terms {
		if err := releaseTerm(ctx, kept); err != nil {
			return &exitError{code: exitUnavailable, what: fmt.Errorf("cannot release the lock: %w", err), hint: "it is free when its session ends"}
		}
		if err := systemd.DropTerm(dir, kept.Info); err != nil {
			return fmt.Errorf("cannot remove what the run has left: %w", err)
		}
		say("the run was killed before it could release its lock: nothing of it is alive, and the lock is released")
	}
	return nil
}

func releaseTerm(ctx context.Context, kept systemd.Term) error {
	ctx, done := context.WithTimeout(ctx, lateReleaseLimit)
	defer done()
	// It may have been started, and how it ended isn't known: a period that was begun stays so.
	return consulsession.ReleaseTerm(ctx, kept.Info, consulsession.Ended{Started: kept.Kept, Ended: time.Now()}, nil)
}
