//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// mostFailed is how many faults of a piece may fail to be played.
const mostFailed = 3

// random plays faults by chance for a time.
func (l *lab) random(ctx context.Context) (broken bool, err error) {
	rnd := rand.New(rand.NewPCG(l.opt.Seed, 0))
	l.say("seed %d: %s", l.opt.Seed, l.opt.Command)
	contests, err := l.newContests(fmt.Sprintf("random-%d", l.opt.Seed), l.opt.Programs)
	if err != nil {
		return false, err
	}
	t := &target{lab: l, contests: contests}
	if l.consul != nil {
		if t.snapshot, err = l.consul.snapshot(ctx); err != nil {
			return false, err
		}
	}
	if err := l.begin(ctx, contests); err != nil {
		return false, err
	}
	begun := bootNow()
	var strikes []strike
	failed := 0
	for bootNow() < begun+l.opt.For {
		f, host, follow, pause := l.choose(rnd)
		t.host = host
		if follow { // the holder of a program that contends
			t.host = slices.Index(l.hosts, t.holder(contests[rnd.IntN(len(contests))]))
		} else {
			rnd.IntN(len(contests)) // the schedule doesn't depend on where the job is
		}
		if !l.possible(f, t) {
			continue
		}
		if f.hits == partServers { // a fault in a cluster that can't stand one is two faults
			if err := l.whole(ctx); err != nil {
				return broken, err
			}
		}
		s, err := l.play(ctx, f, t)
		strikes = append(strikes, s)
		if err != nil {
			// What it was to hit may have gone in the meantime: a holder that just lost its
			// lock, for example.
			if failed++; failed > mostFailed {
				return broken, fmt.Errorf("cannot play %s: %w", f.name, err)
			}
			l.say("  not played, or not as it should be: %v", err)
			if err := l.heal(ctx); err != nil {
				return broken, err
			}
		}
		l.say("  on %s, %s for %.2fs", s.Host, f.kind, (s.To - s.From).Seconds())
		l.await(ctx, contests, s.Up+l.rules().Bound+5*time.Second)
		if err := sleep(ctx, pause); err != nil {
			return broken, err
		}
	}
	return l.concludeRandom(contests, strikes, begun)
}

// choose is a fault by chance: of a random length where it has one.
func (l *lab) choose(rnd *rand.Rand) (f fault, host int, follow bool, pause time.Duration) {
	all := faults()
	f = all[rnd.IntN(len(all))]
	lasts := time.Duration(rnd.Int64N(int64(30 * time.Second)))
	host, follow = rnd.IntN(numHosts), rnd.IntN(4) > 0
	pause = 500*time.Millisecond + time.Duration(rnd.Int64N(int64(10*time.Second)))
	// Those that have a length of their own are those that a program must ride out whatever
	// their length (a slow link), and those that are an instant.
	if f.lasts == 0 || f.kind == kindRides && f.lasts > l.rules().Ridden {
		return f, host, follow, pause
	}
	f.lasts = max(lasts, 200*time.Millisecond)
	switch {
	case f.cuts():
		if f.kind = kindMay; f.lasts <= silence {
			f.kind = kindRides
		}
	case f.kind == kindRides, f.kind == kindMoves:
		// What kills the command moves it; an election, or a guard that can't acknowledge,
		// has a time of its own.
		if f.name == "host-dead" {
			break
		}
		if f.kind = kindMay; f.lasts <= l.rules().Ridden && !f.fromEnd() && f.hits != partGuard {
			f.kind = kindRides
		}
	}
	return f, host, follow, pause
}

// possible says whether a fault can be played now: with these programs, on a job that runs.
func (l *lab) possible(f fault, t *target) bool {
	for _, c := range t.contests {
		if _, runs := c.runner(); !runs || !f.hits.of(c.program) && f.hits != partGuard {
			return false
		}
	}
	return f.hits != partGuard || len(t.contests) == 1
}

func (l *lab) concludeRandom(contests []*contest, strikes []strike, begun time.Duration) (broken bool, err error) {
	results, err := l.results(contests, strikes)
	if err != nil {
		return false, err
	}
	for _, r := range results {
		p := &pieceRecord{Seed: l.opt.Seed, Consul: l.opt.Consul, Program: r.contest.name, Lasted: round(r.now - begun), Terms: len(r.terms), Left: r.left,
			Exits: map[string]int{}, Verdict: r.verdict.record()}
		for _, e := range r.exits {
			p.Exits[e.How]++
		}
		for _, s := range strikes {
			p.Faults = append(p.Faults, strikeRecord{s.Fault, s.Host, round(s.From - begun), round(s.To - begun)})
		}
		l.say("%d faults, %-12s %s", len(strikes), r.contest.name, r.verdict.summary())
		if r.broken() {
			broken = true
			l.say("to try again: %s", l.opt.Command)
		}
		if err := l.log(record{Piece: p}); err != nil {
			return broken, err
		}
	}
	return broken, nil
}
