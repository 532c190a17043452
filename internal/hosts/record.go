//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The log of results: one JSON object a line, in the order in which things happened. Times
// are seconds; in a play they count from the begin of the fault.

// A record is a line of the log: one of its fields is there.
type record struct {
	Run   *runRecord   `json:"run,omitempty"`
	Play  *playRecord  `json:"play,omitempty"`
	Piece *pieceRecord `json:"piece,omitempty"`
}

// A runRecord begins what one start of the rig has written.
type runRecord struct {
	Command  string            `json:"command"`
	Date     string            `json:"date"`
	Consul   string            `json:"consul"` // 1.8 or 1.14
	Versions map[string]string `json:"versions"`
	Bound    float64           `json:"bound"`
	Ridden   float64           `json:"ridden"`
}

// A playRecord is one program in one scripted fault.
type playRecord struct {
	Fault   string         `json:"fault"`
	What    string         `json:"what"`
	Kind    kind           `json:"kind"`
	Program string         `json:"program"`
	To      float64        `json:"to"`   // the end of the fault
	Begin   float64        `json:"from"` // of the record: below 0
	End     float64        `json:"end"`  // of the record
	Terms   []termRecord   `json:"terms"`
	Exits   []exitRecord   `json:"exits,omitempty"`
	Left    int            `json:"left,omitempty"` // processes that had to be killed after an orderly stop
	Verdict *verdictRecord `json:"verdict"`
}

type termRecord struct {
	Host   string       `json:"host"`
	Token  uint64       `json:"token,omitempty"`
	Spans  [][2]float64 `json:"spans"`            // of the command
	Helper [][2]float64 `json:"helper,omitempty"` // of its helper, where it outlived the command
}

type exitRecord struct {
	Host string  `json:"host"`
	At   float64 `json:"at"`
	How  string  `json:"how"`
}

type verdictRecord struct {
	Overlap      float64  `json:"overlap"`
	OverlapAll   float64  `json:"overlap_all"`
	TokenOverlap float64  `json:"token_overlap,omitempty"`
	Still        bool     `json:"still,omitempty"`
	StillAll     bool     `json:"still_all,omitempty"`
	TakeOver     float64  `json:"take_over,omitempty"` // -1: nobody took over
	Idle         float64  `json:"idle"`
	Late         float64  `json:"late,omitempty"`
	Moves        int      `json:"moves"`
	Needless     int      `json:"needless"`
	Survivors    int      `json:"survivors"`
	Tokens       bool     `json:"tokens,omitempty"`
	TokensFell   int      `json:"tokens_fell,omitempty"`
	Broken       []string `json:"broken,omitempty"`
}

// A pieceRecord is one program under random faults.
type pieceRecord struct {
	Seed    uint64         `json:"seed"`
	Consul  string         `json:"consul"`
	Program string         `json:"program"`
	Lasted  float64        `json:"lasted"`
	Faults  []strikeRecord `json:"faults"`
	Terms   int            `json:"terms"`
	Left    int            `json:"left,omitempty"`
	Exits   map[string]int `json:"exits,omitempty"`
	Verdict *verdictRecord `json:"verdict"`
}

// strikeRecord is [name, host, from, to].
type strikeRecord [4]any

// round keeps milliseconds.
func round(d time.Duration) float64 { return math.Round(d.Seconds()*1000) / 1000 }

func (v verdict) record() *verdictRecord {
	r := &verdictRecord{Overlap: round(v.Overlap), OverlapAll: round(v.OverlapAll), TokenOverlap: round(v.TokenOverlap),
		TakeOver: round(v.TakeOver), Still: v.Still, StillAll: v.StillAll, Idle: round(v.Idle), Late: round(v.Late), Moves: v.Moves, Needless: v.Needless, Survivors: v.Survivors,
		Tokens: v.Tokens, TokensFell: v.TokensFell, Broken: v.Broken}
	if v.TakeOver == -1 {
		r.TakeOver = -1
	}
	return r
}

func (t term) record(zero time.Duration) termRecord {
	r := termRecord{Host: t.Host, Token: t.Token, Spans: spanRecords(t.spans, zero)}
	for _, p := range t.procs {
		if p.Helper && p.last() > t.To+maxGap {
			r.Helper = spanRecords([]span{{t.To, p.last()}}, zero)
		}
	}
	return r
}

func spanRecords(spans []span, zero time.Duration) (all [][2]float64) {
	for _, s := range spans {
		all = append(all, [2]float64{round(s.From - zero), round(s.To - zero)})
	}
	return all
}

// appendLog appends records to a log.
func appendLog(name string, records ...record) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	e := json.NewEncoder(f)
	e.SetEscapeHTML(false)
	for _, r := range records {
		if err = e.Encode(r); err != nil {
			break
		}
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	return err
}

func readLog(name string) ([]record, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var all []record
	for line := range strings.Lines(string(b)) {
		var r record
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			return nil, fmt.Errorf("%s: cannot understand %q: %w", name, line, err)
		}
		all = append(all, r)
	}
	return all, nil
}
