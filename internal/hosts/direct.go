package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// directMain is the director: it makes the lab, plays faults, and tells.
func directMain(args []string) int {
	o, err := decodeOptions(args)
	broken := false
	if err == nil {
		broken, err = direct(context.Background(), o)
	}
	if (err != nil || broken) && o.Dir != "" {
		keepEvidence(o)
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		return exitFailed
	case broken:
		return exitBroken
	}
	return exitOK
}

// keepEvidence copies the logs out of the folder that will be removed.
func keepEvidence(o options) {
	dir := fmt.Sprintf("%s/%s-%d-%d", o.Evidence, time.Now().UTC().Format("20060102T150405Z"), o.Seed, os.Getpid())
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(o.Dir, "logs"))); err != nil {
		fmt.Fprintln(os.Stderr, "cannot keep the logs:", err)
		return
	}
	beats, _ := filepath.Glob(filepath.Join(o.Dir, "beats-*"))
	for _, b := range beats {
		_ = os.CopyFS(filepath.Join(dir, filepath.Base(b)), os.DirFS(b))
	}
	fmt.Fprintln(os.Stderr, "the logs are in", dir)
}

func direct(ctx context.Context, o options) (broken bool, err error) {
	l, err := newLab(ctx, o, os.Stdout)
	if err != nil {
		return false, err
	}
	defer l.close()
	l.say("%s; %s; bound %s, outages of up to %s are to be ridden out", o.Versions["onlyone"], o.Versions["consul"], o.Explanation.bound(), o.Explanation.ridden())
	begin := record{Run: &runRecord{Command: o.Command, Date: time.Now().UTC().Format(time.RFC3339), Consul: o.Consul, Versions: o.Versions,
		Bound: o.Explanation.TakeOver, Ridden: round(o.Explanation.ridden())}}
	if err := l.log(begin); err != nil {
		return false, err
	}
	if len(o.Scripts) > 0 {
		return l.scripts(ctx)
	}
	return l.random(ctx)
}

func (l *lab) log(records ...record) error {
	if l.opt.Log == "" {
		return nil
	}
	return appendLog(l.opt.Log, records...)
}

func (l *lab) rules() rules {
	return rules{l.opt.Explanation.bound(), l.opt.Explanation.ridden()}
}

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

// A result is what one program did.
type result struct {
	contest *contest
	verdict verdict
	terms   []term
	now     time.Duration // the end of the record
	exits   []exit
	left    int // processes that had to be killed after an orderly stop
}

// broken says whether a promise of onlyone was broken.
func (r result) broken() bool { return len(r.verdict.Broken) > 0 }

// results judges all programs, and only then ends them.
func (l *lab) results(contests []*contest, strikes []strike) ([]*result, error) {
	var all []*result
	for _, c := range contests {
		v, terms, now, err := l.judge(c, strikes)
		if err != nil {
			return nil, err
		}
		all = append(all, &result{contest: c, verdict: v, terms: terms, now: now})
	}
	var wg sync.WaitGroup
	for _, r := range all {
		wg.Go(func() { r.exits, r.left = l.end(r.contest) })
	}
	wg.Wait()
	return all, nil
}

// judge reads a program's record up to now.
func (l *lab) judge(c *contest, strikes []strike) (v verdict, all []term, now time.Duration, err error) {
	now = bootNow()
	lives, err := c.lives()
	if err != nil {
		return v, nil, now, err
	}
	all = terms(lives)
	for i, t := range all {
		all[i].Alive = alive(t.procs[0].Pid)
	}
	v = judge(all, strikes, now, l.rules())
	if c.name != "onlyone" {
		v.Broken = nil // it hasn't promised that
	}
	if len(all) == 0 {
		return v, nil, now, fmt.Errorf("%s never ran", c.name)
	}
	return v, all, now, nil
}

func (v verdict) summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "two at once %.2fs (helpers %.2fs), moves %d, idle %.2fs", v.Overlap.Seconds(), v.OverlapAll.Seconds(), v.Moves, v.Idle.Seconds())
	if v.TokenOverlap > 0 {
		fmt.Fprintf(&b, ", two at once with a token %.2fs", v.TokenOverlap.Seconds())
	}
	switch {
	case v.TakeOver < 0:
		b.WriteString(", nobody took over")
	case v.TakeOver > 0:
		fmt.Fprintf(&b, ", take-over %.2fs", v.TakeOver.Seconds())
	}
	if v.Needless > 0 {
		fmt.Fprintf(&b, ", needless moves %d", v.Needless)
	}
	if v.Survivors > 0 {
		fmt.Fprintf(&b, ", survivors %d", v.Survivors)
	}
	for _, s := range v.Broken {
		b.WriteString("\n                BROKEN: " + s)
	}
	return b.String()
}

func exitSummary(exits []exitRecord) string {
	var all []string
	for _, e := range exits {
		all = append(all, e.Host+":"+e.How)
	}
	if all == nil {
		return ""
	}
	return "; exits " + strings.Join(all, " ")
}

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
		s, err := l.play(ctx, f, t)
		if err != nil {
			return broken, fmt.Errorf("cannot play %s: %w", f.name, err)
		}
		strikes = append(strikes, s)
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
	switch f.kind {
	case kindRides, kindMoves:
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
