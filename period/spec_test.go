package period

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, test := range []struct{ text, zone, want string }{
		{"1h", "UTC", "1h UTC"},
		{"60m", "UTC", "1h UTC"},
		{"1h30m", "UTC", "1h30m UTC"},
		{"90s", "UTC", "1m30s UTC"},
		{"24h", "Europe/Berlin", "1d Europe/Berlin"},
		{"7d", "Europe/Berlin", "1w Europe/Berlin"},
		{"9d", "Europe/Berlin", "9d Europe/Berlin"},
		{"2w", "Asia/Kathmandu", "2w Asia/Kathmandu"},
		{"7h", "Europe/Berlin", "7h UTC"},
		{"36h", "Europe/Berlin", "1d12h UTC"},
		{"36500d", "UTC", "36500d UTC"},
		{"cron:15 2 * * *", "UTC", "cron:15 2 * * * UTC"},
		{"cron:  15\t2 *  * mon-Fri ", "Europe/Berlin", "cron:15 2 * * MON-FRI Europe/Berlin"},
		{"cron:@Daily", "UTC", "cron:0 0 * * * UTC"},
		{"cron:0-30/10,45 */2 1,15 jan,JUL 0-7", "UTC", "cron:0-30/10,45 */2 1,15 JAN,JUL 0-7 UTC"},
		{"id:42", "Europe/Berlin", "id"},
		{"id:cron:", "UTC", "id"},
		{"id:" + strings.Repeat("ü", 100), "UTC", "id"},
	} {
		s := mustParse(t, test.text, test.zone)
		if got := s.String(); got != test.want || s.IsZero() {
			t.Errorf("%s in %s: %q, want %q", test.text, test.zone, got, test.want)
		}
	}
	s, err := Parse("1d", nil)
	if err != nil || s.String() != "1d UTC" {
		t.Errorf("without a zone: %v, %v", s, err)
	}
}

