package period

import (
	"errors"
	"fmt"
	"time"
	_ "time/tzdata" // for containers, which often have no /usr/share/zoneinfo; 0.4 MiB
)

const zoneExamples = "use a name such as Europe/Berlin, America/New_York or UTC (timedatectl list-timezones prints them)"

// LoadZone returns the time zone of a name of the IANA database, such as Europe/Berlin.
// The host's own database is used if there is one, else the one in the binary.
func LoadZone(name string) (*time.Location, error) {
	if err := checkZone(name); err != nil {
		return nil, err
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("the time zone %q isn't known; %s", short(name), zoneExamples)
	}
	return zone, nil
}

// checkZone refuses the host's own zone. Debian has it as localtime among the others.
func checkZone(name string) error {
	switch name {
	case "":
		return errors.New("the time zone is empty; " + zoneExamples)
	case "Local", "localtime":
		return fmt.Errorf("the time zone %q is another one on each host, and their periods must agree; %s", name, zoneExamples)
	}
	return nil
}

// wall returns what the clock of the zone shows at t.
func (s Spec) wall(t time.Time) time.Time {
	return t.UTC().Add(time.Duration(s.offset(t)) * time.Second)
}

// offset returns the seconds by which the clock is ahead of UTC at t.
func (s Spec) offset(t time.Time) int {
	_, offset := t.In(s.zone).Zone()
	return offset
}

// FitsClock reports whether each fire of a scheduler that goes by the clock of host (as cron
// and systemd timers do, by the host's own zone) has a period of its own. If not, the zone of
// s is the wrong one, and runs get lost: at 00:30 in London, 1d in UTC makes one period of the
// fires before and after the change to summer time. It looks a year ahead of now.
//
// Cron expressions need a clock that shows the same. For durations the difference may be any
// that stays; for those of up to an hour, and those in UTC by necessity, nothing matters.
func (s Spec) FitsClock(host *time.Location, now time.Time) bool {
	length, isGrid := s.rule.(grid)
	anyZone := isGrid && (s.again || day%(time.Duration(length)*time.Second) != 0 && time.Duration(length)*time.Second%day != 0)
	if s.rule == nil || anyZone {
		return true
	}
	clock := Spec{zone: host}
	difference := 0
	if isGrid {
		difference = clock.offset(now) - s.offset(now)
	}
	for range 366 {
		if clock.offset(now)-s.offset(now) != difference {
			return false
		}
		now = now.Add(day)
	}
	return true
}

// maxPutBack is more than a clock was ever put back: a day, where a country changed to the
// other side of the date line. It is also more than any offset.
const maxPutBack = 48 * time.Hour

// highest returns the greatest reading of the clock up to t: a clock that was put back
// seems to stand until it shows more than it did.
func (s Spec) highest(t time.Time) time.Time {
	high, floor := s.wall(t), t.Add(-maxPutBack)
	for {
		change, ok := s.lastChange(floor, t)
		if !ok {
			return high
		}
		t = change.Add(-1)
		if w := s.wall(t); w.After(high) {
			high = w
		}
	}
}

// reached returns the first instant at which the clock shows w or more: the first of two,
// or the end of a gap that w is in.
func (s Spec) reached(w time.Time) time.Time {
	t, ceiling := w.Add(-maxPutBack), w.Add(maxPutBack) // the clock shows less than w at t, and more at ceiling
	for {
		shown := s.wall(t)
		if !shown.Before(w) {
			return t
		}
		at := t.Add(w.Sub(shown))
		change, ok := s.firstChange(t, ceiling)
		if !ok || at.Before(change) {
			return at
		}
		t = change
	}
}

// step is less than there ever was between two changes of a clock.
const step = 3 * time.Hour

// firstChange returns the first instant after t, up to ceiling, from which on the clock has
// another offset. [time.Time.ZoneBounds] isn't up to it: with Go 1.26, on the last day of a
// leap year it returns an end that isn't after t.
func (s Spec) firstChange(t, ceiling time.Time) (time.Time, bool) {
	for t.Before(ceiling) {
		next := t.Add(step)
		if next.After(ceiling) {
			next = ceiling
		}
		if s.offset(t) != s.offset(next) {
			return s.change(t, next), true
		}
		t = next
	}
	return time.Time{}, false
}

// lastChange returns the last such instant after floor, up to t.
func (s Spec) lastChange(floor, t time.Time) (time.Time, bool) {
	for t.After(floor) {
		prior := t.Add(-step)
		if prior.Before(floor) {
			prior = floor
		}
		if s.offset(prior) != s.offset(t) {
			return s.change(prior, t), true
		}
		t = prior
	}
	return time.Time{}, false
}

// change returns the instant between from (exclusive) and to at which the offset becomes
// that of to. Clocks are changed at whole seconds.
func (s Spec) change(from, to time.Time) time.Time {
	before, until := from.Unix(), to.Unix()
	for until-before > 1 {
		middle := before + (until-before)/2
		if s.offset(time.Unix(middle, 0)) == s.offset(to) {
			until = middle
		} else {
			before = middle
		}
	}
	return time.Unix(until, 0).UTC()
}
