//go:build linux

package main

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// TestPulse: what a command writes is what is read, also if it was stopped in between, and
// if it was killed.
func TestPulse(t *testing.T) {
	dir := t.TempDir()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	write := func(name string, end bool, beats ...time.Duration) {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		p := &pulse{file: f}
		for _, b := range beats {
			p.beat(b)
		}
		if end {
			p.end(beats[len(beats)-1] + ms(1))
		}
	}
	write("onlyone~h1~17~command~50~50", true, ms(1000), ms(1010), ms(1020), ms(5000), ms(5010))
	write("onlyone~h1~17~helper~50~51", false, ms(1003))
	if err := os.WriteFile(filepath.Join(dir, "onlyone~h2~18~command~60~60"), nil, 0o600); err != nil {
		t.Fatal(err) // it has just been created
	}
	got, err := readLives(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []life{
		{Program: "onlyone", Host: "h1", Token: 17, Term: 50, Pid: 50, Spans: []span{{ms(1000), ms(1020)}, {ms(5000), ms(5011)}}, Ended: ms(5011)},
		{Program: "onlyone", Host: "h1", Token: 17, Helper: true, Term: 50, Pid: 51, Spans: []span{{ms(1003), ms(1003)}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if all := terms(got); len(all) != 1 || all[0].From != ms(1000) || all[0].To != ms(5011) || len(all[0].procs) != 2 {
		t.Errorf("terms: %+v", all)
	}
}
