package period

import "time"

// maxTolerance is the most that a fire may come early without being asked: schedulers and
// clocks that are kept by NTP stay far below it.
const maxTolerance = 10 * time.Second

// A Period is one of those that a [Spec] makes of time.
type Period struct {
	// ID is the start in RFC 3339 and UTC, or the caller's own id.
	ID string
	// Start, and End, which is the next one's Start. Both are in UTC, in whole seconds,
	// and zero for an id.
	Start, End time.Time
	// Spec is [Spec.String]: hosts that find another one in Consul disagree.
	Spec string
}

// At returns the period that now belongs to: the one of now + tolerance, because a fire
// that comes a little early belongs to the period that is about to begin. A negative
// tolerance is zero. One that is as long as a period makes no sense: see
// [Spec.DefaultTolerance].
func (s Spec) At(now time.Time, tolerance time.Duration) Period {
	if s.rule == nil {
		return Period{ID: s.id, Spec: s.text}
	}
	t := now.Round(0).Add(max(tolerance, 0))
	start := s.latest(t)
	return Period{ID: start.Format(time.RFC3339), Start: start, End: s.following(t), Spec: s.text}
}

// DefaultTolerance is a quarter of the period that now is in, at most 10 s; zero for an id.
func (s Spec) DefaultTolerance(now time.Time) time.Duration {
	p := s.At(now, 0)
	return min(maxTolerance, p.End.Sub(p.Start)/4)
}

// latest returns the last beginning at or before t.
func (s Spec) latest(t time.Time) time.Time {
	first := s.reached(s.rule.latest(s.highest(t)))
	if s.again {
		return s.latestShown(t, first)
	}
	return first
}

// following returns the first beginning after t.
func (s Spec) following(t time.Time) time.Time {
	first := s.reached(s.rule.following(s.highest(t)))
	if s.again {
		return s.followingShown(t, first)
	}
	return first
}

// maxSkipped bounds how often in a row all that the calendar names is skipped by the clock;
// cronSpec refuses what is skipped for ever.
const maxSkipped = 50

// latestShown is latest for a Spec that goes by what the clock shows: a reading that is
// skipped begins nothing, and one that is shown twice begins two periods.
func (s Spec) latestShown(t, otherwise time.Time) time.Time {
	high := s.highest(t)
	for range maxSkipped {
		w := s.rule.latest(high)
		if w.IsZero() {
			break
		}
		first := s.reached(w)
		if s.wall(first).Equal(w) {
			return s.latestRepeated(first, t)
		}
		high = s.wall(first.Add(-1)) // all the rest up to here was skipped
	}
	return otherwise
}

// latestRepeated returns the last instant up to t at which the clock shows a beginning that
// it has shown before, else first, which is the last one that it shows for the first time.
func (s Spec) latestRepeated(first, t time.Time) time.Time {
	if end := first.Add(maxPutBack); t.After(end) {
		t = end
	}
	for {
		change, ok := s.lastChange(first, t)
		if !ok {
			return first
		}
		shown := s.wall(t)
		if at := t.UTC().Add(s.rule.latest(shown).Sub(shown)); !at.Before(change) {
			return at
		}
		t = change.Add(-1)
	}
}

// followingShown is following as latestShown is latest.
func (s Spec) followingShown(t, otherwise time.Time) time.Time {
	high := s.highest(t)
	for range maxSkipped {
		w := s.rule.following(high)
		if w.IsZero() {
			break
		}
		first := s.reached(w)
		if s.wall(first).Equal(w) {
			return s.followingRepeated(t, first)
		}
		high = s.wall(first).Add(-1) // goes on with what the clock shows after the gap
	}
	return otherwise
}

// followingRepeated returns the first instant after t at which the clock shows a beginning
// again, else first.
func (s Spec) followingRepeated(t, first time.Time) time.Time {
	end := t.Add(maxPutBack)
	if end.After(first) {
		end = first
	}
	from, shown := t, s.wall(t)
	for {
		at := from.UTC().Add(s.rule.following(shown).Sub(shown))
		change, ok := s.firstChange(t, end)
		switch {
		case !ok && !at.Before(end):
			return first
		case !ok || at.Before(change):
			return at
		}
		// The change itself may be a beginning: look from just before it, on the new clock.
		t, from, shown = change, change.Add(-1), s.wall(change).Add(-1)
	}
}
