//go:build linux

package main

import (
	"context"
	"fmt"
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
	for _, r := range all {
		r.alarms(strikes)
	}
	return all, nil
}

// alarms: onlyone says with 80 that its command isn't known to have been dead in time. That
// is true on a host that was frozen whole, and only there.
func (r *result) alarms(strikes []strike) {
	frozen := func(s strike) bool { return s.Fault == "host-freeze" }
	if !r.contest.ours || slices.ContainsFunc(strikes, frozen) {
		return
	}
	for _, e := range r.exits {
		if e.How == "80" {
			r.verdict.broke("%s on %s ended with 80 at %.3f", r.contest.name, e.Host, e.At.Seconds())
		}
	}
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
	if !c.ours {
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
