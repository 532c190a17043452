package cli

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/period"
)

var calendars = []struct{ expr, cron string }{
	{"minutely", "* * * * *"},
	{"hourly", "0 * * * *"},
	{"Daily", "0 0 * * *"},
	{"weekly", "0 0 * * 1"},
	{"quarterly", "0 0 1 1,4,7,10 *"},
	{"03:00", "0 3 * * *"},
	{"*-*-* 03:00:00", "0 3 * * *"},
	{"*-*-1,15 4:30", "30 4 1,15 * *"},
	{"12-24 18:00", "0 18 24 12 *"},
	{"Mon..Fri 06:30", "30 6 * * 1,2,3,4,5"},
	{"Sat,Sun *:00", "0 * * * 0,6"},
	{"Fri..Sun 00:00", "0 0 * * 0,5,6"},
	{"Wednesday", "0 0 * * 3"},
	{"*:0/15", "0-59/15 * * * *"},
	{"*:*", "* * * * *"},
	{"*:*:00", "* * * * *"},
	{"*:5/10", "5-59/10 * * * *"},
	{"8..18/2:00", "0 8-18/2 * * *"},
	{"*-*-* 0/6:00", "0 0-23/6 * * *"},
	{"*-1..6-* 00:00", "0 0 * 1-6 *"},
}

func TestCronOf(t *testing.T) {
	for _, c := range calendars {
		got, err := cronOf(strings.Fields(c.expr))
		if err != nil || got != c.cron {
			t.Errorf("%q: %q, %v; want %q", c.expr, got, err, c.cron)
		}
		if _, err := period.Parse("cron:"+got, time.UTC); err != nil {
			t.Errorf("%q: --once-per refuses what was derived: %v", c.expr, err)
		}
	}
	for _, expr := range []string{"", "*:*:0/10", "*:*:30", "2026-*-* 03:00", "Sat..Mon 00:00", "*-*~1", "Fri *-*-13", "*-*-* 25:00", "*-*-* 3", "03:00 04:00", "x", "*:0/0", "*:30..10", "1-2-3-4", "*:*/5", "*-*-*/2", "*:1,*", "*:+5", "03:00:"} {
		if got, err := cronOf(strings.Fields(expr)); err == nil && expr != "" {
			t.Errorf("%q: %q, want an error", expr, got)
		}
	}
}

// systemd's own idea of when an expression comes is cron's.
func TestCalendarsAsSystemdHasThem(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is missing (Debian's systemd)")
	}
	base := time.Date(2026, 11, 29, 21, 17, 3, 0, time.UTC)
	for _, c := range calendars {
		out, err := exec.Command("systemd-analyze", "calendar", "--iterations=20", "--base-time="+base.Format("2006-01-02 15:04:05 UTC"), c.expr+" UTC").Output()
		if err != nil {
			t.Errorf("systemd-analyze calendar %q: %v\n%s", c.expr, err, out)
			continue
		}
		spec, err := period.Parse("cron:"+c.cron, time.UTC)
		if err != nil {
			t.Error(err)
			continue
		}
		at := base
		for line := range strings.Lines(string(out)) {
			_, when, ok := strings.Cut(line, ": ")
			fire, err := time.Parse("Mon 2006-01-02 15:04:05 MST", strings.TrimSpace(when))
			if !ok || err != nil || !strings.Contains(line, "Next elapse") && !strings.Contains(line, "Iteration") && !strings.Contains(line, "(in UTC)") {
				continue
			}
			p := spec.At(at, 0)
			if !fire.Equal(p.End) && !fire.Equal(at) {
				t.Errorf("%q: systemd says %s after %s, cron %s", c.expr, fire, at, p.End)
				break
			}
			at = fire
		}
		if at.Equal(base) {
			t.Errorf("%q: nothing was compared:\n%s", c.expr, out)
		}
	}
}

func TestOncePer(t *testing.T) {
	for _, c := range []struct{ expr, zone, flags, calendar string }{
		{"03:00", "UTC", "--once-per=cron:0 3 * * *", "03:00 UTC"},
		{"03:00", "Europe/Berlin", "--once-per=cron:0 3 * * *|--time-zone=Europe/Berlin", "03:00 Europe/Berlin"},
		{"Mon 03:00 America/New_York", "UTC", "--once-per=cron:0 3 * * 1|--time-zone=America/New_York", "Mon 03:00 America/New_York"},
		{"03:00 UTC", "Europe/Berlin", "--once-per=cron:0 3 * * *", "03:00 UTC"},
		{"Mon", "UTC", "--once-per=cron:0 0 * * 1", "Mon UTC"},
	} {
		flags, calendar, err := oncePer(c.expr, c.zone)
		if got := strings.Join(flags, "|"); err != nil || got != c.flags || calendar != c.calendar {
			t.Errorf("%q in %s: %q, %q, %v", c.expr, c.zone, got, calendar, err)
		}
	}
	for _, c := range []struct{ expr, zone, says string }{
		{"*:*:0/10", "UTC", "no seconds"},
		{"03:00", "", "Europe/Berlin"},
		{" ", "UTC", "empty"},
		{"03:00 Local", "UTC", "isn't understood"},
	} {
		if _, _, err := oncePer(c.expr, c.zone); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q in %q: %v", c.expr, c.zone, err)
		}
	}
}
