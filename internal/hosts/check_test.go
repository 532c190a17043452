//go:build linux

package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// lived is a command that lived from..to, in seconds, and its helper until helper.
func lived(host string, token uint64, from, to, helper float64) term {
	pid := int(token)
	t := terms([]life{
		{Host: host, Token: token, Term: pid, Pid: pid, Spans: []span{{seconds(from), seconds(to)}}},
		{Host: host, Token: token, Term: pid, Pid: pid + 1000, Helper: true, Spans: []span{{seconds(from), seconds(helper)}}},
	})
	return t[0]
}

func strikeOf(k kind, from, to float64) strike {
	return strike{Fault: "fault", Kind: k, From: seconds(from), To: seconds(to)}
}

func TestJudge(t *testing.T) {
	bound := rules{Bound: 40 * time.Second, Ridden: 12600 * time.Millisecond}
	onAtTheEnd := func(t term) term { t.Alive = true; return t }
	for _, c := range []struct {
		name    string
		terms   []term
		strikes []strike
		now     float64
		want    verdict
		broken  string // in what was broken; empty: nothing was
	}{
		{
			name:    "ran on",
			terms:   []term{onAtTheEnd(lived("h1", 5, 0, 100, 100))},
			strikes: []strike{strikeOf(kindRides, 20, 30)}, now: 100,
			want: verdict{Tokens: true},
		},
		{
			name:    "moved within the bound",
			terms:   []term{lived("h1", 5, 0, 35, 35), onAtTheEnd(lived("h2", 9, 59, 100, 100))},
			strikes: []strike{strikeOf(kindMoves, 20, 80)}, now: 100,
			want: verdict{Tokens: true, Moves: 1, TakeOver: 39 * time.Second, Idle: 24 * time.Second},
		},
		{
			name:    "moved after the bound",
			terms:   []term{lived("h1", 5, 0, 35, 35), onAtTheEnd(lived("h2", 9, 63, 100, 100))},
			strikes: []strike{strikeOf(kindMoves, 20, 80)}, now: 100,
			want:   verdict{Tokens: true, Moves: 1, TakeOver: 43 * time.Second, Idle: 28 * time.Second, Late: 3 * time.Second},
			broken: "nobody ran until 63.000, 3s after the bound of 40s",
		},
		{
			name:    "the bound counts from the end of a fault that hits all",
			terms:   []term{lived("h1", 5, 0, 35, 35), onAtTheEnd(lived("h2", 9, 119, 130, 130))},
			strikes: []strike{{Fault: "fault", Kind: kindMoves, From: seconds(20), To: seconds(70), Up: seconds(80), FromEnd: true}}, now: 130,
			want: verdict{Tokens: true, Moves: 1, TakeOver: 99 * time.Second, Idle: 84 * time.Second},
		},
		{
			name:    "nobody took over",
			terms:   []term{lived("h1", 5, 0, 35, 35)},
			strikes: []strike{strikeOf(kindMoves, 20, 80)}, now: 100,
			want:   verdict{Tokens: true, TakeOver: -1, Idle: 65 * time.Second, Late: 40 * time.Second},
			broken: "nobody had run yet until 100.000, 40s after the bound",
		},
		{
			name:    "two at once",
			terms:   []term{lived("h1", 5, 0, 50, 50), onAtTheEnd(lived("h2", 9, 45.5, 100, 100))},
			strikes: []strike{strikeOf(kindMoves, 20, 80)}, now: 100,
			want:   verdict{Tokens: true, Moves: 1, TakeOver: 25500 * time.Millisecond, Overlap: 4500 * time.Millisecond, OverlapAll: 4500 * time.Millisecond, Survivors: 2},
			broken: "h1's command (token 5, from 0.000) still lived for 4.5s when h2's",
		},
		{
			name:    "two at once, and no end of it",
			terms:   []term{onAtTheEnd(lived("h1", 5, 0, 100, 100)), onAtTheEnd(lived("h2", 9, 45, 100, 100))},
			strikes: []strike{strikeOf(kindMoves, 20, 80)}, now: 100,
			want:   verdict{Tokens: true, Moves: 1, TakeOver: 25 * time.Second, Overlap: 55 * time.Second, OverlapAll: 55 * time.Second, Survivors: 2, Still: true, StillAll: true},
			broken: "still lived for 55s",
		},
		{
			name:    "only the helper lived on",
			terms:   []term{lived("h1", 5, 0, 40, 70), onAtTheEnd(lived("h2", 9, 45, 100, 100))},
			strikes: []strike{strikeOf(kindMoves, 20, 80)}, now: 100,
			want:   verdict{Tokens: true, Moves: 1, TakeOver: 25 * time.Second, OverlapAll: 25 * time.Second, Survivors: 1, Idle: 5 * time.Second},
			broken: "still lived for 25s",
		},
		{
			name:    "two at once where only a token helps",
			terms:   []term{lived("h1", 5, 0, 22, 22), onAtTheEnd(lived("h2", 9, 20.5, 100, 100))},
			strikes: []strike{strikeOf(kindToken, 20, 20)}, now: 100,
			want: verdict{Tokens: true, Moves: 1, TakeOver: 500 * time.Millisecond, TokenOverlap: 1500 * time.Millisecond},
		},
		{
			name: "a host that was frozen whole, and wrote once more",
			terms: []term{
				func() term {
					a := lived("h1", 5, 0, 80.04, 80.01)
					a.procs[0].Spans = []span{{0, seconds(20)}, {seconds(80), seconds(80.04)}}
					a.procs[1].Spans = []span{{0, seconds(20)}, {seconds(80), seconds(80.01)}}
					return a
				}(),
				onAtTheEnd(lived("h2", 9, 59, 100, 100)),
			},
			strikes: []strike{strikeOf(kindToken, 20, 80)}, now: 100,
			want: verdict{Tokens: true, Moves: 1, TakeOver: 39 * time.Second, TokenOverlap: 40 * time.Millisecond},
		},
		{
			name:    "two at once long after such a fault",
			terms:   []term{lived("h1", 5, 0, 42, 42), onAtTheEnd(lived("h2", 9, 40, 100, 100))},
			strikes: []strike{strikeOf(kindToken, 20, 20)}, now: 100,
			want:   verdict{Tokens: true, Moves: 1, TakeOver: 20 * time.Second, Overlap: 2 * time.Second, OverlapAll: 2 * time.Second, Survivors: 2},
			broken: "still lived",
		},
		{
			name:    "the token fell",
			terms:   []term{lived("h1", 9, 0, 20, 20), onAtTheEnd(lived("h2", 5, 21, 100, 100))},
			strikes: []strike{strikeOf(kindMoves, 20, 20)}, now: 100,
			want:   verdict{Tokens: true, TokensFell: 1, Moves: 1, TakeOver: time.Second, Idle: time.Second},
			broken: "the token of h2's",
		},
		{
			name:    "moved needlessly",
			terms:   []term{lived("h1", 5, 0, 35, 35), onAtTheEnd(lived("h2", 9, 36, 100, 100))},
			strikes: []strike{strikeOf(kindRides, 20, 30)}, now: 100,
			want:   verdict{Tokens: true, Moves: 1, Needless: 1, TakeOver: 16 * time.Second, Idle: time.Second},
			broken: "fault lasted 10s, and h1's command (token 5, from 0.000) ended 15s after its begin",
		},
		{
			name:    "moved by a short fault that may do so",
			terms:   []term{lived("h1", 5, 0, 35, 35), onAtTheEnd(lived("h2", 9, 36, 100, 100))},
			strikes: []strike{strikeOf(kindMay, 20, 30)}, now: 100,
			want: verdict{Tokens: true, Moves: 1, Needless: 1, TakeOver: 16 * time.Second, Idle: time.Second},
		},
		{
			name:    "each fault has its own time",
			terms:   []term{lived("h1", 5, 0, 35, 35), onAtTheEnd(lived("h2", 9, 36, 200, 200))},
			strikes: []strike{strikeOf(kindMoves, 20, 34), strikeOf(kindRides, 100, 110)}, now: 200,
			want: verdict{Tokens: true, Moves: 1, TakeOver: 16 * time.Second, Idle: time.Second},
		},
		{
			name:   "nothing ran",
			now:    100,
			broken: "nothing ever ran",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := judge(c.terms, c.strikes, seconds(c.now), bound)
			broken := strings.Join(got.Broken, "; ")
			if c.broken == "" && broken != "" || !strings.Contains(broken, c.broken) {
				t.Errorf("broken: %q, want %q", broken, c.broken)
			}
			got.Broken = nil
			if want := c.want; !equal(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func equal(a, b verdict) bool {
	a.Broken, b.Broken = nil, nil
	return a.Overlap == b.Overlap && a.OverlapAll == b.OverlapAll && a.TokenOverlap == b.TokenOverlap && a.TakeOver == b.TakeOver &&
		a.Idle == b.Idle && a.Still == b.Still && a.StillAll == b.StillAll && a.Late == b.Late && a.Moves == b.Moves && a.Needless == b.Needless && a.Survivors == b.Survivors && a.Tokens == b.Tokens && a.TokensFell == b.TokensFell
}

// TestFaultTable: each fault can be told from the others, and its kind fits its length.
func TestFaultTable(t *testing.T) {
	var names, whats []string
	for _, f := range faults() {
		if slices.Contains(names, f.name) || slices.Contains(whats, f.what) {
			t.Errorf("%s is there twice", f.name)
		}
		names, whats = append(names, f.name), append(whats, f.what)
		if strings.HasSuffix(f.name, "-short") && (f.kind != kindRides && !f.cuts() || f.lasts > 12600*time.Millisecond) {
			t.Errorf("%s isn't short", f.name)
		}
		if !slices.ContainsFunc(programs(), func(p program) bool { return f.hits.of(p) }) {
			t.Errorf("%s hits nobody", f.name)
		}
	}
}
