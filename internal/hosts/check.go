//go:build linux

package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// What is checked here was promised by onlyone; of other programs it is measured.

// A strike is a fault that was played.
type strike struct {
	Fault    string
	Kind     kind
	From, To time.Duration // boot clock
	Up       time.Duration // when the stores could be used again
	FromEnd  bool          // the bound counts from Up
	Host     string
}

// tokenAfter is how long after a fault that only a token covers an overlap is still that
// fault's doing: a holder looks every poll (2 s), and has up to 4 s to end.
const tokenAfter = 10 * time.Second

// slack is what the machine may add to a bound: processes have to be started, and a queue's
// first one asks every second whether a lock-delay is over.
const slack = 2 * time.Second

// rules are what a program is held to.
type rules struct {
	Bound  time.Duration // somebody runs again
	Ridden time.Duration // an outage that is shorter mustn't move the job
}

// A term is one run of the command: it and its helper.
type term struct {
	Host  string
	Token uint64
	From  time.Duration
	To    time.Duration // the command's last sign of life
	All   time.Duration // the helper's, if that is later
	Alive bool          // the command lives at the end of the record
	spans []span        // the command's
	procs []life
}

// A verdict is what the record of one program says.
type verdict struct {
	Overlap      time.Duration // the longest time with two commands at once
	OverlapAll   time.Duration // likewise, helpers count as well
	TokenOverlap time.Duration // the longest time in which two could write that only a token covers: stopped ones can't
	TakeOver     time.Duration // the longest time from a fault that moved the job to the next command; 0: none did, -1: never
	Still        bool          // two commands lived when the record ended: the overlap would have gone on
	StillAll     bool          // likewise, helpers count as well
	Idle         time.Duration // the longest time without a command
	Late         time.Duration // the longest time by which the bound was missed; slack and less is the machine's
	Moves        int           // how often another command started after the first fault
	Needless     int           // faults shorter than what is ridden out, and yet the command ended
	Survivors    int           // processes that outlived their lock
	Tokens       bool          // there are tokens
	TokensFell   int
	Broken       []string // the promises that were broken
}

// terms puts the lives of one program's processes together, in the order of their starts.
func terms(lives []life) []term {
	byPid := map[int]*term{}
	for _, v := range lives {
		if !v.Helper {
			byPid[v.Pid] = &term{Host: v.Host, Token: v.Token, From: v.start(), To: v.last(), All: v.last(), spans: v.Spans, procs: []life{v}}
		}
	}
	for _, v := range lives {
		if t := byPid[v.Term]; v.Helper && t != nil {
			t.All = max(t.All, v.last())
			t.procs = append(t.procs, v)
		}
	}
	var all []term
	for _, t := range byPid {
		all = append(all, *t)
	}
	slices.SortFunc(all, func(a, b term) int { return cmp.Compare(a.From, b.From) })
	return all
}

// judge checks the record of one program, which ends at now. Faults are in the order in
// which they began.
func judge(all []term, strikes []strike, now time.Duration, r rules) verdict {
	var v verdict
	v.overlaps(all, strikes, now)
	v.tokens(all)
	v.idle(all, strikes, now, r)
	v.moves(all, strikes, now, r)
	return v
}

func (v *verdict) broke(format string, args ...any) {
	v.Broken = append(v.Broken, fmt.Sprintf(format, args...))
}

func (v *verdict) overlaps(all []term, strikes []strike, now time.Duration) {
	survivors := map[int]bool{}
	for i, b := range all {
		for _, a := range all[:i] {
			if a.All <= b.From {
				continue
			}
			both := min(a.All, b.All) - b.From
			v.Still = v.Still || min(a.To, b.To) >= now-maxGap
			v.StillAll = v.StillAll || min(a.All, b.All) >= now-maxGap
			if covered(strikes, b.From) {
				v.TokenOverlap = max(v.TokenOverlap, awake(a, b))
				continue
			}
			for _, p := range a.procs {
				if p.last() > b.From {
					survivors[p.Pid] = true
				}
			}
			v.OverlapAll = max(v.OverlapAll, both)
			v.Overlap = max(v.Overlap, min(a.To, b.To)-b.From)
			v.broke("%s still lived for %s when %s had started", a, both.Round(time.Millisecond), b)
		}
	}
	v.Survivors = len(survivors)
}

