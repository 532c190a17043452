package period

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func instant(t testing.TB, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at.UTC()
}

func mustParse(t testing.TB, text, zone string) Spec {
	t.Helper()
	loc, err := LoadZone(zone)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(text, loc)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestStarts: the beginnings of successive periods around the days on which people go wrong.
// Each is given in local time; the last one is the end of the one before.
func TestStarts(t *testing.T) {
	for _, test := range []struct {
		why, spec, zone string
		starts          []string
	}{
		{"UTC", "1h", "UTC", []string{"2026-11-28T23:00:00Z", "2026-11-29T00:00:00Z", "2026-11-29T01:00:00Z"}},
		{"full five minutes", "5m", "UTC", []string{"2026-11-29T23:55:00Z", "2026-11-30T00:00:00Z", "2026-11-30T00:05:00Z"}},
		{"month end", "1d", "UTC", []string{"2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z"}},
		{"leap day", "1d", "UTC", []string{"2028-02-28T00:00:00Z", "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z"}},
		{"no leap day in 2100", "1d", "UTC", []string{"2100-02-28T00:00:00Z", "2100-03-01T00:00:00Z"}},
		{"weeks begin on Mondays", "1w", "UTC", []string{"2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"}},
		{"7d are a week", "7d", "UTC", []string{"2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"}},
		{"fortnights from 1970-01-05", "2w", "UTC", []string{"1970-01-05T00:00:00Z", "1970-01-19T00:00:00Z"}},
		{"fortnights now", "2w", "UTC", []string{"2026-11-23T00:00:00Z", "2026-12-07T00:00:00Z"}},
		{"before 1970", "2w", "UTC", []string{"1969-12-22T00:00:00Z", "1970-01-05T00:00:00Z"}},
		{"seven hours are UTC everywhere", "7h", "Europe/Berlin", []string{"1970-01-05T00:00:00Z", "1970-01-05T07:00:00Z"}},
		{"90m divide a day", "90m", "Europe/Berlin", []string{"2026-11-29T00:00:00+01:00", "2026-11-29T01:30:00+01:00"}},

		{"a day of 23 hours", "1d", "Europe/Berlin", []string{"2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"}},
		{"a day of 25 hours", "1d", "Europe/Berlin", []string{"2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"}},
		{"a day of 23 hours", "1d", "America/New_York", []string{"2026-03-08T00:00:00-05:00", "2026-03-09T00:00:00-04:00"}},
		{"a day of 25 hours", "1d", "America/New_York", []string{"2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"}},
		{"a week with a change", "1w", "Europe/Berlin", []string{"2026-10-19T00:00:00+02:00", "2026-10-26T00:00:00+01:00"}},
		{"midnight doesn't exist", "1d", "America/Havana", []string{"2026-03-07T00:00:00-05:00", "2026-03-08T01:00:00-04:00", "2026-03-09T00:00:00-04:00"}},
		{"midnight exists twice", "1d", "America/Havana", []string{"2026-10-31T00:00:00-04:00", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"}},
		{"midnight doesn't exist", "1d", "Africa/Cairo", []string{"2026-04-23T00:00:00+02:00", "2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00"}},
		{"put back at midnight", "1d", "Africa/Cairo", []string{"2026-10-29T00:00:00+03:00", "2026-10-30T00:00:00+02:00"}},
		{"the day that Samoa left out", "1d", "Pacific/Apia", []string{"2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"}},
		{"45 minutes", "1d", "Asia/Kathmandu", []string{"2028-02-29T00:00:00+05:45", "2028-03-01T00:00:00+05:45"}},
		{"45 minutes", "1h", "Asia/Kathmandu", []string{"2026-11-28T18:15:00Z", "2026-11-28T19:15:00Z"}},
		{"45 minutes, put forward at 02:45", "1h", "Pacific/Chatham", []string{"2026-09-27T02:00:00+12:45", "2026-09-27T04:00:00+13:45", "2026-09-27T05:00:00+13:45"}},
		{"45 minutes, put back at 03:45", "1h", "Pacific/Chatham", []string{"2026-04-05T02:00:00+13:45", "2026-04-05T03:00:00+13:45", "2026-04-05T03:00:00+12:45", "2026-04-05T04:00:00+12:45"}},
		{"45 minutes and a day of 25 hours", "1d", "Pacific/Chatham", []string{"2026-04-05T00:00:00+13:45", "2026-04-06T00:00:00+12:45"}},

		{"each hour of a day of 25 counts", "1h", "Europe/Berlin", []string{"2026-10-25T01:00:00+02:00", "2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"}},
		{"the hour that doesn't exist", "1h", "Europe/Berlin", []string{"2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"}},
		{"the half hours of both", "30m", "Europe/Berlin", []string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T02:30:00+01:00"}},
		{"a change by half an hour", "1h", "Australia/Lord_Howe", []string{"2026-04-05T01:00:00+11:00", "2026-04-05T02:00:00+10:30", "2026-04-05T03:00:00+10:30"}},
		{"twelve of two hours each day", "2h", "Europe/Berlin", []string{"2026-10-25T00:00:00+02:00", "2026-10-25T02:00:00+02:00", "2026-10-25T04:00:00+01:00"}},
		{"twelve of two hours each day", "2h", "Europe/Berlin", []string{"2026-03-29T00:00:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"}},
		{"a quarter of a day", "6h", "Europe/Berlin", []string{"2026-10-24T18:00:00+02:00", "2026-10-25T00:00:00+02:00", "2026-10-25T06:00:00+01:00", "2026-10-25T12:00:00+01:00"}},
		{"a quarter of a day", "6h", "America/New_York", []string{"2026-03-08T00:00:00-05:00", "2026-03-08T06:00:00-04:00", "2026-03-08T12:00:00-04:00"}},

		{"cron, a fixed time", "cron:15 2 * * *", "UTC", []string{"2028-02-29T02:15:00Z", "2028-03-01T02:15:00Z"}},
		{"cron, in the skipped hour: after it", "cron:15 2 * * *", "Europe/Berlin", []string{"2026-03-28T02:15:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:15:00+02:00"}},
		{"cron, in the doubled hour: the first", "cron:15 2 * * *", "Europe/Berlin", []string{"2026-10-24T02:15:00+02:00", "2026-10-25T02:15:00+02:00", "2026-10-26T02:15:00+01:00"}},
		{"cron, in the skipped hour: after it", "cron:30 2 * * *", "America/New_York", []string{"2026-03-07T02:30:00-05:00", "2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"}},
		{"cron, in the doubled hour: the first", "cron:30 1 * * *", "America/New_York", []string{"2026-10-31T01:30:00-04:00", "2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"}},
		{"cron, two in the skipped hour are one", "cron:10,40 2 * * *", "Europe/Berlin", []string{"2026-03-28T02:40:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:10:00+02:00"}},
		{"cron, each hour of a day of 25", "cron:15 * * * *", "Europe/Berlin", []string{"2026-10-25T02:15:00+02:00", "2026-10-25T02:15:00+01:00", "2026-10-25T03:15:00+01:00"}},
		{"cron, each hour of a day of 23", "cron:15 * * * *", "Europe/Berlin", []string{"2026-03-29T01:15:00+01:00", "2026-03-29T03:15:00+02:00"}},
		{"cron, @hourly", "cron:@hourly", "Europe/Berlin", []string{"2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"}},
		{"cron, @daily without midnight", "cron:@daily", "America/Havana", []string{"2026-03-07T00:00:00-05:00", "2026-03-08T01:00:00-04:00", "2026-03-09T00:00:00-04:00"}},
		{"cron, 45 minutes", "cron:0 3 * * *", "Pacific/Chatham", []string{"2026-09-26T03:00:00+12:45", "2026-09-27T03:45:00+13:45", "2026-09-28T03:00:00+13:45"}},
		{"cron, working days", "cron:0 8 * * MON-FRI", "UTC", []string{"2026-11-27T08:00:00Z", "2026-11-30T08:00:00Z"}},
		{"cron, day of month or of week", "cron:0 0 1 * mon", "UTC", []string{"2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z", "2026-12-07T00:00:00Z"}},
		{"cron, '*' in one of them: both", "cron:0 0 1-7 * */7", "UTC", []string{"2026-11-01T00:00:00Z", "2026-12-06T00:00:00Z"}},
		{"cron, Sunday is 7", "cron:0 0 * * 5-7", "UTC", []string{"2026-11-28T00:00:00Z", "2026-11-29T00:00:00Z", "2026-12-04T00:00:00Z"}},
		{"cron, the leap day", "cron:0 0 29 2 *", "UTC", []string{"2096-02-29T00:00:00Z", "2104-02-29T00:00:00Z"}},
		{"cron, a leap day on a Sunday", "cron:0 0 29 2 */7", "UTC", []string{"2004-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
		{"cron, the same over 40 years", "cron:0 0 29 2 */7", "UTC", []string{"2088-02-29T00:00:00Z", "2128-02-29T00:00:00Z"}},
		{"cron, by the clock over 28 years", "cron:*/30 23 29 2 */7", "Europe/Berlin", []string{"2004-02-29T23:30:00+01:00", "2032-02-29T23:00:00+01:00"}},
		{"cron, only in a skipped hour: after it", "cron:30 2 25-31 3 */7", "Europe/Berlin", []string{"2026-03-29T03:00:00+02:00", "2027-03-28T03:00:00+02:00"}},
	} {
		t.Run(test.spec+" "+test.zone+" "+test.why, func(t *testing.T) {
			s := mustParse(t, test.spec, test.zone)
			for i, from := range test.starts[:len(test.starts)-1] {
				start, end := instant(t, from), instant(t, test.starts[i+1])
				want := Period{ID: start.Format(time.RFC3339), Start: start, End: end, Spec: s.String()}
				for _, now := range []time.Time{start, start.Add(end.Sub(start) / 2), end.Add(-1)} {
					if got := s.At(now, 0); got != want {
						t.Errorf("at %v: %+v, want %+v", now.In(s.zone), got, want)
					}
				}
			}
		})
	}
}

// TestSkew: each host's own clock is what counts. Three clocks that are 5 s late, right and
// 5 s early make one period of a fire, whether they fire by themselves or all at one
// instant; and so does whatever fires up to the tolerance early.
func TestSkew(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct{ spec, zone, fire string }{
		{"1h", "UTC", "2026-11-29T00:00:00Z"},
		{"1d", "UTC", "2026-12-01T00:00:00Z"},
		{"1d", "UTC", "2028-02-29T00:00:00Z"},
		{"1d", "UTC", "2028-03-01T00:00:00Z"},
		{"5m", "UTC", "2028-02-29T00:00:00Z"},
		{"1w", "UTC", "2026-11-30T00:00:00Z"},
		{"1d", "Europe/Berlin", "2026-03-29T00:00:00+01:00"},
		{"1d", "Europe/Berlin", "2026-10-26T00:00:00+01:00"},
		{"1h", "Europe/Berlin", "2026-03-29T03:00:00+02:00"},
		{"1h", "Europe/Berlin", "2026-10-25T02:00:00+02:00"},
		{"1h", "Europe/Berlin", "2026-10-25T02:00:00+01:00"},
		{"1h", "America/New_York", "2026-03-08T03:00:00-04:00"},
		{"1h", "America/New_York", "2026-11-01T01:00:00-05:00"},
		{"1d", "America/New_York", "2026-11-02T00:00:00-05:00"},
		{"1d", "Asia/Kathmandu", "2028-02-29T00:00:00+05:45"},
		{"5m", "Asia/Kathmandu", "2026-12-01T00:00:00+05:45"},
		{"1h", "Pacific/Chatham", "2026-04-05T03:00:00+12:45"},
		{"1d", "Pacific/Chatham", "2026-09-27T00:00:00+12:45"},
		{"cron:15 2 * * *", "Europe/Berlin", "2026-03-29T03:00:00+02:00"},
		{"cron:15 2 * * *", "Europe/Berlin", "2026-10-25T02:15:00+02:00"},
		{"cron:30 1 * * *", "America/New_York", "2026-11-01T01:30:00-04:00"},
		{"cron:59 23 28-31 * *", "UTC", "2026-11-30T23:59:00Z"},
		{"cron:0 0 29 2 *", "UTC", "2028-02-29T00:00:00Z"},
	} {
		t.Run(test.spec+" "+test.zone+" "+test.fire, func(t *testing.T) {
			s, fire := mustParse(t, test.spec, test.zone), instant(t, test.fire)
			tolerance := s.DefaultTolerance(fire)
			if tolerance != 10*time.Second {
				t.Fatalf("the tolerance is %v", tolerance)
			}
			want := s.At(fire, 0)
			if !want.Start.Equal(fire) {
				t.Fatalf("%v isn't a start: %+v", fire, want)
			}
			for _, clock := range []time.Duration{ // what a host's clock shows, less the fire
				-10 * time.Second, -5 * time.Second, -time.Second, -ms, 0, ms, time.Second, 5 * time.Second,
				want.End.Sub(fire) - tolerance - ms,
			} {
				if got := s.At(fire.Add(clock), tolerance); got != want {
					t.Errorf("%v off: %+v, want %+v", clock, got, want)
				}
			}
			if got := s.At(fire.Add(-10*time.Second-ms), tolerance); got.ID == want.ID || !got.End.Equal(fire) {
				t.Errorf("too early, but %+v", got)
			}
			if got := s.At(want.End.Add(-tolerance), tolerance); got.ID == want.ID || !got.Start.Equal(want.End) {
				t.Errorf("a fire of the next, but %+v", got)
			}
		})
	}
}

func TestDefaultTolerance(t *testing.T) {
	now := instant(t, "2026-11-29T12:00:00Z")
	for text, want := range map[string]time.Duration{
		"1s": 250 * time.Millisecond, "20s": 5 * time.Second, "40s": 10 * time.Second, "1m": 10 * time.Second,
		"2w": 10 * time.Second, "cron:* * * * *": 10 * time.Second, "id:x": 0,
	} {
		if got := mustParse(t, text, "UTC").DefaultTolerance(now); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	s := mustParse(t, "1h", "UTC")
	if got, want := s.At(now, -time.Hour), s.At(now, 0); got != want {
		t.Errorf("a negative tolerance: %+v, want %+v", got, want)
	}
}

func TestID(t *testing.T) {
	want := Period{ID: "2026-11-29 Kunde Müller", Spec: "id"}
	if got := mustParse(t, "id:2026-11-29 Kunde Müller", "UTC").At(time.Now(), time.Second); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

var (
	zones = []string{
		"UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Chatham", "America/Havana", "Africa/Cairo",
		"Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca", "Europe/Dublin", "America/St_Johns", "Asia/Tehran",
		"America/Sao_Paulo", "Antarctica/Troll", "America/Scoresbysund",
	}
	specs = []string{
		"1s", "90s", "5m", "7m", "30m", "40m", "1h", "90m", "2h", "3h", "6h", "7h", "12h", "1d", "36h", "3d", "1w", "2w",
		"cron:* * * * *", "cron:*/5 * * * *", "cron:15 * * * *", "cron:15 2 * * *", "cron:0 0 * * *", "cron:0 */2 * * *",
		"cron:30 0-3 * * *", "cron:10,40 2 * * *", "cron:* 2 * * *", "cron:*/20 1,2 * * SUN", "cron:0 0 1 * *",
		"cron:59 23 28-31 * *", "cron:0 0 29 2 *", "cron:5 4 13 * FRI", "cron:0 12 */10 * 1", "cron:@yearly",
	}
)

// TestOneByOne holds the calendars and the change of clocks against a second way to find a
// beginning: to look at each minute in turn, around each change of the clock in some years.
func TestOneByOne(t *testing.T) {
	for _, zone := range zones {
		t.Run(zone, func(t *testing.T) {
			around := changes(t, zone, 2026, 2027)
			if zone == "Pacific/Apia" { // left out a day
				around = append(around, changes(t, zone, 2010, 2012)...)
			}
			// Leap days, and the last day of a leap year: see firstChange.
			around = append(around, instant(t, "2028-02-29T00:00:00Z"), instant(t, "2040-12-31T12:00:00Z"))
			for _, change := range around {
				oneByOne(t, zone, change)
			}
		})
	}
}

func changes(t *testing.T, zone string, from, until int) (at []time.Time) {
	loc, err := LoadZone(zone)
	if err != nil {
		t.Fatal(err)
	}
	s := Spec{zone: loc}
	end := time.Date(until, 1, 1, 0, 0, 0, 0, time.UTC)
	now := time.Date(from, 1, 1, 0, 0, 0, 0, time.UTC)
	at = append(at, now.AddDate(0, 2, -2), now)
	for ; now.Before(end); now = now.Add(15 * time.Minute) {
		if s.offset(now) != s.offset(now.Add(-15*time.Minute)) {
			at = append(at, now)
		}
	}
	return at
}

func oneByOne(t *testing.T, zone string, change time.Time) {
	const around = 30 * time.Hour
	from := change.Add(-around).Truncate(time.Minute)
	shown := make([]time.Time, 2*around/time.Minute)
	clock := mustParse(t, "1h", zone)
	for i := range shown {
		shown[i] = clock.wall(from.Add(time.Duration(i) * time.Minute))
	}
	for _, text := range specs {
		if text == "1s" || text == "90s" { // within a minute
			continue
		}
		s := mustParse(t, text, zone)
		w := shown
		if s.zone == time.UTC {
			w = nil
			for i := range shown {
				w = append(w, from.Add(time.Duration(i)*time.Minute))
			}
		}
		var starts []time.Time
		for _, i := range beginnings(s, w) {
			starts = append(starts, from.Add(time.Duration(i)*time.Minute))
		}
		for i := 0; i+1 < len(starts); i++ {
			start, end := starts[i], starts[i+1]
			if len(starts) > 200 && start.Sub(change).Abs() > 3*time.Hour {
				continue // each minute or five of three days: near the change is enough
			}
			for _, now := range []time.Time{start, start.Add(30 * time.Second), end.Add(-1)} {
				if p := s.At(now, 0); !p.Start.Equal(start) || !p.End.Equal(end) {
					t.Errorf("%s at %v: from %v to %v, want from %v to %v", s, now.In(s.zone), p.Start.In(s.zone), p.End.In(s.zone), start.In(s.zone), end.In(s.zone))
					return
				}
			}
		}
		if p := s.At(from, 0); len(starts) == 0 && p.End.Before(from.Add(2*around)) {
			t.Errorf("%s at %v: to %v, want none", s, from, p.End)
		}
	}
}

// beginnings returns the minutes that begin a period, of a clock that shows w.
func beginnings(s Spec, w []time.Time) (minutes []int) {
	high := w[0]
	for i, shown := range w[1:] {
		if s.again && begins(s.rule, shown) {
			minutes = append(minutes, i+1)
		}
		if !shown.After(high) {
			continue
		}
		for r := high.Add(time.Minute); !s.again && !r.After(shown); r = r.Add(time.Minute) {
			if begins(s.rule, r) {
				minutes = append(minutes, i+1)
				break
			}
		}
		high = shown
	}
	return minutes
}

// begins is what the calendars mean, one minute of the clock at a time.
func begins(rule calendar, w time.Time) bool {
	has := func(set uint64, n int) bool { return set&(1<<n) != 0 }
	switch rule := rule.(type) {
	case grid:
		monday := time.Date(1970, 1, 5, 0, 0, 0, 0, time.UTC)
		return w.Sub(monday)%(time.Duration(rule)*time.Second) == 0
	case cron:
		month, week := has(rule.days, w.Day()), has(rule.weekdays, int(w.Weekday()))
		return has(rule.minutes, w.Minute()) && has(rule.hours, w.Hour()) && has(rule.months, int(w.Month())) &&
			(month && week || !rule.both && (month || week))
	}
	panic("no calendar")
}

// TestPeriodsTile: periods follow each other without gap or overlap, and the period of an
// instant contains it.
func TestPeriodsTile(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 1))
	first, last := instant(t, "1990-01-01T00:00:00Z"), instant(t, "2060-01-01T00:00:00Z")
	all := map[string][]time.Time{}
	for _, zone := range zones {
		all[zone] = changes(t, zone, 1990, 2060)
	}
	for range 20000 {
		zone := zones[random.IntN(len(zones))]
		s := mustParse(t, specs[random.IntN(len(specs))], zone)
		now := first.Add(time.Duration(random.Int64N(int64(last.Sub(first)))))
		if random.IntN(2) == 0 { // near a change
			now = all[zone][random.IntN(len(all[zone]))].Add(time.Duration(random.Int64N(int64(6*time.Hour))) - 3*time.Hour)
		}
		tolerance := time.Duration(random.Int64N(int64(s.DefaultTolerance(now)) + 1))
		p := s.At(now, tolerance)
		at := now.Add(tolerance)
		if at.Before(p.Start) || !at.Before(p.End) {
			t.Fatalf("%s: %v is in %+v", s, at, p)
		}
		if p.Start.Nanosecond() != 0 || p.ID != p.Start.Format(time.RFC3339) {
			t.Fatalf("%s at %v: %+v isn't in whole seconds", s, now, p)
		}
		if got := s.At(p.Start, 0); got != p {
			t.Fatalf("%s: the period of its start is %+v, not %+v", s, got, p)
		}
		if got := s.At(p.End.Add(-1), 0); got != p {
			t.Fatalf("%s: the period of its last instant is %+v, not %+v", s, got, p)
		}
		if got := s.At(p.End, 0); !got.Start.Equal(p.End) {
			t.Fatalf("%s: %+v doesn't follow %+v", s, got, p)
		}
		if got := s.At(p.Start.Add(-1), 0); !got.End.Equal(p.Start) {
			t.Fatalf("%s: %+v doesn't come before %+v", s, got, p)
		}
		if got := s.At(now.In(s.zone), tolerance); got != p {
			t.Fatalf("%s: in another zone's notation %v is in %+v, not %+v", s, now, got, p)
		}
		if later := s.At(now.Add(time.Duration(random.Int64N(int64(time.Hour)))), tolerance); later.Start.Before(p.Start) {
			t.Fatalf("%s: time went on from %+v to %+v", s, p, later)
		}
	}
}

// TestHostsAgree: hosts whose clocks differ start the job when their own clock says so, a
// little early or late, and have the same period.
func TestHostsAgree(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 2))
	base := instant(t, "2026-03-01T00:00:00Z")
	for range 5000 {
		s := mustParse(t, specs[random.IntN(len(specs))], zones[random.IntN(len(zones))])
		fire := s.At(base.Add(time.Duration(random.Int64N(int64(365*day)))), 0)
		tolerance := s.DefaultTolerance(fire.Start.Add(-1))
		tolerance = min(tolerance, s.DefaultTolerance(fire.Start))
		for range 3 {
			// What this host's clock shows when the job starts there.
			off := time.Duration(random.Int64N(int64(fire.End.Sub(fire.Start)))) - tolerance
			if got := s.At(fire.Start.Add(off), tolerance); got != fire {
				t.Fatalf("%s, %v off: %+v, want %+v", s, off, got, fire)
			}
		}
	}
}

func TestSplay(t *testing.T) {
	const most = 30 * time.Second
	a := Splay("web-1", "2026-11-29T03:00:00Z", most)
	if b := Splay("web-1", "2026-11-29T03:00:00Z", most); a != b {
		t.Errorf("%v, then %v", a, b)
	}
	if Splay("web-2", "2026-11-29T03:00:00Z", most) == a || Splay("web-1", "2026-11-29T04:00:00Z", most) == a {
		t.Error("two hosts or periods have the same")
	}
	for _, none := range []time.Duration{0, -time.Second} {
		if d := Splay("web-1", "x", none); d != 0 {
			t.Errorf("of %v: %v", none, d)
		}
	}
	if d := Splay("web-1", "x", 1); d != 0 {
		t.Errorf("of 1 ns: %v", d)
	}
	tenths := make([]int, 10)
	s := mustParse(t, "1h", "UTC")
	for i := range 10000 {
		d := Splay("web-1", s.At(time.Unix(int64(i)*3600, 0), 0).ID, most)
		if d < 0 || d >= most {
			t.Fatalf("%v isn't below %v", d, most)
		}
		tenths[d*10/most]++
	}
	// Of 10000 evenly spread ones, a tenth has 1000 with a standard deviation of 30.
	if slices.Min(tenths) < 880 || slices.Max(tenths) > 1120 {
		t.Errorf("not evenly spread: %v", tenths)
	}
}
