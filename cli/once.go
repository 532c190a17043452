package cli

import (
	"time"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/period"
)

// Once is what --once-per and its companions say.
type Once struct {
	Spec  period.Spec // zero: not periodic
	Retry consulsession.Retry
	Zoned bool          // the zone was chosen
	Early time.Duration // how early a start may be and still belong to the coming period; negative: the default
}

// onceFlags are the flags of a periodic job, and how to read them.
func (in *invocation) onceFlags() (flags []cli.Flag, read func(*cli.Context) (Once, error)) {
	retry := &choiceValue{word: string(consulsession.OnCrash), of: []string{string(consulsession.OnCrash), string(consulsession.OnFailure), string(consulsession.Never)}}
	early := &durationValue{d: -1, zeroOK: true}
	text := func(name, usage string) cli.Flag {
		return &cli.StringFlag{Name: name, Category: forOnce, Usage: usage, EnvVars: variable(name)}
	}
	flags = []cli.Flag{
		text("once-per", "run once in each `PERIOD`: 1d, cron:EXPR, id:STRING"),
		valueFlag(forOnce, "retry", "", retry, "repeat a period `WHEN`: on-crash, on-failure, never"),
		text("time-zone", "periods begin by the clock of `ZONE` (UTC)"),
		valueFlag(forOnce, "early", "", early, "a start `DUR` too early is the next period's (10s)"),
	}
	return flags, func(c *cli.Context) (o Once, err error) {
		o = Once{Retry: consulsession.Retry(retry.word), Early: early.d, Zoned: c.String("time-zone") != ""}
		per, zone := c.String("once-per"), c.String("time-zone")
		if per == "" {
			for _, name := range []string{"retry", "time-zone", "early"} {
				if in.typed[name] > 0 { // a variable may be there for other runs
					return o, usageError("try: --once-per 1h", "--%s has no effect without --once-per", name)
				}
			}
			if c.IsSet("once-per") {
				return o, usageError("try: --once-per 1h", "--once-per is empty")
			}
			return o, nil
		}
		loc := time.UTC
		if zone != "" {
			if loc, err = period.LoadZone(zone); err != nil {
				return o, usageError("", "--time-zone: %w", err)
			}
		}
		if o.Spec, err = period.Parse(per, loc); err != nil {
			return o, usageError("", "--once-per: %w", err)
		}
		return o, nil
	}
}

// misfit warns of hosts whose clock is in another zone: two starts that are a period apart
// by that clock can be in one period by ours, and then only one of them runs.
func (o Once) misfit(now time.Time) string {
	if o.Zoned || o.Spec.FitsClock(now.Location(), now) {
		return ""
	}
	return "--once-per " + o.Spec.String() + " counts by another clock than this host's, so two starts by this host's can be of one period; say --time-zone, e.g. --time-zone Europe/Berlin"
}

// at is the period that a start at now belongs to.
func (o Once) at(now time.Time) period.Period {
	early := o.Early
	if early < 0 {
		early = o.Spec.DefaultTolerance(now)
	}
	return o.Spec.At(now, early)
}

// check refuses what makes no sense for a periodic job.
func (o RunOptions) checkOnce() error {
	if o.Once.Spec.IsZero() {
		return nil
	}
	p := o.Once.at(o.Now())
	switch {
	case !p.Start.IsZero() && o.Once.Early >= p.End.Sub(p.Start):
		return usageError("try: --early "+formatDuration(o.Once.Spec.DefaultTolerance(o.Now())), "--early %s is as long as the period", formatDuration(o.Once.Early))
	case o.MinHold > 0:
		return usageError("leave --min-hold out", "--once-per keeps runs apart by itself, whatever the clocks say")
	case o.Restart == "always":
		return usageError("use --restart on-failure, or no", "with --restart always a period is never done")
	}
	return nil
}