// TestParseErrors: each message says what is wrong, why, and what to type.
func TestParseErrors(t *testing.T) {
	for _, test := range []struct{ text, says string }{
		{"", "the period is empty; use e.g. 5m, 1h, 1d, 2w, 'cron:15 2 * * *' or id:2026-11-29"},
		{"0s", `"0s": a period can't be zero; use e.g.`},
		{"0", `"0": a period can't be zero; use e.g.`},
		{"0h0m", "can't be zero"},
		{"-5m", `"-5m": a period can't be negative; use e.g.`},
		{"5", `"5" has no unit: is it minutes or hours? Write 5m or 5h`},
		{"005", `Write 5m or 5h`},
		{"1h30", `"1h30": a number is followed by no unit (w, d, h, m or s)`},
		{"1.5h", "not a whole one"},
		{"500ms", `"500ms": a period is at least 1s, in whole seconds`},
		{"1s500ms", "in whole seconds"},
		{"1month", "write cron:@monthly or cron:@yearly"},
		{"1fortnight", `unknown unit "fortnight" (there are w, d, h, m and s)`},
		{"daily", `"daily" is not a period; use e.g.`},
		{"@daily", "looks like a cron expression; write 'cron:@daily'"},
		{"15 2 * * *", "looks like a cron expression; write 'cron:15 2 * * *'"},
		{"36501d", "at most 36500d (a hundred years)"},
		{"999999999999w", "at most 36500d"},
		{"9999999999999w", `"9999999999999w"`},
		{"300000d300000d", "at most 36500d"},
		{strings.Repeat("9", 10000), "has no unit"},
		{"2026-11-29", "id:2026-11-29"},

		{"id:", "the id is empty (is a variable of the script unset?); write e.g. id:2026-11-29"},
		{"id: ", "the id is empty"},
		{"id:" + strings.Repeat("x", 201), "is 201 bytes long, at most 200 are allowed"},
		{"id:" + strings.Repeat("x", 10240), "is 10240 bytes long, at most 200 are allowed"},
		{"id:a\nb", `the id "a\nb" contains '\n', which can't be printed; leave it out`},
		{"id:a\x00", "can't be printed"},
		{"id:\u202egnp", "can't be printed"},
		{"id:\xff", "isn't UTF-8"},

		{"cron:", "the cron expression is empty; write e.g. 'cron:15 2 * * *' for each day at 02:15"},
		{"cron: ", "the cron expression is empty"},
		{"cron:" + strings.Repeat("1,", 5000) + "1 * * * *", "at most 500 are allowed; write ranges"},
		{"cron:0 0 31 2 *", `"cron:0 0 31 2 *" never fires: no month that it names has such a day`},
		{"cron:0 0 30 2 *", "never fires"},
		{"cron:0 0 31 2,4,6,9,11 */2", "never fires"},
		{"cron:* 2 25-31 3 */7", `never fires in Europe/Berlin: the clock is always put forward over it`},
		{"cron:* * * *", "has 4 of the 5 fields minute, hour, day of month, month, day of week; write e.g."},
		{"cron:0 0 2 * * *", "has 6 fields, and seconds or years aren't known; write the 5 of crontab"},
		{"cron:15 2 * * * root /usr/local/bin/report", "has 7 of the 5 fields"},
		{"cron:@reboot", "there are @hourly, @daily, @weekly, @monthly and @yearly"},
		{"cron:@daily x", "there are @hourly"},
		{"cron:60 * * * *", `"cron:60 * * * *": the minute 60 isn't from 0 to 59`},
		{"cron:0,99 * * * *", "the minute 99 isn't from 0 to 59"},
		{"cron:* 24 * * *", "the hour 24 isn't from 0 to 23"},
		{"cron:* * 0 * *", "the day of month 0 isn't from 1 to 31"},
		{"cron:* * * 13 *", "the month 13 isn't from 1 to 12"},
		{"cron:* * * * 8", "the day of week 8 isn't from 0 to 7"},
		{"cron:* * L * *", `the day of month "L" is not a number, range (1-5), list (1,3) or step (*/5)`},
		{"cron:* * * * MON#1", "is not a number"},
		{"cron:+5 * * * *", "is not a number"},
		{"cron:1,,2 * * * *", `the minute "" is not a number`},
		{"cron:*5 * * * *", `the minute "*5" is not a number`},
		{"cron:*-5 * * * *", `the minute "*" is not a number`},
		{"cron:5/10 * * * *", "has a step but no range; write 5-59/10"},
		{"cron:*/0 * * * *", `the step "0" of the minute must be from 1 to 59`},
		{"cron:*/99999999999999999999 * * * *", "must be from 1 to 59"},
		{"cron:* 22-2 * * *", `the hour range "22-2" ends before it begins; write 22-23,0-2`},
	} {
		zone, err := LoadZone("Europe/Berlin")
		if err != nil {
			t.Fatal(err)
		}
		_, err = Parse(test.text, zone)
		switch {
		case err == nil:
			t.Errorf("%.50q is taken", test.text)
		case !strings.Contains(err.Error(), test.says):
			t.Errorf("%.50q: %v; want %s", test.text, err, test.says)
		case len(err.Error()) > 300 || strings.ContainsAny(err.Error(), "\n\x00"):
			t.Errorf("%.50q: isn't a line: %q", test.text, err)
		}
	}
}

func TestLoadZone(t *testing.T) {
	for name, says := range map[string]string{
		"Europe/Berln": `the time zone "Europe/Berln" isn't known; use a name such as Europe/Berlin`,
		"../etc/x":     "isn't known",
		"/etc/passwd":  "isn't known",
		"Europe":       "isn't known",
		"+02:00":       "isn't known",
		"":             "the time zone is empty; use a name such as",
		"Local":        `the time zone "Local" is another one on each host, and their periods must agree; use a name such as`,
		"localtime":    "is another one on each host",
	} {
		if _, err := LoadZone(name); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v; want %s", name, err, says)
		}
	}
	if _, err := Parse("1d", time.Local); err == nil || !strings.Contains(err.Error(), "another one on each host") {
		t.Errorf("Parse with the host's zone: %v", err)
	}
	for _, name := range zones {
		if zone, err := LoadZone(name); err != nil || zone.String() != name {
			t.Errorf("%s: %v, %v", name, zone, err)
		}
	}
}

