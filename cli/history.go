package cli

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

// historyJSON is a line of history --json.
type historyJSON struct {
	Schema int    `json:"schema"`
	Name   string `json:"name"`
	Copy   *int   `json:"copy,omitempty"`
	consulsession.Run
}

func (in *invocation) historyCommand() *cli.Command {
	return in.operation(&cli.Command{
		Name:      "history",
		Usage:     "list the last runs",
		ArgsUsage: "NAME",
		Description: `onlyone history [flags] NAME

  onlyone history backup                      the last 20 runs, the newest first
  onlyone history --json backup | head -n 1   the last one, as JSON

With --json one object a line. With copies: the last 20 of each.
Times are those of the hosts that ran it. Exit code 1 if there are none.
`,
	}, func(op *operation) error {
		name, err := op.name()
		if err != nil {
			return err
		}
		l, t, err := op.Find(op.ctx(), name)
		if err != nil {
			return op.problem(name, err)
		}
		for _, p := range l.Problems {
			op.warn("%s: %s", name, p)
		}
		runs := runsOf(l, t)
		slices.Reverse(runs)
		if len(runs) == 0 && l.State == consulsession.Held {
			return &exitError{code: exitFree, what: fmt.Errorf("%s: no run has ended yet", name), hint: "to see the one that runs: " + op.command("status "+name)}
		}
		if u := l.At(t.Copy).Unclean; len(runs) == 0 && u != nil {
			return &exitError{code: exitFree, what: fmt.Errorf("%s: no runs are recorded: its last holder (%s) ended without releasing", name, u.Host), hint: "to see it: " + op.command("status "+name)}
		}
		if len(runs) == 0 {
			return &exitError{code: exitFree, what: fmt.Errorf("%s: no runs are recorded", name), hint: "is the name right? see: " + op.command("ls")}
		}
		if op.json {
			for _, r := range runs {
				h := historyJSON{Schema: consulsession.Schema, Name: l.Name, Run: r.Run}
				if r.Copy >= 0 {
					h.Copy = &r.Copy
				}
				if err := op.encode(h); err != nil {
					return err
				}
			}
			return nil
		}
		op.table(historyRows(runs, l.Copies > 0 || len(l.Each) > 0))
		return nil
	})
}

// runsOf are the runs of a lock, or of one of its copies.
func runsOf(l consulsession.Lock, t consulsession.Target) []consulsession.CopyRun {
	return slices.DeleteFunc(l.AllRuns(), func(r consulsession.CopyRun) bool { return t.Copy >= 0 && r.Copy != t.Copy })
}

func historyRows(runs []consulsession.CopyRun, copies bool) [][]string {
	periods := slices.ContainsFunc(runs, func(r consulsession.CopyRun) bool { return r.Period != "" })
	row := func(started, copy, period string, rest ...string) []string {
		cells := []string{started}
		if copies {
			cells = append(cells, copy)
		}
		if periods {
			cells = append(cells, period)
		}
		return append(cells, rest...)
	}
	rows := [][]string{row("STARTED", "COPY", "PERIOD", "HOST", "TOOK", "RESULT", "TOKEN")}
	for _, r := range runs {
		took := "-"
		if d, ok := duration(r.Run); ok {
			took = short(d)
		}
		result := outcome(r.Run)
		if r.Restarts > 0 {
			result += fmt.Sprintf(", %d %s", r.Restarts, plural(r.Restarts, "restart"))
		}
		rows = append(rows, row(orDash(instantOf(r.Started)), strconv.Itoa(r.Copy), orDash(r.Period), orDash(r.Host), took, result, strconv.FormatUint(r.Token, 10)))
	}
	return rows
}
