//go:build linux

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// samplePlay is a play of the fault "cut" in which two ran at once, or didn't.
func samplePlay(program string, two bool) *playRecord {
	p := &playRecord{Fault: "cut", What: "the host is cut off for 60 s", Kind: kindMoves, Program: program, To: 60, Begin: -5, End: 80,
		Terms: []termRecord{
			{Host: "h1", Token: 5, Spans: [][2]float64{{-5, 15}}},
			{Host: "h2", Token: 9, Spans: [][2]float64{{39, 80}}},
		},
		Exits:   []exitRecord{{"h1", 15, "79"}},
		Verdict: &verdictRecord{TakeOver: 39, Idle: 24, Moves: 1, Tokens: true}}
	if two {
		p.Terms[0].Spans[0][1] = 45
		p.Terms[0].Helper = [][2]float64{{45, 80}}
		p.Verdict = &verdictRecord{TakeOver: 39, Moves: 1, Overlap: 6, OverlapAll: 41, StillAll: true, Survivors: 2}
	}
	return p
}

func sampleLogs() []logFile {
	run := &runRecord{Command: "make hosts SCRIPT=cut", Consul: "1.14", Versions: map[string]string{"onlyone": "onlyone 1"}, Bound: 40, Ridden: 12.6}
	return []logFile{{"hosts-sample.jsonl", []record{{Run: run}, {Play: samplePlay("onlyone", false)}, {Play: samplePlay("consul-lock", true)},
		{Piece: &pieceRecord{Seed: 7, Consul: "1.14", Program: "onlyone", Lasted: 600, Terms: 3, Verdict: &verdictRecord{Tokens: true, Broken: []string{"it was late"}}}}}}}
}

func TestRender(t *testing.T) {
	files := render(sampleLogs(), nil)
	for _, want := range []string{
		"| the host is cut off for 60 s | next after 39.0 s (nobody for 24.0 s), exit 79 | **two at once for 6.0 s**, next after 39.0 s, survivors: 2, exit 79 |",
		"| faults with two at once | 0 | 1 |",
		"* Consul 1.14, seed 7: it was late",
		"![the host is cut off for 60 s](img/cut.svg)",
	} {
		if !strings.Contains(files["results.md"], want) {
			t.Errorf("results.md lacks %q", want)
		}
	}
	svg := files["img/cut.svg"]
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("cut.svg: %v", err)
		}
	}
	for what, n := range map[string]int{`class="two"`: 3, `class="runs"`: 5, `class="helper"`: 2} { // one of each is the legend's
		if got := strings.Count(svg, what); got != n {
			t.Errorf("cut.svg has %d times %s, want %d", got, what, n)
		}
	}
}

// TestBetter: what another program did better is named, unless it was paid for.
func TestBetter(t *testing.T) {
	ours := samplePlay("onlyone", false)
	faster := samplePlay("peer", false)
	faster.Verdict.TakeOver = 10
	if got := better(faster, ours); got != "next after 10.0 s, onlyone 39.0 s" {
		t.Errorf("faster: %q", got)
	}
	paid := samplePlay("peer", true)
	paid.Verdict.TakeOver = 10
	if got := better(paid, ours); got != "" {
		t.Errorf("faster with two at once: %q", got)
	}
	ranOn := samplePlay("peer", false)
	ranOn.Verdict = &verdictRecord{}
	if got := better(ranOn, ours); got != "ran on, onlyone moved the job" {
		t.Errorf("ran on: %q", got)
	}
	ranOn.Verdict = &verdictRecord{TakeOver: -1, Idle: 60}
	if got := better(ranOn, ours); got != "" {
		t.Errorf("nobody took over: %q", got)
	}
}

func TestLogRoundTrip(t *testing.T) {
	name := filepath.Join(t.TempDir(), "results", "hosts-x.jsonl")
	want := sampleLogs()[0].records
	for _, r := range want {
		if err := appendLog(name, r); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readLog(name)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := render([]logFile{{"x", got}}, nil)["results.md"], render([]logFile{{"x", want}}, nil)["results.md"]; a != b {
		t.Errorf("what is read isn't what was written:\n%s\n%s", a, b)
	}
}

// TestFill: what stands between the comments is replaced, the rest isn't touched.
func TestFill(t *testing.T) {
	page := "a\n<!-- measured: x -->\nold\n<!-- /measured -->\nb\n<!-- measured: y -->\n<!-- /measured -->\n"
	got, err := fill(page, map[string]string{"x": "new\n", "y": "z\n"})
	if want := "a\n<!-- measured: x -->\nnew\n<!-- /measured -->\nb\n<!-- measured: y -->\nz\n<!-- /measured -->\n"; got != want || err != nil {
		t.Errorf("it became %q (%v), want %q", got, err, want)
	}
	if _, err := fill(page, map[string]string{"x": ""}); err == nil {
		t.Error("a block that isn't there is no error")
	}
}

// TestBeside: README's table has a line for each fault that both programs were in, and for the
// rows of the bench. A metric that was renamed would be missing.
func TestBeside(t *testing.T) {
	bench, err := readBench(filepath.Join("..", "..", "docs", benchLog))
	if err != nil {
		t.Fatal(err)
	}
	table := collect(sampleLogs()).blocks(bench)["beside"]
	if n := strings.Count(table, "\n"); n != 2+1+5 {
		t.Errorf("it has %d lines, want 2 of the head, one fault and 5 of the bench:\n%s", n, table)
	}
}

// TestDocsAreWhatTheLogsSay: docs/results.md, its pictures and the figures in README.md and
// docs/compare.md are made by `make hosts-report`, not by hand.
func TestDocsAreWhatTheLogsSay(t *testing.T) {
	docs := filepath.Join("..", "..", "docs")
	files, err := report(docs)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(docs, name)); err != nil || string(got) != want {
			t.Errorf("docs/%s isn't what the logs say (%v); to make it: make hosts-report", name, err)
		}
	}
}
