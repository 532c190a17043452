package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

const defaultPause = time.Hour

func direction(skew time.Duration) string {
	if skew > 0 {
		return "behind"
	}
	return "ahead of"
}

// A pauseValue is a duration or "none", which is said in full: a forgotten pause is a job
// that never runs again.
type pauseValue struct {
	durationValue
	none bool
}

func (v *pauseValue) Set(s string) error {
	if v.none = strings.EqualFold(strings.TrimSpace(s), "none"); v.none {
		return nil
	}
	if err := v.durationValue.Set(s); err != nil {
		return fmt.Errorf("%w; or none, for until it is resumed", err)
	}
	return nil
}

func (v *pauseValue) String() string {
	if v != nil && v.none {
		return "none"
	}
	return v.durationValue.String()
}

// pauseJSON is what pause and resume print with --json.
type pauseJSON struct {
	Schema int                   `json:"schema"`
	Name   string                `json:"name"`
	Paused *consulsession.Order  `json:"paused"`            // null: it isn't
	Held   []consulsession.Party `json:"held_by,omitempty"` // pause: who is to stop
	Was    *bool                 `json:"was_paused,omitempty"`
}

func (in *invocation) pauseCommand() *cli.Command {
	length := &pauseValue{durationValue: durationValue{d: defaultPause}}
	return in.operation(&cli.Command{
		Name:      "pause",
		Usage:     "the holder stops, and nobody starts, for a while",
		ArgsUsage: "NAME",
		Description: `onlyone pause [flags] NAME

  onlyone pause --for 2h --reason "bucket repair" backup

Each holder stops its command gracefully and releases the lock; contenders wait.
It ends by itself, by the clocks of the contenders' hosts, or with: onlyone
resume NAME. An earlier pause is replaced.
`,
		Flags: []cli.Flag{
			valueFlag("", "for", "", length, "for `DUR`, or none: until it is resumed (1h)"),
			&cli.StringFlag{Name: "reason", Usage: "tell everybody why: `TEXT`", EnvVars: variable("reason")},
		},
	}, func(op *operation) error {
		name, err := op.wholeName()
		if err != nil {
			return err
		}
		now := time.Now()
		var until time.Time
		if !length.none {
			until = now.Add(length.d)
		}
		o, l, err := op.Pause(op.ctx(), name, until, op.c.String("reason"))
		if err != nil {
			return op.problem(name, err)
		}
		if skew, ok := op.Skew(); ok {
			op.warn("this host's clock is %s %s that of the Consul agent: the pause ends by the contenders' clocks", short(skew.Abs()), direction(skew))
		}
		var held []consulsession.Party
		for _, h := range append([]consulsession.Copy{{Hold: l.Hold}}, l.Each...) {
			if h.Holder != nil {
				held = append(held, *h.Holder)
			}
		}
		if op.json {
			return op.encode(pauseJSON{Schema: consulsession.Schema, Name: name, Paused: &o, Held: held})
		}
		text := "until it is resumed"
		if !length.none {
			text = "until " + instantOf(o.Until)
		}
		op.say("%s: paused %s; to end it: %s", name, text, op.command("resume "+name))
		for _, p := range held {
			if p.Host == "" {
				op.warn("%s is held by %s, which doesn't know a pause: it goes on", name, p)
				continue
			}
			op.say("%s: %s holds it, and is to stop", name, p)
		}
		if len(held) == 0 && len(l.Runs) == 0 && l.Period == nil && l.Copies == 0 && len(l.Waiting) == 0 {
			op.warn("no lock %s was ever used; is the name right? see: %s", name, op.command("ls"))
		}
		return nil
	})
}

// wholeName is a NAME that isn't a copy of a lock: a pause is for all of it.
func (op *operation) wholeName() (string, error) {
	name, err := op.name()
	if err != nil {
		return "", err
	}
	_, t, err := op.Find(op.ctx(), name)
	if err != nil {
		return "", op.problem(name, err)
	}
	if t.Copy >= 0 {
		return "", usageError("try: "+op.command(op.in.what+" "+t.Name), "%s is a copy of %s: %s is for all of them", name, t.Name, op.in.what)
	}
	return name, nil
}

func (in *invocation) resumeCommand() *cli.Command {
	return in.operation(&cli.Command{
		Name:      "resume",
		Usage:     "end a pause",
		ArgsUsage: "NAME",
		Description: `onlyone resume [flags] NAME

  onlyone resume backup

Ends a pause, whoever has asked for it: contenders that wait go on at once.
Exit code 0 also if it wasn't paused.
`,
	}, func(op *operation) error {
		name, err := op.wholeName()
		if err != nil {
			return err
		}
		was, err := op.Resume(op.ctx(), name)
		switch {
		case err != nil:
			return op.problem(name, err)
		case op.json:
			return op.encode(pauseJSON{Schema: consulsession.Schema, Name: name, Was: &was})
		case was:
			op.say("%s: resumed", name)
		default:
			op.say("%s: it wasn't paused", name)
		}
		return nil
	})
}
