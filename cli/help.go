package cli

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

// The help leads with what is typed most, is 80 columns wide and fits a screen.

const appHelp = `onlyone runs a command on exactly one host of many, for as long as that host
can prove that it holds the lock in Consul.

  onlyone run backup -- /usr/local/bin/backup --full
  onlyone run -w 10m db/vacuum -- psql -f vacuum.sql    wait at most 10 minutes
  onlyone run -n -E 0 -q report -- ./report.sh          quiet if another has it

Commands:
  run [flags] [NAME] -- CMD [ARG...]   run CMD while holding the lock NAME
  verify [flags]                       inside CMD: is the lock still ours?
  fence --state FILE -- CMD [ARG...]   run CMD if FILE has seen no newer token
  version                              print the version (also -V, --version)
  help [COMMAND]                       print this, or the flags of a command

Exit codes: CMD's own, or 64 usage, 69 Consul isn't there, 70 onlyone failed,
75 the lock is taken, 77 not allowed, 78 impossible settings, 79 the lock was
lost and CMD was stopped in time, 80 it was lost and CMD may be alive, 126 CMD
can't be executed, 127 it isn't found.
`

const runHelp = `onlyone run [flags] [NAME] -- CMD [ARG...]

  onlyone run backup -- /usr/local/bin/backup --full
  onlyone run -w 10m db/vacuum -- psql -f vacuum.sql    wait at most 10 minutes
  onlyone run -n -E 0 -q report -- ./report.sh          quiet if another has it
  onlyone run --lease 30s --explain                     what happens when

Without NAME the lock is named after CMD. CMD finds a number that only grows in
FENCE_TOKEN. Durations: 90, 1.5, 90s, 5m, 1h30m, 1d. Flags may follow NAME, and
each has a variable: ONLYONE_NO_WAIT=true, ONLYONE_WAIT=5m.
`

// commandHelp is a command's help as a template of the library, without anything to fill in.
func commandHelp(c *cli.Command) string {
	var b strings.Builder
	switch {
	case c.Name == "run":
		b.WriteString(runHelp)
	case c.Description != "":
		b.WriteString(c.Description)
	default:
		fmt.Fprintf(&b, "onlyone %s [flags]: %s\n\n", c.Name, c.Usage)
	}
	category := ""
	var consul []string
	for _, f := range append(c.Flags, cli.HelpFlag) {
		d := f.(cli.DocGenerationFlag)
		if k, ok := f.(cli.CategorizableFlag); ok && k.GetCategory() != "" && k.GetCategory() != category {
			if category = k.GetCategory(); category != forConsul {
				fmt.Fprintf(&b, "\n%s:\n", category)
			}
		}
		if category == forConsul && f != cli.HelpFlag {
			consul = append(consul, "--"+d.Names()[0])
			continue
		}
		if f == cli.HelpFlag && len(consul) == 0 || f != cli.HelpFlag {
			fmt.Fprintln(&b, flagLine(d))
		}
	}
	if len(consul) > 0 {
		b.WriteString("\nConsul, as consul itself names them (its CONSUL_* variables work, too):\n")
		b.WriteString(wrapWords(consul, "  ", 80))
	}
	return b.String()
}

func flagLine(d cli.DocGenerationFlag) string {
	long := "--" + d.Names()[0]
	short := "   "
	for _, name := range d.Names()[1:] {
		short = dashed(name) + ","
	}
	if d.TakesValue() {
		long += " " + placeholder(d)
	}
	return fmt.Sprintf("  %s %-22s %s", short, long, strings.ReplaceAll(d.GetUsage(), "`", ""))
}

// wrapWords fills lines of at most width columns.
func wrapWords(words []string, indent string, width int) string {
	var b strings.Builder
	column := 0
	for _, w := range words {
		switch {
		case column == 0:
			b.WriteString(indent + w)
			column = len(indent) + len(w)
		case column+1+len(w) > width:
			b.WriteString("\n" + indent + w)
			column = len(indent) + len(w)
		default:
			b.WriteString(" " + w)
			column += 1 + len(w)
		}
	}
	return b.String() + "\n"
}
