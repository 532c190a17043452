package cli

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	for _, test := range []struct {
		in     string
		want   time.Duration
		prints string
	}{
		{"0", 0, "0s"},
		{"90", 90 * time.Second, "1m30s"},
		{"1.5", 1500 * time.Millisecond, "1.5s"},
		{".5", 500 * time.Millisecond, "500ms"},
		{"5.", 5 * time.Second, "5s"},
		{"90s", 90 * time.Second, "1m30s"},
		{"90sec", 90 * time.Second, "1m30s"},
		{"5m", 5 * time.Minute, "5m"},
		{"5min", 5 * time.Minute, "5m"},
		{"1h30m", 90 * time.Minute, "1h30m"},
		{"30m1h", 90 * time.Minute, "1h30m"},
		{"1d", day, "1d"},
		{"36h", 36 * time.Hour, "1d12h"},
		{"2w", 14 * day, "14d"},
		{"1w2d3h4m5.006s", 9*day + 3*time.Hour + 4*time.Minute + 5006*time.Millisecond, "9d3h4m5.006s"},
		{"0.1d", 144 * time.Minute, "2h24m"},
		{"250ms", 250 * time.Millisecond, "250ms"},
		{"1us", time.Microsecond, "1µs"},
		{"1µs", time.Microsecond, "1µs"},
		{"1μs", time.Microsecond, "1µs"},
		{"1ns", 1, "1ns"},
		{"0.3ns", 0, "0s"},
		{"1.000000001", time.Second + 1, "1.000000001s"},
		{"+5s", 5 * time.Second, "5s"},
		{"-1s", -time.Second, "-1s"},
		{"-1h30m", -90 * time.Minute, "-1h30m"},
		{"36500d", maxDuration, "36500d"},
	} {
		got, err := parseDuration(test.in)
		if err != nil || got != test.want {
			t.Errorf("%q: %v, %v, want %v", test.in, got, err, test.want)
		}
		if p := formatDuration(got); p != test.prints {
			t.Errorf("%q prints as %q, want %q", test.in, p, test.prints)
		}
	}
	for in, want := range map[string]string{
		"": "not a duration", " ": "not a duration", "-": "not a duration", "+": "not a duration", "--1s": "not a duration", "+-1s": "not a duration", ".": "not a duration", ".s": "not a duration",
		"abc": "not a duration", "NaN": "not a duration", "Inf": "not a duration", "+Inf": "not a duration", "infinity": "not a duration",
		"1e9": "unknown unit", "1x": "unknown unit", "5 m": "not a duration", "5M": "not a duration", "1,5": "not a duration", "1h,5m": "not a duration", "0x10": "unknown unit", "1y": "unknown unit",
		"1h30": "ends in a number without a unit", "1.2.3": "not a duration", "36501d": "too long", "99999999999999999999": "too long", "9223372036854775807": "too long",
		strings.Repeat("9", 5000): "not a duration", "1d36499.99999d": "too long", "-99999999999999999999h": "too long",
	} {
		got, err := parseDuration(in)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30q: %v, %v, want %q", in, got, err, want)
		}
		if err != nil && len(err.Error()) > 250 {
			t.Errorf("%.30q: an error of %d bytes", in, len(err.Error()))
		}
	}
}

func TestDurationValue(t *testing.T) {
	v := &durationValue{d: time.Minute}
	for _, bad := range []string{"-1s", "-0.5", "0", "0s", "x"} {
		if err := v.Set(bad); err == nil || v.d != time.Minute {
			t.Errorf("%q: %v, and the value is %v", bad, err, v.d)
		}
	}
	v.zeroOK = true
	if err := v.Set("0"); err != nil || v.d != 0 {
		t.Errorf("0: %v, %v", err, v.d)
	}
	if (*durationValue)(nil).String() != "" || v.String() != "0s" {
		t.Errorf("prints as %q", v.String())
	}
}

// FuzzDuration: what is read prints so that it is read as the same, and Go's own notation
// means what it means to Go.
func FuzzDuration(f *testing.F) {
	for _, s := range []string{"90", "1.5", "90s", "5m", "1d", "2w", "1h30m", "-1s", "NaN", "Inf", "36500d", "99999999999w", "1.000000001s", "1µs", "1h30", ".5", "5."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseDuration(s)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x1b") {
				t.Fatalf("%q: the error isn't one line: %q", s, err)
			}
			return
		}
		if d > maxDuration || d < -maxDuration {
			t.Fatalf("%q: %v is out of range", s, d)
		}
		again, err := parseDuration(formatDuration(d))
		if err != nil || again != d {
			t.Fatalf("%q: %d prints as %q, which is %d (%v)", s, d, formatDuration(d), again, err)
		}
		if goes, err := time.ParseDuration(s); err == nil && goes-d > 1 || err == nil && d-goes > 1 {
			t.Fatalf("%q: %d, and %d for Go", s, d, goes)
		}
	})
}

// FuzzFormatDuration: every duration in range prints so that it is read as the same.
func FuzzFormatDuration(f *testing.F) {
	for _, n := range []int64{0, 1, -1, 999999999, 1000000000, math.MaxInt64, math.MinInt64, int64(maxDuration)} {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, n int64) {
		d := time.Duration(n)
		s := formatDuration(d)
		if d > maxDuration || d < -maxDuration {
			return
		}
		if again, err := parseDuration(s); err != nil || again != d {
			t.Fatalf("%d prints as %q, which is %d (%v)", d, s, again, err)
		}
	})
}
