package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

func (in *invocation) lsCommand() *cli.Command {
	return in.operation(&cli.Command{
		Name:      "ls",
		Usage:     "list the locks",
		ArgsUsage: "[PREFIX]",
		Description: `onlyone ls [flags] [PREFIX]

  onlyone ls                     all locks
  onlyone ls batch/              those whose names begin with batch/
  onlyone ls --host web-2        those that web-2 holds

The copies of a lock are one line. Unclean: its last holder ended without
releasing. For a lock that is marked (!), see onlyone status NAME.
`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "host", Usage: "only locks that `HOST` holds", EnvVars: variable("host")},
		},
	}, func(op *operation) error {
		begin, host := "", op.c.String("host")
		switch {
		case len(op.names) > 1:
			return usageError("try: "+op.command("ls "+op.names[0]), "want one PREFIX, got %d: %s", len(op.names), strings.Join(op.names, ", "))
		case len(op.names) == 1:
			begin = op.names[0]
		}
		locks, filtered, err := op.Locks(op.ctx(), begin)
		if err != nil {
			return op.problem("", err)
		}
		op.warnFiltered(filtered)
		if host != "" {
			locks = slices.DeleteFunc(locks, func(l consulsession.Lock) bool { return !slices.Contains(hosts(l), host) })
		}
		if op.json {
			if locks == nil {
				locks = []consulsession.Lock{}
			}
			return op.encode(locksJSON{consulsession.Schema, locks})
		}
		if len(locks) == 0 {
			return nil
		}
		rows := [][]string{{"NAME", "STATE", "HOST", "SINCE", "WAITING"}}
		for _, l := range locks {
			rows = append(rows, lsRow(l, time.Now()))
		}
		op.table(rows)
		return nil
	})
}

func lsRow(l consulsession.Lock, now time.Time) []string {
	state, host, from := string(l.State), strings.Join(slices.Compact(hosts(l)), ","), ""
	if h := hosts(l); len(h) > 3 {
		host = fmt.Sprintf("%s,... (%d)", h[0], len(h))
	}
	switch {
	case l.State == consulsession.Foreign:
		state = "not a lock"
	case l.Copies > 0 || len(l.Each) > 0:
		state = fmt.Sprintf("held %d/%d", l.Held, l.Copies)
		if l.Held == 0 {
			state = fmt.Sprintf("free 0/%d", l.Copies)
		}
	case l.Unclean != nil:
		state = "free, unclean"
	case l.Holder != nil:
		from = "?"
		if l.Holder.Since != "" {
			from = since(l.Holder.Since, now)
		}
	}
	if l.Paused != nil {
		state += ", paused"
	}
	if len(l.Problems) > 0 && l.State != consulsession.Foreign {
		state += " (!)" // onlyone status says what
	}
	queue := ""
	if n := len(l.Waiting); n > 0 {
		queue = strconv.Itoa(n)
	}
	return []string{l.Name, state, orDash(host), orDash(from), orDash(queue)}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
