package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

// unlockJSON is what unlock prints with --json.
type unlockJSON struct {
	Schema    int                 `json:"schema"`
	Name      string              `json:"name"`
	Ended     consulsession.Party `json:"ended"`
	LockDelay float64             `json:"lock_delay_seconds,omitempty"`
}

func (in *invocation) unlockCommand() *cli.Command {
	return in.operation(&cli.Command{
		Name:      "unlock",
		Usage:     "take a lock away from its holder, if all else fails",
		ArgsUsage: "NAME",
		Description: `onlyone unlock --force [flags] NAME

  onlyone unlock --force backup          if its host is cut off, say

Ends the holder's session in Consul. The lock key isn't touched, so that the
lock-delay still keeps others off until the holder's command is dead: it notices
within a poll (2s) and stops it. Try onlyone step-down first. Of copies: NAME/2.
Exit codes: 0 done, 75 nobody holds it.
`,
		Flags: []cli.Flag{
			boolFlag("", "force", "", "yes, take it away"),
			boolFlag("", "yes", "y", "don't ask; needed where there is no terminal"),
		},
	}, func(op *operation) error {
		name, err := op.name()
		if err != nil {
			return err
		}
		if !op.c.Bool("force") {
			return usageError(fmt.Sprintf("try: %s; if all else fails: %s", op.command("step-down "+name), op.command("unlock "+name+" --force")),
				"unlock takes the lock away while its command runs, so it needs --force")
		}
		l, t, err := op.Find(op.ctx(), name)
		if err != nil {
			return op.problem(name, err)
		}
		targets, parties, err := holders(l, t, false)
		if err != nil {
			return op.problem(name, err)
		}
		return op.unlock(targets[0], parties[0])
	})
}

func (op *operation) unlock(t consulsession.Target, p consulsession.Party) error {
	// To tell it, no more: a token that may end a session need not be allowed to read it.
	delay, _ := op.LockDelay(op.ctx(), p.Session)
	op.warn("%s", breaks(t, p, delay, time.Now()))
	if err := op.confirm(); err != nil {
		return err
	}
	if err := op.EndSession(op.ctx(), p.Session); err != nil {
		return op.problem(t.String(), err)
	}
	if op.json {
		return op.encode(unlockJSON{consulsession.Schema, t.String(), p, delay.Seconds()})
	}
	op.say("%s: the session of %s is ended; to see who is next: %s", t, p, op.command("status "+t.String()))
	return nil
}

// breaks is what unlock does to a holder.
func breaks(t consulsession.Target, p consulsession.Party, delay time.Duration, now time.Time) string {
	s := fmt.Sprintf("%s is held by %s", t, p)
	if p.Since != "" {
		s += " since " + since(p.Since, now)
	}
	if p.Command != "" {
		s += fmt.Sprintf(", running: %s", p.Command)
	}
	s += ". "
	if p.Host == "" {
		s += "What it runs isn't stopped by onlyone, and may go on beside the next holder. "
	} else {
		s += "It notices within a poll (2s) and stops its command, in the middle of its work; if that host hangs, its lease does. "
	}
	after := "the lock-delay"
	if delay > 0 {
		after += " of " + formatDuration(delay)
	}
	return s + "Others may start after " + after
}

// confirm asks on a terminal. Without one, --yes is the answer.
func (op *operation) confirm() error {
	if op.c.Bool("yes") {
		return nil
	}
	if !isTerminal(os.Stdin) || !isTerminal(op.in.stderr) {
		return usageError("try: "+op.command("unlock --force --yes "+strings.Join(op.names, " ")), "there is no terminal to ask on")
	}
	fmt.Fprint(op.in.stderr, "Take it away? [y/N] ")
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil && err != io.EOF {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return &exitError{code: exitConflict, what: fmt.Errorf("nothing was done")}
}
