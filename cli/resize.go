package cli

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

// resizeJSON is what resize prints with --json.
type resizeJSON struct {
	Schema int     `json:"schema"`
	Name   string  `json:"name"`
	From   int     `json:"from"`
	To     int     `json:"to"`
	Asked  []asked `json:"asked,omitempty"`
}

type asked struct {
	Copy int                 `json:"copy"`
	From consulsession.Party `json:"from"`
}

func (in *invocation) resizeCommand() *cli.Command {
	copies := &countValue{low: 1, high: maxCopies}
	return in.operation(&cli.Command{
		Name:      "resize",
		Usage:     "change how many copies of a lock there may be",
		ArgsUsage: "NAME",
		Description: `onlyone resize --copies N [flags] NAME

  onlyone resize --copies 5 worker       five may run at once from now on

If there are to be fewer, the holders of copies beyond N are asked to step down;
new copies can be had at once. Contenders that were started with another
--copies end with 78 when they look next: give all of them the new number. See
docs/copies.md.
`,
		Flags: []cli.Flag{
			// Not from ONLYONE_COPIES, which the command of a copy finds in its environment.
			&cli.GenericFlag{Name: "copies", Value: copies, Usage: "how many there may be: `N` (1 to 1000)"},
			&cli.StringFlag{Name: "reason", Usage: "tell those who are to step down why: `TEXT`", EnvVars: variable("reason")},
		},
	}, func(op *operation) error {
		name, err := op.name()
		if err != nil {
			return err
		}
		if copies.n == 0 {
			return usageError("try: "+op.command("resize "+name+" --copies 4"), "--copies is missing")
		}
		reason := op.c.String("reason")
		if reason == "" {
			reason = fmt.Sprintf("resized to %d copies", copies.n)
		}
		r, err := op.Resize(op.ctx(), name, copies.n, reason)
		if none, ok := errors.AsType[*consulsession.NoCopiesError](err); ok {
			return &exitError{code: exitConflict, what: fmt.Errorf("%s: %w", name, none), hint: fmt.Sprintf("try: %s -- CMD", op.command(fmt.Sprintf("run --copies %d %s", copies.n, name)))}
		}
		if errors.Is(err, consulsession.ErrMeanwhile) {
			return &exitError{code: exitConflict, what: fmt.Errorf("%s: %w", name, err), hint: "to see it: " + op.command("status "+name)}
		}
		if err != nil {
			return op.problem(name, err)
		}
		if op.json {
			out := resizeJSON{Schema: consulsession.Schema, Name: name, From: r.From, To: r.To}
			for _, a := range r.Asked {
				out.Asked = append(out.Asked, asked{a.Target.Copy, a.From})
			}
			return op.encode(out)
		}
		if r.From == r.To {
			op.say("%s: it has %d copies already", name, r.To)
		} else {
			op.say("%s: %d copies (there were %d); contenders with another --copies end with 78", name, r.To, r.From)
		}
		for _, a := range r.Asked {
			op.say("%s: asked %s to step down", a.Target, a.From)
		}
		return nil
	})
}