// awake is how long processes of both terms were not only alive, but ran.
func awake(a, b term) (longest time.Duration) {
	for _, p := range a.procs {
		for _, q := range b.procs {
			var both time.Duration
			for _, s := range p.Spans {
				for _, t := range q.Spans {
					both += max(0, min(s.To, t.To)-max(s.From, t.From))
				}
			}
			longest = max(longest, both)
		}
	}
	return longest
}

// covered says whether only a token covers an overlap that began at this time.
func covered(strikes []strike, at time.Duration) bool {
	return slices.ContainsFunc(strikes, func(s strike) bool {
		return s.Kind == kindToken && s.From <= at && at <= s.To+tokenAfter
	})
}

func (v *verdict) tokens(all []term) {
	for i, b := range all {
		v.Tokens = v.Tokens || b.Token != 0
		if i > 0 && b.Token != 0 && b.Token <= all[i-1].Token {
			v.TokensFell++
			v.broke("the token of %s isn't greater than that of %s", b, all[i-1])
		}
	}
}

// idle looks at the times without any command.
func (v *verdict) idle(all []term, strikes []strike, now time.Duration, r rules) {
	if len(all) == 0 {
		v.broke("nothing ever ran")
		return
	}
	end := all[0].To
	if all[0].Alive {
		end = now
	}
	gap := func(to time.Duration, ended bool) {
		if to <= end {
			return
		}
		v.Idle = max(v.Idle, to-end)
		// The clock of the bound starts anew with each fault. A command that ended long
		// after the last one did so for another reason.
		from := time.Duration(0)
		for _, s := range strikes {
			if s.From < to {
				at := s.From
				if s.FromEnd {
					at = s.Up
				}
				from = max(from, at)
			}
		}
		if end > from+r.Bound {
			from = end
		}
		late := to - from - r.Bound
		v.Late = max(v.Late, late)
		if late > slack {
			what := "nobody ran"
			if ended {
				what = "nobody had run yet"
			}
			v.broke("%s until %.3f, %s after the bound of %s", what, to.Seconds(), late.Round(time.Millisecond), r.Bound)
		}
	}
	for _, t := range all[1:] {
		gap(t.From, false)
		last := t.To
		if t.Alive {
			last = now
		}
		end = max(end, last)
	}
	gap(now, true)
}

// moves looks at what each fault did to the command that ran when it began.
func (v *verdict) moves(all []term, strikes []strike, now time.Duration, r rules) {
	if len(strikes) == 0 {
		return
	}
	for _, t := range all {
		if t.From > strikes[0].From {
			v.Moves++
		}
	}
	for i, s := range strikes {
		until := now
		if i+1 < len(strikes) {
			until = strikes[i+1].From
		}
		ran := slices.IndexFunc(all, func(t term) bool { return t.From <= s.From && (t.To >= s.From-maxGap || t.Alive) })
		if ran < 0 {
			continue
		}
		t := all[ran]
		next := slices.IndexFunc(all, func(n term) bool { return n.From > s.From })
		another := next >= 0 && all[next].From < until
		if !another && (t.Alive || t.To >= until-maxGap) {
			continue // it ran on
		}
		if next < 0 {
			v.TakeOver = -1
		} else if v.TakeOver >= 0 {
			v.TakeOver = max(v.TakeOver, all[next].From-s.From)
		}
		if s.Kind == kindRides || s.Kind == kindMay && s.To-s.From <= r.Ridden {
			v.Needless++
			if s.Kind == kindRides {
				what := fmt.Sprintf("ended %s after its begin", (t.To - s.From).Round(time.Millisecond))
				if another && (t.Alive || t.To > all[next].From) {
					what = fmt.Sprintf("got company %s after its begin", (all[next].From - s.From).Round(time.Millisecond))
				}
				v.broke("%s lasted %s, and %s %s", s.Fault, (s.To - s.From).Round(time.Millisecond), t, what)
			}
		}
	}
}

func (t term) String() string {
	return fmt.Sprintf("%s's command (token %d, from %.3f)", t.Host, t.Token, t.From.Seconds())
}
