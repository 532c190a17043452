//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// scripts plays faults one by one.
func (l *lab) scripts(ctx context.Context) (broken bool, err error) {
	for _, f := range faults() {
		if !slices.Contains(l.opt.Scripts, f.name) && !slices.Contains(l.opt.Scripts, "all") {
			continue
		}
		bad, err := l.script(ctx, f)
		broken = broken || bad
		if err != nil {
			return broken, fmt.Errorf("cannot play %s: %w", f.name, err)
		}
	}
	return broken, nil
}

// The times of a script: after a fault that mustn't move the job, and after a take-over, it
// is watched for so long; consul lock has been seen to end its command 43 s after the begin.
const (
	tail     = 15 * time.Second
	watchFor = 50 * time.Second
)

// script plays one fault.
func (l *lab) script(ctx context.Context, f fault) (broken bool, err error) {
	names := slices.DeleteFunc(slices.Clone(l.opt.Programs), func(name string) bool {
		p, _ := programByName(name)
		return !f.hits.of(p)
	})
	if len(names) == 0 {
		return false, nil
	}
	if err := l.heal(ctx); err != nil {
		return false, err
	}
	contests, err := l.newContests(f.name, names)
	if err != nil {
		return false, err
	}
	t := &target{lab: l, contests: contests}
	if l.consul != nil && f.kind == kindToken {
		if t.snapshot, err = l.consul.snapshot(ctx); err != nil {
			return false, err
		}
	}
	if err := l.begin(ctx, contests); err != nil {
		return false, err
	}
	s, err := l.play(ctx, f, t)
	if err != nil {
		return false, err
	}
	l.await(ctx, contests, s.Up+l.rules().Bound+5*time.Second)
	rest := max(s.To+tail, s.From+watchFor) - bootNow()
	if f.kind == kindRides || f.kind == kindMay {
		rest = max(rest, tail)
	}
	if err := sleep(ctx, max(rest, 5*time.Second)); err != nil {
		return false, err
	}
	return l.conclude(f, contests, s)
}

// play does one fault, undoes it, and returns when the stores can be used again.
func (l *lab) play(ctx context.Context, f fault, t *target) (s strike, err error) {
	s = strike{Fault: f.name, Kind: f.kind, FromEnd: f.fromEnd(), Host: t.h().name, From: bootNow()}
	l.say("%s", f.name)
	heal, err := f.begin(ctx, t)
	if err == nil {
		err = sleep(ctx, f.lasts-(bootNow()-s.From))
	}
	if heal != nil {
		err = errors.Join(err, heal(ctx))
	}
	s.To = bootNow()
	if err == nil {
		err = l.heal(ctx)
	}
	s.Up = bootNow()
	return s, err
}

// await returns when each program runs a command again, or at a time.
func (l *lab) await(ctx context.Context, contests []*contest, until time.Duration) {
	for _, c := range contests {
		_ = waitUntil(ctx, until-bootNow(), func() error {
			if _, ok := c.runner(); !ok {
				return errors.New("nobody runs")
			}
			return nil
		})
	}
}

// conclude judges a script, ends it and tells.
func (l *lab) conclude(f fault, contests []*contest, s strike) (broken bool, err error) {
	results, err := l.results(contests, []strike{s})
	if err != nil {
		return false, err
	}
	for _, r := range results {
		p := &playRecord{Fault: f.name, What: f.what, Kind: f.kind, Program: r.contest.name, To: round(s.To - s.From),
			Begin: round(r.terms[0].From - s.From), End: round(r.now - s.From), Left: r.left, Verdict: r.verdict.record()}
		for _, t := range r.terms {
			p.Terms = append(p.Terms, t.record(s.From))
		}
		for _, e := range r.exits {
			if e.At >= s.From && e.At <= r.now {
				p.Exits = append(p.Exits, exitRecord{e.Host, round(e.At - s.From), e.How})
			}
		}
		l.say("%-20s %-12s %s%s", f.name, r.contest.name, r.verdict.summary(), exitSummary(p.Exits))
		broken = broken || r.broken()
		if err := l.log(record{Play: p}); err != nil {
			return broken, err
		}
	}
	return broken, nil
}