// TestFitsClock: in a zone that isn't the scheduler's, fires share a period.
func TestFitsClock(t *testing.T) {
	now := instant(t, "2026-11-29T12:00:00Z")
	for _, test := range []struct {
		spec, zone, host string
		fits             bool
	}{
		{"1d", "UTC", "UTC", true},
		{"1d", "UTC", "Europe/London", false},
		{"1d", "Europe/London", "UTC", false},
		{"1d", "Europe/London", "Europe/London", true},
		{"1d", "UTC", "Asia/Tokyo", true},
		{"1d", "Europe/Berlin", "Europe/Paris", true},
		{"1d", "Europe/Berlin", "America/New_York", false},
		{"6h", "UTC", "Europe/Berlin", false},
		{"1h", "UTC", "Europe/Berlin", true},
		{"5m", "UTC", "Asia/Kathmandu", true},
		{"7h", "UTC", "Europe/Berlin", true},
		{"36h", "UTC", "Europe/Berlin", true},
		{"2w", "UTC", "Europe/Berlin", false},
		{"id:x", "UTC", "Europe/Berlin", true},
		{"cron:0 9-17 * * *", "UTC", "Asia/Tokyo", false},
		{"cron:0 9-17 * * *", "Asia/Tokyo", "Asia/Tokyo", true},
		{"cron:15 * * * *", "UTC", "Europe/Berlin", false},
		{"cron:15 2 * * *", "Europe/Berlin", "Europe/Rome", true},
	} {
		host, err := LoadZone(test.host)
		if err != nil {
			t.Fatal(err)
		}
		if got := mustParse(t, test.spec, test.zone).FitsClock(host, now); got != test.fits {
			t.Errorf("%s in %s, host in %s: %v", test.spec, test.zone, test.host, got)
		}
	}
	// Why it matters: two days at 00:30 in London, around the change to summer time.
	a, b := instant(t, "2026-03-29T00:30:00+00:00"), instant(t, "2026-03-30T00:30:00+01:00")
	if utc := mustParse(t, "1d", "UTC"); utc.At(a, 0) != utc.At(b, 0) {
		t.Error("in UTC both have a period of their own")
	}
	if london := mustParse(t, "1d", "Europe/London"); london.At(a, 0) == london.At(b, 0) {
		t.Error("in their own zone they share a period")
	}
}

// FuzzParse: whatever is typed is refused or has periods, and its String means the same.
func FuzzParse(f *testing.F) {
	for i, text := range append(specs, "", "5", "id:x", "cron:0 0 30 2 *", "cron:0 0 29 2 1", "cron:* 2 25-31 3 */7", "cron:*/7,5 1-3/2 29 2 */7", "1h30m", "-5m") {
		f.Add(text, uint8(i), int64(1774749600+i*86400))
	}
	f.Fuzz(func(t *testing.T, text string, zone uint8, unix int64) {
		loc, err := LoadZone(zones[int(zone)%len(zones)])
		if err != nil {
			t.Fatal(err)
		}
		s, err := Parse(text, loc)
		if err != nil {
			if !s.IsZero() {
				t.Errorf("%v and %v", s, err)
			}
			return
		}
		now := time.Unix(unix%(1<<36), 0) // from before the year 0 to 4147
		p := s.At(now, 0)
		if s.String() == "id" {
			if "id:"+p.ID != text {
				t.Errorf("%q has the id %q", text, p.ID)
			}
			return
		}
		if now.Before(p.Start) || !now.Before(p.End) || s.DefaultTolerance(now) <= 0 {
			t.Errorf("%s: %v is in %+v", s, now, p)
		}
		if next := s.At(p.End, 0); !next.Start.Equal(p.End) {
			t.Errorf("%s: %+v doesn't follow %+v", s, next, p)
		}
		again, err := Parse(strings.TrimSuffix(s.String(), " "+s.zone.String()), loc)
		if err != nil || again.String() != s.String() || again.At(now, 0) != p {
			t.Errorf("%q is %q, and that is %q, %v", text, s, again, err)
		}
	})
}

// BenchmarkAt: the dearest ones look 40 years far.
func BenchmarkAt(b *testing.B) {
	now := time.Date(2027, 3, 28, 12, 0, 0, 0, time.UTC)
	for _, text := range []string{"1h", "1d", "cron:15 2 * * *", "cron:*/5 * * * *", "cron:0 0 29 2 *", "cron:0 0 29 2 */7", "cron:* 12 29 2 */7"} {
		b.Run(text, func(b *testing.B) {
			s := mustParse(b, text, "Europe/Berlin")
			for b.Loop() {
				s.At(now, 0)
			}
		})
	}
}

// BenchmarkParse: the dearest ones look for a fire in vain.
func BenchmarkParse(b *testing.B) {
	zone, err := LoadZone("Europe/Berlin")
	if err != nil {
		b.Fatal(err)
	}
	for _, text := range []string{"1h", "cron:15 2 * * *", "cron:0 0 30 2 *", "cron:0 0 29 2 */7", "cron:* 2 25-31 3 */7"} {
		b.Run(text, func(b *testing.B) {
			for b.Loop() {
				_, _ = Parse(text, zone)
			}
		})
	}
}
